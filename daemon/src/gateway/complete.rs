//! Runs a request: computes its choices concurrently and passes their parts to the writer of its API, for one object or
//! one stream.
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Json,
    http::{HeaderName, HeaderValue},
    response::{IntoResponse, Response},
};
use common::{changes::TemplateChanges, sampling::SCORES_MAX};
use protocol::message::Prompt;
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
    choice::{Choice, ChoicePart, TokenLogprobs},
    error::ApiError,
    pinned::Pinned,
    pool::Held,
    request::{Asked, RUNNING_MAX, Wish},
    scores::HeldScores,
    stream::{Events, FirstByte, Gone, events},
    trace,
    writer::{Tally, Writer},
};

/// Most parts of all choices that may wait to be written.
const PARTS_MAX: usize = 64;
/// Most log probabilities of all prompts of a request, some 100 bytes each.
const SCORES_SUM_MAX: usize = 2 * SCORES_MAX;
/// Silence after which a stream sends a keep-alive comment.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Names the changes of a conversation.
const CHANGED: HeaderName = HeaderName::from_static("x-bramble-changed");

type ChoiceParts = Receiver<Made>;

/// A part of the choice with this index, or why it ended.
struct Made {
    index: usize,
    /// Tokens of its prompt.
    prompt_tokens: usize,
    /// Changes of its conversation.
    changes: TemplateChanges,
    part: Result<ChoicePart, ApiError>,
}

/// A running request. Dropping it cancels all of its choices.
struct Run {
    gateway: Arc<Gateway>,
    model: Arc<Pinned>,
    writer: Box<dyn Writer>,
    arrival: ReceivedRequest,
    /// Keeps the reservation for the prompts until the end: they may be sent to another head.
    _held: Held,
    parts: ChoiceParts,
    _choices: JoinSet<()>,
    count: usize,
    /// Number of choices per prompt.
    per_prompt: usize,
    has_begun: bool,
    /// Whether the tokens of the answers are left out.
    is_prompt_only: bool,
    /// Changes of the conversation, for any choice so far.
    changes: TemplateChanges,
    tally: Tally,
    first: FirstByte,
    /// The log probabilities of answers that are kept for the one object.
    scores: HeldScores,
    ended: usize,
}

/// Runs a request and writes its answer; `held` is the reservation of its prompts in the budget for bodies.
///
/// # Errors
/// Any error before the answer begins; after that, a stream reports its errors itself.
pub(super) async fn complete(
    gateway: Arc<Gateway>,
    asked: Asked,
    writer: Box<dyn Writer>,
    held: Held,
    arrival: ReceivedRequest,
) -> Result<Response, ApiError> {
    let served = gateway.served_for(asked.model.as_deref(), arrival.permission).await?;
    let model = Pinned::new(asked.model.clone(), served.topology);
    let deadline = arrival.at + gateway.settings.request_max;
    let is_streamed = asked.is_streamed;
    let echoes = match asked.echoes {
        true => in_time(&gateway, deadline, echoes(&gateway, &model, &asked.choices)).await??,
        false => Vec::new(),
    };
    let mut run = begin(Arc::clone(&gateway), asked, writer, echoes, held, arrival, model);
    if !is_streamed {
        let mut response = Json(in_time(&gateway, deadline, run.whole()).await??).into_response();
        name_changes(run.changes, &mut response);
        return Ok(response);
    }
    // Until the answer begins, an error has a status code of its own.
    let first = match in_time(&gateway, deadline, run.next()).await? {
        Some((index, part)) => (index, part?),
        None => return Err(run.gateway.not_serving(None)),
    };
    let (events, mut response) = events(run.arrival.at, Arc::clone(&run.first), run.writer.framing());
    name_changes(run.changes, &mut response);
    tokio::spawn(async move {
        match in_time(&gateway, deadline, run.stream(&events, first)).await {
            Ok(Ok(())) => {}
            Ok(Err(Gone)) => gateway.metrics.cancelled(),
            // A client that does not read does not receive it either.
            Err(error) => drop(events.send(&run.writer.fail(&error)).await),
        }
    });
    Ok(response)
}

/// Names the changes of a conversation in the response to it.
pub(super) fn name_changes(changes: TemplateChanges, response: &mut Response) {
    if changes.is_empty() {
        return;
    }
    if let Ok(names) = HeaderValue::from_str(&changes.to_string()) {
        response.headers_mut().insert(CHANGED, names);
    }
}

/// The outcome of a step of a request.
///
/// # Errors
/// The time for the request is over, or this node ends before.
async fn in_time<T>(gateway: &Gateway, deadline: Instant, step: impl Future<Output = T>) -> Result<T, ApiError> {
    tokio::select! {
        done = timeout_at(deadline.into(), step) => {
            done.map_err(|_| ApiError::overdue(gateway.settings.request_max.as_secs()))
        }
        () = gateway.cut.cancelled() => Err(ApiError::shutting_down()),
    }
}

/// The texts of the choices' prompts; a head has those of token ids.
async fn echoes(gateway: &Gateway, model: &Pinned, choices: &[Wish]) -> Result<Vec<String>, ApiError> {
    let mut texts: Vec<String> = Vec::with_capacity(choices.len());
    for (index, wish) in choices.iter().enumerate() {
        let before = index.checked_sub(1).map(|before| &choices[before]);
        let text = match &wish.generate.prompt {
            _ if before.is_some_and(|before| Arc::ptr_eq(&before.generate, &wish.generate)) => texts[index - 1].clone(),
            Prompt::Text(text) => text.clone(),
            Prompt::Tokens(ids) => gateway.text_of(&model.roots(), ids.clone()).await?,
            Prompt::Chat(_) => String::new(),
        };
        texts.push(text);
    }
    Ok(texts)
}

fn begin(
    gateway: Arc<Gateway>,
    asked: Asked,
    writer: Box<dyn Writer>,
    echoes: Vec<String>,
    held: Held,
    arrival: ReceivedRequest,
    model: Pinned,
) -> Run {
    let mut echoes = echoes.into_iter();
    let (model, (sender, parts)) = (Arc::new(model), channel(PARTS_MAX));
    let (mut choices, turns) = (JoinSet::new(), Arc::new(Semaphore::new(RUNNING_MAX)));
    let count = asked.choices.len();
    let seeds: Vec<u64> = asked.choices.iter().map(|wish| wish.seed).collect();
    let scores = gateway.scores.hold();
    let per_prompt = seeds.iter().skip(1).position(|seed| *seed == seeds[0]).map_or(count, |at| at + 1);
    for (index, wish) in asked.choices.into_iter().enumerate() {
        let answer = Answer::new(Arc::clone(&gateway), wish, Arc::clone(&model), arrival.at);
        let choice = Choice::new(asked.reading.clone()).echoing(echoes.next());
        let (turns, parts, field) = (Arc::clone(&turns), sender.clone(), writer.prompt_field());
        choices.spawn(async move {
            // Never closed.
            let _turn = turns.acquire_owned().await;
            pump(index, answer, choice, parts, field).await;
        });
    }
    Run {
        gateway,
        model,
        writer,
        arrival,
        _held: held,
        parts,
        _choices: choices,
        count,
        per_prompt,
        has_begun: false,
        is_prompt_only: asked.reading.is_prompt_only,
        changes: TemplateChanges::default(),
        tally: Tally::default(),
        first: FirstByte::default(),
        scores,
        ended: 0,
    }
}

/// Runs one choice to its end; stops if the receiver is gone. `field` holds the prompt.
async fn pump(index: usize, mut answer: Answer, mut choice: Choice, parts: Sender<Made>, field: &'static str) {
    answer.take_turn(Instant::now());
    loop {
        let said = answer.next().await;
        let is_last = matches!(said, Err(_) | Ok(Said::Finished(_)));
        let found = match said {
            Ok(said) => {
                let parts = choice.take(said).into_iter().map(Ok).collect();
                if !choice.may_think() {
                    answer.end_thoughts();
                }
                parts
            }
            Err(error) => vec![Err(error.about(field))],
        };
        for part in found {
            let (prompt_tokens, changes) = (answer.prompt_tokens(), answer.changes());
            if parts.send(Made { index, prompt_tokens, changes, part }).await.is_err() {
                return;
            }
        }
        if is_last {
            return;
        }
    }
}

impl Run {
    /// The next part, after recording its effect on the tally. From the first one on, the model that computes all of
    /// them is fixed.
    async fn next(&mut self) -> Option<(usize, Result<ChoicePart, ApiError>)> {
        let Made { index, prompt_tokens, changes, part } = self.parts.recv().await?;
        self.changes = self.changes.union(changes);
        if !self.has_begun {
            self.has_begun = true;
            let (model, fingerprint) = self.model.names();
            self.writer.begin(&model, &fingerprint);
        }
        match &part {
            Ok(ChoicePart::Started) if index.is_multiple_of(self.per_prompt) => {
                self.tally.usage.prompt += prompt_tokens;
            }
            Ok(ChoicePart::End(_, ended)) => self.end(index, ended),
            _ => {}
        }
        Some((index, part))
    }

    /// Records the end of a choice.
    fn end(&mut self, index: usize, ended: &Ended) {
        self.ended += 1;
        let usage = &mut self.tally.usage;
        if index.is_multiple_of(self.per_prompt) {
            usage.cached += ended.finished.times.cached_tokens as usize;
        }
        usage.completion += if self.is_prompt_only { 0 } else { ended.tokens };
        usage.reasoning += ended.thought_tokens;
        let times = &ended.finished.times;
        usage.accepted += times.accepted_tokens as usize;
        usage.rejected += times.drafted_tokens.saturating_sub(times.accepted_tokens) as usize;
        self.gateway.metrics.ended(ended);
        let (first, now) = (self.first.get().copied(), self.arrival.at.elapsed());
        if index == 0 {
            self.tally.timings = trace::timings(ended, first, now);
        }
        (self.tally.elapsed, self.tally.is_complete) = (now, self.ended == self.count);
        let mut kept = trace::trace(ended, first, now);
        kept["request_id"] = self.arrival.id.clone().into();
        kept["choice"] = index.into();
        kept["prompt_tokens"] = ended.prompt_tokens.into();
        kept["tokens"] = ended.tokens.into();
        self.gateway.traces.keep(kept);
    }

    async fn whole(&mut self) -> Result<Value, ApiError> {
        let mut of_prompts = 0;
        while self.ended < self.count {
            let Some((index, part)) = self.next().await else { return Err(self.gateway.not_serving(None)) };
            let part = part.map_err(|error| {
                let tally = Tally { timings: Value::Null, ..self.tally.clone() };
                error.with_partial(|| self.writer.whole(&tally))
            })?;
            let count = |shown: &[TokenLogprobs]| shown.iter().map(|one| one.top.len() + 1).sum::<usize>();
            match &part {
                ChoicePart::Scored(shown) => {
                    of_prompts += count(shown);
                    if of_prompts > SCORES_SUM_MAX {
                        return Err(too_many_scores());
                    }
                }
                ChoicePart::Content(_, shown) => self.scores.add(count(shown))?,
                _ => {}
            }
            self.writer.keep(index, part);
        }
        Ok(self.writer.whole(&self.tally))
    }

    async fn stream(&mut self, events: &Events, first: (usize, ChoicePart)) -> Result<(), Gone> {
        let mut next = Some((first.0, Ok(first.1)));
        // A part may be waiting that was counted already.
        while self.ended < self.count || next.is_some() {
            let (index, part) = match next.take() {
                Some(part) => part,
                None => tokio::select! {
                    part = self.next() => match part {
                        Some(part) => part,
                        None => return Ok(()),
                    },
                    () = events.gone() => return Err(Gone),
                    () = sleep(KEEP_ALIVE) => {
                        match self.writer.alive(&self.tally) {
                            Some(event) => events.send(&[event]).await?,
                            None => events.keep_alive().await?,
                        }
                        continue;
                    }
                },
            };
            match part {
                Ok(part) => {
                    let records = self.writer.stream(index, part, &self.tally);
                    events.send(&records).await?;
                }
                Err(error) => {
                    self.gateway.metrics.answered("stream", error.status.as_u16());
                    return events.send(&self.writer.fail(&error)).await;
                }
            }
        }
        events.send(&self.writer.finish(&self.tally)).await?;
        events.done().await
    }
}

fn too_many_scores() -> ApiError {
    let message = format!(
        "the prompts of this request have more than {SCORES_SUM_MAX} log probabilities; send fewer prompts at a time"
    );
    ApiError::invalid("logprobs", message)
}

/// Id and arrival time of a request.
#[derive(Clone, Debug)]
pub(super) struct ReceivedRequest {
    pub(super) id: String,
    pub(super) at: Instant,
    /// Seconds since 1970.
    pub(super) created: u64,
    /// Seed of requests that have none.
    pub(super) seed: u64,
    pub(super) permission: Permission,
}

/// What the key of a request permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Permission {
    /// Using the models that are served.
    Asks,
    /// Loading, downloading and deleting models, too.
    ChangesModels,
}
