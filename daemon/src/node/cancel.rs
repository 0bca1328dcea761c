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
