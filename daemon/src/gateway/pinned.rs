//! The model that the choices of one request belong to. Until the first of them begins, a model that is assigned meanwhile takes its
//! place: what a gateway knows of a cluster is up to one report old. From then on no other model continues any of them.
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shared::{ids::ModelRoots, protocol::BUILD, topology::Topology};

use super::{error::ApiError, http::is_model};

/// The model of one request.
#[derive(Debug)]
pub(super) struct Pinned {
    /// How the client named it, if at all.
    asked: Option<String>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    topology: Arc<Topology>,
    has_begun: bool,
}

impl Pinned {
    /// The model of a topology.
    ///
    /// # Errors
    /// The client asks for another one.
    pub(super) fn new(asked: Option<String>, topology: Arc<Topology>) -> Result<Self, ApiError> {
        let asked = asked.filter(|asked| !asked.is_empty());
        check_name(asked.as_deref(), &topology)?;
        Ok(Self { asked, state: Mutex::new(State { topology, has_begun: false }) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // It is whole even if a task panicked while it held the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the next attempt is to be computed with, now that `served` serves; `tokens` of the answer are there.
    ///
    /// # Errors
    /// Another model is served than the one that the request has begun with, or asks for.
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

    /// A head has begun with this model.
    ///
    /// # Errors
    /// Another choice of the request has begun with another one.
    pub(super) fn begin(&self, model: &ModelRoots) -> Result<(), ApiError> {
        let mut state = self.state();
        if state.topology.roots().differs(model) {
            return Err(ApiError::model_replaced(0));
        }
        state.has_begun = true;
        Ok(())
    }

    /// Its name, and what stands for all that computed an answer: the same fingerprint, seed and request give the same text.
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
