//! Sessions with other nodes during recovery: kept between looks, with a deadline for each question.
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use common::fault::Fault;
use protocol::{
    handshake::Identity,
    message::{RequestBody, ResponseBody},
    recovery::{RecoveryAnswer, RecoveryAsk, Standing},
    session::Session,
};
use tokio::task::JoinSet;

use crate::node::steward::ANSWER;

/// Deadline of a connection attempt.
const DIAL: Duration = Duration::from_millis(1500);

/// Sessions by address.
#[derive(Debug)]
pub(super) struct Peers {
    identity: Identity,
    /// Address at which this node listens.
    listen: Option<String>,
    sessions: HashMap<String, Arc<Session>>,
}

impl Peers {
    pub(super) fn new(identity: Identity, listen: Option<String>) -> Self {
        Self { identity, listen, sessions: HashMap::new() }
    }

    /// A session with the node at an address.
    async fn session(&mut self, address: &str) -> Result<Arc<Session>, Fault> {
        if let Some(session) = self.sessions.get(address).filter(|session| !session.is_broken()) {
            return Ok(Arc::clone(session));
        }
        self.sessions.remove(address);
        let session = Arc::new(open(address, &self.identity).await?);
        self.sessions.insert(address.into(), Arc::clone(&session));
        Ok(session)
    }

    /// The open session with the node at an address, if there is one.
    pub(super) fn known(&mut self, address: &str) -> Option<Arc<Session>> {
        if self.sessions.get(address).is_some_and(|session| session.is_broken()) {
            self.sessions.remove(address);
        }
        self.sessions.get(address).cloned()
    }

    /// Stores a session that was opened elsewhere.
    pub(super) fn keep(&mut self, address: String, session: Arc<Session>) {
        self.sessions.insert(address, session);
    }

    /// The standing of the node at an address.
    pub(super) async fn standing(&mut self, address: &str) -> Result<Standing, Fault> {
        let caller = self.caller();
        let session = self.session(address).await?;
        standing(&session, caller).await
    }

    fn caller(&self) -> Option<(String, String)> {
        self.listen.as_ref().map(|listen| (self.identity.name.clone(), listen.clone()))
    }

    /// The standings of the nodes at these addresses, requested concurrently; nodes that do not answer are missing.
    pub(super) async fn standings(&mut self, mut addresses: Vec<String>) -> BTreeMap<String, Standing> {
        addresses.sort_unstable();
        addresses.dedup();
        let mut asked = JoinSet::new();
        for address in addresses {
            let known = self.sessions.get(&address).filter(|session| !session.is_broken()).cloned();
            let (identity, caller) = (self.identity.clone(), self.caller());
            asked.spawn(async move {
                let session = match known {
                    Some(session) => session,
                    None => Arc::new(open(&address, &identity).await.ok()?),
                };
                let standing = standing(&session, caller).await.ok()?;
                Some((address, session, standing))
            });
        }
        let mut found = BTreeMap::new();
        while let Some(answer) = asked.join_next().await {
            if let Ok(Some((address, session, standing))) = answer {
                self.sessions.insert(address.clone(), session);
                found.insert(address, standing);
            }
        }
        self.sessions.retain(|_, session| !session.is_broken());
        found
    }

    /// Sends a record to the node at an address, which has to store it.
    pub(super) async fn tell(&mut self, address: &str, ask: RecoveryAsk) -> Result<(), Fault> {
        let session = self.session(address).await?;
        match question(&session, ask).await? {
            ResponseBody::Recovery(RecoveryAnswer::Learned) | ResponseBody::Restarting => Ok(()),
            _ => Err(session.unexpected()),
        }
    }
}

/// Opens a session.
pub(super) async fn open(address: &str, identity: &Identity) -> Result<Session, Fault> {
    Session::open_within(address, identity.clone(), DIAL).await
}

async fn question(session: &Session, ask: RecoveryAsk) -> Result<ResponseBody, Fault> {
    session.ask(RequestBody::Recovery(Box::new(ask))).await?.next("an answer about recovery", ANSWER).await
}

async fn standing(session: &Session, caller: Option<(String, String)>) -> Result<Standing, Fault> {
    match question(session, RecoveryAsk::Standing(caller)).await? {
        ResponseBody::Recovery(RecoveryAnswer::Standing(standing)) => Ok(*standing),
        _ => Err(session.unexpected()),
    }
}
