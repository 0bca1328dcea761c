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

/// Files that other nodes are writing, by their sessions. A session has an entry, which may be empty, from the first
/// piece that it sends until it is closed.
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
        if matches!(&request, KvRequest::Write(piece) if piece.offset == 0) {
            self.open(session);
        }
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

    /// Lets an open session write. The driver calls this and [`Self::close`]: a blocking thread that handles a piece
    /// after the end of its session finds no entry, and keeps nothing that would never be removed.
    fn open(&self, session: SessionId) {
        self.unfinished().entry(session).or_default();
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
        let place = unfinished.get_mut(&session).ok_or_else(|| invalid("a piece that begins no file"))?;
        let begun = std::mem::take(place);
        let mut file = if offset == 0 { Vec::new() } else { begun };
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
            *place = file;
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
    let (size, bytes) = folder.piece(name, part, offset, KV_PIECE_BYTES_MAX).unwrap_or_default();
    KvResponse::Piece { size: size as u32, bytes }
}

fn invalid(reason: &str) -> FaultKind {
    FaultKind::ParameterInvalid { reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        time::SystemTime,
    };

    use common::limits::KV_BLOCK_LENGTH;
    use engine::kv_store::{Space, label::Kind};

    use super::*;

    const PART: &str = "000000160000000400000020";
    const SESSION: SessionId = SessionId(1);

    #[test]
    fn piece_is_not_kept_after_the_end_of_its_session() {
        let (keeping, folder) = (KvKeeping::default(), KvFolder::in_memory(1 << 20));
        let send = || {
            let piece = KvPiece { part: PART.into(), size: 100, offset: 0, bytes: vec![0; 10] };
            keeping.write(&folder, SESSION, piece)
        };
        keeping.open(SESSION);
        assert_eq!(send(), Ok(KvResponse::Written));
        assert_eq!(keeping.unfinished()[&SESSION].len(), 10);
        keeping.close(SESSION);
        assert!(send().is_err());
        assert!(keeping.unfinished().is_empty());
    }

    #[test]
    fn piece_on_the_disk_is_read_without_touching_the_file() {
        let place = tempfile::tempdir().expect("a folder can be made");
        let folder = KvFolder::open(place.path(), 1 << 20).expect("it can be opened");
        let (part, space): (Part, _) = (PART.parse().expect("a part"), Space::of(&["a model"]));
        let (before, tokens) = (space.beginning(), [1; KV_BLOCK_LENGTH]);
        let label = Label { space, before, part: part.hash(), kind: Kind::Block, tokens };
        let payload = vec![5; 1000];
        let file = [&label.header(&payload)[..], &payload].concat();
        folder.write(&label, &part, &Arc::new(file.clone())).expect("there is room");
        let mut files = fs::read_dir(place.path()).expect("it is there");
        let path = files.next().expect("one file").expect("it can be listed").path();
        let stored = File::options().write(true).open(&path).expect("it can be opened");
        stored.set_modified(SystemTime::UNIX_EPOCH).expect("the file system takes the time");
        let (keeping, size) = (KvKeeping::default(), file.len() as u32);
        let read = |offset| {
            let request = KvRequest::Read { name: label.name().0, part: PART.into(), offset };
            keeping.response(Some(&folder), SESSION, request)
        };
        assert_eq!(read(0), Ok(KvResponse::Piece { size, bytes: file.clone() }));
        assert_eq!(read(size - 3), Ok(KvResponse::Piece { size, bytes: vec![5; 3] }));
        assert_eq!(read(size + 1), Ok(KvResponse::Piece { size, bytes: Vec::new() }));
        let modified = fs::metadata(&path).and_then(|data| data.modified()).expect("it has a time");
        assert_eq!(modified, SystemTime::UNIX_EPOCH);
    }
}
