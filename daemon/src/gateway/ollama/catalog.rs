//! The served models and this server in Ollama's words. Topologies contain a model's name, identity and context, so its
//! family is empty; its size is that of this node's file.
use std::{collections::BTreeMap, sync::Arc, time::Duration};

use assignment::files;
use axum::{
    Json,
    extract::{Request, State},
};
use protocol::{
    models::{FileState, family, files_of},
    session::Session,
    texts::{TextRequest, TextResponse},
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
    error::ApiError,
    intake::{Intake, receive},
    outline::Outline,
    typed_json::Fields,
};

/// When a model expires that is never unloaded by itself.
const NEVER: &str = "2318-11-22T00:00:00Z";
/// The release of Ollama whose API is served: clients refuse older ones.
const API_VERSION: &str = "0.12.6";

/// Time limit for listing this node's files.
const LIST: Duration = Duration::from_secs(2);
/// Time limit for the template of a head.
const DESCRIBE: Duration = Duration::from_secs(5);
/// Stands for a template that no head reports: clients look for `.Tools` in it.
const TEMPLATE: &str = "{{ if .Tools }}{{ .Tools }}{{ end }}{{ .Prompt }}";

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

/// The model that a body names.
///
/// # Errors
/// The first invalid field.
pub(in crate::gateway) fn shown(body: &[u8]) -> Result<Option<String>, ApiError> {
    let fields = Outline::read(body)?.values(&["model", "name"])?;
    Ok(model(Fields(&fields))?.0)
}

/// POST /api/show.
pub(in crate::gateway) async fn show(
    State(gateway): State<Arc<Gateway>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let intake = receive(&gateway, request, false, |bytes, _, _| shown(bytes)).await?;
    let Intake { parsed: named, arrival, working: _working, .. } = intake;
    let served = gateway.served_for(named.as_deref(), arrival.permission).await?;
    let roots = served.topology.roots();
    let template = match timeout(DESCRIBE, gateway.ask_head(&roots, TextRequest::Describe)).await {
        Ok(Ok(TextResponse::Described(texts))) => texts.template_with_tools.or(texts.template).unwrap_or_default(),
        // An older head, or none.
        _ => TEMPLATE.to_owned(),
    };
    Ok(Json(described(&served, &template)))
}

/// The description of a model.
fn described(served: &ServedModel, template: &str) -> Value {
    let topology = &served.topology;
    json!({
        "modelfile": "", "parameters": "", "template": template, "license": "",
        "details": details(&topology.model), "modified_at": timestamp(served.since),
        "model_info": {
            "general.architecture": "bramble", "general.basename": family(&topology.model),
            "bramble.context_length": topology.context_length,
        },
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
