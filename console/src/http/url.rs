//! URLs of HTTP servers: `http://HOST[:PORT][/v1]`.
use std::str::FromStr;

use super::HttpError;

/// The default port of a node's API.
pub const HTTP_PORT: u16 = 9980;

/// The URL of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// `HOST:PORT` to connect to; IPv6 addresses in brackets.
    pub authority: String,
    /// Prefix of the API paths: empty, or starts with a slash and does not end with one.
    pub prefix: String,
}

impl Url {
    /// The request target for an API path, which must start with a slash.
    pub fn target(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }
}

impl FromStr for Url {
    type Err = HttpError;

    /// Parses `[http://]HOST[:PORT][/PREFIX]`. Removes a `/v1` at the end, which base URLs of the OpenAI API have.
    fn from_str(text: &str) -> Result<Self, HttpError> {
        let fail = |reason| Err(HttpError::Url { url: text.into(), reason });
        if text.get(..8).is_some_and(|start| start.eq_ignore_ascii_case("https://")) {
            return fail("https is not supported, only http");
        }
        let rest = text.strip_prefix("http://").unwrap_or(text);
        if rest.contains("://") {
            return fail("only http is supported");
        }
        let (host, path) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
        let is_plain = rest.bytes().all(|byte| byte.is_ascii_graphic());
        if host.is_empty() || !is_plain || rest.contains(['?', '#', '@']) || rest.len() > 512 {
            return fail("expected http://HOST[:PORT]");
        }
        let port = host.rsplit_once(':').filter(|_| !host.ends_with(']'));
        let authority = match port {
            Some((name, port)) if name.is_empty() || name.contains(':') && !name.ends_with(']') || port.is_empty() => {
                return fail("expected http://HOST[:PORT], with IPv6 addresses in brackets");
            }
            Some((_, port)) => match port.parse::<u16>() {
                Ok(1..) => host.to_owned(),
                _ => return fail("expected a port from 1 to 65535"),
            },
            None => format!("{host}:{HTTP_PORT}"),
        };
        let prefix = path.trim_end_matches('/');
        let prefix = prefix.strip_suffix("/v1").unwrap_or(prefix).trim_end_matches('/');
        Ok(Self { authority, prefix: prefix.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_urls_of_the_openai_api_are_parsed() {
        let read = |text: &str| text.parse::<Url>().map(|url| (url.authority.clone(), url.target("/v1/models")));
        let right = |authority: &str, target: &str| Ok((authority.to_owned(), target.to_owned()));
        assert_eq!(read("http://pi1:8080"), right("pi1:8080", "/v1/models"));
        assert_eq!(read("http://pi1:8080/v1/"), right("pi1:8080", "/v1/models"));
        assert_eq!(read("http://pi1/bramble/v1"), right("pi1:9980", "/bramble/v1/models"));
        assert_eq!(read("pi1"), right("pi1:9980", "/v1/models"));
        assert_eq!(read("http://[::1]"), right("[::1]:9980", "/v1/models"));
        assert_eq!(read("http://[::1]:80"), right("[::1]:80", "/v1/models"));
        for wrong in [
            "",
            "http://",
            "http://:80",
            "http://a:b",
            "http://a:0",
            "http://::1:80",
            "http://a b",
            "ftp://a",
            "http://a:80?x",
            "http://user@a",
        ] {
            assert!(matches!(read(wrong), Err(HttpError::Url { .. })), "{wrong}");
        }
        let https = read("https://pi1").expect_err("https is refused");
        assert!(https.to_string().contains("https is not supported"), "{https}");
    }
}
