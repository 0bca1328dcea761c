//! Responses that wait for a session's socket: bounded in number and in bytes, per session and in total, so that a
//! client that does not read costs only its own session.
use std::{mem::size_of, sync::Arc, time::Duration};

use common::fault::FaultKind;
use protocol::{
    inspect::Inspected,
    kv::{KvName, KvResponse},
    message::{Response, ResponseBody},
    models::{ModelFile, ModelsResponse},
    noise::key::Role,
};
use telemetry::SyncRecord;
use tokio::{
    runtime::Handle,
    sync::{
        OwnedSemaphorePermit, Semaphore,
        mpsc::{Receiver, Sender, WeakSender, channel},
    },
    time::timeout,
};

/// Responses that may wait for a session's socket; a slower client is disconnected.
pub(super) const RESPONSES_MAX: usize = 256;
/// Bytes of large responses that may wait for a session's socket.
const SESSION_BYTES_MAX: usize = 4 << 20;
/// Limit for all sessions.
const ALL_BYTES_MAX: usize = 64 << 20;
/// Limit for all viewers' sessions.
const VIEWERS_BYTES_MAX: usize = 16 << 20;
/// Responses with fewer bytes count by number only.
const SMALL: usize = 4 << 10;
/// Assumed size of a report in bytes.
const REPORT_BYTES: usize = 32 << 10;
/// Longest wait of a job's response for room.
const ROOM: Duration = Duration::from_secs(30);
/// Concurrent requests of one session that are answered outside of the driver.
const QUESTIONS_MAX: usize = 8;

/// The client of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionClient {
    /// Role of its key; `None` for connections without a key.
    pub role: Option<Role>,
    /// The name from its Hello.
    pub name: String,
}

impl SessionClient {
    /// Whether the client has read-only access.
    pub fn is_viewer(&self) -> bool {
        self.role == Some(Role::Viewer)
    }
}

/// Byte budget for the waiting responses of all sessions of a node.
#[derive(Clone, Debug)]
pub struct ResponseBudget {
    all: Arc<Semaphore>,
    viewers: Arc<Semaphore>,
}

impl Default for ResponseBudget {
    fn default() -> Self {
        let of = |bytes| Arc::new(Semaphore::new(bytes));
        Self { all: of(ALL_BYTES_MAX), viewers: of(VIEWERS_BYTES_MAX) }
    }
}

/// A queued response; its bytes return to the budget when it is dropped.
#[derive(Debug)]
pub struct Queued {
    /// The response.
    pub response: Response,
    _room: Option<[OwnedSemaphorePermit; 2]>,
}

/// The sending end of one session's queue.
#[derive(Clone, Debug)]
pub struct Outbox {
    sender: Sender<Queued>,
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
    questions: Arc<Semaphore>,
    /// The client that reads the responses.
    pub guest: Arc<SessionClient>,
}

impl Outbox {
    /// An outbox, and the receiver that feeds the socket.
    pub fn new(guest: SessionClient, room: &ResponseBudget) -> (Self, Receiver<Queued>) {
        let (sender, receiver) = channel(RESPONSES_MAX);
        let all = Arc::clone(if guest.is_viewer() { &room.viewers } else { &room.all });
        let (own, questions) = (Arc::new(Semaphore::new(SESSION_BYTES_MAX)), Arc::new(Semaphore::new(QUESTIONS_MAX)));
        (Self { sender, own, all, questions, guest: Arc::new(guest) }, receiver)
    }

    /// A handle that does not keep the session open.
    pub fn downgrade(&self) -> WeakOutbox {
        let Self { sender, own, all, questions, guest } = self.clone();
        WeakOutbox { sender: sender.downgrade(), own, all, questions, guest }
    }

    /// Whether only the last place is left, which is reserved for the reason of the session's end.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.sender.capacity() <= 1
    }

    /// Queues a response. Returns false if there was no room.
    pub fn try_send(&self, response: Response) -> bool {
        let room = match weight(&response.body) {
            0 => None,
            bytes => {
                let Ok(own) = Arc::clone(&self.own).try_acquire_many_owned(bytes) else { return false };
                let Ok(all) = Arc::clone(&self.all).try_acquire_many_owned(bytes) else { return false };
                Some([own, all])
            }
        };
        self.sender.try_send(Queued { response, _room: room }).is_ok()
    }

    /// Like [`Self::try_send`], but waits for room.
    pub async fn send(&self, response: Response) -> bool {
        let waiting = async {
            let room = match weight(&response.body) {
                0 => None,
                bytes => {
                    let own = Arc::clone(&self.own).acquire_many_owned(bytes).await.ok()?;
                    let all = Arc::clone(&self.all).acquire_many_owned(bytes).await.ok()?;
                    Some([own, all])
                }
            };
            self.sender.send(Queued { response, _room: room }).await.ok()
        };
        matches!(timeout(ROOM, waiting).await, Ok(Some(())))
    }

    /// Like [`Self::send`], for blocking threads.
    pub fn blocking_send(&self, response: Response) -> bool {
        Handle::current().block_on(self.send(response))
    }

    /// A permit for a request that is answered outside of the driver.
    pub(super) fn question(&self) -> Result<OwnedSemaphorePermit, FaultKind> {
        let permit = Arc::clone(&self.questions).try_acquire_owned();
        let limit = QUESTIONS_MAX as u32;
        permit.map_err(|_| FaultKind::Full { what: "open requests of this session".into(), limit })
    }
}

/// An outbox that does not keep its session open.
#[derive(Clone, Debug)]
pub struct WeakOutbox {
    sender: WeakSender<Queued>,
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
    questions: Arc<Semaphore>,
    guest: Arc<SessionClient>,
}

impl WeakOutbox {
    /// The outbox, while the session is open.
    pub fn upgrade(&self) -> Option<Outbox> {
        let Self { sender, own, all, questions, guest } = self.clone();
        Some(Outbox { sender: sender.upgrade()?, own, all, questions, guest })
    }
}

/// Bytes of a response while it waits; 0 for a small one.
fn weight(body: &ResponseBody) -> u32 {
    let bytes = match body {
        ResponseBody::Report(_) => REPORT_BYTES,
        ResponseBody::Records(records) => records.len() * 2 * size_of::<SyncRecord>(),
        ResponseBody::Started { prompt_token_ids, .. } => 4 * prompt_token_ids.len(),
        ResponseBody::Inspected(inspected) => match &**inspected {
            Inspected::Log(log) => log.lines.iter().map(|line| line.text.len() + 64).sum(),
            Inspected::Settings(_) => SMALL,
        },
        ResponseBody::Embedded(values) => 4 * values.len(),
        ResponseBody::Text(response) => response.byte_count(),
        ResponseBody::Kv(response) => match &**response {
            KvResponse::Piece { bytes, .. } => bytes.len(),
            KvResponse::Listed(list) => {
                let parts: usize = list.parts.iter().map(|part| part.len() + size_of::<String>()).sum();
                parts + list.files.len() * size_of::<(KvName, u16)>()
            }
            KvResponse::Written => 0,
        },
        ResponseBody::Models(response) => match &**response {
            ModelsResponse::Piece { bytes, .. } => bytes.len(),
            ModelsResponse::Listed(files) => files.len() * 2 * size_of::<ModelFile>(),
            _ => 0,
        },
        _ => 0,
    };
    // A response that exceeds the limit is sent alone.
    if bytes < SMALL { 0 } else { bytes.min(SESSION_BYTES_MAX) as u32 }
}

#[cfg(test)]
mod tests {
    use common::{ids::RequestId, units::Bytes};
    use protocol::kv::{KV_FILES_MAX, KV_NAME_BYTES, KvList};

    use super::*;

    fn guest(role: Role) -> SessionClient {
        SessionClient { role: Some(role), name: "x".into() }
    }

    fn piece(bytes: usize) -> Response {
        let piece = ModelsResponse::Piece { size: Bytes(1 << 40), bytes: vec![0; bytes] };
        Response { id: RequestId(1), body: ResponseBody::Models(Box::new(piece)) }
    }

    fn keys_and_values(response: KvResponse) -> Response {
        Response { id: RequestId(1), body: ResponseBody::Kv(Box::new(response)) }
    }

    #[test]
    fn waiting_bytes_of_a_session_are_bounded() {
        let (outbox, mut queue) = Outbox::new(guest(Role::Operator), &ResponseBudget::default());
        let taken = (0..RESPONSES_MAX).take_while(|_| outbox.try_send(piece(1 << 20))).count();
        assert_eq!(taken, SESSION_BYTES_MAX >> 20);
        assert!(outbox.try_send(Response { id: RequestId(2), body: ResponseBody::Committed }), "small ones have room");
        drop(queue.try_recv().expect("the first piece"));
        assert!(outbox.try_send(piece(1 << 20)), "a response that was written makes room");
        let kv_piece = KvResponse::Piece { size: 1 << 20, bytes: vec![0; 1 << 20] };
        assert!(!outbox.try_send(keys_and_values(kv_piece)), "a piece of keys and values counts, too");
        let files = vec![([0; KV_NAME_BYTES], 0); KV_FILES_MAX];
        let list = KvResponse::Listed(KvList { parts: Vec::new(), files });
        assert!(!outbox.try_send(keys_and_values(list)), "so does a list of them");
        let (other, _queue) = Outbox::new(guest(Role::Operator), &ResponseBudget::default());
        assert!(other.try_send(piece(2 * SESSION_BYTES_MAX)), "a larger one goes alone");
    }

    #[test]
    fn viewers_use_no_room_of_operators() {
        let room = ResponseBudget::default();
        let mut viewers = Vec::new();
        let filled = (0..100).map(|_| {
            let (outbox, queue) = Outbox::new(guest(Role::Viewer), &room);
            let taken = (0..RESPONSES_MAX).take_while(|_| outbox.try_send(piece(1 << 20))).count();
            viewers.push(queue);
            taken << 20
        });
        assert_eq!(filled.sum::<usize>(), VIEWERS_BYTES_MAX);
        let (operator, _queue) = Outbox::new(guest(Role::Operator), &room);
        assert!(operator.try_send(piece(1 << 20)));
    }

    #[tokio::test]
    async fn response_waits_for_room_and_ends_with_the_session() {
        let (outbox, mut queue) = Outbox::new(guest(Role::Node), &ResponseBudget::default());
        while outbox.try_send(piece(1 << 20)) {}
        let (sent, first) = tokio::join!(outbox.send(piece(1 << 20)), queue.recv());
        assert!(sent || first.is_some());
        drop((first, queue));
        assert!(!outbox.send(piece(1 << 20)).await, "the session is gone");
    }
}
