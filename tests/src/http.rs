//! A plain HTTP/1.1 client over a socket, so that tests see the exact bytes on the wire.
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    time::Duration,
};

use serde_json::Value;

use crate::programs::{Cluster, demo_models, wait_until};

/// A complete response.
#[derive(Clone, Debug)]
pub struct HttpAnswer {
    /// Status code.
    pub status: u16,
    /// Headers; names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, with chunks joined.
    pub body: String,
}

/// A response whose body is still arriving.
#[derive(Debug)]
pub struct Stream {
    /// Status code.
    pub status: u16,
    /// Headers; names in lower case.
    pub headers: Vec<(String, String)>,
    reader: BufReader<TcpStream>,
    is_chunked: bool,
}

impl HttpAnswer {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// If it is not JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {} {:?}", self.status, self.body))
    }

    /// The body of a successful response as JSON.
    ///
    /// # Panics
    /// If the request failed or the body is not JSON.
    #[track_caller]
    pub fn good(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.json()
    }

    /// Asserts the status and an error in OpenAI's format with this code, whose message contains `part`.
    ///
    /// # Panics
    /// If the response differs.
    #[track_caller]
    pub fn assert_error(&self, status: u16, code: &str, part: &str) {
        assert_eq!(self.status, status, "{}", self.body);
        let error = &self.json()["error"];
        assert_eq!(error["code"], code, "{}", self.body);
        assert!(error["type"].is_string() && error.get("param").is_some(), "{}", self.body);
        assert!(error["message"].as_str().is_some_and(|message| message.contains(part)), "{part:?}: {}", self.body);
    }
}

/// The HTTP address of the node that listens on `ADDRESS:9999`.
pub fn beside(node: &str) -> String {
    node.replace(":9999", ":9980")
}

/// A daemon that serves the demo model, and its HTTP address.
pub fn serving(settings: &str) -> (Cluster, String) {
    let cluster = Cluster::with(1, &demo_models(), settings);
    cluster.generate(1, &["--prompt", "ROMEO:\n", "--max-tokens", "1"]).completion();
    let address = beside(&cluster.addresses[0]);
    wait_until("the gateway has the topology", || get(&address, "/health").status == 200);
    (cluster, address)
}

/// A body with further fields, or other values of the same ones.
///
/// # Panics
/// If one of them is not an object.
pub fn with_fields(mut body: Value, more: Value) -> Value {
    let Value::Object(more) = more else { panic!("{more} is no object") };
    body.as_object_mut().expect("a body is an object").extend(more);
    body
}

/// Sends raw bytes and reads the head of the response.
///
/// # Panics
/// If there is no response.
#[track_caller]
pub fn raw(address: &str, bytes: &[u8]) -> Stream {
    try_raw(address, bytes).expect("the node answers")
}

/// Like [`raw`], for a node that may not answer.
///
/// # Errors
/// If the node does not answer.
pub fn try_raw(address: &str, bytes: &[u8]) -> std::io::Result<Stream> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    // A server may refuse before it has read everything.
    let _ = socket.write_all(bytes);
    let mut reader = BufReader::new(socket);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| std::io::Error::other(format!("no status in {line:?}")))?;
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push((name.to_lowercase(), value.trim().to_owned()));
    }
    let is_chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    Ok(Stream { status, headers, reader, is_chunked })
}

/// The bytes of a request, with or without a JSON body.
pub fn bytes(method: &str, path: &str, headers: &[(&str, &str)], body: Option<&str>) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    headers.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
    if let Some(body) = body {
        text.push_str(&format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()));
    }
    text.push_str("\r\n");
    text.push_str(body.unwrap_or_default());
    text.into_bytes()
}

/// Sends a GET request.
#[track_caller]
pub fn get(address: &str, path: &str) -> HttpAnswer {
    raw(address, &bytes("GET", path, &[], None)).rest()
}

/// Sends a POST request with a JSON body.
#[track_caller]
pub fn post(address: &str, path: &str, body: &Value) -> HttpAnswer {
    raw(address, &bytes("POST", path, &[], Some(&body.to_string()))).rest()
}

/// Sends a POST request whose response is read event by event.
#[track_caller]
pub fn stream(address: &str, path: &str, body: &Value) -> Stream {
    raw(address, &bytes("POST", path, &[], Some(&body.to_string())))
}

impl Stream {
    /// Reads to the end.
    ///
    /// # Panics
    /// If the connection breaks.
    pub fn rest(mut self) -> HttpAnswer {
        let mut body = Vec::new();
        if self.is_chunked {
            while let Some(chunk) = self.chunk() {
                body.extend(chunk);
            }
        } else {
            // The response has a length or ends with the connection; both cases end here.
            let length = self.headers.iter().find(|(name, _)| name == "content-length");
            match length.and_then(|(_, length)| length.parse::<u64>().ok()) {
                Some(length) => drop(self.reader.by_ref().take(length).read_to_end(&mut body)),
                None => drop(self.reader.read_to_end(&mut body)),
            }
        }
        HttpAnswer { status: self.status, headers: self.headers, body: String::from_utf8_lossy(&body).into_owned() }
    }

    fn chunk(&mut self) -> Option<Vec<u8>> {
        let mut line = String::new();
        self.reader.read_line(&mut line).ok()?;
        let length = usize::from_str_radix(line.trim(), 16).ok().filter(|length| *length > 0)?;
        let mut chunk = vec![0; length + 2];
        self.reader.read_exact(&mut chunk).ok()?;
        chunk.truncate(length);
        Some(chunk)
    }

    /// The next event's data; `None` at the end. Each chunk is one event.
    pub fn event(&mut self) -> Option<String> {
        loop {
            let chunk = self.chunk()?;
            let text = String::from_utf8(chunk).expect("events are UTF-8");
            if let Some(data) = text.strip_prefix("data: ") {
                return Some(data.trim_end().into());
            }
        }
    }

    /// All remaining events as JSON; asserts that `[DONE]` is the last.
    ///
    /// # Panics
    /// If it is not, or if an event is not JSON.
    #[track_caller]
    pub fn events(mut self) -> Vec<Value> {
        let mut all = Vec::new();
        while let Some(data) = self.event() {
            if data == "[DONE]" {
                return all;
            }
            all.push(serde_json::from_str(&data).expect("an event is JSON"));
        }
        panic!("the stream ended without [DONE] after {all:?}");
    }
}

/// The joined text of the events of the choice with this index.
pub fn text_of(events: &[Value], index: u64) -> String {
    let choices = events.iter().filter_map(|event| event["choices"].as_array()).flatten();
    let own = choices.filter(|choice| choice["index"] == index);
    own.filter_map(|choice| choice["text"].as_str().or_else(|| choice["delta"]["content"].as_str())).collect()
}
