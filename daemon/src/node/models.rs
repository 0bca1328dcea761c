//! Requests about model files: all are for the disk, but a file that a topology needs stays.
use shared::{
    ids::RequestId,
    protocol::{
        error::FaultKind,
        models::{ModelsRequest, family},
    },
};

use super::{
    event::{Effect, SessionId},
    machine::Node,
};

impl Node {
    pub(super) fn models(&self, session: SessionId, id: RequestId, request: ModelsRequest) -> Vec<Effect> {
        match &request {
            ModelsRequest::Remove { model } if self.needs(model) => {
                self.refuse(session, id, FaultKind::ModelInUse { model: model.clone() })
            }
            _ => vec![Effect::Models { session, id, request: Box::new(request) }],
        }
    }

    /// Whether a topology that runs or is being assigned has this file, or another of the same model's.
    fn needs(&self, model: &str) -> bool {
        let open = self.open.iter().map(|open| &open.assignment);
        let mut held = open.chain(self.running.iter().map(|running| &running.assignment));
        held.any(|assignment| family(&assignment.topology.model) == family(model))
    }
}
