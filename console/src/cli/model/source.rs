//! Resolves the source of a model: `hf:OWNER/REPO:FILE`, or a URL.

/// Base URL of Hugging Face, unless HF_ENDPOINT names a mirror.
const HUGGING_FACE: &str = "https://huggingface.co";

/// The URL of a source, and the name of the file.
///
/// # Errors
/// The reason why the source is invalid.
pub(crate) fn resolve(source: &str) -> Result<(String, String), String> {
    let endpoint = std::env::var("HF_ENDPOINT").ok().filter(|endpoint| !endpoint.is_empty());
    resolve_at(source, endpoint.as_deref().unwrap_or(HUGGING_FACE))
}

fn resolve_at(source: &str, endpoint: &str) -> Result<(String, String), String> {
    let refused = || format!("{source:?} does not name a file");
    let last = |path: &str| path.rsplit('/').next().filter(|name| !name.is_empty()).map(str::to_owned);
    let Some(hub) = source.strip_prefix("hf:") else {
        let Some((scheme, rest)) = source.split_once("://") else {
            return Err(format!("{source:?} is neither hf:OWNER/REPO:FILE nor a URL"));
        };
        if !matches!(scheme, "http" | "https") {
            return Err(format!("{scheme}:// is not supported; use https:// or http://"));
        }
        let path = rest.split(['?', '#']).next().unwrap_or_default();
        let name = path.split_once('/').and_then(|(_, path)| last(path)).ok_or_else(refused)?;
        return Ok((source.into(), name));
    };
    let plain =
        |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-/+".contains(&b));
    let (repository, file) = hub.split_once(':').ok_or_else(|| format!("{source:?} is not hf:OWNER/REPO:FILE"))?;
    let is_repository =
        repository.split('/').count() == 2 && !repository.starts_with('/') && !repository.ends_with('/');
    if !is_repository || !plain(repository) || !plain(file) || file.contains("..") {
        return Err(format!("{source:?} is not hf:OWNER/REPO:FILE"));
    }
    let name = last(file).ok_or_else(refused)?;
    Ok((format!("{}/{repository}/resolve/main/{file}", endpoint.trim_end_matches('/')), name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_resolve_to_urls_and_names() {
        let check = |source: &str| resolve_at(source, "https://mirror/").map_err(|_| ());
        let is = |url: &str, name: &str| Ok((url.to_owned(), name.to_owned()));
        assert_eq!(check("hf:o/r-GGUF:m.gguf"), is("https://mirror/o/r-GGUF/resolve/main/m.gguf", "m.gguf"));
        assert_eq!(check("hf:o/r:q4/m.gguf"), is("https://mirror/o/r/resolve/main/q4/m.gguf", "m.gguf"));
        assert_eq!(check("http://a:1/x/m.gguf?download=true"), is("http://a:1/x/m.gguf?download=true", "m.gguf"));
        for odd in [
            "",
            "m.gguf",
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
            assert_eq!(check(odd), Err(()), "{odd}");
        }
    }
}
