//! The control link between the heads of two groups: heartbeats, remote prefill requests and their answers. The loss of
//! a head is reported once; this group continues without it.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use common::{ids::Epoch, units::Nanoseconds};
use engine::collective::Abort;
use protocol::{
    across::Across,
    connection::Connection,
    message::Beat,
    messages::{MessageReader, MessageWriter, split},
};
use tokio::{
    sync::mpsc::{Receiver, Sender, channel},
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{Input, pacemaker::Pacemaker};
use crate::{config::Liveness, node::event::Event};

/// Messages that may wait for the socket; the link to a head that falls further behind is closed.
const MESSAGES_MAX: usize = 256;

/// State shared by the links of one head to those of other groups.
#[derive(Clone, Debug)]
pub(super) struct HeadLinks {
    pub(super) run: u64,
    pub(super) epoch: Epoch,
    pub(super) liveness: Liveness,
    /// Counters of this node's engine.
    pub(super) engine: Arc<Abort>,
    /// This node takes no new work.
    pub(super) draining: Arc<AtomicBool>,
    /// This node's group ends or is broken.
    pub(super) stop: CancellationToken,
    pub(super) inputs: Sender<Input>,
}

/// One control link.
#[derive(Debug)]
pub(super) struct HeadLink {
    pub(super) replica: u16,
    messages: Sender<Across>,
    /// Cancelled when the link is no longer usable.
    broken: CancellationToken,
}

impl HeadLink {
    /// Opens the link on a socket that `pacemaker` has taken over, because it also carries heartbeats.
    pub(super) fn open(ways: HeadLinks, replica: u16, connection: Connection, pacemaker: &Pacemaker) -> Self {
        let (messages, queue) = channel(MESSAGES_MAX);
        let broken = ways.stop.child_token();
        pacemaker.spawn(run(ways, replica, connection, queue, broken.clone()));
        Self { replica, messages, broken }
    }

    /// Queues a message; closes the link if the queue is full.
    pub(super) fn send(&self, message: Across) {
        if self.messages.try_send(message).is_err() {
            self.give_up();
        }
    }

    /// Closes the link: the other group counts as lost.
    pub(super) fn give_up(&self) {
        self.broken.cancel();
    }
}

async fn run(
    ways: HeadLinks,
    replica: u16,
    connection: Connection,
    queue: Receiver<Across>,
    broken: CancellationToken,
) {
    let (reader, writer) = split(connection);
    tokio::select! {
        () = broken.cancelled() => {}
        () = listen(&ways, replica, reader) => {}
        () = speak(&ways, writer, queue) => {}
    }
    if !ways.stop.is_cancelled() {
        tracing::warn!(epoch = %ways.epoch, replica, "a group was lost");
        // When the daemon ends, the driver may be gone already.
        let _ = ways.inputs.send(Input::Run(ways.run, Event::Across(ways.epoch, replica, None))).await;
    }
}

/// Forwards incoming messages until the peer closes the link, is silent for too long or stalls.
async fn listen(ways: &HeadLinks, replica: u16, mut reader: MessageReader) {
    let Liveness { silent, stall, .. } = ways.liveness;
    let (mut progress, mut moved) = (0, Instant::now());
    while let Ok(Ok(Some(message))) = timeout(silent, reader.receive::<Across>()).await {
        if let Across::Beat(beat) = message {
            if beat.progress != progress || !beat.busy || beat.waiting {
                (progress, moved) = (beat.progress, Instant::now());
            }
            if beat.leaving || moved.elapsed() > stall {
                return;
            }
        } else if ways
            .inputs
            .send(Input::Run(ways.run, Event::Across(ways.epoch, replica, Some(message))))
            .await
            .is_err()
        {
            return;
        }
    }
}

/// Sends queued messages and heartbeats.
async fn speak(ways: &HeadLinks, mut writer: MessageWriter, mut queue: Receiver<Across>) {
    let mut ticks = interval(ways.liveness.heartbeat);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let patience: Duration = ways.liveness.silent;
    loop {
        let message = tokio::select! {
            message = queue.recv() => match message {
                Some(message) => message,
                None => return,
            },
            _ = ticks.tick() => Across::Beat(Beat {
                progress: ways.engine.progress(),
                busy: ways.engine.is_busy(),
                waiting: ways.engine.is_waiting(),
                draining: ways.draining.load(Ordering::Acquire),
                leaving: false,
                failed: None,
                sent: Nanoseconds(0),
                echo: None,
            }),
        };
        if !matches!(timeout(patience, writer.send(&message)).await, Ok(Ok(()))) {
            return;
        }
    }
}
