//! The model that computes all choices of one request. Until the first choice begins, a newly assigned model replaces
//! it, because the gateway's view of a cluster may be one report old. From then on, no other model continues any
//! choice.
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use common::ids::ModelRoots;
use protocol::BUILD;
use topology::Topology;

use super::error::ApiError;

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
    /// The model of a topology.
    ///
    /// # Errors
    /// The client requests another model.
    pub(super) fn new(asked: Option<String>, topology: Arc<Topology>) -> Result<Self, ApiError> {
        let asked = asked.filter(|asked| !asked.is_empty());
        check_name(asked.as_deref(), &topology)?;
        Ok(Self { asked, state: Mutex::new(PinState { topology, has_begun: false }) })
    }

    fn state(&self) -> MutexGuard<'_, PinState> {
        // The state is consistent even if a task panicked while it held the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model for the next attempt while `served` is being served; the answer has `tokens` tokens so far.
    ///
    /// # Errors
    /// Another model is served than the one that the request has begun with or asks for.
    pub(super) fn next(&self, served: Option<Arc<Topology>>, tokens: usize) -> Result<ModelRoots, ApiError> {
        let mut state = self.state();
        match served.filter(|served| served.roots().differs(&state.topology.roots())) {
            Some(_) if state.has_begun => return Err(ApiError::model_replaced(tokens)),
            Some(served) => {
                check_name(self.asked.as_deref(), &served)?;
                state.topology = served;
            }
            None => {}
        }
        Ok(state.topology.roots())
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

fn check_name(asked: Option<&str>, served: &Topology) -> Result<(), ApiError> {
    match asked.filter(|asked| !is_model(asked, &served.model)) {
        Some(asked) => Err(ApiError::no_such_model(asked, &served.model)),
        None => Ok(()),
    }
}

/// Whether a client's model name means the served model: its file name with or without the extension.
pub(super) fn is_model(asked: &str, served: &str) -> bool {
    asked == served || served.strip_suffix(".gguf") == Some(asked)
}
