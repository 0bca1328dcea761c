//! What servers send to the console and to downloads: heads, bodies, events, redirects; and requests to the console's
//! proxy. Downloads never leave https for http, and announce no impossible size.
#![no_main]
use bramble_fuzz::{cut::Input, memory::bounded};
use common::browser::BrowserPolicy;
use console::http::{Url, fuzzing};
use daemon::store::Inquiry;
use libfuzzer_sys::fuzz_target;
use ureq::http::{HeaderMap, HeaderName, HeaderValue};

thread_local! {
    static POLICY: BrowserPolicy = BrowserPolicy::new(
        &["desk".to_owned()],
        &["api.example".to_owned()],
        &["https://chat.example".to_owned(), "http://app.*".to_owned()],
    ).expect("the names are valid");
}

/// A download: a URL, then answers of servers, each a status and headers in lines.
fn download(mut input: Input<'_>) {
    let url = input.text();
    let Ok(mut inquiry) = Inquiry::new(&url, None) else { return };
    for answer in input.texts() {
        let mut lines = answer.lines();
        let status = lines.next().and_then(|status| status.trim().parse().ok()).unwrap_or(200);
        let mut headers = HeaderMap::new();
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.trim().parse::<HeaderValue>()) else {
                continue;
            };
            headers.append(name, value);
        }
        let done = inquiry.take(status, &headers);
        if url.starts_with("https://") && done.is_ok() {
            assert!(inquiry.url().starts_with("https://"), "a download stays on https");
        }
        if !matches!(done, Ok(false)) {
            return;
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let (which, piece) = (input.byte(), usize::from(input.byte()));
    match which % 5 {
        0 | 1 => {
            let room = 64 * input.0.len() + (1 << 18);
            let whole = bounded(room, || fuzzing::response(input.0, usize::MAX));
            let cut = fuzzing::response(input.0, piece);
            assert_eq!(whole, cut, "how a response is cut changes it");
        }
        2 => {
            let sent = POLICY.with(|policy| fuzzing::request(input.0, policy));
            let Some(sent) = sent else { return };
            let again = POLICY.with(|policy| fuzzing::request(&sent, policy));
            assert!(again.is_some(), "what the proxy sends is a request");
        }
        3 => download(input),
        _ => {
            let text = input.text();
            if let Ok(url) = text.parse::<Url>() {
                assert!(url.target("/v1").starts_with('/') || url.prefix.is_empty());
                let shown = format!("http://{}{}", url.authority, url.prefix);
                assert_eq!(shown.parse::<Url>().map(|again| again.authority), Ok(url.authority));
            }
            let _ = assignment::source::url_at(&text, "https://hub.example");
            let _ = (protocol::models::check_name(&text), protocol::models::files_of(&text).len());
            let _ = (
                protocol::models::family(&text),
                console::catalogue::resolve(&text),
                console::catalogue::search(&text),
            );
            let _ = (console::catalogue::of_file(&text), protocol::address::is_address(&text));
        }
    }
});
