//! Writes to the state folder on a thread of its own, in the order of the effects, so that the driver never waits for
//! the disk. A write's answer is sent when it is synced. A disk that stalls is reported by the name of its folder.
use std::{
    collections::VecDeque,
    io,
    sync::mpsc::{self, SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};

use common::{
    fault::{Fault, FaultKind},
    ids::{Epoch, RequestId, TopologyHash},
};
use protocol::message::ResponseBody;
use tokio::{
    sync::mpsc::{Receiver, Sender, channel},
    time::{Instant as Deadline, timeout_at},
};
use topology::Exclusions;

use super::{sessions::OpenSessions, state::StateFolder};
use crate::node::{
    Event, SessionId,
    effect::{DiskEffect, PendingAnswer},
    event::{ExclusionsKept, Record},
};

/// Writes that may wait for the disk.
const WRITES_MAX: usize = 128;
/// Of these, writes that a request asks for; the others must not be refused.
const ANSWERED_MAX: usize = 96;
/// A write that takes longer is reported.
const STALL: Duration = Duration::from_secs(5);
/// Interval of further reports.
const REPORT: Duration = Duration::from_secs(60);
/// Longest wait for the disk when the daemon ends.
const FLUSH: Duration = Duration::from_secs(5);

/// Results of writes, in order.
pub(super) type Results = Receiver<Result<(), String>>;

/// The driver's end of the queue.
#[derive(Debug)]
pub(super) struct Disk {
    /// This node's name, for faults.
    name: String,
    folder: String,
    writes: SyncSender<Vec<StateWrite>>,
    /// Writes without a result, oldest first.
    pending: VecDeque<PendingWrite>,
    /// When the stall of the oldest write was last reported.
    reported: Option<Instant>,
}

/// A part of a write.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "at most 128 wait, and each is moved once")]
enum StateWrite {
    Record(Record),
    Exclusions(Exclusions),
}

#[derive(Debug)]
struct PendingWrite {
    since: Instant,
    then: AfterWrite,
}

/// The action after a write.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "at most 128 wait, and each is moved once")]
enum AfterWrite {
    Persisted(Epoch, TopologyHash),
    Exclusions { session: SessionId, id: RequestId, list: Exclusions },
    Answer(Option<PendingAnswer>),
}

impl Disk {
    /// Starts the thread. It ends when this is dropped.
    ///
    /// # Errors
    /// No thread can be started.
    pub(super) fn start(name: String, state: StateFolder) -> io::Result<(Self, Results)> {
        let (writes, queue) = sync_channel(WRITES_MAX);
        let (told, results) = channel(WRITES_MAX);
        let folder = state.path().display().to_string();
        thread::Builder::new().name("state".into()).spawn(move || run(&state, &queue, &told))?;
        Ok((Self { name, folder, writes, pending: VecDeque::new(), reported: None }, results))
    }

    /// Queues a write. Returns an event if it was refused.
    pub(super) fn perform(&mut self, effect: DiskEffect, sessions: &mut OpenSessions) -> Option<Event> {
        let (parts, then) = match effect {
            DiskEffect::Persist(epoch, hash) => {
                (vec![StateWrite::Record(Record::Promise(epoch, hash))], AfterWrite::Persisted(epoch, hash))
            }
            DiskEffect::KeepExclusions { session, id, list } => {
                (vec![StateWrite::Exclusions(list.clone())], AfterWrite::Exclusions { session, id, list })
            }
            DiskEffect::Write { records, then } => {
                // Nothing to write and nothing to wait for.
                if records.is_empty() && self.pending.is_empty() {
                    return self.finish(AfterWrite::Answer(then), Ok(()), sessions);
                }
                (records.into_iter().map(StateWrite::Record).collect(), AfterWrite::Answer(then))
            }
        };
        let limit = if matches!(then, AfterWrite::Answer(None)) { WRITES_MAX } else { ANSWERED_MAX };
        if self.pending.len() >= limit {
            return self.finish(then, Err(format!("{limit} writes to {} wait for the disk", self.folder)), sessions);
        }
        // The queue has room for all pending writes.
        if self.writes.try_send(parts).is_err() {
            let reason = format!("the thread that writes to {} has ended", self.folder);
            return self.finish(then, Err(reason), sessions);
        }
        self.pending.push_back(PendingWrite { since: Instant::now(), then });
        None
    }

    /// Called with the result of the oldest pending write.
    pub(super) fn written(&mut self, result: Result<(), String>, sessions: &mut OpenSessions) -> Option<Event> {
        let PendingWrite { since, then } = self.pending.pop_front()?;
        if self.reported.take().is_some() {
            tracing::info!(
                "state folder {}: the disk answers again, after {} s",
                self.folder,
                since.elapsed().as_secs()
            );
        }
        self.finish(then, result, sessions)
    }

    /// Sends the answer of a write, or returns its event.
    fn finish(&self, then: AfterWrite, result: Result<(), String>, sessions: &mut OpenSessions) -> Option<Event> {
        let result = result.map_err(|reason| Fault::new(&self.name, FaultKind::StateUnwritable { reason }));
        match then {
            AfterWrite::Persisted(epoch, hash) => Some(Event::Persisted(epoch, hash, result)),
            AfterWrite::Exclusions { session, id, list } => {
                if result.is_ok() {
                    log_exclusions(&list);
                }
                Some(Event::ExclusionsKept(ExclusionsKept { session, id, list, result }))
            }
            AfterWrite::Answer(answer) => {
                if let Err(fault) = &result {
                    tracing::warn!("{fault}: a restart would lose this record; free space or repair the disk");
                }
                if let Some(PendingAnswer { to, body }) = answer {
                    let body = result.map_or_else(ResponseBody::Failed, |()| body);
                    sessions.respond(to.session, to.id, body);
                }
                None
            }
        }
    }

    /// Reports a stall.
    pub(super) fn tick(&mut self, now: Instant) {
        let Some(trouble) = self.trouble(now) else { return };
        if self.reported.is_none_or(|reported| now.saturating_duration_since(reported) >= REPORT) {
            self.reported = Some(now);
            tracing::warn!(
                "{trouble}: assignments, votes and exclusions wait for it, running requests continue; check the disk \
                 or SD card (dmesg)"
            );
        }
    }

    /// The stall of the disk, if there is one.
    pub(super) fn trouble(&self, now: Instant) -> Option<String> {
        let waited = now.saturating_duration_since(self.pending.front()?.since);
        let seconds = waited.as_secs();
        (waited >= STALL).then(|| format!("a write to state folder {} has been waiting for {seconds} s", self.folder))
    }

    /// Whether a write has no result yet.
    pub(super) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }
}

/// The next result within the time that the end of the daemon may take.
pub(super) async fn flushed(results: &mut Results, since: Deadline) -> Option<Result<(), String>> {
    timeout_at(since + FLUSH, results.recv()).await.ok().flatten()
}

/// The thread.
fn run(state: &StateFolder, queue: &mpsc::Receiver<Vec<StateWrite>>, told: &Sender<Result<(), String>>) {
    for parts in queue {
        let result = parts.iter().try_for_each(|part| match part {
            StateWrite::Record(record) => state.save(record),
            StateWrite::Exclusions(list) => state.save_exclusions(list),
        });
        // If the driver is gone, what it queued is written nevertheless.
        let _ = told.blocking_send(result.map_err(|error| error.to_string()));
    }
}

fn log_exclusions(list: &Exclusions) {
    let out: Vec<String> =
        list.out().map(|entry| format!("{} ({})", entry.node, entry.reason.as_deref().unwrap_or(""))).collect();
    tracing::info!("excluded nodes: {}", if out.is_empty() { "none".into() } else { out.join(", ") });
}
