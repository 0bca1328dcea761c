//! Unloads the topology: when its head has had no request for the time that the topology sets, or when another member
//! has unloaded it.
use std::collections::BTreeSet;

use protocol::{
    message::{RequestBody, ResponseBody, Unload},
    recovery::{Committed, Standing},
};

use super::{ANSWER, Doing, Question, Reply, Steward, StewardAsk};

/// An unload in progress.
#[derive(Debug)]
pub(super) struct Unloading {
    base: Committed,
    /// The question to this node, its head: it comes first, because a request may have arrived.
    own: Option<Question>,
    /// The questions to the other members.
    waiting: BTreeSet<Question>,
}

impl Steward {
    /// Unloads the topology if its head has been idle for long enough.
    pub(super) fn unload_if_idle(&mut self, own: &Standing) -> Option<Vec<StewardAsk>> {
        let base = own.committed.clone()?;
        let limit = base.topology.unload_after?;
        own.idle.filter(|idle| *idle >= limit)?;
        let (epoch, hash) = base.name();
        let address = self.settings.own.clone();
        let (question, ask) = self.ask(&address, RequestBody::Unload(Unload { epoch, hash, if_idle: true }), ANSWER);
        self.doing = Doing::Unload(Box::new(Unloading { base, own: Some(question), waiting: BTreeSet::new() }));
        Some(vec![ask])
    }

    pub(super) fn hear_unload(
        &mut self,
        mut unloading: Box<Unloading>,
        question: Question,
        reply: Reply,
    ) -> Vec<StewardAsk> {
        let mut asks = Vec::new();
        if unloading.own == Some(question) {
            unloading.own = None;
            if !matches!(reply.of_node(), Ok(ResponseBody::Done)) {
                return asks;
            }
            tracing::info!("{} was unloaded: it had no request for long enough", unloading.base.topology.model);
            let (epoch, hash) = unloading.base.name();
            let name = self.settings.name.clone();
            for member in unloading.base.topology.members.iter().filter(|member| member.name != name) {
                let unload = RequestBody::Unload(Unload { epoch, hash, if_idle: false });
                let (question, ask) = self.ask(&member.address, unload, ANSWER);
                unloading.waiting.insert(question);
                asks.push(ask);
            }
        } else {
            // A member that does not answer learns it from the others when it is back.
            unloading.waiting.remove(&question);
        }
        if unloading.own.is_some() || !unloading.waiting.is_empty() {
            self.doing = Doing::Unload(unloading);
        }
        asks
    }

    /// Drops a topology that another member has unloaded.
    pub(super) fn forget(&mut self, base: &Committed) -> Vec<StewardAsk> {
        tracing::info!("epoch {} was unloaded on another node, and is unloaded here", base.epoch);
        let (epoch, hash) = base.name();
        let own = self.settings.own.clone();
        let unload = RequestBody::Unload(Unload { epoch, hash, if_idle: false });
        let (question, ask) = self.ask(&own, unload, ANSWER);
        self.doing = Doing::Learn(question);
        vec![ask]
    }
}
