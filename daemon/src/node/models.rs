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

    /// Whether a running or open topology uses this file, or another file of the same split model. The file of a
    /// topology that does not run may be removed: a wrong file may be the reason.
    fn needs(&self, model: &str) -> bool {
        let open = self.open.iter().map(|open| &open.assignment.topology);
        let mut held = open.chain(self.running.iter().map(|running| &running.assignment.topology));
        held.any(|topology| {
            let draft = topology.draft.iter().map(|draft| &draft.model);
            draft.chain([&topology.model]).any(|file| family(file) == family(model))
        })
    }
}

#[cfg(test)]
mod tests {
    use common::{
        ids::{Epoch, ModelIdentity},
        units::Bytes,
    };
    use protocol::message::RequestBody;
    use topology::{Draft, Topology};

    use super::*;
    use crate::node::{
        Event,
        tests::{CONSOLE, OTHER, ask, failure, prepare_of, running, topology},
    };

    #[test]
    fn files_of_model_and_draft_model_in_use_cannot_be_removed() {
        let refused = |node: &mut Node, model: &str| {
            let request = ModelsRequest::Remove { model: model.into() };
            let effects = ask(node, OTHER, 9, RequestBody::Models(Box::new(request)));
            matches!(failure(&effects), Some(FaultKind::ModelInUse { .. }))
        };
        let mut node = running();
        assert!(refused(&mut node, "m.gguf") && !refused(&mut node, "small.gguf"));
        let (identity, weights, block) = (ModelIdentity::default(), Bytes(1), Bytes(1));
        let draft = Draft { model: "small-00001-of-00002.gguf".into(), identity, content: None, weights, block };
        let next = Topology { draft: Some(Box::new(draft)), ..topology(2) };
        prepare_of(&mut node, CONSOLE, (4, 5), next.clone());
        assert!(refused(&mut node, "small-00002-of-00002.gguf"), "it is being loaded");
        node.handle(Event::Loaded(Epoch(5), Ok(Bytes(5))));
        node.handle(Event::Persisted(Epoch(5), next.hash(), Ok(())));
        ask(&mut node, CONSOLE, 2, RequestBody::Commit { epoch: Epoch(5), hash: next.hash() });
        node.handle(Event::Connected(Epoch(5), Ok(())));
        assert!(refused(&mut node, "small-00001-of-00002.gguf") && !refused(&mut node, "other.gguf"));
    }
}
