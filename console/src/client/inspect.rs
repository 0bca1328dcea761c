//! Queries besides the report: the log and the settings of a node; cancelling requests of any client; and deleting stored
//! keys and values.
use std::time::Duration;

use common::fault::{Fault, FaultKind};
use protocol::{
    inspect::{Inspect, Inspected, LogLevel, LogLines},
    message::{RequestBody, ResponseBody},
};

use telemetry::StoreCleared;

use super::{identify::unexpected, session::Session};

/// Time limit for an answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Time limit for deleting files.
const DELETION: Duration = Duration::from_secs(120);
/// First wire version whose nodes delete them.
const CLEAR_VERSION: u16 = 14;

async fn inspect(session: &Session, what: Inspect, waits_for: &str) -> Result<Inspected, Fault> {
    let mut reply = session.ask(RequestBody::Inspect(what)).await?;
    match reply.next(waits_for, ANSWER).await? {
        ResponseBody::Inspected(seen) => Ok(*seen),
        other => Err(unexpected(session, &other)),
    }
}

/// The fault for a response of the wrong kind.
fn another(session: &Session, seen: Inspected) -> Fault {
    unexpected(session, &ResponseBody::Inspected(Box::new(seen)))
}

/// Lines of a node's log after a sequence number, oldest first.
///
/// # Errors
/// The node does not answer.
pub async fn log(session: &Session, after: u64, level: LogLevel) -> Result<LogLines, Fault> {
    match inspect(session, Inspect::Log { after, level }, "reading the log").await? {
        Inspected::Log(lines) => Ok(lines),
        other => Err(another(session, other)),
    }
}

/// All stored lines of a node's log after a sequence number, fetched in several requests if necessary.
///
/// # Errors
/// The node does not answer.
pub async fn whole_log(session: &Session, after: u64, level: LogLevel) -> Result<LogLines, Fault> {
    let mut all = log(session, after, level).await?;
    while all.more {
        let mut next = log(session, all.next, level).await?;
        all.lines.append(&mut next.lines);
        all.missed += next.missed;
        (all.next, all.more) = (next.next, next.more);
    }
    Ok(all)
}

/// The time of the oldest stored line of a node's log, in milliseconds since 1970; `None` if no line is stored.
///
/// # Errors
/// The node does not answer.
pub async fn log_begin(session: &Session) -> Result<Option<u64>, Fault> {
    Ok(log(session, 0, LogLevel::Trace).await?.lines.first().map(|line| line.unix_ms))
}

/// A node's settings as TOML, without secrets.
///
/// # Errors
/// The node does not answer.
pub async fn settings(session: &Session) -> Result<String, Fault> {
    match inspect(session, Inspect::Settings, "reading the settings").await? {
        Inspected::Settings(text) => Ok(text),
        other => Err(another(session, other)),
    }
}

/// Cancels a request of any client by its number on its head.
///
/// # Errors
/// The head does not answer, or runs no such request.
pub async fn cancel(session: &Session, number: u64) -> Result<(), Fault> {
    let mut reply = session.ask(RequestBody::CancelRunning { number }).await?;
    match reply.next("cancelling a request", ANSWER).await? {
        ResponseBody::Cancelling => Ok(()),
        other => Err(unexpected(session, &other)),
    }
}

/// Deletes the keys and values that a node stores on its disk.
///
/// # Errors
/// The node does not answer, is too old, or cannot delete them.
pub async fn clear_store(session: &Session) -> Result<StoreCleared, Fault> {
    let body = RequestBody::ClearStore;
    if session.version < CLEAR_VERSION {
        let kind = FaultKind::PeerOlder { version: session.version, what: body.name().into() };
        return Err(Fault::new(&session.identity.name, kind));
    }
    let mut reply = session.ask(body).await?;
    match reply.next("deleting stored keys and values", DELETION).await? {
        ResponseBody::StoreCleared(cleared) => Ok(cleared),
        other => Err(unexpected(session, &other)),
    }
}
