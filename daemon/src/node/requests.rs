//! The requests that a head runs: which session and id each engine key belongs to.
use std::collections::BTreeMap;

use shared::{
    ids::RequestId,
    protocol::{error::Fault, message::ResponseBody},
};

use super::event::{Effect, SessionId};
use crate::engine::RequestKey;

/// Requests handed to the engine and not yet ended.
#[derive(Debug, Default)]
pub(super) struct Requests {
    latest: u64,
    running: BTreeMap<RequestKey, (SessionId, RequestId)>,
}

impl Requests {
    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    pub(super) fn add(&mut self, session: SessionId, id: RequestId) -> RequestKey {
        self.latest += 1;
        let key = RequestKey(self.latest);
        self.running.insert(key, (session, id));
        key
    }

    pub(super) fn key(&self, session: SessionId, id: RequestId) -> Option<RequestKey> {
        self.running.iter().find(|(_, request)| **request == (session, id)).map(|(key, _)| *key)
    }

    pub(super) fn keys_of(&self, session: SessionId) -> Vec<RequestKey> {
        self.running.iter().filter(|(_, request)| request.0 == session).map(|(key, _)| *key).collect()
    }

    pub(super) fn respond(&self, key: RequestKey, body: ResponseBody) -> Option<Effect> {
        let (session, id) = *self.running.get(&key)?;
        Some(Effect::Respond { session, id, body })
    }

    pub(super) fn end(&mut self, key: RequestKey, body: ResponseBody) -> Option<Effect> {
        let effect = self.respond(key, body);
        self.running.remove(&key);
        effect
    }

    pub(super) fn forget(&mut self, key: RequestKey) {
        self.running.remove(&key);
    }

    /// Fails all of them.
    pub(super) fn fail_all(&mut self, fault: &Fault) -> Vec<Effect> {
        let running = std::mem::take(&mut self.running);
        let respond = |(session, id)| Effect::Respond { session, id, body: ResponseBody::Failed(fault.clone()) };
        running.into_values().map(respond).collect()
    }
}
