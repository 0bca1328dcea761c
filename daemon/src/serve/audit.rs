//! One line in the log for each command: user, command, result. Requests that only read are left out. Requests that
//! succeed are kept only in memory, to save the SD card from frequent writes.
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use common::{fault::FaultKind, ids::RequestId};
use protocol::{
    message::{Request, Response, ResponseBody},
    models::ModelsResponse,
    noise::key::Role,
};

use super::{access::is_told, limits::Quiet};
use crate::log;

/// Commands of one session that are followed to their end.
const FOLLOWED_MAX: usize = 256;
/// Lines per session and second.
const LINES_PER_SECOND: u32 = 50;

/// The running commands of one session.
#[derive(Debug)]
pub(super) struct Audit {
    who: String,
    running: Mutex<BTreeMap<RequestId, &'static str>>,
    /// Limits the rate of lines; all viewers share one limiter.
    quiet: Arc<Mutex<Quiet>>,
    started: Instant,
}

impl Audit {
    /// For a session; `viewers` is shared by all viewers' sessions.
    pub(super) fn new(role: Option<Role>, by: &str, viewers: &Arc<Mutex<Quiet>>) -> Self {
        let quiet = match role {
            Some(Role::Viewer) => Arc::clone(viewers),
            _ => Arc::new(Mutex::new(Quiet::of(LINES_PER_SECOND))),
        };
        let role = role.map_or("no key".into(), |role| role.to_string());
        Self { who: format!("{role} {by}"), running: Mutex::default(), quiet, started: Instant::now() }
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<RequestId, &'static str>> {
        // The contents are intact even if a task panicked while it held the lock.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the start of a command.
    pub(super) fn begin(&self, request: &Request) {
        if !is_told(&request.body) {
            return;
        }
        let what = request.body.name();
        let mut running = self.running();
        if running.len() >= FOLLOWED_MAX {
            drop(running);
            self.tell(what, "begun");
            return;
        }
        // A cancel has the id of its target, whose end is logged.
        running.entry(request.id).or_insert(what);
    }

    /// Logs a command that was refused before the node received it.
    pub(super) fn refused(&self, what: &str, kind: &FaultKind) {
        self.tell(what, &format!("refused: {kind}"));
    }

    /// Logs the end of a command, if the response is one.
    pub(super) fn end(&self, response: &Response) {
        let Some(result) = result(&response.body) else { return };
        let what = self.running().remove(&response.id);
        if let Some(what) = what {
            self.tell(what, &result);
        }
    }

    /// Logs the end of the session for its running commands.
    pub(super) fn close(&self) {
        let left = std::mem::take(&mut *self.running());
        for what in left.into_values() {
            self.tell(what, "the session ended first");
        }
        let left_out = self.quiet.lock().unwrap_or_else(PoisonError::into_inner).left_out();
        if left_out > 0 && Arc::strong_count(&self.quiet) == 1 {
            tracing::info!(left_out, "audit: {}: the session ended", self.who);
        }
    }

    /// Writes a line, unless too many were written this second; the next line reports how many are missing.
    fn tell(&self, what: &str, result: &str) -> bool {
        let now = self.started.elapsed();
        let told = self.quiet.lock().unwrap_or_else(PoisonError::into_inner).may_tell(now);
        match told {
            // Successful requests are frequent: consoles see them, but the disk does not.
            Some(_) if what == "generate" && result.starts_with("ok") => {
                tracing::info!(target: log::IN_MEMORY, "audit: {}: {what}: {result}", self.who);
            }
            Some(0) => tracing::info!("audit: {}: {what}: {result}", self.who),
            Some(left_out) => tracing::info!(left_out, "audit: {}: {what}: {result}", self.who),
            None => {}
        }
        told.is_some()
    }
}

/// The result of a command; `None` while it runs.
fn result(body: &ResponseBody) -> Option<String> {
    match body {
        ResponseBody::Loading(_)
        | ResponseBody::Started { .. }
        | ResponseBody::Token(_)
        | ResponseBody::Report(_)
        | ResponseBody::Benching(_) => None,
        ResponseBody::Models(response) if matches!(**response, ModelsResponse::Working { .. }) => None,
        ResponseBody::Failed(fault) => Some(format!("failed: {}", fault.kind)),
        ResponseBody::Finished(finished) => {
            Some(format!("ok, {} tokens ({:?})", finished.times.sampled_tokens, finished.reason))
        }
        _ => Some("ok".into()),
    }
}

#[cfg(test)]
mod tests {
    use common::fault::Fault;
    use protocol::message::RequestBody;

    use super::*;

    fn request(id: u64, body: RequestBody) -> Request {
        Request { id: RequestId(id), body }
    }

    #[test]
    fn command_is_followed_to_its_end_and_reading_is_not() {
        let audit = Audit::new(Some(Role::Operator), "ann@desk (10.0.0.9:5)", &Arc::default());
        assert_eq!(audit.who, "operator ann@desk (10.0.0.9:5)");
        audit.begin(&request(1, RequestBody::Report));
        audit.begin(&request(2, RequestBody::Restart));
        audit.begin(&request(2, RequestBody::Cancel));
        assert_eq!(audit.running().clone().into_iter().collect::<Vec<_>>(), [(RequestId(2), "restart")]);
        audit.end(&Response { id: RequestId(2), body: ResponseBody::Restarting });
        assert!(audit.running().is_empty());
    }

    #[test]
    fn followed_commands_are_bounded() {
        let audit = Audit::new(None, "x", &Arc::default());
        (0..2000).for_each(|id| audit.begin(&request(id, RequestBody::Restart)));
        assert_eq!(audit.running().len(), FOLLOWED_MAX);
        audit.close();
        assert!(audit.running().is_empty());
    }

    #[test]
    fn flood_of_lines_is_bounded_and_counted() {
        let viewers = Arc::default();
        let sessions = [1, 2].map(|_| Audit::new(Some(Role::Viewer), "wall", &viewers));
        let told = (0..3000).filter(|line| sessions[line % 2].tell("restart", "refused")).count();
        assert!(told <= 60, "{told} lines");
        assert!(viewers.lock().expect("the lock is not poisoned").left_out() >= 2900);
        let operator = Audit::new(Some(Role::Operator), "ann", &viewers);
        assert!(operator.tell("restart", "ok"), "a viewer's flood hides no operator's line");
    }

    #[test]
    fn end_is_logged_as_the_node_reported_it() {
        let failed = ResponseBody::Failed(Fault::new("pi1", FaultKind::Draining));
        assert!(result(&failed).is_some_and(|text| text.contains("draining")));
        assert_eq!(result(&ResponseBody::Committed), Some("ok".into()));
        assert_eq!(result(&ResponseBody::Loading(Default::default())), None);
    }
}
