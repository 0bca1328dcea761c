//! Entry points of the fuzz targets: responses of servers and requests to the proxy, from bytes that arrive in pieces.
use common::browser::{BrowserPolicy, check_body};

use super::{BodyReader, EventStreamReader, Gathering, RequestLines, head};

/// Reads a response whose body arrives in pieces of `piece` bytes, as an answer of a model. Returns the bytes of the body
/// and of the text in it; `None` if it is malformed or incomplete.
pub fn response(bytes: &[u8], piece: usize) -> Option<(usize, usize)> {
    let (head, begin) = head::parse(bytes).ok()??;
    let _ = (head.header("content-type"), head.keeps_alive);
    let mut body = BodyReader::new(head.length);
    let (mut events, mut gathering, mut out) = (EventStreamReader::default(), Gathering::default(), Vec::new());
    let mut rest = &bytes[begin..];
    let (mut length, mut text) = (0, 0);
    while !rest.is_empty() && !body.is_done() {
        out.clear();
        let end = piece.clamp(1, rest.len());
        let taken = body.feed(&rest[..end], &mut out).ok()?;
        assert!(taken == end || body.is_done(), "a body takes all bytes up to its end");
        length += out.len();
        rest = &rest[taken..];
        let mut is_good = true;
        let read = events.feed(&out, |data| match gathering.take("pi1:9980", data) {
            Ok(more) => text += more.len(),
            Err(error) => is_good = error.to_string().is_empty(),
        });
        read.ok().filter(|()| is_good)?;
    }
    assert_eq!(gathering.answer.text.len(), text);
    (body.is_done() || body.may_close()).then_some((length, text))
}

/// Reads the head of a request as the proxy does. Returns what it would send to a node.
pub fn request(bytes: &[u8], policy: &BrowserPolicy) -> Option<Vec<u8>> {
    let (head, end) = RequestLines::parse(bytes).ok()??;
    assert!(end <= bytes.len());
    let asking = head.asking();
    policy.check(&asking).ok()?;
    if head.is_post() {
        check_body(head.path(), head.content_type(), &asking).ok()?;
    }
    Some(head.for_node("10.0.0.1:9980"))
}
