//! A scripted HTTP server for tests, with one thread per connection.
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// A step of an answer.
pub(super) enum Step {
    Bytes(Vec<u8>),
    /// Milliseconds.
    Pause(u64),
    Close,
}

/// Answers the request of this number, counted from 0, by its body.
type Script = dyn Fn(usize, &str) -> Vec<Step> + Send + Sync;

/// A running server; its threads end with the test process.
pub(super) struct FakeServer {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl FakeServer {
    /// Starts a server on a free loopback port.
    pub(super) fn start(script: impl Fn(usize, &str) -> Vec<Step> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback can be bound");
        let address = listener.local_addr().expect("a bound listener has an address");
        let connections = Arc::new(AtomicUsize::new(0));
        let (count, requests, script) = (Arc::clone(&connections), Arc::new(AtomicUsize::new(0)), Arc::new(script));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::SeqCst);
                let (requests, script) = (Arc::clone(&requests), Arc::clone(&script));
                std::thread::spawn(move || serve(stream, &requests, &*script));
            }
        });
        Self { address, connections }
    }

    /// `http://ADDRESS:PORT`.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Number of accepted connections.
    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn serve(mut stream: TcpStream, requests: &AtomicUsize, script: &Script) {
    let mut reader = BufReader::new(stream.try_clone().expect("a socket can be cloned"));
    while let Some(body) = read_body(&mut reader) {
        for step in script(requests.fetch_add(1, Ordering::SeqCst), &body) {
            match step {
                Step::Bytes(bytes) => {
                    if stream.write_all(&bytes).is_err() {
                        return;
                    }
                }
                Step::Pause(milliseconds) => std::thread::sleep(Duration::from_millis(milliseconds)),
                Step::Close => return,
            }
        }
    }
}

/// The body of the next request; `None` at the end.
fn read_body(reader: &mut BufReader<TcpStream>) -> Option<String> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().expect("the client counts");
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(String::from_utf8(body).expect("JSON is text"))
}

/// A response with a content length.
pub(super) fn answer(status: u16, body: &str) -> Step {
    Step::Bytes(format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes())
}

/// A complete stream of a text completion with one event per piece, in chunks.
pub(super) fn completion(pieces: &[&str]) -> Vec<Step> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut steps = vec![Step::Bytes(head.into())];
    steps.extend(pieces.iter().map(|piece| {
        let choice = serde_json::json!({"index": 0, "text": piece, "finish_reason": null});
        event(&serde_json::json!({"id": "cmpl-1", "model": "m", "choices": [choice]}).to_string())
    }));
    steps.push(event("{\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}]}"));
    let usage = serde_json::json!({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": pieces.len()}});
    steps.extend([event(&usage.to_string()), event("[DONE]"), Step::Bytes(b"0\r\n\r\n".to_vec())]);
    steps
}

/// An event as a chunk.
fn event(data: &str) -> Step {
    let text = format!("data: {data}\n\n");
    Step::Bytes(format!("{:x}\r\n{text}\r\n", text.len()).into_bytes())
}
