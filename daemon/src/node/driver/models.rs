//! Executes requests about model files, each on a blocking thread; cancels a request when its session ends.
use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use common::{
    fault::{Fault, FaultKind},
    ids::RequestId,
    units::Bytes,
};
use protocol::{
    handshake::Identity,
    message::{RequestBody, Response, ResponseBody},
    models::{ModelFile, ModelsRequest, ModelsResponse, PIECE_BYTES_MAX, Piece, Step},
    noise::key::Role,
    session::{Reply, Session},
};
use tokio::{runtime::Handle, task::spawn_blocking};

use super::{Outbox, context::DriverContext, loading, opening, sessions::OpenSessions};
use crate::{
    config::Config,
    node::{SessionId, effect::ModelEffect},
    store::{Origin, Store, Tell, pull},
};

/// Concurrent requests about model files.
const JOBS_MAX: usize = 16;
/// Of these, limit for one session.
const SESSION_JOBS_MAX: usize = 8;
/// Of these, limit for all viewers.
const VIEWERS_JOBS_MAX: usize = 4;
/// Pieces requested ahead.
const AHEAD: usize = 4;
/// Longest silence of another node during a transfer.
const PEER: Duration = Duration::from_secs(30);

/// Running requests, each with a flag that is false once it is cancelled.
#[derive(Debug, Default)]
pub(super) struct ModelJobs(HashMap<(SessionId, RequestId), Arc<AtomicBool>>);

impl ModelJobs {
    /// Cancels one request.
    pub(super) fn stop(&self, session: SessionId, id: RequestId) {
        if let Some(wanted) = self.0.get(&(session, id)) {
            wanted.store(false, Ordering::Release);
        }
    }

    /// Cancels all requests of a session.
    pub(super) fn stop_all(&self, session: SessionId) {
        let of = self.0.iter().filter(|((of, _), _)| *of == session);
        of.for_each(|(_, wanted)| wanted.store(false, Ordering::Release));
    }
}

/// One request.
struct ModelJob {
    config: Arc<Config>,
    store: Store,
    identity: Identity,
    wanted: Arc<AtomicBool>,
    outbox: Outbox,
    id: RequestId,
}

impl ModelJobs {
    pub(super) fn perform(&mut self, effect: ModelEffect, context: &DriverContext, sessions: &mut OpenSessions) {
        match effect {
            ModelEffect::Identify { session, id, model } => identify(session, id, model, context, sessions),
            ModelEffect::Files { session, id, request } => {
                let Some(outbox) = sessions.outbox(session).cloned() else { return };
                // A finished job has dropped its reference.
                self.0.retain(|_, wanted| Arc::strong_count(wanted) > 1);
                if let Err(kind) = self.check(session, sessions) {
                    return sessions.refuse(session, id, kind);
                }
                let wanted = Arc::new(AtomicBool::new(true));
                self.0.insert((session, id), Arc::clone(&wanted));
                let config = Arc::clone(&context.config);
                let store = Store::new(&config.models, &config.state).hollow(config.paced.is_some());
                let job = ModelJob { config, store, identity: context.identity.clone(), wanted, outbox, id };
                spawn_blocking(move || job.run(*request));
            }
        }
    }

    /// Refuses a request above the limits; those of viewers leave room for operators and nodes.
    fn check(&self, session: SessionId, sessions: &OpenSessions) -> Result<(), FaultKind> {
        let of = |counts: &dyn Fn(SessionId) -> bool| self.0.keys().filter(|(of, _)| counts(*of)).count();
        let viewers = if sessions.is_viewer(session) { of(&|one| sessions.is_viewer(one)) } else { 0 };
        let bounds = [
            ("requests about model files", of(&|_| true), JOBS_MAX),
            ("requests of one session about model files", of(&|one| one == session), SESSION_JOBS_MAX),
            ("viewers' requests about model files", viewers, VIEWERS_JOBS_MAX),
        ];
        match bounds.into_iter().find(|(_, count, limit)| count >= limit) {
            Some((what, _, limit)) => Err(FaultKind::Full { what: what.into(), limit: limit as u32 }),
            None => Ok(()),
        }
    }
}

/// Reads a model's identity on a blocking thread, then answers.
fn identify(session: SessionId, id: RequestId, model: String, context: &DriverContext, sessions: &mut OpenSessions) {
    let Some(outbox) = sessions.outbox(session).cloned() else { return };
    let permit = match outbox.question() {
        Ok(permit) => permit,
        Err(kind) => return sessions.refuse(session, id, kind),
    };
    let config = Arc::clone(&context.config);
    tokio::spawn(async move {
        let name = config.name.clone();
        let found = spawn_blocking(move || loading::identify(&config.models, &model)).await;
        let found = found.unwrap_or_else(|error| Err(FaultKind::Internal { reason: error.to_string() }));
        drop(permit);
        let body = found.map_or_else(|kind| ResponseBody::Failed(Fault::new(&name, kind)), ResponseBody::Model);
        // A session that is gone or full needs no answer.
        outbox.try_send(Response { id, body });
    });
}

impl ModelJob {
    fn run(self, request: ModelsRequest) {
        let body = match self.result(request) {
            Ok(response) => ResponseBody::Models(Box::new(response)),
            Err(kind) => {
                tracing::info!("model store: {kind}");
                ResponseBody::Failed(Fault::new(&self.identity.name, kind))
            }
        };
        // The session may have ended.
        self.outbox.blocking_send(Response { id: self.id, body });
    }

    fn result(&self, request: ModelsRequest) -> Result<ModelsResponse, FaultKind> {
        let store = &self.store;
        let mut tell = |step, done, total: Option<u64>| self.tell(step, done, total);
        match request {
            ModelsRequest::List => Ok(ModelsResponse::Listed(store.list())),
            ModelsRequest::Verify { model, .. } if self.outbox.guest.is_viewer() => {
                store.known(&model)?.map(ModelsResponse::Stored).ok_or_else(|| FaultKind::RoleRefused {
                    role: Role::Viewer.to_string(),
                    what: format!("model-verify of {model}, whose hash is not known yet"),
                })
            }
            ModelsRequest::Verify { model, is_known_enough } => {
                store.verify(&model, is_known_enough, &mut tell).map(ModelsResponse::Stored)
            }
            ModelsRequest::Remove { model } => {
                store.remove(&model)?;
                tracing::info!(model, "model removed");
                Ok(ModelsResponse::Removed)
            }
            ModelsRequest::Pull { url, model, sha256 } => pull(store, &url, &model, sha256, &mut tell).map(stored),
            ModelsRequest::Fetch { model, from } => self.fetch(&model, &from, &mut tell).map(stored),
            ModelsRequest::Read { model, offset } => {
                store.read(&model, offset).map(|(size, bytes)| ModelsResponse::Piece { size, bytes })
            }
            ModelsRequest::Write(piece) => self.write(&piece, &mut tell),
            ModelsRequest::Content { model } => {
                let file = opening::open(&self.config.models, &model)?.file;
                store.content(&file, &mut tell).map(ModelsResponse::Content)
            }
        }
    }

    /// Reports progress. Returns whether to continue.
    fn tell(&self, step: Step, done: u64, total: Option<u64>) -> bool {
        let working = ModelsResponse::Working { step, done: Bytes(done), total: total.map(Bytes) };
        let body = ResponseBody::Models(Box::new(working));
        self.wanted.load(Ordering::Acquire) && self.outbox.blocking_send(Response { id: self.id, body })
    }

    /// Writes a piece that a console sends; the last piece completes the file.
    fn write(&self, piece: &Piece, tell: &mut Tell<'_>) -> Result<ModelsResponse, FaultKind> {
        if piece.bytes.len() > PIECE_BYTES_MAX {
            return Err(FaultKind::ParameterInvalid {
                reason: format!("a piece has more than {PIECE_BYTES_MAX} bytes"),
            });
        }
        let origin = Origin { size: Some(piece.size.0), sha256: Some(piece.sha256.to_string()), etag: None };
        let mut part = self.store.begin(&piece.model, origin)?;
        if piece.bytes.is_empty() && part.length() < piece.size.0 {
            return Ok(ModelsResponse::Written { length: Bytes(part.length()) });
        }
        if piece.offset != part.length() {
            let reason = format!(
                "the file has {} bytes so far, the piece begins at {}",
                Bytes(part.length()),
                Bytes(piece.offset)
            );
            return Err(FaultKind::ParameterInvalid { reason });
        }
        part.append(&piece.bytes)?;
        if part.length() < piece.size.0 {
            return Ok(ModelsResponse::Written { length: Bytes(part.length()) });
        }
        self.store.finish(part, tell).map(stored)
    }

    /// Copies a whole file from another node, which first reports the file's hash.
    fn fetch(&self, model: &str, from: &str, tell: &mut Tell<'_>) -> Result<ModelFile, FaultKind> {
        let other = |fault: Fault| match fault.kind {
            FaultKind::StoreCancelled => FaultKind::StoreCancelled,
            _ => FaultKind::DownloadFailed { reason: fault.to_string() },
        };
        let wait = Handle::current();
        let session = wait.block_on(Session::open(from, self.identity.clone())).map_err(other)?;
        let ask = |request| wait.block_on(session.ask(RequestBody::Models(Box::new(request)))).map_err(other);
        let next = |reply: &mut Reply| match wait.block_on(reply.next("a piece of the file", PEER)).map_err(other)? {
            ResponseBody::Models(response) => Ok(*response),
            _ => Err(FaultKind::Malformed { reason: "unexpected answer".into() }),
        };
        let mut verified = ask(ModelsRequest::Verify { model: model.into(), is_known_enough: true })?;
        let source = loop {
            match next(&mut verified)? {
                ModelsResponse::Stored(file) => break file,
                ModelsResponse::Working { done, total, .. } => {
                    if !tell(Step::Waiting, done.0, total.map(|total| total.0)) {
                        return Err(FaultKind::StoreCancelled);
                    }
                }
                _ => return Err(FaultKind::Malformed { reason: "expected a file".into() }),
            }
        };
        let size = source.size.0;
        let sha256 = source.sha256.map(|hash| hash.to_string());
        let mut part = self.store.begin(model, Origin { size: Some(size), sha256, etag: None })?;
        let mut asked = part.length();
        let mut replies = VecDeque::new();
        while part.length() < size {
            while asked < size && replies.len() < AHEAD {
                replies.push_back(ask(ModelsRequest::Read { model: model.into(), offset: asked })?);
                asked += (size - asked).min(PIECE_BYTES_MAX as u64);
            }
            let Some(mut reply) = replies.pop_front() else { break };
            let ModelsResponse::Piece { bytes, .. } = next(&mut reply)? else {
                return Err(FaultKind::Malformed { reason: "expected a piece".into() });
            };
            if bytes.len() as u64 != (size - part.length()).min(PIECE_BYTES_MAX as u64) {
                return Err(FaultKind::DownloadFailed {
                    reason: format!(
                        "{model} changed on the other node during the \
                 download"
                    ),
                });
            }
            part.append(&bytes)?;
            if !tell(Step::Copying, part.length(), Some(size)) {
                return Err(FaultKind::StoreCancelled);
            }
        }
        self.store.finish(part, tell)
    }
}

fn stored(file: ModelFile) -> ModelsResponse {
    tracing::info!(model = file.model, folder = file.folder, "model stored, {}", file.size);
    ModelsResponse::Stored(file)
}
