//! A session with one node: requests out, responses routed back to whoever asked. No retries here.
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use shared::{
    ids::RequestId,
    protocol::{
        BUILD, NUMERIC_VERSION,
        connection::{MessageReader, MessageWriter, dial, split},
        error::{Fault, FaultKind},
        handshake::{Hello, Identity, Purpose},
        message::{Request, RequestBody, Response, ResponseBody},
    },
};
use tokio::{
    sync::mpsc::{Receiver, Sender, channel},
    task::JoinHandle,
    time::timeout,
};

/// Responses of one request that may wait to be taken; a slower taker slows the session down.
const RESPONSES_MAX: usize = 1024;
/// Requests that may wait for the socket.
const REQUESTS_MAX: usize = 64;

type Pending = Arc<Mutex<HashMap<RequestId, Sender<ResponseBody>>>>;

/// An open session.
#[derive(Debug)]
pub struct Session {
    /// `ADDRESS:PORT` as it was dialled.
    pub address: String,
    /// Who answered.
    pub identity: Identity,
    requests: Sender<Request>,
    pending: Pending,
    latest: AtomicU64,
    tasks: [JoinHandle<()>; 2],
}

/// The responses to one request.
#[derive(Debug)]
pub struct Reply {
    /// The request's id.
    pub id: RequestId,
    node: String,
    responses: Receiver<ResponseBody>,
    pending: Pending,
}

/// Who this console is.
fn own_identity() -> Identity {
    let user = std::env::var("USER").unwrap_or_else(|_| "console".into());
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
    let name = format!("{user}@{host}");
    Identity { name, build: BUILD.into(), numeric: NUMERIC_VERSION, machine: String::new(), cores: Vec::new() }
}

impl Session {
    /// Dials a node and shakes hands.
    ///
    /// # Errors
    /// It is away, no Bramble, of another version, or refuses.
    pub async fn open(address: &str) -> Result<Self, Fault> {
        let hello = Hello { identity: own_identity(), purpose: Purpose::Console };
        let (stream, identity) = dial(address, &hello).await?;
        let (reader, writer) = split(stream);
        let pending = Pending::default();
        let (requests, outgoing) = channel(REQUESTS_MAX);
        let tasks = [tokio::spawn(read(reader, Arc::clone(&pending))), tokio::spawn(write(writer, outgoing))];
        Ok(Self { address: address.into(), identity, requests, pending, latest: AtomicU64::new(0), tasks })
    }

    /// Sends a request; its responses come by the reply.
    ///
    /// # Errors
    /// The session is broken.
    pub async fn ask(&self, body: RequestBody) -> Result<Reply, Fault> {
        let id = RequestId(self.latest.fetch_add(1, Ordering::Relaxed) + 1);
        let (sender, responses) = channel(RESPONSES_MAX);
        lock(&self.pending).insert(id, sender);
        let node = self.identity.name.clone();
        let reply = Reply { id, node, responses, pending: Arc::clone(&self.pending) };
        self.send(Request { id, body }).await?;
        // The reader may have ended in between: then nobody will answer.
        if self.is_broken() { Err(self.lost()) } else { Ok(reply) }
    }

    /// Cancels the generation with this id.
    ///
    /// # Errors
    /// The session is broken.
    pub async fn cancel(&self, id: RequestId) -> Result<(), Fault> {
        self.send(Request { id, body: RequestBody::Cancel }).await
    }

    /// Whether the connection is gone.
    pub fn is_broken(&self) -> bool {
        self.tasks[0].is_finished()
    }

    async fn send(&self, request: Request) -> Result<(), Fault> {
        self.requests.send(request).await.map_err(|_| self.lost())
    }

    fn lost(&self) -> Fault {
        lost(&self.identity.name)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Reply {
    /// The next response; a `Failed` one comes as the error.
    ///
    /// # Errors
    /// The node failed the request, the session broke, or nothing came in time.
    pub async fn next(&mut self, what: &str, patience: Duration) -> Result<ResponseBody, Fault> {
        match timeout(patience, self.responses.recv()).await {
            Ok(Some(ResponseBody::Failed(fault))) => Err(fault),
            Ok(Some(body)) => Ok(body),
            Ok(None) => Err(lost(&self.node)),
            Err(_) => {
                let kind = FaultKind::Timeout { what: what.into(), seconds: patience.as_secs() as u32 };
                Err(Fault::new(&self.node, kind))
            }
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        lock(&self.pending).remove(&self.id);
    }
}

fn lost(node: &str) -> Fault {
    Fault::new(node, FaultKind::SessionLost { reason: "closed by the node".into() })
}

fn lock(pending: &Pending) -> std::sync::MutexGuard<'_, HashMap<RequestId, Sender<ResponseBody>>> {
    // The map is whole even if a task panicked while it held the lock.
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn read(mut reader: MessageReader, pending: Pending) {
    while let Ok(Some(response)) = reader.receive::<Response>().await {
        let sender = lock(&pending).get(&response.id).cloned();
        if let Some(sender) = sender {
            // Whoever asked may have gone; then nobody wants it.
            let _ = sender.send(response.body).await;
        }
    }
    lock(&pending).clear();
}

async fn write(mut writer: MessageWriter, mut outgoing: Receiver<Request>) {
    while let Some(request) = outgoing.recv().await {
        if writer.send(&request).await.is_err() {
            return;
        }
    }
}
