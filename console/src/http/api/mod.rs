//! Streaming requests of the OpenAI API. After a broken connection the same request is sent again with the same
//! `X-Request-Id`. It has the same answer, of which only the part not received before is passed on.
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{
    EventStreamReader, HttpError,
    client::{Api, HttpRequest, said},
};

/// Maximum length of the text of an answer and its thought in bytes.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Time limit for repeating a request after a broken connection; servers keep its answer for the same time.
const AGAIN: Duration = Duration::from_secs(60);
/// Time to wait for a server that does not serve a model yet.
const MODEL: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 5000 });
/// Pauses before the first and the following repeats; the last one applies to all further repeats.
const PAUSES: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];

/// The kind of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A text: `/v1/completions`.
    Text,
    /// A conversation: `/v1/chat/completions`.
    Chat,
}

/// A completion request.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Text or chat.
    pub kind: Kind,
    /// The JSON object of the request, without `stream` and `stream_options`.
    pub body: Value,
    /// `X-Request-Id`, equal in all repeats.
    pub request_id: String,
}

/// A complete answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HttpAnswer {
    /// Id assigned by the server.
    pub id: Option<String>,
    /// The model that generated it.
    pub model: Option<String>,
    /// What the model thought; only of chats, and no part of the text.
    pub thought: String,
    /// Its text.
    pub text: String,
    /// The API's `finish_reason`.
    pub finish_reason: Option<String>,
    /// The API's `usage`: token counts of prompt and answer; null if the server does not report them.
    pub usage: Value,
    /// `timings` as reported by the server; null without them.
    pub timings: Value,
    /// Log probabilities, one object per event.
    pub logprobs: Vec<Value>,
    /// How often the request was repeated.
    pub repeats: u32,
}

/// Progress of an answer.
#[derive(Debug)]
pub enum HttpProgress<'a> {
    /// A part of the model's thought that follows the part reported before.
    Thought(&'a str),
    /// Text that follows the text reported before.
    Text(&'a str),
    /// The connection broke for this reason; the request is repeated.
    Again(&'a HttpError),
}

/// Assembles an answer from its events. Pure.
#[derive(Clone, Debug, Default)]
pub struct Gathering {
    /// The answer so far.
    pub answer: HttpAnswer,
    /// The server has sent `[DONE]`.
    pub is_done: bool,
}

impl Gathering {
    /// Processes the data of an event and returns the text that it adds. A thought is only added to the answer.
    ///
    /// # Errors
    /// The data is not an event of the API, reports an error, or makes the answer too long.
    pub fn take(&mut self, at: &str, data: &str) -> Result<String, HttpError> {
        if data == "[DONE]" {
            self.is_done = true;
            return Ok(String::new());
        }
        let malformed = |reason: String| HttpError::Malformed { at: at.into(), reason };
        let mut event: Value = serde_json::from_str(data).map_err(|error| malformed(error.to_string()))?;
        if event["error"].is_object() {
            let (code, message) = said(&event["error"], 500);
            return Err(HttpError::Refused { at: at.into(), status: 500, code, message, retry_after_seconds: None });
        }
        let answer = &mut self.answer;
        for (name, place) in [("id", &mut answer.id), ("model", &mut answer.model)] {
            if place.is_none() {
                *place = event[name].as_str().map(str::to_owned);
            }
        }
        for (name, place) in [("usage", &mut answer.usage), ("timings", &mut answer.timings)] {
            // Mutable indexing panics if the event is not an object.
            if let Some(found) = event.get_mut(name).filter(|found| found.is_object()) {
                *place = found.take();
            }
        }
        let choice = &event["choices"][0];
        if let Some(reason) = choice["finish_reason"].as_str() {
            answer.finish_reason = Some(reason.to_owned());
        }
        if choice["logprobs"].is_object() {
            answer.logprobs.push(choice["logprobs"].clone());
        }
        let delta = &choice["delta"];
        let text = choice["text"].as_str().or(delta["content"].as_str()).unwrap_or_default().to_owned();
        // The names of llama-server and of vLLM. A server that sends both repeats the thought.
        let thoughts = ["reasoning_content", "reasoning"].map(|name| delta[name].as_str().unwrap_or_default());
        let thought = thoughts.into_iter().find(|thought| !thought.is_empty()).unwrap_or_default();
        if answer.thought.len() + thought.len() + answer.text.len() + text.len() > ANSWER_BYTES_MAX {
            return Err(malformed(format!("the answer is longer than {ANSWER_BYTES_MAX} bytes")));
        }
        answer.thought.push_str(thought);
        answer.text.push_str(&text);
        Ok(text)
    }
}

impl Ask {
    /// Path and body of the HTTP request.
    pub fn request(&self) -> (&'static str, String) {
        let mut body = self.body.clone();
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let path = match self.kind {
            Kind::Text => "/v1/completions",
            Kind::Chat => "/v1/chat/completions",
        };
        (path, body.to_string())
    }
}

/// A unique request id with 64 random bits.
pub fn new_request_id() -> String {
    use std::hash::{BuildHasher, Hasher, RandomState};
    format!("console-{:016x}", RandomState::new().build_hasher().finish())
}

/// The first model that any of these servers lists. If none is served, polls for a while, because the servers may not
/// yet have noticed a topology that was assigned a moment ago.
///
/// # Errors
/// No server answers, or none serves a model.
pub async fn model(apis: &[Api], patience: Duration) -> Result<String, HttpError> {
    let deadline = Instant::now() + MODEL;
    loop {
        let mut none = None;
        for api in apis {
            match api.json(&HttpRequest { path: "/v1/models", ..HttpRequest::default() }, patience).await {
                Ok(list) => match list["data"][0]["id"].as_str() {
                    Some(name) => return Ok(name.to_owned()),
                    None => none = Some(no_model(api.at())),
                },
                Err(error) => none = none.or(Some(error)),
            }
        }
        let error = none.unwrap_or(HttpError::Url { url: String::new(), reason: "no URL" });
        if !matches!(error, HttpError::Refused { status: 503, .. }) || Instant::now() > deadline {
            return Err(error);
        }
        sleep(MODEL / 20).await;
    }
}

fn no_model(at: &str) -> HttpError {
    let (code, message) = ("no_model".into(), "no model is served; assign a topology first".into());
    HttpError::Refused { at: at.into(), status: 503, code, message, retry_after_seconds: None }
}

/// The parts of an answer that were reported, by all attempts.
#[derive(Debug, Default)]
struct ReportedAnswer {
    thought: String,
    text: String,
}

/// Sends a request to the first server, or to the next one if a server is unreachable, and reports the answer as it
/// arrives. `patience`: longest time without data. Dropping the future closes the connection, which cancels the
/// request.
///
/// # Errors
/// No server answers, a server refuses the request, or an interrupted answer cannot be resumed within a minute or
/// continues with a different text.
pub async fn stream(
    apis: &[Api],
    ask: &Ask,
    patience: Duration,
    tell: &mut (dyn FnMut(HttpProgress<'_>) + Send),
) -> Result<HttpAnswer, HttpError> {
    let mut told = ReportedAnswer::default();
    let mut place = 0;
    // Number of consecutive unreachable servers before the first byte of an answer.
    let mut away = 0;
    let mut broken: Option<Instant> = None;
    let mut repeats = 0;
    loop {
        let Some(api) = apis.get(place % apis.len().max(1)) else {
            return Err(HttpError::Url { url: String::new(), reason: "no URL" });
        };
        let mut has_begun = false;
        let error = match attempt(api, ask, patience, &mut told, tell, &mut has_begun).await {
            Ok(answer) => return Ok(HttpAnswer { repeats, ..answer }),
            Err(error) => error,
        };
        place += 1;
        let is_away = matches!(error, HttpError::Unreachable { .. } | HttpError::Refused { status: 502 | 503, .. });
        away = if has_begun { 0 } else { away + 1 };
        match broken {
            None if has_begun => broken = Some(Instant::now()),
            // No answer has started: try every server once.
            None if is_away && away < apis.len() => continue,
            None => return Err(error),
            Some(_) => {}
        }
        if !error.is_passing() || broken.is_some_and(|since| since.elapsed() > AGAIN) {
            return Err(error);
        }
        tell(HttpProgress::Again(&error));
        sleep(PAUSES[(repeats as usize).min(PAUSES.len() - 1)]).await;
        repeats += 1;
    }
}

/// Sends the request once. `told`: what this and earlier attempts have reported.
async fn attempt(
    api: &Api,
    ask: &Ask,
    patience: Duration,
    told: &mut ReportedAnswer,
    tell: &mut (dyn FnMut(HttpProgress<'_>) + Send),
    has_begun: &mut bool,
) -> Result<HttpAnswer, HttpError> {
    let (path, body) = ask.request();
    let request = HttpRequest { path, body: Some(&body), request_id: Some(&ask.request_id) };
    let mut response = api.send(&request, patience).await?.succeeded(patience).await?;
    *has_begun = true;
    let (mut events, mut gathering) = (EventStreamReader::default(), Gathering::default());
    while let Some(bytes) = response.chunk(patience).await? {
        let mut failure = None;
        let fed = events.feed(&bytes, |data| {
            if failure.is_none() && !gathering.is_done {
                failure = gathering.take(api.at(), data).err();
            }
        });
        go_on(api, &gathering.answer, told, tell)?;
        fed.map_err(|reason| HttpError::Malformed { at: api.at().into(), reason })?;
        if let Some(failure) = failure {
            return Err(failure);
        }
    }
    if !gathering.is_done {
        return Err(HttpError::Lost { at: api.at().into(), reason: "closed before the end of the answer".into() });
    }
    let answer = gathering.answer;
    for (told, found) in [(&told.thought, &answer.thought), (&told.text, &answer.text)] {
        if found.len() < told.len() {
            return Err(HttpError::Diverged { at: api.at().into(), after: found.len() });
        }
    }
    Ok(answer)
}

/// Reports the parts of the thought and of the text that follow those in `told`, and appends them to `told`.
fn go_on(
    api: &Api,
    answer: &HttpAnswer,
    told: &mut ReportedAnswer,
    tell: &mut (dyn FnMut(HttpProgress<'_>) + Send),
) -> Result<(), HttpError> {
    let thought = new_part(api, &answer.thought, &mut told.thought)?;
    if !thought.is_empty() {
        tell(HttpProgress::Thought(thought));
    }
    let text = new_part(api, &answer.text, &mut told.text)?;
    if !text.is_empty() {
        tell(HttpProgress::Text(text));
    }
    Ok(())
}

/// The part of `found` that follows `told`, to which it is appended.
fn new_part<'a>(api: &Api, found: &'a str, told: &mut String) -> Result<&'a str, HttpError> {
    let common = found.bytes().zip(told.bytes()).take_while(|(one, other)| one == other).count();
    if common < found.len().min(told.len()) {
        return Err(HttpError::Diverged { at: api.at().into(), after: common });
    }
    let part = found.get(told.len()..).unwrap_or_default();
    told.push_str(part);
    Ok(part)
}

#[cfg(test)]
mod tests;
