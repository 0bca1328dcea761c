//! The source of a model file: `hf:OWNER/REPO:FILE`, a URL, or a file on this machine.
use std::path::PathBuf;

use assignment::source::{hub, url_at};
use protocol::models::check_name;

use crate::cli::Failure;

/// The next step after a wrong source.
const EXAMPLE: &str = "name the file of a repository, for example \
                       hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Llama-3.2-1B-Instruct-Q4_K_M.gguf";

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
fn is_remote(source: &str) -> bool {
    source.starts_with("hf:") || source.contains("://")
}

/// The source that the operator named.
///
/// # Errors
/// It is neither a valid source on a server nor a file on this machine.
pub(super) fn resolve(source: &str) -> Result<ModelSource, Failure> {
    if is_remote(source) {
        let url = url_at(source, &hub()).map(|(url, name)| ModelSource::Url { url, name });
        return url.map_err(|message| Failure::Usage { message, next: EXAMPLE });
    }
    let path = PathBuf::from(source);
    if path.is_file() {
        return Ok(ModelSource::File(path));
    }
    let message = format!(
        "{source:?} is neither hf:OWNER/REPO:FILE, nor a URL (https://.. or http://..), nor a file on this machine; \
         the name of a file on a node needs --from NODE"
    );
    Err(Failure::Usage { message, next: EXAMPLE })
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

    #[test]
    fn path_is_a_source_if_the_file_exists() {
        let folder = tempfile::tempdir().expect("create a temporary folder");
        let path = folder.path().join("m.gguf");
        let text = path.display().to_string();
        for missing in [&text, "", "m", &folder.path().display().to_string()] {
            let failure = resolve(missing).expect_err("there is no such file");
            let message = failure.to_string();
            assert_eq!(failure.code(), 2);
            for form in ["hf:OWNER/REPO:FILE", "https://.. or http://..", "a file on this machine", "--from NODE"] {
                assert!(message.contains(form), "{form} is not in {message}");
            }
        }
        std::fs::write(&path, "x").expect("write it");
        let source = resolve(&text).expect("the file exists");
        assert_eq!((source.file_name().as_str(), &source), ("m.gguf", &ModelSource::File(path)));
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
