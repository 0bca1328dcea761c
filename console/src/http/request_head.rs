//! Parses the head of a request that the proxy forwards: request line, headers and body length. Pure.
use common::browser::RequestHead;

use super::head::Length;

/// Maximum size of the head of a request in bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// The lines of a request head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestLines {
    /// Method, target and version.
    line: String,
    /// Names as received, values trimmed.
    headers: Vec<(String, String)>,
    /// Length of the body.
    pub(crate) length: Length,
}

impl RequestLines {
    /// Parses a head at the start of `bytes`. Returns the head and its length in bytes, or `None` while it is
    /// incomplete.
    ///
    /// # Errors
    /// The head is malformed, ambiguous or too long.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, String> {
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
            let is_long = bytes.len() > HEAD_BYTES_MAX;
            return if is_long { Err(format!("the head is longer than {HEAD_BYTES_MAX} bytes")) } else { Ok(None) };
        };
        let text = std::str::from_utf8(&bytes[..end]).map_err(|_| "the headers are not valid UTF-8".to_owned())?;
        let mut lines = text.split("\r\n");
        let line = lines.next().unwrap_or_default().to_owned();
        let words: Vec<&str> = line.split(' ').collect();
        let is_request =
            matches!(words[..], [method, target, "HTTP/1.1" | "HTTP/1.0"] if !method.is_empty() && !target.is_empty());
        // Another parser might treat a control character as the end of a line.
        if !is_request || line.chars().any(char::is_control) {
            return Err("not an HTTP/1.1 request".into());
        }
        let mut headers = Vec::new();
        for line in lines {
            let (name, value) = line.split_once(':').ok_or("a header has no colon")?;
            let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
            if !is_name || value.chars().any(|letter| letter.is_control() && letter != '\t') {
                return Err("an invalid header".into());
            }
            headers.push((name.to_owned(), value.trim().to_owned()));
        }
        let mut head = Self { line, headers, length: Length::Bytes(0) };
        head.length = head.body_length()?;
        Ok(Some((head, end + 4)))
    }

    fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.headers
            .iter()
            .filter(move |(known, _): &&(String, String)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    fn body_length(&self) -> Result<Length, String> {
        let (encodings, lengths) = (self.values("transfer-encoding"), self.values("content-length"));
        match (&encodings.collect::<Vec<_>>()[..], &lengths.collect::<Vec<_>>()[..]) {
            ([], []) => Ok(Length::Bytes(0)),
            ([encoding], []) if encoding.eq_ignore_ascii_case("chunked") => Ok(Length::Chunked),
            ([], [length]) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
                length.parse().map(Length::Bytes).map_err(|_| "the content-length is not a valid number".into())
            }
            _ => Err("the length of the body is ambiguous".into()),
        }
    }

    /// The headers that show whether a web page may have caused the request.
    pub(crate) fn asking(&self) -> RequestHead<'_> {
        let target = self.line.split(' ').nth(1).unwrap_or_default();
        let authority =
            target.split_once("://").map(|(_, rest)| rest.split(['/', '?', '#']).next().unwrap_or_default());
        RequestHead {
            hosts: self.values("host").chain(authority).collect(),
            origin: self.values("origin").next(),
            site: self.values("sec-fetch-site").next(),
        }
    }

    /// The path that it is for.
    pub(crate) fn path(&self) -> &str {
        let target = self.line.split(' ').nth(1).unwrap_or_default();
        target.split(['?', '#']).next().unwrap_or_default()
    }

    /// Whether it is a POST request.
    pub(crate) fn is_post(&self) -> bool {
        self.line.starts_with("POST ")
    }

    /// The content type of its body.
    pub(crate) fn content_type(&self) -> Option<&str> {
        self.values("content-type").next()
    }

    /// The head to send to a node, with the node's address as host. The origin of the node's own page, which a browser
    /// loads from this proxy, becomes that of the node; any other stays.
    pub(crate) fn for_node(&self, address: &str) -> Vec<u8> {
        let mut text = format!("{}\r\nHost: {address}\r\n", self.line);
        let node = format!("http://{address}");
        for (name, value) in self.headers.iter().filter(|(name, _)| !name.eq_ignore_ascii_case("host")) {
            let is_own = name.eq_ignore_ascii_case("origin")
                && value.strip_prefix("http://").is_some_and(|host| self.values("host").all(|own| own == host));
            text.extend([name, ": ", if is_own { &node } else { value }, "\r\n"]);
        }
        text.push_str("\r\n");
        text.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_is_parsed_when_complete_and_forwarded_with_new_host() {
        let bytes = b"POST /v1/x HTTP/1.1\r\nhost: me:80\r\nContent-Type: application/json\r\nContent-Length: 5\r\nOrigin: null\r\n\r\nhello";
        let end = bytes.len() - 5;
        for cut in 0..end {
            assert_eq!(RequestLines::parse(&bytes[..cut]), Ok(None), "{cut}");
        }
        let (head, length) = RequestLines::parse(bytes).expect("it is right").expect("it is whole");
        assert_eq!(
            (length, head.length, head.is_post(), head.content_type()),
            (end, Length::Bytes(5), true, Some("application/json"))
        );
        let asking = head.asking();
        assert_eq!((asking.hosts, asking.origin, asking.site), (vec!["me:80"], Some("null"), None));
        let passed = String::from_utf8(head.for_node("10.0.0.1:9980")).expect("it is text");
        assert!(
            passed.starts_with("POST /v1/x HTTP/1.1\r\nHost: 10.0.0.1:9980\r\n") && !passed.contains("me:80"),
            "{passed}"
        );
        assert!(passed.contains("\r\nOrigin: null\r\n") && passed.ends_with("\r\n\r\n"), "{passed}");
        let page = b"GET /ui/page.js HTTP/1.1\r\nHost: localhost:9980\r\nOrigin: http://localhost:9980\r\n\r\n";
        let (head, _) = RequestLines::parse(page).expect("it is right").expect("it is whole");
        let passed = String::from_utf8(head.for_node("10.0.0.1:9980")).expect("it is text");
        assert!(passed.contains("\r\nOrigin: http://10.0.0.1:9980\r\n") && !passed.contains("localhost"), "{passed}");
        let absolute = b"GET http://evil.example:80/health HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let (head, _) = RequestLines::parse(absolute).expect("it is right").expect("it is whole");
        assert_eq!(head.asking().hosts, ["localhost", "evil.example:80"]);
    }

    #[test]
    fn ambiguous_heads_are_refused() {
        let endless = format!("GET / HTTP/1.1\r\na: {}", "b".repeat(HEAD_BYTES_MAX));
        for wrong in [
            "GET / HTTP/2\r\n\r\n",
            "GET /\r\n\r\n",
            "GET / HTTP/1.1\nHost: evil\r\nHost: localhost\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: localhost\nHost: evil\r\n\r\n",
            "GET / HTTP/1.1\r\nno colon\r\n\r\n",
            "GET / HTTP/1.1\r\n folded: a\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: +1\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
            &endless,
        ] {
            assert!(RequestLines::parse(wrong.as_bytes()).is_err(), "{}", &wrong[..wrong.len().min(80)]);
        }
    }
}
