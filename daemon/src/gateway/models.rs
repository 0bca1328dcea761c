//! The served models for clients: which one a request means, and the list of them.
use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
};
use common::ids::ModelRoots;
use serde_json::{Value, json};

use super::{Gateway, cluster::ServedModel, error::ApiError};

impl Gateway {
    /// The model that a request means: the one that it names, or the only one.
    ///
    /// # Errors
    /// No model has this name, several are served and none is named, or nothing is served.
    pub(super) async fn served(&self, asked: Option<&str>) -> Result<ServedModel, ApiError> {
        self.cluster.model_named(asked).await?.ok_or_else(|| self.not_serving(None))
    }

    /// Estimated seconds until a slot is free of the model for which it is first.
    pub(super) fn retry_after(&self) -> u64 {
        let models = self.cluster.models();
        let waits = models.iter().map(|model| self.admission.retry_after(&model.topology.roots()));
        waits.min().unwrap_or(1)
    }
}

/// The model as an object of the OpenAI API.
fn object(model: &ServedModel) -> Value {
    let topology = &model.topology;
    json!({
        "id": topology.model,
        "object": "model",
        "created": model.since,
        "owned_by": "bramble",
        "meta": {
            "identity": topology.identity.to_string(),
            "topology": topology.layout.to_string(),
            "context_length": topology.context_length,
            "slots": model.slots(),
        },
    })
}

/// GET /v1/models.
pub(super) async fn list(State(gateway): State<Arc<Gateway>>) -> Json<Value> {
    gateway.cluster.await_models().await;
    let list: Vec<Value> = gateway.cluster.models().iter().map(object).collect();
    Json(json!({"object": "list", "data": list}))
}

/// GET /v1/models/{model}.
pub(super) async fn get(
    State(gateway): State<Arc<Gateway>>,
    Path(asked): Path<String>,
) -> Result<Json<Value>, ApiError> {
    gateway.served(Some(&asked)).await.map(|model| Json(object(&model)))
}

/// Whether two models are known to be different ones; without a model, all count.
pub(super) fn concerns(of: Option<&ModelRoots>, model: &ModelRoots) -> bool {
    of.is_none_or(|of| !of.differs(model))
}
