//! Requests about model files. The disk answers them, except that a file that a topology needs cannot be removed.
use common::{fault::FaultKind, ids::RequestId};
use protocol::models::{ModelsRequest, family};

use super::{event::SessionId, machine::Node};
use crate::node::effect::{Effect, ModelEffect};

impl Node {
    pub(super) fn models(&self, session: SessionId, id: RequestId, request: ModelsRequest) -> Vec<Effect> {
        match &request {
            ModelsRequest::Remove { model } if self.needs(model) => {
                self.refuse(session, id, FaultKind::ModelInUse { model: model.clone() })
            }
            _ => vec![Effect::Model(ModelEffect::Files { session, id, request: Box::new(request) })],
        }
    }

    /// Whether a running or open topology uses this file, or another file of the same split model.
    fn needs(&self, model: &str) -> bool {
        let open = self.open.iter().map(|open| &open.assignment);
        let mut held = open.chain(self.running.iter().map(|running| &running.assignment));
        held.any(|assignment| family(&assignment.topology.model) == family(model))
    }
}
