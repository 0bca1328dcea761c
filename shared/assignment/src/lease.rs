//! A node drops a prepared shard if the program that prepared it sends nothing for the length of the lease. The members of a
//! topology may load for very different times, so those that have loaded get signs of life while the others still load.
use std::{sync::Arc, time::Duration};

use protocol::{message::RequestBody, session::Session};
use tokio::{
    task::JoinSet,
    time::{Interval, MissedTickBehavior, interval},
};

use crate::identify::REPORT;

/// Time between two signs of life: several of them in the usual lease of a minute.
const SIGN: Duration = Duration::from_secs(5);

/// Sessions with nodes that hold a prepared shard.
#[derive(Debug)]
pub struct Leases {
    sessions: Vec<Arc<Session>>,
    asked: JoinSet<()>,
    due: Interval,
}

impl Default for Leases {
    fn default() -> Self {
        let mut due = interval(SIGN);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { sessions: Vec::new(), asked: JoinSet::new(), due }
    }
}

impl Leases {
    /// Adds a node that has prepared its shard.
    pub fn add(&mut self, session: Arc<Session>) {
        self.sessions.push(session);
    }

    /// Waits until a sign of life is due, and sends it: a request for a report, whose answer does not matter. A node that
    /// is lost meanwhile fails the commit. Cancelling the wait loses nothing.
    pub async fn extend(&mut self) {
        self.due.tick().await;
        while self.asked.try_join_next().is_some() {}
        for session in &self.sessions {
            let session = Arc::clone(session);
            self.asked.spawn(async move {
                if let Ok(mut reply) = session.ask(RequestBody::Report).await {
                    drop(reply.next("a report", REPORT).await);
                }
            });
        }
    }
}
