//! Requests to one server over persistent connections, with deadlines for heads and bodies.
use std::{
    fmt::Write,
    io,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::{
    BODY_BYTES_MAX, HttpError, Url,
    body::BodyReader,
    head::{self, HttpHead},
};

/// Time limit to open a connection.
pub const CONNECT: Duration = Duration::from_secs(5);
/// Largest number of idle connections.
const IDLE_MAX: usize = 256;
/// Number of bytes to read at once.
const READ_BYTES: usize = 16 << 10;

/// A request.
#[derive(Clone, Debug, Default)]
pub struct HttpRequest<'a> {
    /// The path after the server's prefix: `/v1/..`.
    pub path: &'a str,
    /// JSON body of a POST request; `None` for GET.
    pub body: Option<&'a str>,
    /// `X-Request-Id`; must be printable.
    pub request_id: Option<&'a str>,
}

#[derive(Debug)]
struct HttpConnection {
    stream: TcpStream,
    /// Bytes that were read but not processed yet.
    buffer: Vec<u8>,
}

/// A server and its idle connections.
#[derive(Debug)]
pub struct Api {
    url: Url,
    key: Option<String>,
    idle: Mutex<Vec<HttpConnection>>,
}

/// A response whose body can be read. Dropping it before its end closes the connection, which cancels the request.
#[derive(Debug)]
pub struct Response<'a> {
    /// Status and headers.
    pub head: HttpHead,
    api: &'a Api,
    connection: Option<HttpConnection>,
    body: BodyReader,
}

impl Api {
    /// A server, without connecting to it yet. `key` is sent with every request and must be printable.
    pub fn new(url: Url, key: Option<String>) -> Self {
        Self { url, key, idle: Mutex::default() }
    }

    /// `HOST:PORT` of the server.
    pub fn at(&self) -> &str {
        &self.url.authority
    }

    /// Sends a request and waits up to `patience` for the head of the response.
    ///
    /// # Errors
    /// The server is unreachable, silent, or does not send HTTP. A response with an error status is not an error here.
    pub async fn send(&self, request: &HttpRequest<'_>, patience: Duration) -> Result<Response<'_>, HttpError> {
        let text = self.text(request);
        let mut last = None;
        // A server may close an idle connection at any time. The request was not read then; open a new connection.
        while let Some(connection) = last.is_none().then(|| self.idle()).flatten() {
            match self.exchange(connection, &text, patience).await {
                Err(HttpError::Lost { .. }) => last = Some(()),
                other => return other,
            }
        }
        self.exchange(self.dial().await?, &text, patience).await
    }

    /// As [`Self::send`], then reads the whole response as JSON.
    ///
    /// # Errors
    /// As [`Self::send`], or the status is not a success, or the body is not valid JSON.
    pub async fn json(&self, request: &HttpRequest<'_>, patience: Duration) -> Result<Value, HttpError> {
        let response = self.send(request, patience).await?.succeeded(patience).await?;
        let at = self.at().to_owned();
        let bytes = response.whole(patience).await?;
        serde_json::from_slice(&bytes).map_err(|error| HttpError::Malformed { at, reason: error.to_string() })
    }

    fn idle(&self) -> Option<HttpConnection> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    async fn dial(&self) -> Result<HttpConnection, HttpError> {
        let unreachable = |reason: String| HttpError::Unreachable { at: self.at().into(), reason };
        let stream = timeout(CONNECT, TcpStream::connect(self.at())).await;
        let stream = stream.map_err(|_| unreachable(format!("no connection within {} s", CONNECT.as_secs())))?;
        let stream = stream.map_err(|error| unreachable(error.to_string()))?;
        stream.set_nodelay(true).map_err(|error| unreachable(error.to_string()))?;
        Ok(HttpConnection { stream, buffer: Vec::new() })
    }

    fn text(&self, request: &HttpRequest<'_>) -> String {
        let method = if request.body.is_some() { "POST" } else { "GET" };
        let mut text = format!("{method} {} HTTP/1.1\r\nHost: {}\r\n", self.url.target(request.path), self.at());
        let mut header = |name: &str, value: &str| {
            // Writing into a string cannot fail.
            let _ = write!(text, "{name}: {value}\r\n");
        };
        header("User-Agent", concat!("bramble-console/", env!("CARGO_PKG_VERSION")));
        header("Accept", "application/json, text/event-stream");
        if let Some(key) = &self.key {
            header("Authorization", &format!("Bearer {key}"));
        }
        if let Some(id) = request.request_id {
            header("X-Request-Id", id);
        }
        if let Some(body) = request.body {
            header("Content-Type", "application/json");
            header("Content-Length", &body.len().to_string());
        }
        text.push_str("\r\n");
        text.push_str(request.body.unwrap_or_default());
        text
    }

    async fn exchange(
        &self,
        mut connection: HttpConnection,
        text: &str,
        patience: Duration,
    ) -> Result<Response<'_>, HttpError> {
        let work = async {
            // A server that refuses early may close before it has read the request: report its response, not the failed
            // write.
            let written = connection.stream.write_all(text.as_bytes()).await;
            loop {
                if let Some((head, length)) =
                    head::parse(&connection.buffer).map_err(|reason| self.malformed(reason))?
                {
                    connection.buffer.drain(..length);
                    if head.status >= 200 {
                        return Ok(head);
                    }
                    continue;
                }
                match self.read(&mut connection).await {
                    Ok(0) => {
                        let reason =
                            written.as_ref().err().map_or("closed before responding".into(), ToString::to_string);
                        return Err(HttpError::Lost { at: self.at().into(), reason });
                    }
                    Ok(_) => {}
                    Err(error) => return Err(HttpError::Lost { at: self.at().into(), reason: error.to_string() }),
                }
            }
        };
        let head = timeout(patience, work).await.map_err(|_| HttpError::Timeout {
            at: self.at().into(),
            what: "the response",
            seconds: patience.as_secs(),
        })??;
        let body = BodyReader::new(head.length);
        Ok(Response { head, api: self, connection: Some(connection), body })
    }

    async fn read(&self, connection: &mut HttpConnection) -> io::Result<usize> {
        connection.buffer.reserve(READ_BYTES);
        let buffer = &mut connection.buffer;
        (&mut connection.stream).take(READ_BYTES as u64).read_buf(buffer).await
    }

    fn malformed(&self, reason: String) -> HttpError {
        HttpError::Malformed { at: self.at().into(), reason }
    }
}

impl Response<'_> {
    /// The next bytes of the body; `None` at its end.
    ///
    /// # Errors
    /// The connection broke, had no data for `patience`, or the body is malformed.
    pub async fn chunk(&mut self, patience: Duration) -> Result<Option<Vec<u8>>, HttpError> {
        let mut out = Vec::new();
        loop {
            let Some(connection) = &mut self.connection else { return Ok(None) };
            let fed = self.body.feed(&connection.buffer, &mut out).map_err(|reason| self.api.malformed(reason));
            connection.buffer.drain(..fed?);
            if self.body.is_done() {
                self.give_back();
                return Ok(Some(out).filter(|out| !out.is_empty()));
            }
            if !out.is_empty() {
                return Ok(Some(out));
            }
            let at = || self.api.at().to_owned();
            match timeout(patience, self.api.read(connection)).await.map_err(|_| HttpError::Timeout {
                at: at(),
                what: "the next part of the response",
                seconds: patience.as_secs(),
            })? {
                Ok(0) if self.body.may_close() => {
                    self.connection = None;
                    return Ok(None);
                }
                Ok(0) => {
                    return Err(HttpError::Lost { at: at(), reason: "closed in the middle of the response".into() });
                }
                Ok(_) => {}
                Err(error) => return Err(HttpError::Lost { at: at(), reason: error.to_string() }),
            }
        }
    }

    /// The whole body, up to [`BODY_BYTES_MAX`].
    ///
    /// # Errors
    /// As [`Self::chunk`], or the body is longer.
    pub async fn whole(mut self, patience: Duration) -> Result<Vec<u8>, HttpError> {
        let mut whole = Vec::new();
        while let Some(bytes) = self.chunk(patience).await? {
            whole.extend_from_slice(&bytes);
            if whole.len() > BODY_BYTES_MAX {
                return Err(self.api.malformed(format!("the body is longer than {BODY_BYTES_MAX} bytes")));
            }
        }
        Ok(whole)
    }

    /// The response, if its status is a success.
    ///
    /// # Errors
    /// The error that the server reports.
    pub async fn succeeded(self, patience: Duration) -> Result<Self, HttpError> {
        let status = self.head.status;
        if (200..300).contains(&status) {
            return Ok(self);
        }
        let at = self.api.at().to_owned();
        let retry_after_seconds = self.head.header("retry-after").and_then(|text| text.parse().ok());
        let bytes = self.whole(patience).await.unwrap_or_default();
        let object: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let (code, message) = said(&object["error"], status);
        Err(HttpError::Refused { at, status, code, message, retry_after_seconds })
    }

    fn give_back(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        if self.head.keeps_alive && connection.buffer.is_empty() {
            let mut idle = self.api.idle.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < IDLE_MAX {
                idle.push(connection);
            }
        }
    }
}

/// Code and message of an OpenAI API error. Without a code, the code is `http_` and the status.
pub(super) fn said(error: &Value, status: u16) -> (String, String) {
    let code = error["code"].as_str().or(error["type"].as_str());
    let code = code.map_or_else(|| format!("http_{status}"), |code| code.chars().take(80).collect());
    let message = error["message"].as_str().unwrap_or("the server gave no reason");
    (code, message.chars().take(2000).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::fake::{FakeServer, FakeStep, answer};

    const PATIENCE: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn request_has_key_id_and_body_and_connection_is_reused() {
        let server = FakeServer::start(|_, request| {
            let seen = serde_json::json!({"line": request.line, "key": request.header("authorization"),
                "id": request.header("x-request-id"), "body": request.body});
            vec![FakeStep::Bytes(answer(200, "", &seen.to_string()))]
        });
        let api = Api::new(format!("{}/v1", server.url()).parse().expect("a URL"), Some("secret".into()));
        for id in ["one", "two"] {
            let request = HttpRequest { path: "/v1/x", body: Some("{\"a\":1}"), request_id: Some(id) };
            let seen = api.json(&request, PATIENCE).await.expect("it answers");
            assert_eq!(
                seen,
                serde_json::json!({"line": "POST /v1/x HTTP/1.1", "key": "Bearer secret", "id": id, "body": "{\"a\":1}"})
            );
        }
        assert_eq!(server.connections(), 1);
    }

    #[tokio::test]
    async fn closed_idle_connection_is_replaced() {
        let server = FakeServer::start(|_, _| vec![FakeStep::Bytes(answer(200, "", "{}")), FakeStep::Close]);
        let api = Api::new(server.url().parse().expect("a URL"), None);
        let request = HttpRequest { path: "/health", ..HttpRequest::default() };
        for _ in 0..3 {
            assert_eq!(api.json(&request, PATIENCE).await, Ok(serde_json::json!({})));
        }
        assert_eq!(server.connections(), 3);
    }

    #[tokio::test]
    async fn failures_are_distinguished() {
        let server = FakeServer::start(|_, request| match request.line.split(' ').nth(1) {
            Some("/full") => {
                let body = "{\"error\":{\"message\":\"the queue is full\",\"type\":\"server_error\",\"param\":null,\"code\":\"queue_full\"}}";
                vec![FakeStep::Bytes(answer(429, "Retry-After: 3\r\n", body))]
            }
            Some("/cut") => {
                vec![FakeStep::Bytes(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf".to_vec()), FakeStep::Close]
            }
            Some("/silent") => vec![FakeStep::Pause(3000)],
            Some("/ssh") => vec![FakeStep::Bytes(b"SSH-2.0-x\r\n".to_vec()), FakeStep::Close],
            _ => vec![FakeStep::Bytes(answer(200, "", "<html>"))],
        });
        let api = Api::new(server.url().parse().expect("a URL"), None);
        let at = api.at().to_owned();
        let ask = async |path, patience| {
            let request = HttpRequest { path, ..HttpRequest::default() };
            api.json(&request, patience).await.expect_err("it fails")
        };
        let full = ask("/full", PATIENCE).await;
        let (code, message) = ("queue_full".into(), "the queue is full".into());
        assert_eq!(full, HttpError::Refused { at, status: 429, code, message, retry_after_seconds: Some(3) });
        assert!(full.is_passing());
        assert!(matches!(ask("/cut", PATIENCE).await, HttpError::Lost { .. }));
        assert!(matches!(ask("/silent", Duration::from_millis(50)).await, HttpError::Timeout { .. }));
        assert!(matches!(ask("/ssh", PATIENCE).await, HttpError::Malformed { .. }));
        assert!(matches!(ask("/html", PATIENCE).await, HttpError::Malformed { .. }));
        let unreachable = Api::new("http://127.0.0.1:1".parse().expect("a URL"), None);
        let away = unreachable.send(&HttpRequest::default(), PATIENCE).await.expect_err("no server listens");
        assert!(matches!(away, HttpError::Unreachable { .. }), "{away}");
    }
}
