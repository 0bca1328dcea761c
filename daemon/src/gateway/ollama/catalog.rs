//! The served models and this server in Ollama's words. Topologies contain a model's name, identity and context, so its
//! family is empty; its size is that of this node's file.
use std::{collections::BTreeMap, sync::Arc, time::Duration};

use assignment::files;
use axum::{Json, extract::State};
use protocol::{
    models::{FileState, files_of},
    session::Session,
};
use serde_json::{Value, json};
use tokio::time::timeout;

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

/// Time limit for listing this node's files.
const LIST: Duration = Duration::from_secs(2);

/// Bytes of model files by name.
type Sizes = BTreeMap<String, u64>;

/// The sizes of this node's complete model files; empty if it does not list them in time.
async fn sizes(gateway: &Gateway) -> Sizes {
    let listed = timeout(LIST, async {
        let own = Session::open(gateway.cluster.own_address(), gateway.identity.clone()).await?;
        files::list(&own).await
    });
    let found = listed.await.ok().and_then(Result::ok).unwrap_or_default();
    let complete = found.into_iter().filter(|file| file.state == FileState::Complete);
    complete.map(|file| (file.model, file.size.0)).collect()
}

/// The bytes of a model's files; 0 if this node lacks one of them.
fn size(model: &str, sizes: &Sizes) -> u64 {
    files_of(model).iter().map(|file| sizes.get(file).copied()).sum::<Option<u64>>().unwrap_or(0)
}

/// A model as an object of this API.
fn record(served: &ServedModel, sizes: &Sizes) -> Value {
    let topology = &served.topology;
    let name = shown_name(&topology.model);
    json!({
        "name": name, "model": name, "modified_at": timestamp(served.since),
        "size": size(&topology.model, sizes),
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
    let sizes = sizes(&gateway).await;
    let models = gateway.cluster.models();
    Json(json!({"models": models.iter().map(|served| record(served, &sizes)).collect::<Vec<_>>()}))
}

/// Lists the models as loaded.
pub(in crate::gateway) async fn running(State(gateway): State<Arc<Gateway>>) -> Json<Value> {
    gateway.cluster.await_models().await;
    let sizes = sizes(&gateway).await;
    let models = gateway.cluster.models();
    let loaded = models.iter().map(|served| {
        let mut model = record(served, &sizes);
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
    let context = served.topology.context_length;
    json!({
        "modelfile": "", "parameters": "", "template": "", "license": "",
        "details": details(&served.topology.model), "modified_at": timestamp(served.since),
        "model_info": {"general.architecture": "bramble", "bramble.context_length": context},
        // The chat template decides about tools and thinking; a model without either ignores them.
        "capabilities": ["completion", "tools", "thinking"],
    })
}

/// The version of the API.
pub(in crate::gateway) async fn version() -> Json<Value> {
    Json(json!({"version": API_VERSION}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_is_that_of_all_files_of_a_model() {
        let files = [("m-00001-of-00002.gguf", 3), ("m-00002-of-00002.gguf", 4), ("n.gguf", 5)];
        let sizes: Sizes = files.map(|(name, bytes)| (name.to_owned(), bytes)).into();
        assert_eq!(size("m-00001-of-00002.gguf", &sizes), 7);
        assert_eq!((size("n.gguf", &sizes), size("o.gguf", &sizes)), (5, 0));
    }
}
