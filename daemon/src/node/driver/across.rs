//! The way between the heads of two groups: heartbeats, asks for prompts and their answers. Whoever is lost is told once; the own group
//! goes on without.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use shared::{
    ids::Epoch,
    protocol::{
        across::Across,
        connection::{Connection, MessageReader, MessageWriter, split},
        message::Beat,
    },
    units::Nanoseconds,
};
use tokio::{
    sync::mpsc::{Receiver, Sender, channel},
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{Input, pacemaker::Pacemaker};
use crate::{collective::Abort, config::Liveness, node::event::Event};

/// Messages that may wait for the socket; a head that is further behind is given up.
const MESSAGES_MAX: usize = 256;

/// What the ways of one head to those of other groups share.
#[derive(Clone, Debug)]
pub(super) struct Ways {
    pub(super) run: u64,
    pub(super) epoch: Epoch,
    pub(super) liveness: Liveness,
    /// Counters of the own engine.
    pub(super) engine: Arc<Abort>,
    /// This node takes no new work.
    pub(super) draining: Arc<AtomicBool>,
    /// The own group ends or is broken.
    pub(super) stop: CancellationToken,
    pub(super) inputs: Sender<Input>,
}

/// The other end of one way.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) replica: u16,
    messages: Sender<Across>,
    /// It is of no use any more.
    broken: CancellationToken,
}

impl Way {
    /// Opens it on a socket that `pacemaker` has taken over: heartbeats go there, too.
    pub(super) fn open(ways: Ways, replica: u16, connection: Connection, pacemaker: &Pacemaker) -> Self {
        let (messages, queue) = channel(MESSAGES_MAX);
        let broken = ways.stop.child_token();
        pacemaker.spawn(run(ways, replica, connection, queue, broken.clone()));
        Self { replica, messages, broken }
    }

    /// Sends a message; a way that takes no more is given up.
    pub(super) fn send(&self, message: Across) {
        if self.messages.try_send(message).is_err() {
            self.give_up();
        }
    }

    /// Ends it: the other group is lost.
    pub(super) fn give_up(&self) {
        self.broken.cancel();
    }
}

async fn run(ways: Ways, replica: u16, connection: Connection, queue: Receiver<Across>, broken: CancellationToken) {
    let (reader, writer) = split(connection);
    tokio::select! {
        () = broken.cancelled() => {}
        () = listen(&ways, replica, reader) => {}
        () = speak(&ways, writer, queue) => {}
    }
    if !ways.stop.is_cancelled() {
        tracing::warn!(epoch = %ways.epoch, replica, "a group was lost");
        // The driver may be gone when the daemon ends; then nobody needs to know.
        let _ = ways.inputs.send(Input::Run(ways.run, Event::Across(ways.epoch, replica, None))).await;
    }
}

/// Passes on what comes, until the other end is closed, silent or stalled.
async fn listen(ways: &Ways, replica: u16, mut reader: MessageReader) {
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

/// Sends what waits, and heartbeats.
async fn speak(ways: &Ways, mut writer: MessageWriter, mut queue: Receiver<Across>) {
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
