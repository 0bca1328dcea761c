//! The source of a model file: the short name of a well-known model, `hf:OWNER/REPO:FILE`, a URL, or a file on this
//! machine.
use std::path::PathBuf;

use assignment::source::{hub, url_at};
use protocol::models::check_name;

use crate::{
    catalogue::{self, CatalogueEntry, CatalogueFile, Resolved},
    cli::{
        Failure,
        shared::{choose::choose, output},
    },
};

/// The next step after a wrong source.
const EXAMPLE: &str = "name a model that console model search lists, or the file of a repository, for example \
                       hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Llama-3.2-1B-Instruct-Q4_K_M.gguf";
/// The next step after an unknown short name.
const SEARCH: &str = "console model search lists the known models; a file of any repository is hf:OWNER/REPO:FILE";

/// Where a model file comes from, unless it is on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ModelSource {
    /// A server; `name` is the last part of the path.
    Url {
        /// The file's URL.
        url: String,
        /// The file's name there.
        name: String,
    },
    /// A file on this machine.
    File(PathBuf),
}

impl ModelSource {
    /// The name of the file at its source.
    pub(super) fn file_name(&self) -> String {
        match self {
            Self::Url { name, .. } => name.clone(),
            Self::File(path) => path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
        }
    }
}

/// Whether a source is on a server.
pub(super) fn is_remote(source: &str) -> bool {
    source.starts_with("hf:") || source.contains("://")
}

/// The source that the operator named. A short name that means several models is asked about on a terminal.
///
/// # Errors
/// It is neither a known name, nor a valid source on a server, nor a file on this machine.
pub(super) async fn resolve(source: &str) -> Result<ModelSource, Failure> {
    if is_remote(source) {
        return url(source);
    }
    let path = PathBuf::from(source);
    if path.is_file() {
        return Ok(ModelSource::File(path));
    }
    if source.ends_with(".gguf") || source.contains(['/', '\\']) {
        return Err(no_file(source));
    }
    url(well_known(source).await?.source)
}

fn url(source: &str) -> Result<ModelSource, Failure> {
    let (url, name) = of_server(source)?;
    Ok(ModelSource::Url { url, name })
}

/// The URL of `hf:OWNER/REPO:FILE` or of a URL, and the file's name there.
///
/// # Errors
/// It is neither.
pub(super) fn of_server(source: &str) -> Result<(String, String), Failure> {
    url_at(source, &hub()).map_err(|message| Failure::Usage { message, next: EXAMPLE })
}

fn no_file(source: &str) -> Failure {
    let message = format!(
        "{source:?} is neither hf:OWNER/REPO:FILE, nor a URL (https://.. or http://..), nor a file on this machine; \
         the name of a file on a node needs --from NODE"
    );
    Failure::Usage { message, next: EXAMPLE }
}

/// The file of the catalogue with this short name.
async fn well_known(name: &str) -> Result<&'static CatalogueFile, Failure> {
    match catalogue::resolve(name) {
        Resolved::One(_, file) => Ok(file),
        Resolved::NoSuchFile(entry) => Err(no_such_file(name, entry)),
        Resolved::Several(entries) => {
            let (mut rows, mut files) = (Vec::new(), Vec::new());
            for &entry in &entries {
                let Some(file) = catalogue::file_of(entry, name) else { continue };
                rows.push(format!("{:<24} {:>8}  {}", entry.name, file.size(), file.quantisation));
                files.push(file);
            }
            if files.is_empty() {
                return Err(several(name, &entries));
            }
            let chosen = choose(&format!("models that match {name}:"), &rows, None).await?;
            chosen.and_then(|place| files.get(place).copied()).ok_or_else(|| several(name, &entries))
        }
        Resolved::Unknown(alike) => Err(unknown(name, &alike)),
    }
}

/// `no model is named "lama-3.2"; did you mean llama-3.2-1b, llama-3.2-3b?`
fn unknown(name: &str, alike: &[&str]) -> Failure {
    let meant = if alike.is_empty() { String::new() } else { format!("; did you mean {}?", alike.join(", ")) };
    Failure::Usage { message: format!("no model is named {name:?}{meant}"), next: SEARCH }
}

/// The model has no file of the typed quantisation.
pub(super) fn no_such_file(typed: &str, entry: &CatalogueEntry) -> Failure {
    let files: Vec<&str> = entry.files.iter().map(|file| file.quantisation).collect();
    let message = format!("{typed:?} is not in the catalogue: it has {} as {} only", entry.name, files.join(", "));
    Failure::Usage { message, next: SEARCH }
}

/// The name matches several models, or only a part of a word of one, and there is no terminal to ask on.
pub(super) fn several(typed: &str, entries: &[&CatalogueEntry]) -> Failure {
    let names: Vec<&str> = entries.iter().map(|entry| entry.name).collect();
    if names.len() == 1 {
        return unknown(typed, &names);
    }
    Failure::Usage {
        message: format!("{} matches several models of the catalogue: {}", output::clean(typed), names.join(", ")),
        next: "name one of them; console model search WORD shows their sizes",
    }
}

/// Checks that `--from` was given with the name of a file.
///
/// # Errors
/// It is another kind of source, or no valid name.
pub(super) fn check_on_node(source: &str) -> Result<(), Failure> {
    let next = "name a file that the node has, or remove --from; console model list shows the files";
    if is_remote(source) {
        let message = format!("--from copies a file between nodes, but {source:?} is on a server");
        return Err(Failure::Usage { message, next });
    }
    check_name(source).map_err(|message| Failure::Usage { message: format!("--from: {message}"), next })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn path_is_a_source_if_the_file_exists() {
        let folder = tempfile::tempdir().expect("create a temporary folder");
        let path = folder.path().join("m.gguf");
        let text = path.display().to_string();
        for missing in [&text, "m.gguf", &folder.path().display().to_string()] {
            let failure = resolve(missing).await.expect_err("there is no such file");
            let message = failure.to_string();
            assert_eq!(failure.code(), 2);
            for form in ["hf:OWNER/REPO:FILE", "https://.. or http://..", "a file on this machine", "--from NODE"] {
                assert!(message.contains(form), "{form} is not in {message}");
            }
        }
        std::fs::write(&path, "x").expect("write it");
        let source = resolve(&text).await.expect("the file exists");
        assert_eq!((source.file_name().as_str(), &source), ("m.gguf", &ModelSource::File(path)));
    }

    #[tokio::test]
    async fn short_name_is_a_source_and_a_similar_one_is_a_question() {
        let known = resolve("Qwen3.5-4B:q8_0").await.expect("it is in the catalogue");
        assert_eq!(known.file_name(), "Qwen3.5-4B-Q8_0.gguf");
        for (typed, message) in [
            (
                "lamma-3.2-1b",
                r#"no model is named "lamma-3.2-1b"; did you mean llama-3.2-1b, gemma-3-1b, llama-3.2-3b?"#,
            ),
            ("bloom", r#"no model is named "bloom""#),
            ("qwen3.5-4b:q2_k", r#""qwen3.5-4b:q2_k" is not in the catalogue: it has qwen3.5-4b as Q4_K_M, Q8_0 only"#),
        ] {
            let failure = resolve(typed).await.expect_err(typed);
            assert_eq!((failure.code(), failure.to_string().as_str()), (2, message));
            assert!(failure.json()["error"]["next"].as_str().is_some_and(|next| next.contains("model search")));
        }
        let Resolved::Several(entries) = catalogue::resolve("llama3.2") else { panic!("it matches two models") };
        assert_eq!(
            several("llama3.2", &entries).to_string(),
            "llama3.2 matches several models of the catalogue: llama-3.2-1b, llama-3.2-3b"
        );
        assert_eq!(
            several("llama3.2", &entries[..1]).to_string(),
            r#"no model is named "llama3.2"; did you mean llama-3.2-1b?"#
        );
    }

    #[test]
    fn copy_between_nodes_takes_only_a_file_name() {
        assert!(check_on_node("m.gguf").is_ok());
        for odd in ["hf:o/r:m.gguf", "http://a/m.gguf", "./m.gguf"] {
            let failure = check_on_node(odd).expect_err(odd);
            assert!(failure.code() == 2 && failure.to_string().contains("--from"), "{failure}");
        }
    }
}
