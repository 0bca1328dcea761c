//! Cancellation of another session's request by an operator.
use common::fault::FaultKind;
use protocol::message::ResponseBody;

use super::{
    event::{EngineCommand, ReplyTo},
    machine::Node,
};
use crate::node::effect::{Effect, EngineEffect};

impl Node {
    /// Cancels a request of any session; that session receives a response with the reason.
    pub(super) fn cancel_running(&self, to: ReplyTo, number: u64) -> Vec<Effect> {
        let refused = |reason| self.refuse(to.session, to.id, FaultKind::ParameterInvalid { reason });
        let running = self.running.as_ref();
        let Some((key, is_bench)) = running.and_then(|running| running.requests.numbered(number)) else {
            return refused(format!("no request {number} runs here; list them with `console requests`"));
        };
        if is_bench {
            // Its steps run in lockstep on all ranks and are bounded, so the engine cannot cancel it.
            return refused(format!(
                "request {number} is a link benchmark and ends by itself within seconds; wait for it"
            ));
        }
        vec![
            Effect::Engine(EngineEffect::Command(EngineCommand::Cancel(key))),
            Effect::respond(to, ResponseBody::Cancelling),
        ]
    }
}
