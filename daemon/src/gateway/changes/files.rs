//! Downloads and deletes model files, in the form of Ollama's API.
use std::sync::{Arc, OnceLock};

use assignment::{
    files,
    source::{hub, url_at},
};
use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use protocol::models::{ModelsRequest, check_name, files_of, is_named, plain_name};
use serde_json::{Value, json};
use tokio::sync::mpsc::channel;

use super::nodes::{belonging, each_once};
use crate::gateway::{
    Gateway,
    complete::{Permission, ReceivedRequest},
    error::ApiError,
    intake::{Intake, receive},
    outline::{Bounds, Outline},
    stream::events,
    typed_json::Fields,
    writer::Framing,
};

/// Reports of progress that may wait for the client.
const REPORTS_MAX: usize = 64;

/// The model that a body names, and whether progress is wanted.
pub(in crate::gateway) struct NamedFile {
    pub(in crate::gateway) name: String,
    is_streamed: bool,
}

/// Reads the body of both requests.
///
/// # Errors
/// The first invalid field, or a key that permits no changes.
pub(in crate::gateway) fn read(body: &[u8], arrival: &ReceivedRequest, _: Bounds) -> Result<NamedFile, ApiError> {
    if arrival.permission != Permission::ChangesModels {
        return Err(ApiError::models_fixed());
    }
    let object = Outline::read(body)?.values(&["model", "name", "stream", "insecure"])?;
    let fields = Fields(&object);
    let name = fields.text("model")?.or(fields.text("name")?).unwrap_or_default().to_owned();
    let is_streamed = fields.get("stream").is_none() || fields.flag("stream")?;
    if name.is_empty() {
        return Err(ApiError::invalid("model", "model is missing; name a file, for example hf:OWNER/REPO:FILE.gguf"));
    }
    Ok(NamedFile { name, is_streamed })
}

/// POST /api/pull: this node downloads the model's files, then the other nodes copy them from this one.
pub(in crate::gateway) async fn pull(
    State(gateway): State<Arc<Gateway>>,
    request: Request,
) -> Result<Response, ApiError> {
    let Intake { parsed: NamedFile { name, is_streamed }, arrival, working, .. } =
        receive(&gateway, request, false, read).await?;
    let (url, model) =
        url_at(&name, &hub()).and_then(|(url, model)| check_name(&model).map(|()| (url, model))).map_err(|why| {
            ApiError::invalid("model", format!("{why}; name a file as hf:OWNER/REPO:FILE.gguf or by URL"))
        })?;
    let (told, mut progress) = channel(REPORTS_MAX);
    // A client that leaves does not stop the download; the next request for it continues there.
    let pulling = tokio::spawn(async move { gateway.pull(&url, &model, &told).await });
    if !is_streamed {
        while progress.recv().await.is_some() {}
        return match pulling.await {
            Ok(Ok(())) => Ok(Json(json!({"status": "success"})).into_response()),
            Ok(Err(fault)) => Err(ApiError::from(&fault)),
            Err(_) => Err(ApiError::shutting_down()),
        };
    }
    let (events, response) = events(arrival.at, Arc::new(OnceLock::new()), Framing::Lines);
    tokio::spawn(async move {
        let _working = working;
        while let Some(report) = progress.recv().await {
            if events.send(&[report]).await.is_err() {
                return;
            }
        }
        let end = match pulling.await {
            Ok(Ok(())) => json!({"status": "success"}),
            Ok(Err(fault)) => json!({"error": ApiError::from(&fault).message()}),
            Err(_) => json!({"error": "the node is shutting down"}),
        };
        // A client that has left needs no end.
        let _ = events.send(&[end]).await;
    });
    Ok(response)
}

/// DELETE /api/delete: deletes the model's files on all nodes that have any, unless a topology uses it.
pub(in crate::gateway) async fn delete(
    State(gateway): State<Arc<Gateway>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let Intake { parsed: NamedFile { name, .. }, working: _working, .. } =
        receive(&gateway, request, false, read).await?;
    let name = plain_name(&name);
    let is_used = gateway.cluster.models().iter().any(|model| {
        let used = files_of(&model.topology.model);
        used.iter().any(|file| is_named(name, file))
    });
    if is_used {
        return Err(ApiError::model_in_use(name));
    }
    let mut is_there = false;
    for holder in each_once(gateway.holders().await) {
        for model in belonging(&holder.files, name) {
            let request = ModelsRequest::Remove { model: model.into() };
            let removed = files::ask(&holder.session, request, &|_, _, _| {}).await;
            removed.map_err(|fault| ApiError::from(&fault))?;
            is_there = true;
        }
    }
    if is_there { Ok(Json(json!({}))) } else { Err(ApiError::no_such_file(name, &[])) }
}
