//! A scripted server for tests, with one thread per connection.
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// A step of the server.
#[derive(Clone, Debug)]
pub(crate) enum FakeStep {
    Bytes(Vec<u8>),
    /// Milliseconds.
    Pause(u64),
    Close,
}

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct FakeRequest {
    pub(crate) line: String,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl FakeRequest {
    /// The value of a header; `name` in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

type FakeAnswers = dyn Fn(usize, &FakeRequest) -> Vec<FakeStep> + Send + Sync;

/// A running server; its threads end with the test process.
pub(crate) struct FakeServer {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl FakeServer {
    /// Starts a server on a free loopback port. The script receives the number of the request, from 0, and the request.
    pub(crate) fn start(script: impl Fn(usize, &FakeRequest) -> Vec<FakeStep> + Send + Sync + 'static) -> Self {
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
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// `ADDRESS:PORT`.
    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Number of accepted connections.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn serve(mut stream: TcpStream, requests: &AtomicUsize, script: &FakeAnswers) {
    let mut reader = BufReader::new(stream.try_clone().expect("a socket can be cloned"));
    while let Some(request) = read(&mut reader) {
        for step in script(requests.fetch_add(1, Ordering::SeqCst), &request) {
            match step {
                FakeStep::Bytes(bytes) => {
                    if stream.write_all(&bytes).is_err() {
                        return;
                    }
                }
                FakeStep::Pause(milliseconds) => std::thread::sleep(Duration::from_millis(milliseconds)),
                FakeStep::Close => return,
            }
        }
    }
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<FakeRequest> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_owned();
        if line.is_empty() {
            break;
        }
        lines.push(line);
    }
    let line = lines.remove(0);
    let headers: Vec<(String, String)> = lines
        .iter()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let mut body = vec![0; length.map_or(0, |(_, value)| value.parse().expect("the client counts"))];
    reader.read_exact(&mut body).ok()?;
    Some(FakeRequest { line, headers, body: String::from_utf8(body).expect("JSON is text") })
}

/// A response with a content length; each line of `headers` ends with CRLF.
pub(crate) fn answer(status: u16, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status} X\r\n{headers}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// The head of a chunked response of events.
pub(crate) fn events_head() -> FakeStep {
    FakeStep::Bytes(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_vec(),
    )
}

/// An event as a chunk.
pub(crate) fn event(data: &str) -> FakeStep {
    let text = format!("data: {data}\n\n");
    FakeStep::Bytes(format!("{:x}\r\n{text}\r\n", text.len()).into_bytes())
}

/// The chunk that ends a body.
pub(crate) fn events_end() -> FakeStep {
    FakeStep::Bytes(b"0\r\n\r\n".to_vec())
}

/// A complete stream of a chat, with one event per delta, and usage with a token for each.
pub(crate) fn chat_completion(deltas: &[serde_json::Value]) -> Vec<FakeStep> {
    let mut steps = vec![events_head()];
    steps.extend(deltas.iter().map(|delta| {
        let choice = serde_json::json!({"index": 0, "delta": delta, "finish_reason": null});
        event(&serde_json::json!({"id": "chatcmpl-1", "model": "m", "choices": [choice]}).to_string())
    }));
    steps.push(event("{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}"));
    let usage = serde_json::json!({"prompt_tokens": 4, "completion_tokens": deltas.len()});
    let usage = serde_json::json!({"choices": [], "usage": usage});
    steps.extend([event(&usage.to_string()), event("[DONE]"), events_end()]);
    steps
}

/// A complete stream of a text completion, with one event per piece, usage and timings.
pub(crate) fn completion(pieces: &[&str]) -> Vec<FakeStep> {
    let mut steps = vec![events_head()];
    steps.extend(pieces.iter().map(|piece| {
        event(&serde_json::json!({"id": "cmpl-1", "model": "m", "choices": [{"index": 0, "text": piece, "finish_reason": null}]}).to_string())
    }));
    steps.push(event("{\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}]}"));
    let usage = serde_json::json!({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": pieces.len()},
        "timings": {"prompt_ms": 2.5, "predicted_per_second": 40.0}});
    steps.extend([event(&usage.to_string()), event("[DONE]"), events_end()]);
    steps
}
