//! Keys and values that other nodes read here, and have this node keep for them.
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use common::fault::{Fault, FaultKind};
use engine::kv_store::{Name, Part, label::Label};
use protocol::{
    kv::{KV_FILE_BYTES_MAX, KV_PIECE_BYTES_MAX, KvList, KvPiece, KvRequest, KvResponse},
    message::{Response, ResponseBody},
};
use tokio::task::spawn_blocking;

use super::{context::DriverContext, sessions::OpenSessions};
use crate::{
    kv_store::KvFolder,
    node::{SessionId, event::ReplyTo},
};

/// Most bytes of files that are not complete yet, of all sessions.
const UNFINISHED_BYTES_MAX: usize = 2 * KV_FILE_BYTES_MAX;

/// Files that other nodes are writing, by their sessions.
#[derive(Clone, Debug, Default)]
pub(super) struct KvKeeping {
    unfinished: Arc<Mutex<HashMap<SessionId, Vec<u8>>>>,
}

impl KvKeeping {
    /// Answers a request on a blocking thread.
    pub(super) fn answer(&self, to: ReplyTo, request: KvRequest, context: &DriverContext, sessions: &mut OpenSessions) {
        let ReplyTo { session, id } = to;
        let Some(outbox) = sessions.outbox(session).cloned() else { return };
        let permit = match outbox.question() {
            Ok(permit) => permit,
            Err(kind) => return sessions.refuse(session, id, kind),
        };
        let (folder, name, keeping) = (context.kv.folder().cloned(), context.config.name.clone(), self.clone());
        spawn_blocking(move || {
            let body = match keeping.response(folder.as_deref(), session, request) {
                Ok(response) => ResponseBody::Kv(Box::new(response)),
                Err(kind) => ResponseBody::Failed(Fault::new(&name, kind)),
            };
            // A session that is gone needs no answer.
            outbox.blocking_send(Response { id, body });
            drop(permit);
        });
    }

    /// Forgets what a session was writing.
    pub(super) fn close(&self, session: SessionId) {
        self.unfinished().remove(&session);
    }

    fn response(
        &self,
        folder: Option<&KvFolder>,
        session: SessionId,
        request: KvRequest,
    ) -> Result<KvResponse, FaultKind> {
        match request {
            KvRequest::List => Ok(KvResponse::Listed(folder.map_or_else(KvList::default, KvFolder::list))),
            KvRequest::Read { name, part, offset } => {
                let part = part.parse().map_err(|()| invalid("not a part of a model"))?;
                Ok(folder.map_or(KvResponse::Piece { size: 0, bytes: Vec::new() }, |folder| {
                    piece(folder, Name(name), &part, offset as usize)
                }))
            }
            KvRequest::Write(piece) => {
                let folder = folder.ok_or(FaultKind::StoreFailed { reason: "this node keeps no copies".into() })?;
                self.write(folder, session, piece)
            }
        }
    }

    fn write(&self, folder: &KvFolder, session: SessionId, piece: KvPiece) -> Result<KvResponse, FaultKind> {
        let KvPiece { part, size, offset, bytes } = piece;
        let mut unfinished = self.unfinished();
        let others: usize = unfinished.iter().filter(|(of, _)| **of != session).map(|(_, file)| file.len()).sum();
        let mut file = if offset == 0 { Vec::new() } else { unfinished.remove(&session).unwrap_or_default() };
        let end = file.len() + bytes.len();
        let is_next = file.len() == offset as usize && !bytes.is_empty() && bytes.len() <= KV_PIECE_BYTES_MAX;
        if !is_next || end > (size as usize).min(KV_FILE_BYTES_MAX) {
            return Err(invalid("a piece that does not continue its file"));
        }
        if others + end > UNFINISHED_BYTES_MAX {
            return Err(FaultKind::Full {
                what: "bytes of unfinished files".into(),
                limit: UNFINISHED_BYTES_MAX as u32,
            });
        }
        file.extend(bytes);
        if end < size as usize {
            unfinished.insert(session, file);
            return Ok(KvResponse::Written);
        }
        drop(unfinished);
        let part: Part = part.parse().map_err(|()| invalid("not a part of a model"))?;
        let label = Label::read(&file).filter(|label| label.part == part.hash());
        let label = label.ok_or_else(|| invalid("a damaged file of keys and values"))?;
        // Kept in memory, it must take what it is counted for: it grew in pieces, to up to twice its length.
        file.shrink_to_fit();
        let written = folder.write(&label, &part, &Arc::new(file));
        written.map_err(|error| FaultKind::StoreFailed { reason: error.to_string() })?;
        Ok(KvResponse::Written)
    }

    fn unfinished(&self) -> MutexGuard<'_, HashMap<SessionId, Vec<u8>>> {
        // Whole even if a thread panicked while it was locked.
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn piece(folder: &KvFolder, name: Name, part: &Part, offset: usize) -> KvResponse {
    let file = folder.bytes(name, part).unwrap_or_default();
    let bytes = file.get(offset..).unwrap_or_default();
    let bytes = bytes[..bytes.len().min(KV_PIECE_BYTES_MAX)].to_vec();
    KvResponse::Piece { size: file.len() as u32, bytes }
}

fn invalid(reason: &str) -> FaultKind {
    FaultKind::ParameterInvalid { reason: reason.into() }
}
