//! The request of somebody else that an operator ends.
use shared::{
    ids::RequestId,
    protocol::{error::FaultKind, message::ResponseBody},
};

use super::{
    event::{Effect, EngineCommand, SessionId},
    machine::Node,
};

impl Node {
    /// Ends a request whoever asked for it: that one hears that it was cancelled.
    pub(super) fn cancel_running(&self, who: (SessionId, RequestId), number: u64) -> Vec<Effect> {
        let (session, id) = who;
        let refused = |reason| self.refuse(session, id, FaultKind::ParameterInvalid { reason });
        let running = self.running.as_ref();
        let Some((key, is_bench)) = running.and_then(|running| running.requests.numbered(number)) else {
            return refused(format!("no request {number} runs here; console requests lists them"));
        };
        if is_bench {
            // Its steps run in lockstep on all ranks, and it is bounded: the engine has nothing to take out.
            return refused(format!(
                "request {number} times all-reduces and ends by itself within seconds; wait for it"
            ));
        }
        vec![
            Effect::Command(EngineCommand::Cancel(key)),
            Effect::Respond { session, id, body: ResponseBody::Cancelling },
        ]
    }
}
