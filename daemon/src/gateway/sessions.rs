//! Idle sessions with heads.
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use common::fault::Fault;
use protocol::{handshake::Identity, session::Session};

/// Most idle sessions kept per head.
const IDLE_MAX: usize = 4;

/// Idle sessions with heads. Each session runs one request at a time, so that a slow reader delays only itself.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<BTreeMap<String, Vec<Session>>>);

impl Sessions {
    fn take(&self, head: &str) -> Option<Session> {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sessions = idle.get_mut(head)?;
        sessions.retain(|session| !session.is_broken());
        sessions.pop()
    }

    /// Keeps a session for the next request.
    pub(super) fn keep(&self, head: &str, session: Session) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|_, sessions| !sessions.iter().all(Session::is_broken));
        let sessions = idle.entry(head.into()).or_default();
        if sessions.len() < IDLE_MAX && !session.is_broken() {
            sessions.push(session);
        }
    }

    /// An idle session, or a new one.
    pub(super) async fn open(&self, head: &str, own: &Identity) -> Result<Session, Fault> {
        match self.take(head) {
            Some(session) => Ok(session),
            None => Session::open(head, own.clone()).await,
        }
    }
}
