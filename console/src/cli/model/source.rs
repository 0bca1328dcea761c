//! The source of a model file: `hf:OWNER/REPO:FILE`, a URL, or a file on this machine.
use std::path::PathBuf;

use protocol::models::check_name;

use crate::cli::Failure;

/// Base URL of Hugging Face, unless HF_ENDPOINT names a mirror.
const HUGGING_FACE: &str = "https://huggingface.co";
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
        let endpoint = std::env::var("HF_ENDPOINT").ok().filter(|endpoint| !endpoint.is_empty());
        let url = url_at(source, endpoint.as_deref().unwrap_or(HUGGING_FACE));
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

/// The URL of a source on a server, and the name of the file.
fn url_at(source: &str, endpoint: &str) -> Result<ModelSource, String> {
    let refused = || format!("{source:?} does not name a file");
    let Some(hub) = source.strip_prefix("hf:") else {
        let (scheme, rest) = source.split_once("://").ok_or_else(refused)?;
        if !matches!(scheme, "http" | "https") {
            return Err(format!("{scheme}:// is not supported; use https:// or http://"));
        }
        let path = rest.split(['?', '#']).next().unwrap_or_default();
        let name = path.split_once('/').and_then(|(_, path)| last_part(path)).ok_or_else(refused)?;
        return Ok(ModelSource::Url { url: source.into(), name });
    };
    let (repository, file) = hub.split_once(':').ok_or_else(|| format!("{source:?} is not hf:OWNER/REPO:FILE"))?;
    let is_repository =
        repository.split('/').count() == 2 && !repository.starts_with('/') && !repository.ends_with('/');
    if !is_repository || !is_plain(repository) || !is_plain(file) || file.contains("..") {
        return Err(format!("{source:?} is not hf:OWNER/REPO:FILE"));
    }
    let name = last_part(file).ok_or_else(refused)?;
    let url = format!("{}/{repository}/resolve/main/{file}", endpoint.trim_end_matches('/'));
    Ok(ModelSource::Url { url, name })
}

/// The last part of a path, unless it is empty.
fn last_part(path: &str) -> Option<String> {
    path.rsplit('/').next().filter(|name| !name.is_empty()).map(str::to_owned)
}

/// Whether a repository or file name needs no escaping in a URL.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/+".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_resolve_to_urls_and_names() {
        for (source, url, name) in [
            ("hf:o/r-GGUF:m.gguf", "https://mirror/o/r-GGUF/resolve/main/m.gguf", "m.gguf"),
            ("hf:o/r:q4/m.gguf", "https://mirror/o/r/resolve/main/q4/m.gguf", "m.gguf"),
            ("http://a:1/x/m.gguf?download=true", "http://a:1/x/m.gguf?download=true", "m.gguf"),
        ] {
            let expected = ModelSource::Url { url: url.into(), name: name.into() };
            assert_eq!(url_at(source, "https://mirror/"), Ok(expected), "{source}");
        }
        for odd in [
            "hf:",
            "hf:o:m",
            "hf:o/r",
            "hf:o/r:",
            "hf:o/r/x:m",
            "hf:/r:m",
            "hf:o/r:../m",
            "ftp://a/m",
            "https://a",
            "https://a/",
            "hf:o/r:m?x",
        ] {
            assert!(is_remote(odd) && url_at(odd, "https://mirror/").is_err(), "{odd}");
        }
    }

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
