//! Runs a request: computes its choices concurrently and merges their parts into one object or one stream.
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use serde_json::Value;
use tokio::{
    sync::{
        Semaphore,
        mpsc::{Receiver, Sender, channel},
    },
    task::JoinSet,
    time::{sleep, timeout_at},
};

use super::{
    Gateway,
    answer::{Answer, Ended, Said},
    bodies::Held,
    choice::{Choice, ChoicePart},
    cluster::seconds_since_1970,
    error::ApiError,
    object::{Common, Usage, Whole},
    pinned::Pinned,
    request::{Asked, Kind, RUNNING_MAX},
    stream::{Events, FirstByte, Gone, events},
    trace,
};

/// Most parts of all choices that may wait to be written.
const PARTS_MAX: usize = 64;
/// Silence after which a stream sends a keep-alive comment.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

type ChoiceParts = Receiver<(usize, Result<ChoicePart, ApiError>)>;

/// A running request. Dropping it cancels all of its choices.
struct Run {
    gateway: Arc<Gateway>,
    model: Arc<Pinned>,
    common: Common,
    arrival: ReceivedRequest,
    /// Keeps the reservation for the prompts until the end: they may be sent to another head.
    _held: Held,
    parts: ChoiceParts,
    _choices: JoinSet<()>,
    count: usize,
    /// Number of choices per prompt.
    per_prompt: usize,
    with_logprobs: bool,
    usage: Usage,
    timings: Value,
    first: FirstByte,
    ended: usize,
}

/// Runs a request; `held` is the reservation of its prompts in the budget for bodies.
///
/// # Errors
/// Any error before the answer begins; after that, a stream reports its errors itself.
pub(super) async fn complete(
    gateway: Arc<Gateway>,
    asked: Asked,
    held: Held,
    arrival: ReceivedRequest,
) -> Result<Response, ApiError> {
    gateway.cluster.await_topology().await;
    let Some(served) = gateway.cluster.serving().topology else { return Err(gateway.not_serving()) };
    let model = Pinned::new(asked.model.clone(), served)?;
    let deadline = arrival.at + gateway.settings.request_max;
    let (is_streamed, includes_usage) = (asked.is_streamed, asked.includes_usage);
    let mut run = begin(Arc::clone(&gateway), asked, held, arrival, model);
    let overdue = || ApiError::overdue(gateway.settings.request_max.as_secs());
    if !is_streamed {
        let ended = tokio::select! {
            ended = timeout_at(deadline.into(), run.whole()) => ended,
            () = gateway.cut.cancelled() => return Err(ApiError::shutting_down()),
        };
        return match ended {
            Ok(Ok(object)) => Ok(Json(object).into_response()),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(overdue()),
        };
    }
    // Until the answer begins, an error has a status code of its own.
    let first = match timeout_at(deadline.into(), run.part()).await {
        Ok(Some((index, part))) => (index, part?),
        Ok(None) => return Err(run.gateway.not_serving()),
        Err(_) => return Err(overdue()),
    };
    let (events, response) = events(run.arrival.at, Arc::clone(&run.first));
    let late = overdue();
    tokio::spawn(async move {
        let streamed = tokio::select! {
            streamed = timeout_at(deadline.into(), run.stream(&events, first, includes_usage)) => streamed.map_err(|_| late),
            () = gateway.cut.cancelled() => Err(ApiError::shutting_down()),
        };
        match streamed {
            Ok(Ok(())) => {}
            Ok(Err(Gone)) => gateway.metrics.cancelled(),
            // A client that does not read does not receive it either.
            Err(error) => drop(events.send(&error.object()).await),
        }
    });
    Ok(response)
}

fn begin(gateway: Arc<Gateway>, asked: Asked, held: Held, arrival: ReceivedRequest, model: Pinned) -> Run {
    let (model, (sender, parts)) = (Arc::new(model), channel(PARTS_MAX));
    let (mut choices, turns) = (JoinSet::new(), Arc::new(Semaphore::new(RUNNING_MAX)));
    let count = asked.choices.len();
    let seeds: Vec<u64> = asked.choices.iter().map(|wish| wish.seed).collect();
    let per_prompt = seeds.iter().skip(1).position(|seed| *seed == seeds[0]).map_or(count, |at| at + 1);
    for (index, wish) in asked.choices.into_iter().enumerate() {
        let answer = Answer::new(Arc::clone(&gateway), wish, Arc::clone(&model), arrival.at);
        let choice = Choice::new(asked.reading.clone());
        let (turns, parts, field) = (Arc::clone(&turns), sender.clone(), asked.kind.prompt_field());
        choices.spawn(async move {
            // Never closed.
            let _turn = turns.acquire_owned().await;
            pump(index, answer, choice, parts, field).await;
        });
    }
    let created = seconds_since_1970();
    let prefix = if asked.kind == Kind::Chat { "chatcmpl" } else { "cmpl" };
    let common = Common {
        kind: asked.kind,
        is_legacy: asked.is_legacy,
        id: format!("{prefix}-{}", arrival.id),
        created,
        model: String::new(),
        fingerprint: String::new(),
    };
    Run {
        gateway,
        model,
        common,
        arrival,
        _held: held,
        parts,
        _choices: choices,
        count,
        per_prompt,
        with_logprobs: asked.reading.logprobs.is_some(),
        usage: Usage::default(),
        timings: Value::Null,
        first: FirstByte::default(),
        ended: 0,
    }
}

/// Runs one choice to its end; stops if the receiver is gone. `field` holds the prompt.
async fn pump(
    index: usize,
    mut answer: Answer,
    mut choice: Choice,
    parts: Sender<(usize, Result<ChoicePart, ApiError>)>,
    field: &'static str,
) {
    answer.take_turn(Instant::now());
    loop {
        let said = answer.next().await;
        let is_last = matches!(said, Err(_) | Ok(Said::Finished(_)));
        let found = match said {
            Ok(said) => choice.take(said).into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error.about(field))],
        };
        for part in found {
            if parts.send((index, part)).await.is_err() {
                return;
            }
        }
        if is_last {
            return;
        }
    }
}

impl Run {
    /// The next part. From the first one on, the model that computes all of them is fixed.
    async fn part(&mut self) -> Option<(usize, Result<ChoicePart, ApiError>)> {
        let part = self.parts.recv().await;
        if self.common.model.is_empty() {
            (self.common.model, self.common.fingerprint) = self.model.names();
        }
        part
    }

    /// Records the end of a choice.
    fn end(&mut self, index: usize, ended: &Ended) {
        self.ended += 1;
        if index.is_multiple_of(self.per_prompt) {
            self.usage.prompt += ended.prompt_tokens;
            self.usage.cached += ended.finished.times.cached_tokens as usize;
        }
        self.usage.completion += ended.tokens;
        self.usage.reasoning += ended.thought_tokens;
        self.gateway.metrics.ended(ended);
        let (first, now) = (self.first.get().copied(), self.arrival.at.elapsed());
        if index == 0 {
            self.timings = trace::timings(ended, first, now);
        }
        let mut kept = trace::trace(ended, first, now);
        kept["request_id"] = self.arrival.id.clone().into();
        kept["choice"] = index.into();
        kept["prompt_tokens"] = ended.prompt_tokens.into();
        kept["tokens"] = ended.tokens.into();
        self.gateway.traces.keep(kept);
    }

    async fn whole(&mut self) -> Result<Value, ApiError> {
        let mut choices: Vec<Whole> = (0..self.count).map(|_| Whole::default()).collect();
        while self.ended < self.count {
            let Some((index, part)) = self.part().await else { return Err(self.gateway.not_serving()) };
            let part = part.map_err(|error| {
                error.with_partial(|| self.common.whole(&choices, self.with_logprobs, self.usage, Value::Null))
            })?;
            if let ChoicePart::End(_, ended) = &part {
                self.end(index, ended);
            }
            self.common.add(index, &mut choices[index], part);
        }
        Ok(self.common.whole(&choices, self.with_logprobs, self.usage, self.timings.take()))
    }

    async fn stream(&mut self, events: &Events, first: (usize, ChoicePart), includes_usage: bool) -> Result<(), Gone> {
        let mut offsets = vec![0; self.count];
        let mut next = Some((first.0, Ok(first.1)));
        while self.ended < self.count {
            let (index, part) = match next.take() {
                Some(part) => part,
                None => tokio::select! {
                    part = self.part() => match part {
                        Some(part) => part,
                        None => return Ok(()),
                    },
                    () = events.gone() => return Err(Gone),
                    () = sleep(KEEP_ALIVE) => {
                        events.keep_alive().await?;
                        continue;
                    }
                },
            };
            let part = match part {
                Ok(part) => part,
                Err(error) => {
                    self.gateway.metrics.answered("stream", error.status.as_u16());
                    return events.send(&error.object()).await;
                }
            };
            let mut chunk = self.common.part(index, &part, self.with_logprobs, &mut offsets[index]);
            if let ChoicePart::End(_, ended) = &part {
                self.end(index, ended);
                if let Some(chunk) = chunk.as_mut().filter(|_| self.ended == self.count) {
                    chunk["timings"] = self.timings.take();
                }
            }
            if let Some(chunk) = chunk {
                events.send(&chunk).await?;
            }
        }
        if includes_usage {
            events.send(&self.common.usage_chunk(self.usage)).await?;
        }
        events.done().await
    }
}

/// Id and arrival time of a request.
#[derive(Clone, Debug)]
pub(super) struct ReceivedRequest {
    pub(super) id: String,
    pub(super) at: Instant,
}
