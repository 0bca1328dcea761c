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
use common::{fault::Fault, units::Bytes};
use protocol::{
    models::{ModelsRequest, Step, check_name, is_named},
    session::Session,
};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc::{Sender, channel},
    task::JoinSet,
};

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

/// POST /api/pull: this node downloads the file, then the other nodes copy it from this one.
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
            Ok(Err(fault)) => json!({"error": fault.to_string()}),
            Err(_) => json!({"error": "the node is shutting down"}),
        };
        // A client that has left needs no end.
        let _ = events.send(&[end]).await;
    });
    Ok(response)
}

/// DELETE /api/delete: deletes the file on all nodes that have it, unless a topology uses it.
pub(in crate::gateway) async fn delete(
    State(gateway): State<Arc<Gateway>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let Intake { parsed: NamedFile { name, .. }, working: _working, .. } =
        receive(&gateway, request, false, read).await?;
    let name = name.strip_suffix(":latest").unwrap_or(&name);
    let is_used = gateway.cluster.models().iter().any(|model| is_named(name, &model.topology.model));
    if is_used {
        return Err(ApiError::model_in_use(name));
    }
    let holders = gateway.holders().await;
    let having: Vec<(&Arc<Session>, &str)> =
        holders.values().filter_map(|holder| Some((&holder.session, holder.file(name)?))).collect();
    if having.is_empty() {
        return Err(ApiError::no_such_file(name, &[]));
    }
    for (session, model) in having {
        let removed = files::ask(session, ModelsRequest::Remove { model: model.into() }, &|_, _, _| {}).await;
        removed.map_err(|fault| ApiError::from(&fault))?;
    }
    Ok(Json(json!({})))
}

impl Gateway {
    async fn pull(&self, url: &str, model: &str, told: &Sender<Value>) -> Result<(), Fault> {
        let status = |text: &str| drop(told.try_send(json!({"status": text})));
        status("pulling manifest");
        let own = Session::open(self.cluster.own_address(), self.identity.clone()).await?;
        let pulled = ModelsRequest::Pull { url: url.into(), model: model.into(), sha256: None };
        files::stored(&own, pulled, &|step, done, total| report(told, model, step, done, total)).await?;
        let Some(from) = self.cluster.reached_at(&self.identity.name) else {
            status("this node has no address for the others: copy the file with console model pull --from");
            return Ok(());
        };
        let mut copies = JoinSet::new();
        for (address, holder) in self.holders().await {
            let lacks = holder.file(model).is_none() && holder.session.identity.name != self.identity.name;
            if lacks {
                status(&format!("copying {model} to {address}"));
                let (model, from) = (model.to_owned(), from.clone());
                copies.spawn(async move {
                    let copied = ModelsRequest::Fetch { model, from };
                    files::stored(&holder.session, copied, &|_, _, _| {}).await
                });
            }
        }
        while let Some(copied) = copies.join_next().await {
            // A node without room for the file does not keep the others from having it.
            if let Ok(Err(fault)) = copied {
                status(&fault.to_string());
            }
        }
        Ok(())
    }
}

/// Reports progress; a client that reads too slowly misses some.
fn report(told: &Sender<Value>, model: &str, step: Step, done: Bytes, total: Option<Bytes>) {
    let status = match step {
        Step::Downloading | Step::Copying | Step::Waiting => format!("pulling {model}"),
        Step::Hashing => "verifying sha256 digest".to_owned(),
    };
    let mut object = json!({"status": status, "digest": model, "completed": done.0});
    if let Some(total) = total {
        object["total"] = total.0.into();
    }
    drop(told.try_send(object));
}
