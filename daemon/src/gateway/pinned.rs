//! The model that computes all choices of one request. Until the first choice begins, a newly assigned model replaces
//! it, because the gateway's view of a cluster may be one report old. From then on, no other model continues any choice.
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use common::ids::ModelRoots;
use protocol::BUILD;
use topology::Topology;

use super::{cluster::Cluster, error::ApiError};

/// The model of one request.
#[derive(Debug)]
pub(super) struct Pinned {
    /// The client's name for it, if given.
    asked: Option<String>,
    state: Mutex<PinState>,
}

#[derive(Debug)]
struct PinState {
    topology: Arc<Topology>,
    has_begun: bool,
}

impl Pinned {
    /// The model of a topology; `asked` is the client's name for it.
    pub(super) fn new(asked: Option<String>, topology: Arc<Topology>) -> Self {
        let asked = asked.filter(|asked| !asked.is_empty());
        Self { asked, state: Mutex::new(PinState { topology, has_begun: false }) }
    }

    fn state(&self) -> MutexGuard<'_, PinState> {
        // The state is consistent even if a task panicked while it held the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Identity and content of the model.
    pub(super) fn roots(&self) -> ModelRoots {
        self.state().topology.roots()
    }

    /// Its context in tokens.
    pub(super) fn context(&self) -> usize {
        self.state().topology.context_length as usize
    }

    /// Whether a choice of the request has begun.
    pub(super) fn has_begun(&self) -> bool {
        self.state().has_begun
    }

    /// The model for the next attempt; `None`: no model is served. The answer has `tokens` tokens so far.
    ///
    /// # Errors
    /// The model that the request has begun with, or that it asks for, is not served any more.
    pub(super) async fn next(&self, cluster: &Cluster, tokens: usize) -> Result<Option<ModelRoots>, ApiError> {
        let roots = self.roots();
        if cluster.model_of(&roots).is_some() {
            return Ok(Some(roots));
        }
        if self.state().has_begun {
            return Err(ApiError::model_replaced(tokens));
        }
        let Some(model) = cluster.model_named(self.asked.as_deref()).await? else { return Ok(None) };
        let mut state = self.state();
        // Another choice of the request may have begun meanwhile.
        if !state.has_begun {
            state.topology = model.topology;
        }
        Ok(Some(state.topology.roots()))
    }

    /// Records that a head has begun with this model.
    ///
    /// # Errors
    /// Another choice of the request has begun with a different model.
    pub(super) fn begin(&self, model: &ModelRoots) -> Result<(), ApiError> {
        let mut state = self.state();
        if state.topology.roots().differs(model) {
            return Err(ApiError::model_replaced(0));
        }
        state.has_begun = true;
        Ok(())
    }

    /// Its name and fingerprint: the same fingerprint, seed and request give the same text.
    pub(super) fn names(&self) -> (String, String) {
        let topology = &self.state().topology;
        (topology.model.clone(), format!("bramble-{BUILD}-{}", topology.identity))
    }
}
