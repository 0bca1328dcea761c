//! The served models and this server in Ollama's words. Topologies contain a model's name, identity and context, so its
//! size and family are empty.
use std::sync::Arc;

use axum::{Json, extract::State};
use serde_json::{Value, json};

use super::{
    records::{shown_name, timestamp},
    request::model,
};
use crate::gateway::{
    Gateway,
    cluster::ServedModel,
    complete::ReceivedRequest,
    error::ApiError,
    outline::{Bounds, Outline},
    typed_json::Fields,
    writer::Demand,
};

/// When a model expires that is never unloaded by itself.
const NEVER: &str = "2318-11-22T00:00:00Z";
/// The release of Ollama whose API is served: clients refuse older ones.
const API_VERSION: &str = "0.12.6";

/// A model as an object of this API.
fn record(served: &ServedModel) -> Value {
    let topology = &served.topology;
    let name = shown_name(&topology.model);
    json!({
        "name": name, "model": name, "modified_at": timestamp(served.since), "size": 0,
        "digest": topology.identity.to_string(), "details": details(&topology.model),
    })
}

/// What the file's name shows of a model.
fn details(file: &str) -> Value {
    let stem = file.strip_suffix(".gguf").unwrap_or(file);
    let level = stem.rsplit(['-', '.']).next().unwrap_or_default().to_uppercase();
    let is_level = ["Q", "IQ", "F16", "F32", "BF16", "MXFP4"].iter().any(|begin| level.starts_with(begin));
    json!({
        "parent_model": "", "format": "gguf", "family": "", "families": [], "parameter_size": "",
        "quantization_level": if is_level { level.as_str() } else { "" },
    })
}

/// Lists the models.
pub(in crate::gateway) async fn tags(State(gateway): State<Arc<Gateway>>) -> Json<Value> {
    gateway.cluster.await_models().await;
    Json(json!({"models": gateway.cluster.models().iter().map(record).collect::<Vec<_>>()}))
}

/// Lists the models as loaded.
pub(in crate::gateway) async fn running(State(gateway): State<Arc<Gateway>>) -> Json<Value> {
    gateway.cluster.await_models().await;
    let models = gateway.cluster.models();
    let loaded = models.iter().map(|served| {
        let mut model = record(served);
        model["expires_at"] = served.expires().map_or_else(|| NEVER.into(), timestamp).into();
        model["size_vram"] = 0.into();
        model["context_length"] = served.topology.context_length.into();
        model
    });
    Json(json!({"models": loaded.collect::<Vec<_>>()}))
}

/// Describes the model that the body names.
///
/// # Errors
/// The first invalid field.
pub(in crate::gateway) fn show(_: &Gateway, body: &[u8], _: &ReceivedRequest, _: Bounds) -> Result<Demand, ApiError> {
    let fields = Outline::read(body)?.values(&["model", "name"])?;
    let (plain, _) = model(Fields(&fields))?;
    Ok(Demand::Known(plain, Box::new(described)))
}

/// The description of a model.
fn described(served: &ServedModel) -> Value {
    let model = record(served);
    let context = served.topology.context_length;
    json!({
        "modelfile": "", "parameters": "", "template": "", "license": "", "details": model["details"],
        "modified_at": model["modified_at"],
        "model_info": {"general.architecture": "bramble", "bramble.context_length": context},
        // The chat template decides about tools and thinking; a model without either ignores them.
        "capabilities": ["completion", "tools", "thinking"],
    })
}

/// The version of the API.
pub(in crate::gateway) async fn version() -> Json<Value> {
    Json(json!({"version": API_VERSION}))
}
