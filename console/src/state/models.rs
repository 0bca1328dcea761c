//! The list of model files from which an operator chooses one to load: which files exist, and on which nodes.
use common::fault::Fault;
use protocol::models::{FileState, ModelFile, family, files_of};

use super::clean::clean_line;

/// A model that is complete on at least one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelChoice {
    /// File name; of a split model the first file.
    pub model: String,
    /// Size of all its files in bytes.
    pub bytes: u64,
    /// List indices of the nodes that have it.
    pub nodes: Vec<usize>,
}

/// The open list.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelList {
    /// The models, sorted by name.
    pub choices: Vec<ModelChoice>,
    /// Name of the selected model; `None` = the first one.
    pub selected: Option<String>,
    /// List indices of the nodes that have not answered yet.
    pub waiting: Vec<usize>,
    /// Nodes that could not list their files, and why.
    pub faults: Vec<(usize, String)>,
    /// The name given to `:load`, until all nodes have answered.
    pub requested: Option<String>,
    /// The model that the planner is working on.
    pub planning: Option<String>,
}

impl ModelList {
    /// A list that waits for these nodes.
    pub fn new(nodes: Vec<usize>, requested: Option<String>) -> Self {
        Self { choices: Vec::new(), selected: None, waiting: nodes, faults: Vec::new(), requested, planning: None }
    }

    /// Adds the answer of a node.
    pub fn answered(&mut self, node: usize, answer: Result<Vec<ModelFile>, Fault>) {
        if !self.waiting.contains(&node) {
            return;
        }
        self.waiting.retain(|waiting| *waiting != node);
        match answer {
            Ok(files) => complete_models(&files).into_iter().for_each(|(model, bytes)| self.add(node, model, bytes)),
            Err(fault) => self.faults.push((node, clean_line(&fault.kind.to_string()))),
        }
    }

    fn add(&mut self, node: usize, model: String, bytes: u64) {
        match self.choices.binary_search_by(|choice| choice.model.cmp(&model)) {
            Ok(place) => self.choices[place].nodes.push(node),
            Err(place) => self.choices.insert(place, ModelChoice { model, bytes, nodes: vec![node] }),
        }
    }

    /// Index of the selected model.
    pub fn place(&self) -> usize {
        self.choices.iter().position(|choice| Some(&choice.model) == self.selected.as_ref()).unwrap_or(0)
    }

    /// The selected model.
    pub fn choice(&self) -> Option<&ModelChoice> {
        self.choices.get(self.place())
    }

    /// The model with this file name; the suffix `.gguf` and the part number of a split model may be left out.
    pub fn find(&self, name: &str) -> Option<&ModelChoice> {
        let stem = name.strip_suffix(".gguf").unwrap_or(name);
        self.choices.iter().find(|choice| choice.model == name || family(&choice.model) == stem)
    }
}

/// Name and size of the models of which a node has every file.
pub fn complete_models(files: &[ModelFile]) -> Vec<(String, u64)> {
    let mut models: Vec<(String, u64)> = Vec::new();
    for file in files {
        let parts = files_of(&file.model);
        let is_first = parts.first() == Some(&file.model);
        if let (true, Some(sizes)) = (
            is_first,
            parts
                .iter()
                .map(|name: &String| {
                    let file = files.iter().find(|file| file.model == *name && file.state == FileState::Complete);
                    file.map(|file| file.size.0)
                })
                .collect::<Option<Vec<u64>>>(),
        ) && !models.iter().any(|(known, _)| *known == file.model)
        {
            models.push((file.model.clone(), sizes.iter().sum()));
        }
    }
    models
}

#[cfg(test)]
mod tests {
    use common::units::Bytes;

    use super::*;

    fn file(model: &str, bytes: u64, state: FileState) -> ModelFile {
        let folder = "/models".to_owned();
        ModelFile {
            model: model.into(),
            folder,
            size: Bytes(bytes),
            state,
            identity: None,
            sha256: None,
            content: None,
        }
    }

    #[test]
    fn only_complete_models_are_listed_with_their_nodes() {
        let mut list = ModelList::new(vec![0, 1], None);
        let parts = ["big-00001-of-00002.gguf", "big-00002-of-00002.gguf"];
        let small = || file("small.gguf", 5, FileState::Complete);
        list.answered(1, Ok(vec![small(), file(parts[0], 1, FileState::Complete)]));
        let all = parts.map(|part| file(part, 7, FileState::Complete));
        list.answered(0, Ok([all.to_vec(), vec![small(), file("half.gguf", 3, FileState::Partial)]].concat()));
        let found: Vec<_> =
            list.choices.iter().map(|choice| (choice.model.as_str(), choice.bytes, choice.nodes.as_slice())).collect();
        assert_eq!(found, [(parts[0], 14, &[0][..]), ("small.gguf", 5, &[1, 0][..])]);
        assert_eq!(list.find("big").map(|choice| choice.model.as_str()), Some(parts[0]));
        assert_eq!(list.find("small").map(|choice| choice.bytes), Some(5));
        assert!(list.find("half").is_none() && list.waiting.is_empty());
    }
}
