//! A session with one node, used by consoles and by the gateways of other nodes: sends requests and routes responses
//! back to their requesters. Does not retry.
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use common::{
    fault::{Fault, FaultKind},
    ids::RequestId,
    older,
    version::speaking,
};
use tokio::{
    sync::mpsc::{Receiver, Sender, channel},
    task::JoinHandle,
    time::timeout,
};

use crate::{
    connection::dial_with,
    handshake::{Hello, Identity, Purpose, RankBuild},
    message::{MESSAGE_BYTES_MAX, Request, RequestBody, Response, ResponseBody, encoded_length},
    messages::{MessageReader, MessageWriter, split},
    noise::{
        key::Role,
        keyring::{self, Keyring},
    },
};

/// Responses of one request that may be buffered; a slower reader slows down the whole session.
const RESPONSES_MAX: usize = 1024;
/// Deadline for the rest of a message: otherwise a damaged length could block the session forever.
const REST: Duration = Duration::from_secs(60);
/// Requests that may be buffered for the socket.
const REQUESTS_MAX: usize = 64;

/// The recipients of responses, until the session ends.
#[derive(Debug, Default)]
struct Routes {
    waiting: HashMap<RequestId, Sender<ResponseBody>>,
    /// Why no more responses arrive. Shares a lock with `waiting`, so that no request starts to wait after the end.
    ended: Option<FaultKind>,
}

/// An open session.
#[derive(Debug)]
pub struct Session {
    /// `ADDRESS:PORT` as it was dialled.
    pub address: String,
    /// Identity of the node.
    pub identity: Identity,
    /// The agreed wire version.
    pub version: u16,
    /// The highest wire version that the node speaks.
    pub highest: u16,
    /// The role that this end proved; `None` between ends without a key.
    pub role: Option<Role>,
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
    /// Dials a node and performs the handshake as `own`.
    ///
    /// # Errors
    /// It is unreachable, is not Bramble, has another version, or rejects the connection.
    pub async fn open(address: &str, own: Identity) -> Result<Self, Fault> {
        Self::open_with(address, own, &keyring::own()).await
    }

    /// As [`Self::open`], if it takes no longer than `patience`.
    ///
    /// # Errors
    /// As [`Self::open`], and the time is over.
    pub async fn open_within(address: &str, own: Identity, patience: Duration) -> Result<Self, Fault> {
        timeout(patience, Self::open(address, own)).await.unwrap_or_else(|_| {
            let reason = format!("no answer within {} ms", patience.as_millis());
            Err(Fault::new(address, FaultKind::Unreachable { address: address.into(), reason }))
        })
    }

    /// The node as a rank that others are linked to.
    pub fn rank(&self) -> RankBuild<'_> {
        RankBuild { identity: &self.identity, highest: self.highest }
    }

    /// The fault of an answer that does not fit the request.
    pub fn unexpected(&self) -> Fault {
        Fault::new(&self.identity.name, FaultKind::Malformed { reason: "an unexpected answer".into() })
    }

    /// As [`Self::open`], with other keys than those of this process.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn open_with(address: &str, own: Identity, keyring: &Keyring) -> Result<Self, Fault> {
        let hello = Hello { identity: own, purpose: Purpose::Console };
        let (connection, identity) = dial_with(address, &hello, keyring).await?;
        let (version, highest, role) = (connection.version, connection.highest, connection.role());
        let (reader, writer) = split(connection);
        let reader = reader.bounded(MESSAGE_BYTES_MAX, REST);
        let routes = Arc::<Mutex<Routes>>::default();
        let (requests, outgoing) = channel(REQUESTS_MAX);
        let reading = tokio::spawn(read(reader, Arc::clone(&routes)));
        let writing = tokio::spawn(write(writer, outgoing, Arc::clone(&routes)));
        let (latest, tasks) = (AtomicU64::new(0), [reading, writing]);
        Ok(Self { address: address.into(), identity, version, highest, role, requests, routes, latest, tasks })
    }

    /// Sends a request; its responses arrive through the returned reply.
    ///
    /// # Errors
    /// The session is broken, the request exceeds the size limit, or the node's wire version does not support the
    /// request. In the last two cases nothing is sent and the session stays open.
    pub async fn ask(&self, body: RequestBody) -> Result<Reply, Fault> {
        if let Some(what) = older::unknown(self.version, &body) {
            return Err(Fault::new(&self.identity.name, FaultKind::PeerOlder { version: self.version, what }));
        }
        let id = RequestId(self.latest.fetch_add(1, Ordering::Relaxed) + 1);
        let request = Request { id, body };
        let bytes = speaking(self.version, || encoded_length(&request));
        if bytes > MESSAGE_BYTES_MAX {
            let name = request.body.name();
            let reason =
                format!("the {name} request has {bytes} bytes, but a node accepts at most {MESSAGE_BYTES_MAX}");
            return Err(Fault::new(&self.identity.name, FaultKind::ParameterInvalid { reason }));
        }
        let (sender, responses) = channel(RESPONSES_MAX);
        {
            let mut routes = lock(&self.routes);
            if routes.ended.is_some() {
                return Err(fault(&self.identity.name, &routes));
            }
            routes.waiting.insert(id, sender);
        }
        let reply = Reply { id, node: self.identity.name.clone(), responses, routes: Arc::clone(&self.routes) };
        self.send(request).await?;
        Ok(reply)
    }

    /// Cancels the generation with this id.
    ///
    /// # Errors
    /// The session is broken.
    pub async fn cancel(&self, id: RequestId) -> Result<(), Fault> {
        self.send(Request { id, body: RequestBody::Cancel }).await
    }

    /// Whether the connection is lost.
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
    /// The next response; a `Failed` response is returned as the error.
    ///
    /// # Errors
    /// The node failed the request, the session broke, or no response arrived in time.
    pub async fn next(&mut self, what: &str, patience: Duration) -> Result<ResponseBody, Fault> {
        timeout(patience, self.received()).await.unwrap_or_else(|_| {
            let kind = FaultKind::Timeout { what: what.into(), seconds: patience.as_secs() as u32 };
            Err(Fault::new(&self.node, kind))
        })
    }

    /// As [`Self::next`], for callers with their own deadline; cancelling it loses no response.
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
    Fault::new(
        node,
        routes.ended.clone().unwrap_or_else(|| FaultKind::SessionLost { reason: "closed by the node".into() }),
    )
}

fn lock(routes: &Mutex<Routes>) -> MutexGuard<'_, Routes> {
    // The map is consistent even if a task panicked while it held the lock.
    routes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the session for all waiting requests; the first reason is kept.
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
        // The last place that distrusts a response.
        if let Err(reason) = check(&response.body) {
            break FaultKind::Malformed { reason };
        }
        let sender = lock(&routes).waiting.get(&response.id).cloned();
        if let Some(sender) = sender {
            // The requester may have gone; then the response is dropped.
            let _ = sender.send(response.body).await;
        }
    };
    end(&routes, kind);
}

/// Checks the parts of a response that readers rely on.
fn check(body: &ResponseBody) -> Result<(), String> {
    match body {
        ResponseBody::Report(report) => report.check(),
        ResponseBody::Recovery(answer) => answer.check(),
        _ => Ok(()),
    }
}

async fn write(mut writer: MessageWriter, mut outgoing: Receiver<Request>, routes: Arc<Mutex<Routes>>) {
    while let Some(request) = outgoing.recv().await {
        if let Err(kind) = writer.send(&request).await {
            return end(&routes, kind);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::{
        connection::{Arrived, Door, receive_hello, send_welcome},
        handshake::Welcome,
        message::{Generate, Prompt},
        noise::{key::Role, keyring::Keyring},
    };

    fn identity(name: &str) -> Identity {
        Identity { name: name.into(), build: "0".into(), numeric: 1, machine: "m".into(), cores: vec![0] }
    }

    /// A node that answers each request with a rejection until the session ends.
    async fn node(listener: TcpListener) -> usize {
        let (stream, _) = listener.accept().await.expect("the console dials");
        let keyring = Keyring::empty(Role::Operator);
        let door = Door { name: "pi4", keyring: &keyring, is_pairing: &|| false };
        let Ok(Arrived::Hello(mut connection, _)) = receive_hello(stream, door).await else { panic!("a hello") };
        send_welcome(&mut connection, &Welcome::Accepted(identity("pi4"))).await.expect("it is sent");
        let (mut reader, mut writer) = split(connection);
        let mut count = 0;
        while let Ok(Some(Request { id, .. })) = reader.receive::<Request>().await {
            count += 1;
            let body = ResponseBody::Failed(Fault::new("pi4", FaultKind::NotHead));
            writer.send(&Response { id, body }).await.expect("it is sent");
        }
        count
    }

    #[tokio::test]
    async fn too_long_request_is_rejected_and_session_stays_open() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback can be bound");
        let address = listener.local_addr().expect("it is bound").to_string();
        let node = tokio::spawn(node(listener));
        let session = Session::open(&address, identity("pi1")).await.expect("it is open");
        let generate = |bytes: usize| {
            let prompt = Prompt::Text("x".repeat(bytes));
            RequestBody::Generate(Box::new(Generate::new(prompt, 1, Default::default(), Vec::new())))
        };
        let refused = session.ask(generate(MESSAGE_BYTES_MAX)).await.expect_err("it is too long");
        let FaultKind::ParameterInvalid { reason } = &refused.kind else { panic!("{refused:?}") };
        assert!(reason.contains("generate") && reason.contains(&MESSAGE_BYTES_MAX.to_string()), "{reason}");
        assert!(!session.is_broken() && lock(&session.routes).waiting.is_empty());
        for bytes in [10, MESSAGE_BYTES_MAX - 100] {
            let mut reply = session.ask(generate(bytes)).await.expect("it is sent");
            let answer = reply.next("an answer", Duration::from_secs(30)).await;
            assert_eq!(answer.map_err(|fault| fault.kind), Err(FaultKind::NotHead));
        }
        drop(session);
        assert_eq!(node.await.expect("no panic"), 2);
    }
}
