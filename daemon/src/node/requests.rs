//! The requests that a head runs: session and id of each engine key, the stage of each, and the latest finished ones.
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use common::{
    fault::Fault,
    ids::RequestId,
    planted::{Planted, is_planted},
};
use engine::RequestKey;
use protocol::message::ResponseBody;
use telemetry::request::{BY_BYTES_MAX, OPEN_MAX, OVER_MAX, RequestReport, RequestStage};

use super::event::{ReplyTo, SessionId};
use crate::node::effect::Effect;

/// A request for the engine.
#[derive(Clone, Debug)]
pub(super) struct NewRequest {
    pub(super) to: ReplyTo,
    /// Name of its session's client.
    pub(super) by: String,
    /// Longest answer; 0 for a link benchmark.
    pub(super) max_tokens: u32,
}

/// A running request.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OpenRequest {
    to: ReplyTo,
    by: String,
    max_tokens: u32,
    since: Duration,
    prompt_tokens: u32,
    tokens: u32,
    is_dispatched: bool,
}

/// A finished request: when it ended, and its report.
#[derive(Debug)]
struct EndedRequest {
    ended: Duration,
    report: RequestReport,
}

/// Requests passed to the engine that have not ended, and the latest that have.
#[derive(Debug, Default)]
pub(super) struct Requests {
    latest: u64,
    now: Duration,
    running: BTreeMap<RequestKey, OpenRequest>,
    over: VecDeque<EndedRequest>,
    /// When the last request was running, or the topology began.
    busy: Duration,
}

impl Requests {
    /// `latest` is the number of the node's latest request: request numbers are unique across topologies.
    pub(super) fn new(now: Duration, latest: u64) -> Self {
        Self { now, latest, busy: now, ..Self::default() }
    }

    /// Advances the clock.
    pub(super) fn tick(&mut self, now: Duration) {
        self.now = now;
        if !self.running.is_empty() {
            self.busy = now;
        }
    }

    /// Time since the last request ended.
    pub(super) fn idle(&self) -> Duration {
        if self.running.is_empty() { self.now.saturating_sub(self.busy) } else { Duration::ZERO }
    }

    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    /// Numbers of running and of finished requests.
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.running.len(), self.over.len())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    pub(super) fn add(&mut self, new: NewRequest) -> RequestKey {
        self.latest += 1;
        let key = RequestKey(self.latest);
        let NewRequest { to, by, max_tokens } = new;
        let by = bounded(&by).to_owned();
        let (since, prompt_tokens, tokens, is_dispatched) = (self.now, 0, 0, false);
        self.running.insert(key, OpenRequest { to, by, max_tokens, since, prompt_tokens, tokens, is_dispatched });
        key
    }

    pub(super) fn key(&self, session: SessionId, id: RequestId) -> Option<RequestKey> {
        self.running.iter().find(|(_, open)| open.to == ReplyTo { session, id }).map(|(key, _)| *key)
    }

    /// The key of a running request by number, and whether it is a link benchmark, which generates no tokens.
    pub(super) fn numbered(&self, number: u64) -> Option<(RequestKey, bool)> {
        let key = RequestKey(number);
        self.running.get(&key).map(|open| (key, open.max_tokens == 0))
    }

    pub(super) fn keys_of(&self, session: SessionId) -> Vec<RequestKey> {
        self.running.iter().filter(|(_, open)| open.to.session == session).map(|(key, _)| *key).collect()
    }

    pub(super) fn respond(&mut self, key: RequestKey, body: ResponseBody) -> Option<Effect> {
        let open = self.running.get_mut(&key)?;
        match &body {
            ResponseBody::Started { prompt_token_ids, .. } => open.prompt_tokens = prompt_token_ids.len() as u32,
            ResponseBody::Token(token) => open.tokens += u32::from(token.id.is_some()),
            _ => {}
        }
        Some(Effect::respond(open.to, body))
    }

    /// It no longer waits for a slot or for KV memory.
    pub(super) fn dispatched(&mut self, key: RequestKey) {
        if let Some(open) = self.running.get_mut(&key) {
            open.is_dispatched = true;
        }
    }

    pub(super) fn end(&mut self, key: RequestKey, body: ResponseBody) -> Option<Effect> {
        let stage = match &body {
            ResponseBody::Finished(finished) => Some(RequestStage::Finished(finished.reason, Box::new(finished.times))),
            ResponseBody::Failed(fault) => Some(RequestStage::Failed(Box::new(fault.clone()))),
            _ => None,
        };
        let effect = self.respond(key, body);
        self.close(key, stage);
        effect
    }

    /// Its session has ended.
    pub(super) fn forget(&mut self, key: RequestKey) {
        self.close(key, Some(RequestStage::Abandoned));
    }

    /// Fails all of them.
    pub(super) fn fail_all(&mut self, fault: &Fault) -> Vec<Effect> {
        let keys: Vec<RequestKey> = self.running.keys().copied().collect();
        if is_planted(Planted::ErrorTwice) {
            let again = keys.iter().filter_map(|key| self.respond(*key, ResponseBody::Failed(fault.clone())));
            let mut effects: Vec<Effect> = again.collect();
            effects.extend(keys.into_iter().filter_map(|key| self.end(key, ResponseBody::Failed(fault.clone()))));
            return effects;
        }
        keys.into_iter().filter_map(|key| self.end(key, ResponseBody::Failed(fault.clone()))).collect()
    }

    /// Running requests, oldest first, then finished ones, latest first.
    pub(super) fn report(&self) -> Vec<RequestReport> {
        let open = self.running.iter().take(OPEN_MAX).map(|(key, open)| RequestReport {
            number: key.0,
            by: open.by.clone(),
            max_tokens: open.max_tokens,
            stage: match (open.tokens, open.is_dispatched) {
                (0, false) => RequestStage::Queued,
                (0, true) => RequestStage::Prefill,
                _ => RequestStage::Decoding,
            },
            age_ms: self.age(open.since),
            prompt_tokens: open.prompt_tokens,
            tokens: open.tokens,
        });
        let over =
            self.over.iter().rev().map(|over| RequestReport { age_ms: self.age(over.ended), ..over.report.clone() });
        open.chain(over).collect()
    }

    fn age(&self, since: Duration) -> u64 {
        self.now.saturating_sub(since).as_millis() as u64
    }

    /// Removes a request; with a stage, it is kept among the finished ones.
    fn close(&mut self, key: RequestKey, stage: Option<RequestStage>) {
        let Some((open, stage)) = self.running.remove(&key).zip(stage) else { return };
        if self.over.len() == OVER_MAX && !is_planted(Planted::FinishedKept) {
            self.over.pop_front();
        }
        let (prompt_tokens, tokens) = (open.prompt_tokens, open.tokens);
        let (by, max_tokens) = (open.by, open.max_tokens);
        let report = RequestReport { number: key.0, by, stage, age_ms: 0, prompt_tokens, tokens, max_tokens };
        self.over.push_back(EndedRequest { ended: self.now, report });
    }
}

/// The beginning of a name, up to the reported length.
fn bounded(by: &str) -> &str {
    &by[..by.floor_char_boundary(BY_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use common::fault::FaultKind;
    use protocol::message::TokenEvent;

    use super::*;

    fn new(id: u64, by: &str) -> NewRequest {
        let to = ReplyTo { session: SessionId(1), id: RequestId(id) };
        NewRequest { to, by: by.into(), max_tokens: 9 }
    }

    fn token() -> ResponseBody {
        ResponseBody::Token(TokenEvent { id: Some(1), text: "x".into(), logprobs: Vec::new() })
    }

    fn told(requests: &Requests) -> Vec<(u64, &'static str, u64, u32)> {
        let reports = requests.report().into_iter();
        reports.map(|report| (report.number, report.stage.name(), report.age_ms, report.tokens)).collect()
    }

    #[test]
    fn report_lists_running_waiting_and_finished_requests() {
        let mut requests = Requests::new(Duration::from_secs(1), 0);
        let keys: Vec<RequestKey> = (0..4).map(|id| requests.add(new(id, "ann"))).collect();
        requests.tick(Duration::from_secs(3));
        requests.respond(keys[0], token());
        // The second one waits for memory, although a slot is free.
        requests.dispatched(keys[2]);
        assert_eq!(
            told(&requests),
            [(1, "decoding", 2000, 1), (2, "queued", 2000, 0), (3, "prefill", 2000, 0), (4, "queued", 2000, 0)]
        );
        requests.forget(keys[1]);
        requests.fail_all(&Fault::new("pi1", FaultKind::Draining));
        requests.tick(Duration::from_secs(4));
        assert_eq!(
            told(&requests),
            [(4, "failed", 1000, 0), (3, "failed", 1000, 0), (1, "failed", 1000, 1), (2, "abandoned", 1000, 0)]
        );
    }

    #[test]
    fn reported_names_and_counts_are_bounded() {
        let mut requests = Requests::default();
        for id in 0..10 * OPEN_MAX as u64 {
            requests.add(new(id, &"\u{fc}".repeat(999)));
        }
        assert_eq!(requests.report().len(), OPEN_MAX);
        assert!(requests.report().iter().all(|report| report.by.len() <= BY_BYTES_MAX));
        requests.fail_all(&Fault::new("pi1", FaultKind::Draining));
        assert_eq!(requests.report().len(), OVER_MAX);
        assert_eq!(requests.report()[0].number, 10 * OPEN_MAX as u64);
    }
}
