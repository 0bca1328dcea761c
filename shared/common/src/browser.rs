//! Decides whether a web page in a user's browser may have caused a request. A browser states in headers which host it
//! contacts (`Host`) and which page sent the request (`Origin`, `Sec-Fetch-Site`); pages cannot change these.
//! `brambled` and `console proxy` share this rule. Pure.
use std::net::{Ipv4Addr, Ipv6Addr};

/// Top-level names that no public registry assigns: only the local network resolves a node's name below them.
const PRIVATE_SUFFIXES: [&str; 6] = ["local", "lan", "home", "home.arpa", "internal", "localdomain"];
/// Longest host name.
const HOST_BYTES_MAX: usize = 255;
/// Longest part of a rejected header that a message shows, in characters.
const SHOWN_CHARS: usize = 100;

/// Host names under which a server may be addressed, and origins of pages that may use it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrowserPolicy {
    /// In lower case, without ports; `*` allows any.
    hosts: Vec<String>,
    /// In lower case; `*` allows any, `SCHEME://*` any of that scheme.
    origins: Vec<String>,
}

/// The headers that the decision depends on. A value that is not ASCII text is replaced by U+FFFD, which no rule
/// allows.
#[derive(Clone, Debug, Default)]
pub struct RequestHead<'a> {
    /// All values of `Host`, and the authority of a request target in absolute form.
    pub hosts: Vec<&'a str>,
    /// `Origin`: the page that sent the request.
    pub origin: Option<&'a str>,
    /// `Sec-Fetch-Site`: the relation between that page and this server.
    pub site: Option<&'a str>,
}

/// Why a request is rejected before its body is read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request used another name: a web page may have pointed that name at this address (DNS rebinding).
    #[error("{0:?} is not a name of this server; use its IP address or its own name, or add the name to {setting}", setting = HOSTS)]
    Host(String),
    /// The origin of the web page is not allowed.
    #[error("web pages of {0:?} may not use this server; to allow them, add that origin to {setting}", setting = ORIGINS)]
    Origin(String),
    /// A web page of another site sent the request without an origin.
    #[error("web pages of other sites may not use this server; send the request from a program, or add the page's origin to {setting}", setting = ORIGINS)]
    CrossSite,
    /// The body is not declared as JSON; pages of other sites can send other types without a preflight request.
    #[error("the body is declared as {0}; send it with Content-Type: application/json")]
    ContentType(String),
}

/// The settings that allow host names.
const HOSTS: &str = "http_hosts (console proxy: --host)";
/// The settings that allow origins.
const ORIGINS: &str = "http_origins (console proxy: --origin)";

impl Refusal {
    /// The HTTP status of the response.
    pub fn status(&self) -> u16 {
        if matches!(self, Self::ContentType(_)) { 415 } else { 403 }
    }

    /// Stable name in error responses.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Host(_) => "host_refused",
            Self::Origin(_) | Self::CrossSite => "origin_refused",
            Self::ContentType(_) => "content_type_refused",
        }
    }
}

impl BrowserPolicy {
    /// Creates a policy from the server's own names, further host names, and origins of pages. An own name is allowed
    /// alone and below `.local`, `.lan` and other suffixes that are never public.
    ///
    /// # Errors
    /// A string that is not a host name or not an origin.
    pub fn new(own: &[String], hosts: &[String], origins: &[String]) -> Result<Self, String> {
        let mut policy = Self::default();
        for name in own.iter().map(|name| name.to_ascii_lowercase()) {
            let short = name.split('.').next().unwrap_or_default().to_owned();
            policy.hosts.extend(PRIVATE_SUFFIXES.map(|suffix| format!("{short}.{suffix}")));
            policy.hosts.extend([short, name]);
        }
        policy.hosts.retain(|name| is_host(name));
        for host in hosts {
            if host != "*" && !is_host(host) {
                return Err(format!(
                    "host {host:?} is not a host name without a port; for example pi1.example.org, or * for any"
                ));
            }
            policy.hosts.push(host.to_ascii_lowercase());
        }
        for origin in origins {
            let is_good = origin == "*"
                || origin.split_once("://").is_some_and(|(scheme, rest)| {
                    !scheme.is_empty()
                        && !rest.is_empty()
                        && rest.len() <= HOST_BYTES_MAX
                        && rest.bytes().all(|byte| byte.is_ascii_graphic() && !b"/?#@".contains(&byte))
                });
            if !is_good {
                return Err(format!(
                    "origin {origin:?} is not SCHEME://HOST[:PORT]; for example https://chat.example.org, or * for any"
                ));
            }
            policy.origins.push(origin.to_ascii_lowercase());
        }
        Ok(policy)
    }

    /// Returns the origin of the allowed page that sent the request, or `None` if no page did. A page of this server
    /// itself is allowed.
    ///
    /// # Errors
    /// A web page may have caused the request.
    pub fn check<'a>(&self, head: &RequestHead<'a>) -> Result<Option<&'a str>, Refusal> {
        // Programs may omit Host (HTTP/1.0); browsers never do.
        if let Some(wrong) = head.hosts.iter().find(|host| !self.has_host(host, true)) {
            return Err(Refusal::Host(shown(wrong)));
        }
        match head.origin {
            Some(origin) if self.has_origin(origin) || self.is_own(origin, head) => Ok(Some(origin)),
            Some(origin) => Err(Refusal::Origin(shown(origin))),
            None if head.site.is_some_and(|site| !matches!(site, "same-origin" | "same-site" | "none")) => {
                Err(Refusal::CrossSite)
            }
            None => Ok(None),
        }
    }

    /// Whether this server itself served the page: host and port of the origin are those that the request was sent to.
    /// Behind a proxy with TLS they are not, because the scheme differs. A host that only `*` allows does not count: a
    /// page could have pointed its own name at this server (DNS rebinding).
    fn is_own(&self, origin: &str, head: &RequestHead<'_>) -> bool {
        let Some(authority) = origin.strip_prefix("http://") else { return false };
        head.site.is_none_or(|site| site == "same-origin")
            && !head.hosts.is_empty()
            && head.hosts.iter().all(|host| host.eq_ignore_ascii_case(authority) && self.has_host(host, false))
    }

    /// Whether a host is allowed; `*` counts only if `counts_any`.
    fn has_host(&self, authority: &str, counts_any: bool) -> bool {
        let authority = authority.trim();
        if let Some(rest) = authority.strip_prefix('[') {
            let Some((address, port)) = rest.split_once(']') else { return false };
            return is_port(port) && address.parse::<Ipv6Addr>().is_ok();
        }
        let (host, port) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        // An attacker's server cannot have bound a name to these: they are addresses, not names.
        is_port(port)
            && (host == "localhost"
                || host.parse::<Ipv4Addr>().is_ok()
                || self.hosts.iter().any(|known| *known == host || (counts_any && known == "*")))
    }

    fn has_origin(&self, origin: &str) -> bool {
        let origin = origin.to_ascii_lowercase();
        self.origins.iter().any(|known| match known.strip_suffix('*') {
            Some(beginning) => origin.starts_with(beginning),
            None => origin == *known,
        })
    }
}

/// Checks that the body of a request for `path` is declared as JSON. Clients of Ollama often declare nothing, which is enough
/// on their paths if no browser sent the request.
///
/// # Errors
/// It is not.
pub fn check_body(path: &str, content_type: Option<&str>, head: &RequestHead<'_>) -> Result<(), Refusal> {
    let is_silent = content_type.is_none() && head.origin.is_none() && head.site.is_none();
    if is_silent && path.starts_with("/api/") { Ok(()) } else { check_json(content_type) }
}

/// Checks that a body is declared as JSON. A page of another site can declare only plain text and forms without a
/// preflight request.
fn check_json(content_type: Option<&str>) -> Result<(), Refusal> {
    let kind = content_type.unwrap_or("nothing");
    let essence = kind.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") { Ok(()) } else { Err(Refusal::ContentType(shown(kind))) }
}

fn is_host(name: &str) -> bool {
    (1..=HOST_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
}

/// Empty, or a colon and a number.
fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(hosts: &[&str], origins: &[&str]) -> Result<BrowserPolicy, String> {
        let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        BrowserPolicy::new(&owned(&["Pi1", "kitchen.example.org"]), &owned(hosts), &owned(origins))
    }

    fn with_host(host: &str) -> RequestHead<'_> {
        RequestHead { hosts: vec![host], ..RequestHead::default() }
    }

    #[test]
    fn only_addresses_and_names_of_the_server_are_accepted() {
        let policy = policy(&["llm.example.org"], &[]).expect("it is good");
        for good in [
            "127.0.0.1:9980",
            "192.168.1.11",
            "[::1]:9980",
            "[fe80::1]",
            "localhost",
            "LOCALHOST:80",
            "localhost.:80",
            "pi1",
            "PI1:9980",
            "pi1.local:9980",
            "pi1.home.arpa",
            "kitchen.example.org",
            "kitchen.lan:1",
            "llm.example.org:443",
        ] {
            assert_eq!(policy.check(&with_host(good)), Ok(None), "{good}");
        }
        for bad in [
            "evil.example",
            "evil.example:9980",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "pi1.evil.example",
            "pi1.local.evil",
            "",
            ":80",
            "[::1",
            "[::1]evil.example",
            "[evil]",
            "127.0.0.1:80@evil",
            "pi1:80:80",
            "2130706433x",
            "\u{fffd}",
            "pi2",
        ] {
            assert_eq!(policy.check(&with_host(bad)), Err(Refusal::Host(bad.into())), "{bad}");
        }
        let two = RequestHead { hosts: vec!["localhost", "evil.example"], ..RequestHead::default() };
        assert_eq!(policy.check(&two), Err(Refusal::Host("evil.example".into())), "each of several counts");
        assert_eq!(policy.check(&RequestHead::default()), Ok(None), "HTTP/1.0 has none");
    }

    #[test]
    fn pages_are_refused_unless_their_origin_is_allowed() {
        let ask = |policy: &BrowserPolicy, origin, site| {
            let head = RequestHead { hosts: vec!["localhost"], origin, site };
            policy.check(&head).map(|origin| origin.map(str::to_owned))
        };
        let closed = policy(&[], &[]).expect("it is good");
        for origin in ["https://evil.example", "null", "http://localhost:3000", "http://127.0.0.1:9980", ""] {
            for site in [None, Some("cross-site"), Some("same-origin")] {
                assert_eq!(ask(&closed, Some(origin), site), Err(Refusal::Origin(origin.into())), "{origin}");
            }
        }
        assert_eq!(ask(&closed, None, Some("cross-site")), Err(Refusal::CrossSite));
        assert_eq!(ask(&closed, None, Some("none")), Ok(None), "typed into the address bar");
        assert_eq!(ask(&closed, None, None), Ok(None), "a program");
        let open = policy(&[], &["https://chat.example.org", "vscode-webview://*"]).expect("it is good");
        for good in ["https://chat.example.org", "https://CHAT.example.org", "vscode-webview://a1b2"] {
            assert_eq!(ask(&open, Some(good), Some("cross-site")), Ok(Some(good.into())));
        }
        for bad in ["http://chat.example.org", "https://chat.example.org:444", "https://chat.example.org.evil", "null"]
        {
            assert_eq!(ask(&open, Some(bad), None), Err(Refusal::Origin(bad.into())));
        }
        let any = policy(&["*"], &["*"]).expect("it is good");
        assert_eq!(ask(&any, Some("null"), Some("cross-site")), Ok(Some("null".into())));
        assert_eq!(any.check(&with_host("evil.example")), Ok(None));
    }

    #[test]
    fn page_of_the_server_itself_is_allowed_under_its_names_only() {
        let closed = policy(&["llm.example.org"], &[]).expect("it is good");
        let any = policy(&["*"], &[]).expect("it is good");
        let ask = |policy: &BrowserPolicy, hosts: &[&'static str], origin, site| {
            let head = RequestHead { hosts: hosts.to_vec(), origin: Some(origin), site };
            policy.check(&head).is_ok()
        };
        for (host, origin) in [
            ("127.0.0.1:9980", "http://127.0.0.1:9980"),
            ("[::1]:9980", "http://[::1]:9980"),
            ("PI1.local:9980", "http://pi1.local:9980"),
            ("pi1", "http://pi1"),
            ("llm.example.org", "http://llm.example.org"),
        ] {
            for site in [None, Some("same-origin")] {
                assert!(ask(&closed, &[host], origin, site), "{host} {origin}");
                assert!(ask(&closed, &[host, host], origin, site), "an absolute URL repeats the host");
            }
            for site in ["same-site", "cross-site", "none"] {
                assert!(!ask(&closed, &[host], origin, Some(site)), "{host} {origin} {site}");
            }
        }
        for (hosts, origin) in [
            (&["127.0.0.1:9980"][..], "http://127.0.0.1"),
            (&["127.0.0.1:9980"], "http://127.0.0.1:3000"),
            (&["127.0.0.1:9980"], "https://127.0.0.1:9980"),
            (&["127.0.0.1:9980"], "http://localhost:9980"),
            (&["127.0.0.1:9980"], "127.0.0.1:9980"),
            (&["127.0.0.1:9980"], "http://127.0.0.1:9980/"),
            (&["evil.example:9980"], "http://evil.example:9980"),
            (&["evil.example:9980", "127.0.0.1:9980"], "http://127.0.0.1:9980"),
            (&["127.0.0.1:9980", "pi1:9980"], "http://127.0.0.1:9980"),
            (&[""], "http://"),
            (&[], "http://127.0.0.1:9980"),
        ] {
            assert!(!ask(&closed, hosts, origin, None), "{hosts:?} {origin}");
        }
        assert!(!ask(&any, &["evil.example:9980"], "http://evil.example:9980", None), "it may be rebound");
        assert!(ask(&any, &["pi1:9980"], "http://pi1:9980", None));
    }

    #[test]
    fn only_a_body_declared_as_json_is_read() {
        for good in ["application/json", "Application/JSON; charset=utf-8", "application/json;"] {
            assert_eq!(check_json(Some(good)), Ok(()), "{good}");
        }
        for bad in [
            "text/plain",
            "text/plain; application/json",
            "application/x-www-form-urlencoded",
            "multipart/form-data",
            "",
        ] {
            let refused = check_json(Some(bad)).expect_err("it is refused");
            assert!(refused.status() == 415 && refused.to_string().contains("application/json"), "{refused}");
        }
        assert!(check_json(None).is_err());
    }

    #[test]
    fn settings_that_are_no_host_or_origin_are_refused_by_name() {
        for host in ["", "pi1:9980", "http://pi1", "a b", "*.example.org"] {
            assert!(policy(&[host], &[]).is_err_and(|why| why.contains(&format!("{host:?}"))), "{host}");
        }
        for origin in ["", "chat.example.org", "https://", "https://a/b", "://a"] {
            assert!(policy(&[], &[origin]).is_err_and(|why| why.contains(&format!("{origin:?}"))), "{origin}");
        }
    }
}
