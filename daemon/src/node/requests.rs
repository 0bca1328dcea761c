//! The requests that a head runs: which session and id each engine key belongs to, who asked, how far each is; and the latest that ended.
//! Keys count over the node's life, so that a number names one request whatever topology runs.
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use shared::{
    ids::RequestId,
    latency::RequestTimes,
    protocol::{
        error::Fault,
        inspect::{ENDED_MAX, EndedRequest, HeadRequests, RequestPhase, RunningRequest},
        message::{FinishReason, ResponseBody},
    },
    units::Nanoseconds,
};

use super::event::{Effect, SessionId};
use crate::engine::RequestKey;

/// Longest name of whoever asked, in bytes: kept with each request.
const BY_BYTES_MAX: usize = 128;

/// A request that was handed to the engine.
#[derive(Clone, Debug)]
struct Entry {
    session: SessionId,
    id: RequestId,
    by: String,
    begun: Duration,
    prompt_tokens: u32,
    tokens: u32,
    max_tokens: u32,
}

impl Entry {
    fn ended(self, key: RequestKey, body: &ResponseBody) -> Option<EndedRequest> {
        let (reason, fault, times) = match body {
            ResponseBody::Finished(finished) => (Some(finished.reason), None, finished.times),
            ResponseBody::Failed(fault) => (None, Some(fault.to_string()), RequestTimes::default()),
            // Timed links are no request of a text.
            _ => return None,
        };
        let (number, by, tokens, ago) = (key.0, self.by, self.tokens, Nanoseconds(0));
        Some(EndedRequest { number, by, ago, reason, fault, times, tokens })
    }
}

/// What the node remembers of requests that ended, and how many there were.
#[derive(Debug, Default)]
pub(super) struct History {
    latest: u64,
    /// With the time at which each ended, oldest first.
    ended: VecDeque<(Duration, EndedRequest)>,
}

impl History {
    fn keep(&mut self, now: Duration, ended: EndedRequest) {
        if self.ended.len() >= ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back((now, ended));
    }

    /// With the requests that run.
    pub(super) fn seen(&self, running: Option<(&Requests, u16)>, now: Duration) -> HeadRequests {
        let ended = self.ended.iter().map(|(then, ended)| EndedRequest { ago: since(*then, now), ..ended.clone() });
        HeadRequests {
            running: running.map(|(running, slots)| running.seen(slots, now)).unwrap_or_default(),
            ended: ended.collect(),
        }
    }
}

fn since(then: Duration, now: Duration) -> Nanoseconds {
    Nanoseconds(u64::try_from(now.saturating_sub(then).as_nanos()).unwrap_or(u64::MAX))
}

/// Requests handed to the engine and not yet ended.
#[derive(Debug, Default)]
pub(super) struct Requests {
    running: BTreeMap<RequestKey, Entry>,
}

impl Requests {
    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    pub(super) fn add(
        &mut self,
        (session, id): (SessionId, RequestId),
        (by, max_tokens): (String, u32),
        (history, now): (&mut History, Duration),
    ) -> RequestKey {
        history.latest += 1;
        let key = RequestKey(history.latest);
        let by = by.chars().scan(0, |bytes, letter| {
            *bytes += letter.len_utf8();
            (*bytes <= BY_BYTES_MAX).then_some(letter)
        });
        let entry = Entry { session, id, by: by.collect(), begun: now, prompt_tokens: 0, tokens: 0, max_tokens };
        self.running.insert(key, entry);
        key
    }

    pub(super) fn key(&self, session: SessionId, id: RequestId) -> Option<RequestKey> {
        self.running.iter().find(|(_, entry)| (entry.session, entry.id) == (session, id)).map(|(key, _)| *key)
    }

    /// The key with a number, if it runs.
    pub(super) fn numbered(&self, number: u64) -> Option<RequestKey> {
        self.running.contains_key(&RequestKey(number)).then_some(RequestKey(number))
    }

    pub(super) fn keys_of(&self, session: SessionId) -> Vec<RequestKey> {
        self.running.iter().filter(|(_, entry)| entry.session == session).map(|(key, _)| *key).collect()
    }

    pub(super) fn respond(&mut self, key: RequestKey, body: ResponseBody) -> Option<Effect> {
        let entry = self.running.get_mut(&key)?;
        match &body {
            ResponseBody::Started { prompt_token_ids, .. } => {
                entry.prompt_tokens = u32::try_from(prompt_token_ids.len()).unwrap_or(u32::MAX);
            }
            ResponseBody::Token(token) => entry.tokens += u32::from(token.id.is_some()),
            _ => {}
        }
        Some(Effect::Respond { session: entry.session, id: entry.id, body })
    }

    pub(super) fn end(
        &mut self,
        key: RequestKey,
        body: ResponseBody,
        (history, now): (&mut History, Duration),
    ) -> Option<Effect> {
        let entry = self.running.remove(&key)?;
        let (session, id) = (entry.session, entry.id);
        if let Some(ended) = entry.ended(key, &body) {
            history.keep(now, ended);
        }
        Some(Effect::Respond { session, id, body })
    }

    /// Nobody waits for its answer any more.
    pub(super) fn forget(&mut self, key: RequestKey, (history, now): (&mut History, Duration)) {
        let Some(entry) = self.running.remove(&key) else { return };
        let (times, reason) = (RequestTimes::default(), Some(FinishReason::Cancelled));
        let (number, by, tokens, ago) = (key.0, entry.by, entry.tokens, Nanoseconds(0));
        history.keep(now, EndedRequest { number, by, ago, reason, fault: None, times, tokens });
    }

    /// Fails all of them.
    pub(super) fn fail_all(&mut self, fault: &Fault, (history, now): (&mut History, Duration)) -> Vec<Effect> {
        let keys: Vec<RequestKey> = self.running.keys().copied().collect();
        let fail = |key| self.end(key, ResponseBody::Failed(fault.clone()), (&mut *history, now));
        keys.into_iter().filter_map(fail).collect()
    }

    /// Oldest first. Places are given in the order of arrival: who has no token and no place left waits.
    fn seen(&self, slots: u16, now: Duration) -> Vec<RunningRequest> {
        let decoding = self.running.values().filter(|entry| entry.tokens > 0).count();
        let mut free = usize::from(slots).saturating_sub(decoding);
        let seen = |(key, entry): (&RequestKey, &Entry)| {
            let phase = match entry.tokens {
                0 if free == 0 || entry.prompt_tokens == 0 => RequestPhase::Queued,
                0 => {
                    free -= 1;
                    RequestPhase::Prefill
                }
                _ => RequestPhase::Decode,
            };
            RunningRequest {
                number: key.0,
                by: entry.by.clone(),
                phase,
                age: since(entry.begun, now),
                prompt_tokens: entry.prompt_tokens,
                tokens: entry.tokens,
                max_tokens: entry.max_tokens,
            }
        };
        self.running.iter().map(seen).collect()
    }
}
