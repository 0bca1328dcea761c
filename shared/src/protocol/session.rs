//! A session with one node, of a console or of another node's gateway: requests out, responses routed back to whoever asked. No
//! retries here.
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::mpsc::{Receiver, Sender, channel},
    task::JoinHandle,
    time::timeout,
};

use crate::{
    ids::RequestId,
    protocol::{
        connection::{MessageReader, MessageWriter, dial, split},
        error::{Fault, FaultKind},
        handshake::{Hello, Identity, Purpose},
        message::{Request, RequestBody, Response, ResponseBody},
    },
};

/// Responses of one request that may wait to be taken; a slower taker slows the session down.
const RESPONSES_MAX: usize = 1024;
/// Requests that may wait for the socket.
const REQUESTS_MAX: usize = 64;

/// Where responses go, until the session ends.
#[derive(Debug, Default)]
struct Routes {
    waiting: HashMap<RequestId, Sender<ResponseBody>>,
    /// Why no response comes any more. Under one lock with `waiting`: nobody begins to wait after the end.
    ended: Option<FaultKind>,
}

/// An open session.
#[derive(Debug)]
pub struct Session {
    /// `ADDRESS:PORT` as it was dialled.
    pub address: String,
    /// Who answered.
    pub identity: Identity,
    requests: Sender<Request>,
    routes: Arc<Mutex<Routes>>,
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
    routes: Arc<Mutex<Routes>>,
}

impl Session {
    /// Dials a node and shakes hands as `own`.
    ///
    /// # Errors
    /// It is away, no Bramble, of another version, or refuses.
    pub async fn open(address: &str, own: Identity) -> Result<Self, Fault> {
        let hello = Hello { identity: own, purpose: Purpose::Console };
        let (connection, identity) = dial(address, &hello).await?;
        let (reader, writer) = split(connection);
        let routes = Arc::<Mutex<Routes>>::default();
        let (requests, outgoing) = channel(REQUESTS_MAX);
        let reading = tokio::spawn(read(reader, Arc::clone(&routes)));
        let writing = tokio::spawn(write(writer, outgoing, Arc::clone(&routes)));
        let (latest, tasks) = (AtomicU64::new(0), [reading, writing]);
        Ok(Self { address: address.into(), identity, requests, routes, latest, tasks })
    }

    /// Sends a request; its responses come by the reply.
    ///
    /// # Errors
    /// The session is broken.
    pub async fn ask(&self, body: RequestBody) -> Result<Reply, Fault> {
        let id = RequestId(self.latest.fetch_add(1, Ordering::Relaxed) + 1);
        let (sender, responses) = channel(RESPONSES_MAX);
        {
            let mut routes = lock(&self.routes);
            if routes.ended.is_some() {
                return Err(fault(&self.identity.name, &routes));
            }
            routes.waiting.insert(id, sender);
        }
        let reply = Reply { id, node: self.identity.name.clone(), responses, routes: Arc::clone(&self.routes) };
        self.send(Request { id, body }).await?;
        Ok(reply)
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
        lock(&self.routes).ended.is_some()
    }

    async fn send(&self, request: Request) -> Result<(), Fault> {
        self.requests.send(request).await.map_err(|_| fault(&self.identity.name, &lock(&self.routes)))
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
        timeout(patience, self.received()).await.unwrap_or_else(|_| {
            let kind = FaultKind::Timeout { what: what.into(), seconds: patience.as_secs() as u32 };
            Err(Fault::new(&self.node, kind))
        })
    }

    /// As [`Self::next`] for whoever keeps a deadline of its own; cancelling it loses nothing.
    ///
    /// # Errors
    /// The node failed the request, or the session broke.
    pub async fn received(&mut self) -> Result<ResponseBody, Fault> {
        match self.responses.recv().await {
            Some(ResponseBody::Failed(fault)) => Err(fault),
            Some(body) => Ok(body),
            None => Err(fault(&self.node, &lock(&self.routes))),
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        lock(&self.routes).waiting.remove(&self.id);
    }
}

fn fault(node: &str, routes: &Routes) -> Fault {
    let closed = || FaultKind::SessionLost { reason: "closed by the node".into() };
    Fault::new(node, routes.ended.clone().unwrap_or_else(closed))
}

fn lock(routes: &Mutex<Routes>) -> MutexGuard<'_, Routes> {
    // The map is whole even if a task panicked while it held the lock.
    routes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the session for all who wait; the first reason stays.
fn end(routes: &Mutex<Routes>, kind: FaultKind) {
    let mut routes = lock(routes);
    routes.ended.get_or_insert(kind);
    routes.waiting.clear();
}

async fn read(mut reader: MessageReader, routes: Arc<Mutex<Routes>>) {
    let kind = loop {
        let response = match reader.receive::<Response>().await {
            Ok(Some(response)) => response,
            Ok(None) => break FaultKind::SessionLost { reason: "closed by the node".into() },
            Err(kind) => break kind,
        };
        let sender = lock(&routes).waiting.get(&response.id).cloned();
        if let Some(sender) = sender {
            // Whoever asked may have gone; then nobody wants it.
            let _ = sender.send(response.body).await;
        }
    };
    end(&routes, kind);
}

async fn write(mut writer: MessageWriter, mut outgoing: Receiver<Request>, routes: Arc<Mutex<Routes>>) {
    while let Some(request) = outgoing.recv().await {
        if let Err(kind) = writer.send(&request).await {
            return end(&routes, kind);
        }
    }
}
