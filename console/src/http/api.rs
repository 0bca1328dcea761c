//! Streams of the OpenAI API: what is asked, what an answer is gathered from, and how one goes on after the connection broke: the
//! same request with the same `X-Request-Id` has the same text, of which only what was not told yet is told.
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{
    Events, HttpError,
    client::{Api, Request, said},
};

/// Longest text of an answer.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// After a break an answer is asked for again within this: a server keeps it for as long.
const AGAIN: Duration = Duration::from_secs(60);
/// Before the first and the later repeats.
const PAUSES: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];

/// What is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A text: `/v1/completions`.
    Text,
    /// A conversation: `/v1/chat/completions`.
    Chat,
}

/// A request for an answer.
#[derive(Clone, Debug)]
pub struct Ask {
    /// What is completed.
    pub kind: Kind,
    /// The request's object; `stream` and `stream_options` are set here.
    pub body: Value,
    /// `X-Request-Id`: the same for every repeat.
    pub request_id: String,
}

/// A whole answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// The server's id of it.
    pub id: Option<String>,
    /// The model that answered.
    pub model: Option<String>,
    /// Its text.
    pub text: String,
    /// Why it ended, as the API says it.
    pub finish_reason: Option<String>,
    /// Tokens of the prompt and of the answer, where the server counts them.
    pub usage: Value,
    /// The server's times.
    pub timings: Value,
    /// Log probabilities, in pieces as they came.
    pub logprobs: Vec<Value>,
    /// How often it was asked for again.
    pub repeats: u32,
}

/// What happens while an answer comes.
#[derive(Debug)]
pub enum Told<'a> {
    /// Text that follows what was told before.
    Text(&'a str),
    /// The connection broke for this reason, it is asked again.
    Again(&'a HttpError),
}

/// An answer while its events come. Pure.
#[derive(Clone, Debug, Default)]
pub struct Gathering {
    /// What came so far.
    pub answer: Answer,
    /// The server said that nothing follows.
    pub is_done: bool,
}

impl Gathering {
    /// Takes the data of an event; the text that it adds.
    ///
    /// # Errors
    /// It is no event of the API, or tells of an error.
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
            // To index what is not there panics where it is to be changed.
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
        let text = choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap_or_default().to_owned();
        if answer.text.len() + text.len() > ANSWER_BYTES_MAX {
            return Err(malformed(format!("an answer of more than {ANSWER_BYTES_MAX} bytes")));
        }
        answer.text.push_str(&text);
        Ok(text)
    }
}

impl Ask {
    /// Path and text of the request.
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

/// An id that no other request has: 64 bits of the system's randomness.
pub fn new_request_id() -> String {
    use std::hash::{BuildHasher, Hasher, RandomState};
    format!("console-{:016x}", RandomState::new().build_hasher().finish())
}

/// The first model that a server of these names.
///
/// # Errors
/// None answers, or the one that does serves no model.
pub async fn model(apis: &[Api], patience: Duration) -> Result<String, HttpError> {
    let mut first = None;
    for api in apis {
        match api.json(&Request { path: "/v1/models", ..Request::default() }, patience).await {
            Ok(list) => {
                let reason = "its list of models is empty".into();
                let name = list["data"][0]["id"].as_str().map(str::to_owned);
                return name.ok_or_else(|| HttpError::Malformed { at: api.at().into(), reason });
            }
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(first.unwrap_or(HttpError::Url { url: String::new(), reason: "no URL" }))
}

/// Asks the first server, or the next where one is away, and tells of the answer as it comes. `patience` is how long a server may be
/// silent. What is dropped before its end is cancelled, as its connection is closed.
///
/// # Errors
/// No server answers, one refuses, or an answer that broke off came no more within a minute, or came with another text.
pub async fn stream(
    apis: &[Api],
    ask: &Ask,
    patience: Duration,
    tell: &mut (dyn FnMut(Told<'_>) + Send),
) -> Result<Answer, HttpError> {
    let mut told = String::new();
    let mut place = 0;
    // Servers that were away one after the other, before the first byte of an answer.
    let mut away = 0;
    let mut broken: Option<Instant> = None;
    let mut repeats = 0;
    loop {
        let Some(api) = apis.get(place % apis.len().max(1)) else {
            return Err(HttpError::Url { url: String::new(), reason: "no URL" });
        };
        let mut has_begun = false;
        let error = match attempt(api, ask, patience, &mut told, tell, &mut has_begun).await {
            Ok(answer) => return Ok(Answer { repeats, ..answer }),
            Err(error) => error,
        };
        place += 1;
        let is_away = matches!(error, HttpError::Unreachable { .. } | HttpError::Refused { status: 502 | 503, .. });
        away = if has_begun { 0 } else { away + 1 };
        match broken {
            // Nothing of an answer yet: every server is asked once.
            None if !has_begun && !(is_away && away < apis.len()) => return Err(error),
            None if !has_begun => continue,
            None => broken = Some(Instant::now()),
            Some(_) => {}
        }
        if !error.is_passing() || broken.is_some_and(|since| since.elapsed() > AGAIN) {
            return Err(error);
        }
        tell(Told::Again(&error));
        sleep(PAUSES[(repeats as usize).min(PAUSES.len() - 1)]).await;
        repeats += 1;
    }
}

/// One request. `told` is the text so far, of this and of earlier attempts.
async fn attempt(
    api: &Api,
    ask: &Ask,
    patience: Duration,
    told: &mut String,
    tell: &mut (dyn FnMut(Told<'_>) + Send),
    has_begun: &mut bool,
) -> Result<Answer, HttpError> {
    let (path, body) = ask.request();
    let request = Request { path, body: Some(&body), request_id: Some(&ask.request_id) };
    let mut response = api.send(&request, patience).await?.succeeded(patience).await?;
    *has_begun = true;
    let (mut events, mut gathering) = (Events::default(), Gathering::default());
    while let Some(bytes) = response.chunk(patience).await? {
        let mut failure = None;
        let fed = events.feed(&bytes, |data| {
            if failure.is_none() && !gathering.is_done {
                failure = gathering.take(api.at(), data).err();
            }
        });
        go_on(api, &gathering.answer.text, told, tell)?;
        fed.map_err(|reason| HttpError::Malformed { at: api.at().into(), reason })?;
        if let Some(failure) = failure {
            return Err(failure);
        }
    }
    if !gathering.is_done {
        return Err(HttpError::Lost { at: api.at().into(), reason: "closed before the answer ended".into() });
    }
    match told.len() <= gathering.answer.text.len() {
        true => Ok(gathering.answer),
        false => Err(HttpError::Diverged { at: api.at().into(), after: gathering.answer.text.len() }),
    }
}

/// Tells what `text` has beyond what was told.
fn go_on(api: &Api, text: &str, told: &mut String, tell: &mut (dyn FnMut(Told<'_>) + Send)) -> Result<(), HttpError> {
    let common = text.bytes().zip(told.bytes()).take_while(|(one, other)| one == other).count();
    if common < text.len().min(told.len()) {
        return Err(HttpError::Diverged { at: api.at().into(), after: common });
    }
    if let Some(rest) = text.get(told.len()..).filter(|rest| !rest.is_empty()) {
        tell(Told::Text(rest));
        told.push_str(rest);
    }
    Ok(())
}
