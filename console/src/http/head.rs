//! Parses the head of a response: status line and headers. Pure.

/// Maximum size of the head of a response in bytes.
pub(super) const HEAD_BYTES_MAX: usize = 64 << 10;

/// The length of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// This many bytes.
    Bytes(u64),
    /// Chunks, the last one empty.
    Chunked,
    /// All bytes until the connection closes.
    UntilClosed,
}

/// Status and headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpHead {
    /// The status code.
    pub status: u16,
    /// Names in lower case, values trimmed.
    headers: Vec<(String, String)>,
    /// Whether the connection stays open after the body.
    pub(super) keeps_alive: bool,
    pub(super) length: Length,
}

impl HttpHead {
    /// The first value of a header; `name` in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

/// Parses a head at the start of `bytes`. Returns the head and its length in bytes, or `None` while it is incomplete.
///
/// # Errors
/// The head is malformed or too long.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<(HttpHead, usize)>, String> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return if bytes.len() > HEAD_BYTES_MAX {
            Err(format!("the head is longer than {HEAD_BYTES_MAX} bytes"))
        } else if !bytes.is_empty() && !bytes.starts_with(&b"HTTP/"[..bytes.len().min(5)]) {
            Err("not HTTP".into())
        } else {
            Ok(None)
        };
    };
    let text = std::str::from_utf8(&bytes[..end]).map_err(|_| "the headers are not valid UTF-8".to_owned())?;
    let mut lines = text.split("\r\n");
    let status_line = lines.next().unwrap_or_default();
    let mut words = status_line.splitn(3, ' ');
    let version = words.next().unwrap_or_default();
    let status = words.next().and_then(|word| word.parse().ok()).filter(|status| (100..600).contains(status));
    let (true, Some(status)) = (matches!(version, "HTTP/1.1" | "HTTP/1.0"), status) else {
        return Err("not HTTP/1.1".into());
    };
    let mut headers = Vec::new();
    for line in lines {
        let (name, value) = line.split_once(':').ok_or("a header has no colon")?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut head = HttpHead { status, headers, keeps_alive: false, length: Length::UntilClosed };
    head.length = length(&head)?;
    let says = |word: &str| head.header("connection").is_some_and(|value| value.to_ascii_lowercase().contains(word));
    let stays = if version == "HTTP/1.1" { !says("close") } else { says("keep-alive") };
    head.keeps_alive = stays && head.length != Length::UntilClosed;
    Ok(Some((head, end + 4)))
}

fn length(head: &HttpHead) -> Result<Length, String> {
    if matches!(head.status, 100..200 | 204 | 304) {
        return Ok(Length::Bytes(0));
    }
    let encoding = head.header("transfer-encoding").map(str::to_ascii_lowercase);
    match (encoding.as_deref(), head.header("content-length")) {
        (Some("chunked"), None) => Ok(Length::Chunked),
        (None, Some(text)) => {
            let count =
                text.parse().map_err(|_| format!("invalid content-length {:?}", text.get(..40).unwrap_or(text)))?;
            Ok(Length::Bytes(count))
        }
        (None, None) => Ok(Length::UntilClosed),
        (Some(_), _) => Err("the transfer-encoding is not just chunked".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_is_parsed_only_when_complete() {
        let bytes = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 2\r\ncontent-length:  5\r\n\r\nhello";
        let end = bytes.len() - 5;
        for cut in 0..end {
            assert_eq!(parse(&bytes[..cut]), Ok(None), "{cut}");
        }
        let (head, length) = parse(bytes).expect("it is right").expect("it is whole");
        assert_eq!((head.status, length, head.length, head.keeps_alive), (429, end, Length::Bytes(5), true));
        assert_eq!((head.header("retry-after"), head.header("date")), (Some("2"), None));
    }

    #[test]
    fn body_length_and_keep_alive_are_recognized() {
        let read =
            |text: &str| parse(text.as_bytes()).map(|head| head.map(|(head, _)| (head.length, head.keeps_alive)));
        assert_eq!(read("HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n"), Ok(Some((Length::Chunked, true))));
        assert_eq!(
            read("HTTP/1.1 200 OK\r\nconnection: Close\r\ncontent-length: 0\r\n\r\n"),
            Ok(Some((Length::Bytes(0), false)))
        );
        assert_eq!(read("HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\n"), Ok(Some((Length::Bytes(1), false))));
        assert_eq!(read("HTTP/1.1 200 OK\r\n\r\n"), Ok(Some((Length::UntilClosed, false))));
    }

    #[test]
    fn malformed_head_is_an_error() {
        let endless = format!("HTTP/1.1 200 OK\r\na: {}", "b".repeat(HEAD_BYTES_MAX));
        for wrong in [
            "SSH-2.0-OpenSSH",
            "HTTP/2 200 OK\r\n\r\n",
            "HTTP/1.1 20 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n",
            &endless,
        ] {
            assert!(parse(wrong.as_bytes()).is_err(), "{}", &wrong[..wrong.len().min(80)]);
        }
    }
}
