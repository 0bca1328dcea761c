//! What a node tells beside its report: its log, its settings; and ending somebody's request.
use std::time::Duration;

use shared::protocol::{
    error::Fault,
    inspect::{Inspect, Inspected, LogLevel, LogLines},
    message::{RequestBody, ResponseBody},
};

use super::{assign::unexpected, session::Session};

/// A node must answer within this.
const ANSWER: Duration = Duration::from_secs(10);

async fn inspect(session: &Session, what: Inspect, waits_for: &str) -> Result<Inspected, Fault> {
    let mut reply = session.ask(RequestBody::Inspect(what)).await?;
    match reply.next(waits_for, ANSWER).await? {
        ResponseBody::Inspected(seen) => Ok(*seen),
        other => Err(unexpected(session, &other)),
    }
}

/// Another thing than was looked at.
fn another(session: &Session, seen: Inspected) -> Fault {
    unexpected(session, &ResponseBody::Inspected(Box::new(seen)))
}

/// Lines of a node's log after a number, oldest first.
///
/// # Errors
/// It does not answer.
pub async fn log(session: &Session, after: u64, level: LogLevel) -> Result<LogLines, Fault> {
    match inspect(session, Inspect::Log { after, level }, "its log").await? {
        Inspected::Log(lines) => Ok(lines),
        other => Err(another(session, other)),
    }
}

/// All lines that a node keeps after a number: asks until there are no more.
///
/// # Errors
/// It does not answer.
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

/// A node's settings as TOML, without secrets.
///
/// # Errors
/// It does not answer.
pub async fn settings(session: &Session) -> Result<String, Fault> {
    match inspect(session, Inspect::Settings, "its settings").await? {
        Inspected::Settings(text) => Ok(text),
        other => Err(another(session, other)),
    }
}

/// Ends a request by its number on its head, whoever asked for it.
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
