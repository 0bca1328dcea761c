//! The served model and this server in Ollama's words. Topologies contain a model's name, identity and context, so its
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
    complete::ReceivedRequest,
    error::ApiError,
    outline::{Bounds, Outline},
    typed_json::Fields,
    writer::Demand,
};

/// The release of Ollama whose API is served: clients refuse older ones.
const API_VERSION: &str = "0.12.6";

impl Gateway {
    /// The served model, and its context length in tokens.
    fn described(&self) -> Option<(Value, u32)> {
        let serving = self.cluster.serving();
        let topology = serving.topology?;
        let name = shown_name(&topology.model);
        let model = json!({
            "name": name, "model": name, "modified_at": timestamp(serving.since), "size": 0,
            "digest": topology.identity.to_string(), "details": details(&topology.model),
        });
        Some((model, topology.context_length))
    }
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

/// Lists the model.
pub(in crate::gateway) async fn tags(State(gateway): State<Arc<Gateway>>) -> Json<Value> {
    gateway.cluster.await_topology().await;
    Json(json!({"models": gateway.described().map(|(model, _)| model).into_iter().collect::<Vec<_>>()}))
}

/// Lists the model as loaded.
pub(in crate::gateway) async fn running(State(gateway): State<Arc<Gateway>>) -> Json<Value> {
    let models: Vec<Value> = gateway
        .described()
        .map(|(mut model, context)| {
            // It is never unloaded to make room.
            (model["expires_at"], model["size_vram"]) = ("2318-11-22T00:00:00Z".into(), 0.into());
            model["context_length"] = context.into();
            model
        })
        .into_iter()
        .collect();
    Json(json!({"models": models}))
}

/// Describes the model that the body names.
///
/// # Errors
/// The first invalid field.
pub(in crate::gateway) fn show(
    gateway: &Gateway,
    body: &[u8],
    _: &ReceivedRequest,
    _: Bounds,
) -> Result<Demand, ApiError> {
    let fields = Outline::read(body)?.values(&["model", "name"])?;
    let (plain, _) = model(Fields(&fields))?;
    let Some((model, context)) = gateway.described() else { return Err(gateway.not_serving()) };
    let shown = json!({
        "modelfile": "", "parameters": "", "template": "", "license": "", "details": model["details"],
        "modified_at": model["modified_at"],
        "model_info": {"general.architecture": "bramble", "bramble.context_length": context},
        // The chat template decides about tools and thinking; a model without either ignores them.
        "capabilities": ["completion", "tools", "thinking"],
    });
    Ok(Demand::Known(plain, shown))
}

/// The version of the API.
pub(in crate::gateway) async fn version() -> Json<Value> {
    Json(json!({"version": API_VERSION}))
}

/// Refuses to change models.
pub(in crate::gateway) async fn refuse_change() -> ApiError {
    ApiError::models_fixed()
}
