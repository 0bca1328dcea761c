//! Load generation and its target: requests are sent when due, over HTTP or to heads on port 9999, and each is
//! recorded as a sample.
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use common::{
    fault::{FaultClass, FaultKind},
    latency::RequestTimes,
    sampling::SamplingParameters,
    units::Nanoseconds,
};
use console::{
    client::{event::GenerateEvent, generate::generate, session::Session},
    http::{Api, Ask, EventStreamReader, Gathering, HttpError, HttpRequest, Kind, new_request_id},
};
use protocol::message::{self, Finished};
use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, mpsc::channel},
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::measurement::{
    load::{Job, Prompt, tokens},
    sample::{Ended, Sample, Stages},
};

/// Largest number of requests in flight.
pub const UNDER_WAY_MAX: usize = 4096;
/// Largest number of queued events of a request.
const EVENTS_MAX: usize = 1024;

/// The destination of requests.
#[derive(Debug)]
pub enum Target {
    /// A server, with text completions of this model.
    Http {
        /// The server.
        api: Api,
        /// The model's name.
        model: String,
    },
    /// The heads of a topology; each request goes to the one with the fewest in flight.
    Heads(Vec<(Arc<Session>, AtomicUsize)>),
}

/// A load: its target, the time limit of an answer, and the seed of its prompts and random numbers.
#[derive(Debug)]
pub struct Load {
    target: Target,
    patience: Duration,
    seed: u64,
    sent: AtomicU64,
}

/// The end of a closed load, whichever comes first.
#[derive(Clone, Copy, Debug)]
pub struct Until {
    /// Number of requests to send.
    pub requests: usize,
    /// Time after which no more requests are sent; requests in flight finish.
    pub elapsed: Duration,
}

/// The progress of a request.
#[derive(Debug, Default)]
struct Seen {
    times: RequestTimes,
    pieces: u32,
}

impl Seen {
    fn piece(&mut self, due: Instant) {
        let now = since(due);
        if self.pieces == 0 {
            self.times.first_token = now;
        }
        self.times.last_token = now;
        self.pieces = self.pieces.saturating_add(1);
    }
}

fn since(begin: Instant) -> Nanoseconds {
    Nanoseconds(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

impl Load {
    /// A load whose prompts differ from those of every other seed.
    pub fn new(target: Target, patience: Duration, seed: u64) -> Self {
        Self { target, patience, seed, sent: AtomicU64::new(0) }
    }

    /// Keeps `concurrency` requests in flight until the end, cycling through the jobs.
    pub async fn closed(self: &Arc<Self>, jobs: &[Job], concurrency: usize, until: Until) -> Vec<Sample> {
        let (begun, next) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
        let jobs: Arc<[Job]> = jobs.into();
        let mut workers = JoinSet::new();
        for _ in 0..concurrency.clamp(1, UNDER_WAY_MAX).min(until.requests) {
            let (load, jobs, next) = (Arc::clone(self), Arc::clone(&jobs), Arc::clone(&next));
            workers.spawn(async move {
                let mut samples = Vec::new();
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= until.requests || begun.elapsed() >= until.elapsed || jobs.is_empty() {
                        return samples;
                    }
                    samples.push(load.request(&jobs[index % jobs.len()], begun, Instant::now()).await);
                }
            });
        }
        workers.join_all().await.into_iter().flatten().collect()
    }

    /// Sends every job when it is due, regardless of earlier ones.
    pub async fn open(self: &Arc<Self>, jobs: impl IntoIterator<Item = (Duration, Job)>) -> Vec<Sample> {
        let (begun, places) = (Instant::now(), Arc::new(Semaphore::new(UNDER_WAY_MAX)));
        let (mut running, mut samples) = (JoinSet::new(), Vec::new());
        for (at, job) in jobs {
            let due = begun + at;
            sleep_until(due).await;
            while let Some(Ok(sample)) = running.try_join_next() {
                samples.push(sample);
            }
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                samples.push(Self::unsent(begun, due));
                continue;
            };
            let load = Arc::clone(self);
            running.spawn(async move {
                let _place = place;
                load.request(&job, begun, due).await
            });
        }
        samples.extend(running.join_all().await);
        samples
    }

    /// The sample of a request that was not sent because too many were in flight.
    fn unsent(begun: Instant, due: Instant) -> Sample {
        let (due, times) = (Nanoseconds(nanoseconds(due - begun)), RequestTimes::default());
        let ended = Ended::Failed("not_sent".into());
        Sample { due, late: Nanoseconds(0), times, ended_at: Nanoseconds(0), ended, stages: None }
    }

    async fn request(&self, job: &Job, begun: Instant, due: Instant) -> Sample {
        let number = self.sent.fetch_add(1, Ordering::Relaxed);
        let seed = self.seed.wrapping_mul(0x9e37_79b9).wrapping_add(number);
        let late = since(due);
        let mut seen = Seen::default();
        let work = async {
            match &self.target {
                Target::Http { api, model } => self.over_http(api, model, job, seed, due, &mut seen).await,
                Target::Heads(heads) => on_head(heads, job, seed, due, &mut seen).await,
            }
        };
        let (ended, stages) = match timeout(self.patience, work).await {
            Ok(Ok(stages)) => (Ended::Done, stages),
            Ok(Err(ended)) => (ended, None),
            Err(_) => (Ended::Failed("timeout".into()), None),
        };
        let mut times = seen.times;
        if times.sampled_tokens == 0 {
            times.sampled_tokens = seen.pieces;
        }
        let stages = stages.map(|stages: Stages| stages.filled(times.ttft_ms()));
        let due_at = Nanoseconds(nanoseconds(due.saturating_duration_since(begun)));
        Sample { due: due_at, late, times, ended_at: since(due), ended, stages }
    }

    async fn over_http(
        &self,
        api: &Api,
        model: &str,
        job: &Job,
        seed: u64,
        due: Instant,
        seen: &mut Seen,
    ) -> Result<Option<Stages>, Ended> {
        let prompt = match &job.prompt {
            Prompt::Text(text) => json!(text),
            Prompt::Made(count) => json!(tokens(*count, seed)),
        };
        let body = json!({"model": model, "prompt": prompt, "max_tokens": job.max_tokens, "temperature": 0, "seed": seed & 0xffff_ffff,
            "ignore_eos": true});
        let ask = Ask { kind: Kind::Text, body, request_id: new_request_id() };
        let (path, body) = ask.request();
        let request = HttpRequest { path, body: Some(&body), request_id: Some(&ask.request_id) };
        let response = api.send(&request, self.patience).await.map_err(ended)?;
        let mut response = response.succeeded(self.patience).await.map_err(ended)?;
        let (mut events, mut gathering) = (EventStreamReader::default(), Gathering::default());
        while let Some(bytes) = response.chunk(self.patience).await.map_err(ended)? {
            let mut failure = None;
            let fed = events.feed(&bytes, |data| match gathering.take(api.at(), data) {
                Ok(text) if text.is_empty() => {}
                Ok(_) => seen.piece(due),
                Err(error) => failure = failure.take().or(Some(error)),
            });
            if fed.is_err() {
                return Err(Ended::Failed("malformed_answer".into()));
            }
            if let Some(error) = failure {
                return Err(ended(error));
            }
        }
        if !gathering.is_done {
            return Err(Ended::Failed("connection_lost".into()));
        }
        let count = |name: &str| gathering.answer.usage[name].as_u64().and_then(|count| u32::try_from(count).ok());
        seen.times.prompt_tokens = count("prompt_tokens").unwrap_or(0);
        seen.times.sampled_tokens = count("completion_tokens").unwrap_or(0);
        Ok(stages_of(&gathering.answer.timings["trace"], job.max_tokens))
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn ended(error: HttpError) -> Ended {
    match error {
        HttpError::Refused { status: 429 | 503, code, .. } => Ended::Refused(code),
        error => Ended::Failed(error.code().to_owned()),
    }
}

/// Stages from a server's trace. Its synchronisation time covers the whole answer, so it is only attributable if
/// the answer is one token.
fn stages_of(trace: &Value, max_tokens: u32) -> Option<Stages> {
    let time = |name: &str| trace[name].as_f64().filter(|time| time.is_finite()).map(|time| time.max(0.0));
    let (queue, prefill) = (time("queueing_ms")?, time("prefill_ms")?);
    let wire = time("synchronisation_ms").filter(|_| max_tokens == 1).unwrap_or(0.0).min(prefill);
    let (sampling, flush) = (time("sampling_ms").unwrap_or(0.0), time("flush_ms").unwrap_or(0.0));
    Some(Stages { queue, compute: prefill - wire, wire, sampling, flush, ..Stages::default() })
}

/// Sends a request to the head with the fewest requests in flight.
async fn on_head(
    heads: &[(Arc<Session>, AtomicUsize)],
    job: &Job,
    seed: u64,
    due: Instant,
    seen: &mut Seen,
) -> Result<Option<Stages>, Ended> {
    let least = heads.iter().min_by_key(|(_, running)| running.load(Ordering::Relaxed));
    let Some((session, running)) = least else { return Err(Ended::Failed("no_head".into())) };
    let prompt = match &job.prompt {
        Prompt::Text(text) => message::Prompt::Text(text.clone()),
        Prompt::Made(count) => message::Prompt::Tokens(tokens(*count, seed)),
    };
    let sampling = SamplingParameters { temperature: 0.0, seed, ..SamplingParameters::default() };
    let request = message::Generate::new(prompt, job.max_tokens, sampling, Vec::new());
    // Decremented on drop, however this function ends.
    let _under_way = UnderWay::on(running);
    let (events, mut received) = channel(EVENTS_MAX);
    let cancel = CancellationToken::new();
    let asking = async {
        generate(std::slice::from_ref(session), request, &cancel, &events).await;
        drop(events);
    };
    let watching = async {
        while let Some(event) = received.recv().await {
            match event {
                GenerateEvent::Started { .. }
                | GenerateEvent::Form(_)
                | GenerateEvent::Waits { .. }
                | GenerateEvent::Moved { .. } => {}
                GenerateEvent::Token(token) if token.id.is_some() => seen.piece(due),
                GenerateEvent::Token(_) => {}
                GenerateEvent::Finished(finished) => {
                    seen.times.prompt_tokens = finished.times.prompt_tokens;
                    seen.times.sampled_tokens = finished.times.sampled_tokens;
                    return Ok(Some(of_head(&finished)));
                }
                GenerateEvent::Failed(fault) => {
                    let code = fault.kind.code().to_owned();
                    let is_refusal = fault.kind.class() == FaultClass::Refused
                        && matches!(fault.kind, FaultKind::QueueFull { .. } | FaultKind::Draining);
                    return Err(if is_refusal { Ended::Refused(code) } else { Ended::Failed(code) });
                }
            }
        }
        Err(Ended::Failed("no_result".into()))
    };
    let ((), result) = tokio::join!(asking, watching);
    result
}

/// Counts a request while this value exists.
struct UnderWay<'a>(&'a AtomicUsize);

impl<'a> UnderWay<'a> {
    fn on(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Stages of a finished request, from the head's totals of its prefill.
fn of_head(finished: &Finished) -> Stages {
    let prefill = finished.ranks.first().map(|rank| rank.prefill).unwrap_or_default();
    Stages {
        queue: finished.times.dispatched.milliseconds(),
        compute: prefill.compute.milliseconds(),
        threads: prefill.threads.milliseconds(),
        wait: prefill.wait.milliseconds(),
        wire: prefill.wire.milliseconds(),
        bubble: prefill.bubble.milliseconds(),
        sampling: finished.times.sampling().milliseconds(),
        flush: finished.times.flush().milliseconds(),
        rest: 0.0,
    }
}

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;
