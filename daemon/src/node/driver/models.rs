//! Executes requests about model files, each on a blocking thread; cancels a request when its session ends.
use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
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
use tokio::{runtime::Handle, sync::Semaphore, task::spawn_blocking, time::timeout};

use super::{Outbox, context::DriverContext, loading, opening, sessions::OpenSessions};
use crate::{
    config::Config,
    node::{SessionId, effect::ModelEffect},
    store::{DiskProgress, Origin, Store, Tell, pull},
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
/// Longest time without progress while another node refuses requests of a transfer because it serves too many.
const FULL_MAX: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });
/// Pause before such a request is repeated.
const FULL_PAUSE: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 100 });

/// Model files that are opened at the same time, for all sessions.
const IDENTIFYING_MAX: u32 = 4;
static IDENTIFYING: Semaphore = Semaphore::const_new(IDENTIFYING_MAX as usize);
/// Longest wait for that.
const TURN: Duration = Duration::from_secs(5);
/// A read of a header that takes longer no longer counts: its disk does not answer.
const READ: Duration = Duration::from_secs(60);

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
    disk: DiskProgress,
}

impl ModelJobs {
    pub(super) fn perform(&mut self, effect: ModelEffect, context: &DriverContext, sessions: &mut OpenSessions) {
        match effect {
            ModelEffect::Identify { session, id, model } => identify(session, id, model, context, sessions),
            ModelEffect::Distrust { model } => {
                let config = Arc::clone(&context.config);
                spawn_blocking(move || opening::distrust(&config, &model));
            }
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
                let (identity, disk) = (context.identity.clone(), DiskProgress::default());
                let job = ModelJob { config, store, identity, wanted, outbox, id, disk };
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
        // The header of each file that is read takes memory.
        let found = match timeout(TURN, IDENTIFYING.acquire()).await {
            Ok(Ok(_turn)) => {
                match timeout(READ, spawn_blocking(move || loading::identify(&config.models, &model))).await {
                    Ok(Ok(found)) => found,
                    Ok(Err(error)) => Err(FaultKind::Internal { reason: error.to_string() }),
                    Err(_) => Err(FaultKind::Timeout { what: "its model file".into(), seconds: READ.as_secs() as u32 }),
                }
            }
            _ => Err(FaultKind::Full { what: "model files that are being opened".into(), limit: IDENTIFYING_MAX }),
        };
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

    /// Reports progress. Returns whether to continue. If nothing is hashed, not even for another request, it reports
    /// nothing: the node that waits must notice a disk that does not answer.
    fn tell(&self, step: Step, done: u64, total: Option<u64>) -> bool {
        if step == Step::Hashing && !self.disk.moves(done) {
            return self.wanted.load(Ordering::Acquire);
        }
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
        // An empty piece behind a whole file asks for its end again, which was interrupted.
        if !piece.bytes.is_empty() && piece.offset != part.length() {
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
        let runtime = Handle::current();
        let session = runtime.block_on(Session::open(from, self.identity.clone())).map_err(copy_failed)?;
        let source = CopySource { runtime, session, model };
        let file = source.described(tell)?;
        let size = file.size.0;
        let sha256 = file.sha256.map(|hash| hash.to_string());
        let mut part = self.store.begin(model, Origin { size: Some(size), sha256, etag: None })?;
        let mut asked = part.length();
        let mut replies = VecDeque::new();
        let mut progressed = Instant::now();
        while part.length() < size {
            while asked < size && replies.len() < AHEAD {
                replies.push_back(source.ask_piece(asked)?);
                asked += (size - asked).min(PIECE_BYTES_MAX as u64);
            }
            let Some(mut reply) = replies.pop_front() else { break };
            match source.next(&mut reply) {
                Ok(ModelsResponse::Piece { bytes, .. }) => {
                    if bytes.len() as u64 != (size - part.length()).min(PIECE_BYTES_MAX as u64) {
                        let reason = format!("{model} changed on the other node during the download");
                        return Err(FaultKind::DownloadFailed { reason });
                    }
                    part.append(&bytes)?;
                    progressed = Instant::now();
                }
                Ok(_) => return Err(FaultKind::Malformed { reason: "expected a piece".into() }),
                Err(fault) => {
                    pause_if_full(fault, progressed)?;
                    // The pieces behind it may be on their way; this one is the next to be written.
                    replies.push_front(source.ask_piece(part.length())?);
                }
            }
            if !tell(Step::Copying, part.length(), Some(size)) {
                return Err(FaultKind::StoreCancelled);
            }
        }
        self.store.finish(part, tell)
    }
}

/// The node from which a file is copied.
struct CopySource<'a> {
    runtime: Handle,
    session: Session,
    model: &'a str,
}

impl CopySource<'_> {
    /// The file's properties with its hash, which the node may have to compute first.
    fn described(&self, tell: &mut Tell<'_>) -> Result<ModelFile, FaultKind> {
        let begun = Instant::now();
        loop {
            let mut reply = self.ask(ModelsRequest::Verify { model: self.model.into(), is_known_enough: true })?;
            let fault = loop {
                let (done, total) = match self.next(&mut reply) {
                    Ok(ModelsResponse::Stored(file)) => return Ok(file),
                    Ok(ModelsResponse::Working { done, total, .. }) => (done, total),
                    Ok(_) => return Err(FaultKind::Malformed { reason: "expected a file".into() }),
                    Err(fault) => break fault,
                };
                if !tell(Step::Waiting, done.0, total.map(|total| total.0)) {
                    return Err(FaultKind::StoreCancelled);
                }
            };
            pause_if_full(fault, begun)?;
            if !tell(Step::Waiting, 0, None) {
                return Err(FaultKind::StoreCancelled);
            }
        }
    }

    fn ask_piece(&self, offset: u64) -> Result<Reply, FaultKind> {
        self.ask(ModelsRequest::Read { model: self.model.into(), offset })
    }

    fn ask(&self, request: ModelsRequest) -> Result<Reply, FaultKind> {
        let asked = self.runtime.block_on(self.session.ask(RequestBody::Models(Box::new(request))));
        asked.map_err(copy_failed)
    }

    /// The next response to a request.
    fn next(&self, reply: &mut Reply) -> Result<ModelsResponse, Fault> {
        match self.runtime.block_on(reply.next("a piece of the file", PEER))? {
            ResponseBody::Models(response) => Ok(*response),
            _ => Err(self.session.unexpected()),
        }
    }
}

/// The fault of a copy, from that of the node with the file.
fn copy_failed(fault: Fault) -> FaultKind {
    match fault.kind {
        FaultKind::StoreCancelled => FaultKind::StoreCancelled,
        _ => FaultKind::DownloadFailed { reason: fault.to_string() },
    }
}

/// Pauses after a request that the other node refused because it serves too many; the caller then repeats it.
///
/// # Errors
/// Any other fault; and the refusal, if there has been no progress since `progressed` for [`FULL_MAX`].
fn pause_if_full(fault: Fault, progressed: Instant) -> Result<(), FaultKind> {
    if !matches!(fault.kind, FaultKind::Full { .. }) || progressed.elapsed() >= FULL_MAX {
        return Err(copy_failed(fault));
    }
    std::thread::sleep(FULL_PAUSE);
    Ok(())
}

fn stored(file: ModelFile) -> ModelsResponse {
    tracing::info!(model = file.model, folder = file.folder, "model stored, {}", file.size);
    ModelsResponse::Stored(file)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use common::digest::Sha256;
    use protocol::{
        BUILD, NUMERIC_VERSION,
        connection::{Arrived, Door, receive_hello, send_welcome},
        handshake::Welcome,
        message::Request,
        messages::split,
        models::FileState,
        noise::keyring::Keyring,
    };
    use sha2::Digest;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::{
        config::DaemonArguments,
        node::driver::{ResponseBudget, SessionClient},
    };

    const NAME: &str = "bard.gguf";

    fn identity(name: &str) -> Identity {
        let (name, build, machine) = (name.into(), BUILD.into(), String::new());
        Identity { name, build, numeric: NUMERIC_VERSION, machine, cores: Vec::new() }
    }

    /// A node with one file that refuses some requests, by their number from 0, because it serves too many.
    async fn serve(stream: TcpStream, bytes: Arc<Vec<u8>>, is_refused: fn(usize) -> bool) -> Option<()> {
        let door = Door { name: "pi1", keyring: &Keyring::empty(Role::Node), is_pairing: &|| false };
        let Arrived::Hello(mut connection, _) = receive_hello(stream, door).await.ok()? else { return None };
        send_welcome(&mut connection, &Welcome::Accepted(identity("pi1"))).await.ok()?;
        let (mut reader, mut writer) = split(connection);
        let mut number = 0;
        while let Some(Request { id, body }) = reader.receive::<Request>().await.ok()? {
            let RequestBody::Models(request) = body else { return None };
            let body = if is_refused(number) {
                let kind = FaultKind::Full { what: "requests about model files".into(), limit: JOBS_MAX as u32 };
                ResponseBody::Failed(Fault::new("pi1", kind))
            } else {
                ResponseBody::Models(Box::new(response(&request, &bytes)?))
            };
            number += 1;
            writer.send(&Response { id, body }).await.ok()?;
        }
        None
    }

    fn response(request: &ModelsRequest, bytes: &[u8]) -> Option<ModelsResponse> {
        let size = Bytes(bytes.len() as u64);
        match request {
            ModelsRequest::Verify { model, .. } => Some(ModelsResponse::Stored(ModelFile {
                model: model.clone(),
                folder: String::new(),
                size,
                state: FileState::Complete,
                identity: None,
                sha256: Some(Sha256(sha2::Sha256::digest(bytes).into())),
                content: None,
            })),
            ModelsRequest::Read { offset, .. } => {
                let rest = &bytes[*offset as usize..];
                Some(ModelsResponse::Piece { size, bytes: rest[..rest.len().min(PIECE_BYTES_MAX)].to_vec() })
            }
            _ => None,
        }
    }

    /// Copies the demo model from such a node; returns the result, and whether the copy is complete.
    async fn copied(is_refused: fn(usize) -> bool) -> (Result<ModelFile, FaultKind>, bool) {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/demo/bard-q8_0.gguf");
        let bytes = Arc::new(fs::read(demo).expect("the demo model is there"));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback can be bound");
        let from = listener.local_addr().expect("it is bound").to_string();
        let served = Arc::clone(&bytes);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&served), is_refused));
            }
        });
        let folder = tempfile::tempdir().expect("a folder can be made");
        let models = folder.path().join("models");
        let config = Config::load(DaemonArguments::default()).expect("defaults are settings");
        let client = SessionClient { role: None, name: "test".into() };
        let (outbox, _queue) = Outbox::new(client, &ResponseBudget::default());
        let job = ModelJob {
            config: Arc::new(config),
            store: Store::new(std::slice::from_ref(&models), folder.path()),
            identity: identity("pi2"),
            wanted: Arc::new(AtomicBool::new(true)),
            outbox,
            id: RequestId(1),
            disk: DiskProgress::default(),
        };
        let ended = spawn_blocking(move || job.fetch(NAME, &from, &mut |_, _, _| true)).await.expect("no panic");
        let is_complete = fs::read(models.join(NAME)).is_ok_and(|copy| copy == *bytes);
        (ended, is_complete)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn copy_repeats_requests_that_a_full_node_refuses() {
        let (ended, is_complete) = copied(|number| number % 2 == 0).await;
        assert!(ended.is_ok() && is_complete, "{ended:?}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn copy_from_a_node_that_stays_full_fails_in_time() {
        // At once, and in the middle of the file.
        let refusals: [fn(usize) -> bool; 2] = [|_| true, |number| number > 3];
        for is_refused in refusals {
            let (ended, is_complete) = copied(is_refused).await;
            let kind = ended.expect_err("it stays full");
            let is_named = kind.to_string().contains("node pi1: limit reached: 16 requests");
            assert!(matches!(kind, FaultKind::DownloadFailed { .. }) && is_named && !is_complete, "{kind}");
        }
    }
}
