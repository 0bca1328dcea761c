//! What operators look at beside the report, and the request of somebody else that they end.
use shared::{
    ids::RequestId,
    protocol::{
        error::FaultKind,
        inspect::{Inspect, Inspected},
        message::ResponseBody,
    },
};

use super::{
    event::{Effect, EngineCommand, SessionId},
    machine::Node,
};

impl Node {
    pub(super) fn inspect(&self, session: SessionId, id: RequestId, what: Inspect) -> Vec<Effect> {
        match what {
            Inspect::Log { after, level } => vec![Effect::Log { session, id, after, level }],
            Inspect::Settings => vec![Effect::Settings { session, id }],
            Inspect::Requests => {
                let running = self.running.as_ref();
                let running = running.map(|running| (&running.requests, running.assignment.topology.slots));
                let seen = Inspected::Requests(self.history.seen(running, self.now));
                vec![Effect::Respond { session, id, body: ResponseBody::Inspected(Box::new(seen)) }]
            }
        }
    }

    /// Ends a request whoever asked for it: that one hears that it was cancelled.
    pub(super) fn cancel_running(&self, who: (SessionId, RequestId), number: u64) -> Vec<Effect> {
        let (session, id) = who;
        let Some(key) = self.running.as_ref().and_then(|running| running.requests.numbered(number)) else {
            let reason = format!("no request {number} runs here; console requests lists them");
            return self.refuse(session, id, FaultKind::ParameterInvalid { reason });
        };
        vec![
            Effect::Command(EngineCommand::Cancel(key)),
            Effect::Respond { session, id, body: ResponseBody::Cancelling },
        ]
    }
}
