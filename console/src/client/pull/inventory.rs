//! Which nodes have which files of a model.
use std::sync::Arc;

use common::fault::{Fault, FaultKind};
use protocol::models::{FileState, ModelFile, files_of};

use crate::client::{models, session::Session};

/// The files of a model that some nodes have, by the index of their session.
pub(super) struct Inventory {
    /// Of each node as [`held`] returns it.
    nodes: Vec<Vec<Option<ModelFile>>>,
}

impl Inventory {
    /// Asks all nodes.
    ///
    /// # Errors
    /// Those of [`held`].
    pub(super) async fn of(sessions: &[Arc<Session>], names: &[String]) -> Result<Self, Fault> {
        let mut nodes = Vec::with_capacity(sessions.len());
        for session in sessions {
            nodes.push(held(session, names).await?);
        }
        Ok(Self { nodes })
    }

    /// The file at `place` on a node.
    pub(super) fn file(&self, node: usize, place: usize) -> Option<&ModelFile> {
        self.nodes[node][place].as_ref()
    }

    /// Of each file whether a node has it.
    pub(super) fn has(&self, node: usize) -> Vec<bool> {
        self.nodes[node].iter().map(Option::is_some).collect()
    }

    /// The places of the files that a node lacks.
    pub(super) fn lacking(&self, node: usize) -> Vec<usize> {
        let files = self.nodes[node].iter().enumerate().filter(|(_, file)| file.is_none());
        files.map(|(place, _)| place).collect()
    }

    /// A node that has the file at `place`.
    pub(super) fn holder(&self, place: usize) -> Option<usize> {
        self.nodes.iter().position(|files| files[place].is_some())
    }

    /// The node that has the most files, of equal ones the first; `None` without nodes.
    pub(super) fn fullest(&self) -> Option<usize> {
        // Of equal ones, `max_by_key` returns the last.
        (0..self.nodes.len()).rev().max_by_key(|node| self.nodes[*node].iter().flatten().count())
    }

    /// The sizes in bytes of so many files, as far as a node has them.
    pub(super) fn sizes(&self, count: usize) -> Vec<Option<u64>> {
        (0..count).map(|place| self.nodes.iter().find_map(|files| Some(files[place].as_ref()?.size.0))).collect()
    }
}

/// The files of a model that a node has, in the order of `names`; `None` for those that it lacks or has only partly.
///
/// # Errors
/// The node cannot list its files, or they are damaged: a transfer does not replace them.
pub async fn held(session: &Session, names: &[String]) -> Result<Vec<Option<ModelFile>>, Fault> {
    let files = models::list(session).await?;
    let held: Vec<Option<ModelFile>> = names
        .iter()
        .map(|name| files.iter().find(|file| file.model == *name && file.state != FileState::Partial).cloned())
        .collect();
    match damage(&held) {
        Some(kind) => Err(Fault::new(&session.identity.name, kind)),
        None => Ok(held),
    }
}

/// Why a node cannot use a model of which it has all files. The first file of a split model counts as broken as long as
/// a later one is missing.
fn damage(held: &[Option<ModelFile>]) -> Option<FaultKind> {
    let first = held.first()?.as_ref()?;
    let is_whole = held.iter().all(Option::is_some) && files_of(&first.model).len() == held.len();
    match &first.state {
        FileState::Broken(reason) if is_whole => {
            Some(FaultKind::ModelInvalid { model: first.model.clone(), reason: reason.clone() })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use common::units::Bytes;

    use super::*;

    fn file(model: &str, state: FileState) -> Option<ModelFile> {
        let (model, folder) = (model.to_owned(), "/models".to_owned());
        Some(ModelFile { model, folder, size: Bytes(9), state, identity: None, sha256: None, content: None })
    }

    #[test]
    fn node_with_the_most_files_gathers_the_others() {
        let [one, two, three] =
            [1, 2, 3].map(|part| file(&format!("big-0000{part}-of-00003.gguf"), FileState::Complete));
        let most = vec![one, two, None];
        let inventory = Inventory { nodes: vec![vec![None, None, three], most.clone(), most] };
        assert_eq!((inventory.fullest(), inventory.lacking(1), inventory.holder(2)), (Some(1), vec![2], Some(0)));
        assert_eq!((inventory.has(0), inventory.sizes(3)), (vec![false, false, true], vec![Some(9); 3]));
        let empty = Inventory { nodes: vec![vec![None], vec![None]] };
        assert_eq!((empty.fullest(), empty.holder(0), empty.sizes(1)), (Some(0), None, vec![None]));
        assert_eq!(Inventory { nodes: Vec::new() }.fullest(), None);
    }

    #[test]
    fn damage_is_known_only_of_all_files_of_a_model() {
        let broken = || FileState::Broken("part 2 of 2 is missing".into());
        let [first, second] = ["big-00001-of-00002.gguf", "big-00002-of-00002.gguf"];
        assert_eq!(damage(&[file(first, broken()), None]), None);
        assert_eq!(damage(&[file(first, broken())]), None, "a single file of the model was asked for");
        let whole = damage(&[file(first, broken()), file(second, FileState::Complete)]);
        assert!(matches!(whole, Some(FaultKind::ModelInvalid { model, .. }) if model == first));
        assert!(damage(&[file("a.gguf", broken())]).is_some());
        assert_eq!(damage(&[file("a.gguf", FileState::Complete)]), None);
        assert_eq!(damage(&[None]), None);
    }
}
