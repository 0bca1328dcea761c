//! The source of a model file on a server: `hf:OWNER/REPO:FILE`, or a URL.

/// Base URL of Hugging Face.
const HUGGING_FACE: &str = "https://huggingface.co";

/// Base URL of the repositories: Hugging Face, or the mirror that `HF_ENDPOINT` names.
pub fn hub() -> String {
    std::env::var("HF_ENDPOINT").ok().filter(|endpoint| !endpoint.is_empty()).unwrap_or_else(|| HUGGING_FACE.into())
}

/// The URL of a source on a server, and the name of the file.
///
/// # Errors
/// It is neither; the reason.
pub fn url_at(source: &str, endpoint: &str) -> Result<(String, String), String> {
    let refused = || format!("{source:?} does not name a file");
    let Some(hub) = source.strip_prefix("hf:") else {
        let (scheme, rest) = source.split_once("://").ok_or_else(refused)?;
        if !matches!(scheme, "http" | "https") {
            return Err(format!("{scheme}:// is not supported; use https:// or http://"));
        }
        let path = rest.split(['?', '#']).next().unwrap_or_default();
        let name = path.split_once('/').and_then(|(_, path)| last_part(path)).ok_or_else(refused)?;
        return Ok((source.into(), name));
    };
    let (repository, file) = hub.split_once(':').ok_or_else(|| format!("{source:?} is not hf:OWNER/REPO:FILE"))?;
    let is_repository =
        repository.split('/').count() == 2 && !repository.starts_with('/') && !repository.ends_with('/');
    if !is_repository || !is_plain(repository) || !is_plain(file) || file.contains("..") {
        return Err(format!("{source:?} is not hf:OWNER/REPO:FILE"));
    }
    let name = last_part(file).ok_or_else(refused)?;
    let url = format!("{}/{repository}/resolve/main/{file}", endpoint.trim_end_matches('/'));
    Ok((url, name))
}

/// The URL of a file of a split model, from the URL of its file `name`: all of them lie in one folder of the server.
pub fn url_of_part(url: &str, name: &str, part: &str) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let folder = url[..end].strip_suffix(name);
    folder.map_or_else(|| url.to_owned(), |folder| format!("{folder}{part}{}", &url[end..]))
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
    fn files_of_a_split_model_are_next_to_each_other() {
        let [first, second] = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];
        for (begin, end) in [("https://a/o/r/resolve/main/q4/", ""), ("http://a:1/", "?download=true&name=x.gguf")] {
            let url = url_of_part(&format!("{begin}{first}{end}"), first, second);
            assert_eq!(url, format!("{begin}{second}{end}"));
        }
        assert_eq!(url_of_part("https://a/other.gguf?b=c", first, second), "https://a/other.gguf?b=c");
    }

    #[test]
    fn sources_resolve_to_urls_and_names() {
        for (source, url, name) in [
            ("hf:o/r-GGUF:m.gguf", "https://mirror/o/r-GGUF/resolve/main/m.gguf", "m.gguf"),
            ("hf:o/r:q4/m.gguf", "https://mirror/o/r/resolve/main/q4/m.gguf", "m.gguf"),
            ("http://a:1/x/m.gguf?download=true", "http://a:1/x/m.gguf?download=true", "m.gguf"),
        ] {
            assert_eq!(url_at(source, "https://mirror/"), Ok((url.into(), name.into())), "{source}");
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
            assert!(url_at(odd, "https://mirror/").is_err(), "{odd}");
        }
    }
}
