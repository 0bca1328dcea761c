//! llama-server's own completion, POST /completion: one prompt, and an answer with the ids and statistics that programs
//! for llama.cpp read.
mod body;

use std::{sync::Arc, time::Instant};

use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use common::chat::FinishReason;
use protocol::message::{TokenEvent, TokenLogprob};
use serde_json::{Value, json};
use tokio::time::timeout_at;

use self::body::NativeAsked;
use super::{
    Gateway,
    answer::{Answer, Ended, Said},
    bodies::Held,
    complete::ReceivedRequest,
    error::ApiError,
    pinned::Pinned,
    stream::{Events, FirstByte, Gone, events},
    texts::receive,
    trace,
    writer::Framing,
};

/// A running completion.
struct NativeRun {
    gateway: Arc<Gateway>,
    answer: Answer,
    model: Arc<Pinned>,
    asked: NativeAsked,
    arrival: ReceivedRequest,
    /// Keeps the reservation for the prompt until the end.
    _held: Held,
    first: FirstByte,
    content: String,
    tokens: Vec<u32>,
    probabilities: Vec<Value>,
}

/// POST /completion.
pub(super) async fn completion(State(gateway): State<Arc<Gateway>>, request: Request) -> Result<Response, ApiError> {
    let arrival = request.extensions().get::<ReceivedRequest>().cloned();
    let arrival = arrival.expect("every request passes the layer that adds it");
    if let Some(waiting) = gateway.admission.is_full() {
        return Err(ApiError::queue_full(waiting, gateway.admission.retry_after()));
    }
    let (mut asked, held) = receive(&gateway, request, body::read).await?;
    if !asked.has_seed {
        asked.wish.seed = arrival.seed;
    }
    gateway.cluster.await_topology().await;
    let Some(served) = gateway.cluster.serving().topology else { return Err(gateway.not_serving()) };
    let model = Arc::new(Pinned::new(asked.model.take(), served)?);
    let mut answer = Answer::new(Arc::clone(&gateway), asked.wish.clone(), Arc::clone(&model), arrival.at);
    answer.take_turn(Instant::now());
    let run = NativeRun {
        gateway,
        answer,
        model,
        asked,
        arrival,
        _held: held,
        first: FirstByte::default(),
        content: String::new(),
        tokens: Vec::new(),
        probabilities: Vec::new(),
    };
    if run.asked.is_streamed { run.streamed().await } else { run.whole().await }
}

impl NativeRun {
    fn overdue(&self) -> ApiError {
        ApiError::overdue(self.gateway.settings.request_max.as_secs())
    }

    /// The next event of the answer, within the time that a request has.
    async fn next(&mut self) -> Result<Said, ApiError> {
        let deadline = self.arrival.at + self.gateway.settings.request_max;
        let overdue = self.overdue();
        tokio::select! {
            said = timeout_at(deadline.into(), self.answer.next()) => said.map_err(|_| overdue)?,
            () = self.gateway.cut.cancelled() => Err(ApiError::shutting_down()),
        }
        .map_err(|error| error.about("prompt"))
    }

    async fn whole(mut self) -> Result<Response, ApiError> {
        loop {
            match self.next().await? {
                Said::Started { .. } | Said::Scored(_) | Said::Embedded(_) => {}
                Said::Token(token) => drop(self.add(&token)),
                Said::Finished(ended) => {
                    let mut end = self.end(&ended);
                    (end["content"], end["tokens"]) = (self.content.into(), self.tokens.into());
                    if self.asked.probabilities.is_some() {
                        end["completion_probabilities"] = self.probabilities.into();
                    }
                    return Ok(Json(end).into_response());
                }
            }
        }
    }

    async fn streamed(mut self) -> Result<Response, ApiError> {
        // Until the answer begins, an error has a status code of its own.
        let begun = self.next().await?;
        let (events, response) = events(self.arrival.at, Arc::clone(&self.first), Framing::Events);
        tokio::spawn(async move {
            let gateway = Arc::clone(&self.gateway);
            if self.stream(&events, begun).await.is_err() {
                gateway.metrics.cancelled();
            }
        });
        Ok(response)
    }

    async fn stream(mut self, events: &Events, begun: Said) -> Result<(), Gone> {
        let mut next: Result<Said, ApiError> = Ok(begun);
        loop {
            match next {
                Ok(Said::Started { .. } | Said::Scored(_) | Said::Embedded(_)) => {}
                Ok(Said::Token(token)) => {
                    let part = self.add(&token);
                    if let Some(part) = part {
                        events.send(std::slice::from_ref(&part)).await?;
                    }
                }
                Ok(Said::Finished(ended)) => return events.send(&[self.end(&ended)]).await,
                Err(error) => {
                    self.gateway.metrics.answered("stream", error.status.as_u16());
                    return events.send(&[error.object()]).await;
                }
            }
            next = tokio::select! {
                next = self.next() => next,
                () = events.gone() => return Err(Gone),
            };
        }
    }

    /// Adds a token; returns its part of a stream.
    fn add(&mut self, token: &TokenEvent) -> Option<Value> {
        if self.asked.is_prompt_only {
            return None;
        }
        let mut part = json!({
            "index": 0, "content": token.text.as_str(), "tokens": token.id.as_slice(), "stop": false, "id_slot": -1,
            "tokens_evaluated": self.answer.prompt_tokens(),
        });
        let shown = self.asked.probabilities.and_then(|most| probabilities(token, most));
        if self.asked.is_streamed {
            part["completion_probabilities"] = shown.into_iter().collect();
            self.tokens.extend(token.id);
            part["tokens_predicted"] = self.tokens.len().into();
            return Some(part);
        }
        self.content.push_str(&token.text);
        self.tokens.extend(token.id);
        self.probabilities.extend(shown);
        None
    }

    /// The end of the answer, without its text.
    fn end(&mut self, ended: &Ended) -> Value {
        self.gateway.metrics.ended(ended);
        let (first, now) = (self.first.get().copied(), self.arrival.at.elapsed());
        let mut kept = trace::trace(ended, first, now);
        (kept["request_id"], kept["choice"]) = (self.arrival.id.clone().into(), 0.into());
        (kept["prompt_tokens"], kept["tokens"]) = (ended.prompt_tokens.into(), ended.tokens.into());
        self.gateway.traces.keep(kept);
        if !self.asked.with_tokens {
            self.tokens.clear();
        }
        let stop_type = match ended.reason {
            _ if self.asked.is_prompt_only => "limit",
            // An end token is sampled, but not a part of the answer.
            FinishReason::Stop if ended.finished.times.sampled_tokens as usize > ended.tokens => "eos",
            FinishReason::Stop if self.asked.wish.generate.stop.is_empty() => "eos",
            FinishReason::Stop => "word",
            FinishReason::Length | FinishReason::Context => "limit",
            FinishReason::Cancelled => "none",
        };
        json!({
            "index": 0,
            "content": "",
            "tokens": [],
            "id_slot": -1,
            "stop": true,
            "stop_type": stop_type,
            "stopping_word": "",
            "model": self.model.names().0,
            "tokens_predicted": if self.asked.is_prompt_only { 0 } else { ended.tokens },
            "tokens_evaluated": ended.prompt_tokens,
            "tokens_cached": ended.finished.times.cached_tokens,
            "truncated": false,
            "generation_settings": self.asked.settings(),
            "timings": trace::timings(ended, first, now),
        })
    }
}

/// The log probabilities at a token's position, as llama-server gives them.
fn probabilities(token: &TokenEvent, most: usize) -> Option<Value> {
    let own = token.logprobs.iter().find(|one| Some(one.id) == token.id)?;
    let mut top: Vec<&TokenLogprob> = token.logprobs.iter().collect();
    top.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
    let mut object = probability(own);
    object["top_logprobs"] = top.into_iter().take(most).map(probability).collect();
    Some(object)
}

fn probability(token: &TokenLogprob) -> Value {
    let bytes = if token.bytes.is_empty() { token.text.as_bytes() } else { &token.bytes };
    json!({"id": token.id, "token": token.text, "bytes": bytes, "logprob": token.logprob})
}
