//! Time accounting of each collective: own compute, waiting for a rank, wire. Timestamps of two machines are never
//! compared directly. Records go into a ring that any thread may read; only the engine's thread writes.
use std::{sync::Arc, time::Instant};

use collectives::Table;
use common::{
    ids::{LayerIndex, Rank},
    units::Nanoseconds,
};
use kernels::PoolClock;
use telemetry::{HopRecord, PhaseTotals, RankTotals, SyncKind, UsualWait};

use super::sync_log::{Entry, SyncLog};

/// When the first and the last byte of a peer's messages in a collective arrived; `None`: it sent nothing.
pub type ArrivalTimes = Option<(Instant, Instant)>;

/// The rank with the longest compute time; orders by that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlowestRank {
    /// Its compute time before its send.
    pub compute: Nanoseconds,
    /// The rank.
    pub rank: Rank,
}

/// One collective, from its send to its last arrival.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeTiming {
    /// Own compute time before the send.
    pub compute: Nanoseconds,
    /// The slowest peer, as reported by frames.
    pub slowest: SlowestRank,
    /// The rank whose part arrived last, and how long it was the only one missing.
    pub last: (Rank, Nanoseconds),
    /// When this rank sent.
    pub sent: Instant,
    /// When the last part arrived; the next compute time starts here.
    pub arrived: Instant,
}

/// A received hand-over.
#[derive(Clone, Copy, Debug)]
pub struct Hop {
    /// The sending rank.
    pub from: Rank,
    /// The step that it belongs to.
    pub step: u64,
    /// Bytes of the message.
    pub bytes: u32,
    /// Its transmission time; `None` until the clocks have been compared.
    pub time: Option<Nanoseconds>,
}

/// The engine's time accounting. `left` is when it left the previous collective.
#[derive(Debug)]
pub struct StepTiming {
    own: Rank,
    begun: Instant,
    left: Instant,
    step: u64,
    is_prefill: bool,
    tokens: u32,
    totals: RankTotals,
    ring: Arc<SyncLog>,
    /// Clock of this rank's thread pool, and its previous reading.
    threads: Option<(Arc<PoolClock>, u64)>,
    /// Own compute time since the latest received hand-over, and duration of the latest hand-over to the next stage
    /// (`sending`).
    computed: Nanoseconds,
    sending: Nanoseconds,
    usual_plan: UsualWait,
}

impl StepTiming {
    /// Creates an accounting with empty totals.
    pub fn new(own: Rank, ring: Arc<SyncLog>) -> Self {
        let now = Instant::now();
        Self {
            own,
            begun: now,
            left: now,
            step: 0,
            is_prefill: false,
            tokens: 0,
            totals: RankTotals::default(),
            ring,
            threads: None,
            computed: Nanoseconds(0),
            sending: Nanoseconds(0),
            usual_plan: UsualWait::default(),
        }
    }

    /// From now on, separates the time that a pool's caller spends on the other threads from compute time.
    pub fn watch(&mut self, clock: Arc<PoolClock>) {
        let now = clock.nanoseconds();
        self.threads = Some((clock, now));
    }

    /// Adds the time since the last collective as compute time, except the part spent on the pool's threads.
    fn add_compute(&mut self, compute: Nanoseconds) {
        self.computed.0 += compute.0;
        let threads = self.threads.as_mut().map_or(0, |(clock, seen)| {
            let now = clock.nanoseconds();
            now - std::mem::replace(seen, now)
        });
        let threads = threads.min(compute.0);
        let phase = self.phase();
        phase.compute.0 += compute.0 - threads;
        phase.threads.0 += threads;
    }

    /// Sets the step of the next records.
    pub fn at_step(&mut self, step: u64) {
        self.step = step;
    }

    /// Begins a step: its records count as prefill or decode.
    pub fn begin_step(&mut self, is_prefill: bool, tokens: u32) {
        (self.is_prefill, self.tokens) = (is_prefill, tokens);
        let phase = self.phase();
        phase.steps += 1;
        phase.tokens += u64::from(tokens);
    }

    /// Begins a step of the draft model: its times count as decode, its tokens do not.
    pub fn begin_draft(&mut self, tokens: u32) {
        (self.is_prefill, self.tokens) = (false, tokens);
    }

    /// Publishes the algorithm table to readers of the records; only the first table counts.
    pub fn publish(&self, table: &Table) {
        self.ring.publish(table);
    }

    /// Discards the time since the last collective: this rank was idle.
    pub fn idle(&mut self) {
        self.left = Instant::now();
    }

    /// Compute time since the last collective, so far.
    pub fn compute_so_far(&self) -> Nanoseconds {
        Nanoseconds(self.left.elapsed().as_nanos() as u64)
    }

    /// Compute time since the last collective and the current time, from a single clock reading, so that no time is
    /// lost.
    pub fn enter(&self) -> (Nanoseconds, Instant) {
        let now = Instant::now();
        (Nanoseconds(now.saturating_duration_since(self.left).as_nanos() as u64), now)
    }

    /// Counts sent bytes and messages.
    pub fn sent(&mut self, bytes: u64, messages: u64) {
        let phase = self.phase();
        phase.bytes_sent += bytes;
        phase.messages_sent += messages;
    }

    /// Closes a collective: splits its time and adds it to the totals. Returns (waiting, wire).
    pub fn close(&mut self, span: ExchangeTiming) -> (Nanoseconds, Nanoseconds) {
        self.left = span.arrived;
        let exchange = span.arrived.duration_since(span.sent).as_nanos() as u64;
        let wait = span.slowest.compute.0.saturating_sub(span.compute.0).min(exchange);
        let wire = exchange - wait;
        self.add_compute(span.compute);
        let phase = self.phase();
        phase.wait.0 += wait;
        phase.wire.0 += wire;
        (Nanoseconds(wait), Nanoseconds(wire))
    }

    /// Like [`Self::close`], but also records the layer for the dashboard. `heard` gives, for each other rank of the
    /// stage, when the first and the last byte of its messages arrived.
    pub fn close_layer(
        &mut self,
        layer: LayerIndex,
        kind: SyncKind,
        span: ExchangeTiming,
        heard: impl Iterator<Item = ArrivalTimes>,
    ) {
        let (wait, wire) = self.close(span);
        let slowest = if wait.0 > 0 { span.slowest.rank } else { self.own };
        let (compute, tokens, (last, late)) = (span.compute, self.tokens, span.last);
        let enter = Nanoseconds(span.sent.saturating_duration_since(self.begun).as_nanos() as u64);
        let (step, exit) = (self.step, Nanoseconds(enter.0 + wait.0 + wire.0));
        let entry = Entry { step, enter, exit, layer, kind, tokens, compute, wait, slowest, last, late };
        let since = |at: Instant| Nanoseconds(at.saturating_duration_since(span.sent).as_nanos() as u64);
        self.ring.push(&entry, heard.map(|heard| heard.map(|(first, whole)| (since(first), since(whole)))));
    }

    /// Like [`Self::close`], for the wait for a plan that directly follows the previous step. Records stalls.
    pub fn close_plan(&mut self, span: ExchangeTiming) {
        self.ring.add_plan_stall(self.usual_plan.stall(span.last.1, 1));
        self.close(span);
    }

    /// Closes a wait for a step's plan: all of it counts as pipeline bubble.
    pub fn close_bubble(&mut self, compute: Nanoseconds, sent: Instant, arrived: Instant) {
        self.left = arrived;
        self.add_compute(compute);
        self.phase().bubble.0 += arrived.duration_since(sent).as_nanos() as u64;
    }

    /// Closes a hand-over to the next stage: its duration counts as pipeline bubble.
    pub fn close_sending(&mut self, compute: Nanoseconds, began: Instant, ended: Instant) {
        self.left = ended;
        self.add_compute(compute);
        self.sending = Nanoseconds(ended.duration_since(began).as_nanos() as u64);
        self.phase().bubble.0 += self.sending.0;
    }

    /// Closes a wait for a hand-over from another stage: its transmission time counts as wire, the rest as pipeline
    /// bubble. Records it.
    pub fn close_hop(&mut self, compute: Nanoseconds, began: Instant, ended: Instant, hop: Hop) {
        self.left = ended;
        self.add_compute(compute);
        let waited = ended.duration_since(began).as_nanos() as u64;
        // Transmission during this rank's compute time did not delay it.
        let wire = hop.time.map_or(0, |time| time.0.min(waited));
        let phase = self.phase();
        phase.wire.0 += wire;
        phase.bubble.0 += waited - wire;
        let compute = std::mem::take(&mut self.computed);
        let (sending, blocked) = (std::mem::take(&mut self.sending), Nanoseconds(waited - wire));
        let Hop { from, step, bytes, time } = hop;
        let (tokens, is_prefill) = (self.tokens, self.is_prefill);
        let hop = time;
        self.ring.hops().push(&HopRecord { step, from, is_prefill, tokens, bytes, hop, blocked, compute, sending });
    }

    /// Ends a step's own compute time that no collective closes (a lone rank, the last sampling).
    pub fn close_compute(&mut self) {
        let (compute, now) = self.enter();
        self.left = now;
        self.add_compute(compute);
    }

    /// The totals since the last call.
    pub fn take_totals(&mut self) -> RankTotals {
        std::mem::take(&mut self.totals)
    }

    fn phase(&mut self) -> &mut PhaseTotals {
        if self.is_prefill { &mut self.totals.prefill } else { &mut self.totals.decode }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn wait_is_excess_of_slowest_peer_and_rest_is_wire() {
        let mut timing = StepTiming::new(Rank(0), Arc::new(SyncLog::alone()));
        timing.begin_step(false, 1);
        let sent = Instant::now();
        let span = |compute, slowest, exchange| ExchangeTiming {
            compute: Nanoseconds(compute),
            slowest: SlowestRank { compute: Nanoseconds(slowest), rank: Rank(2) },
            last: (Rank(2), Nanoseconds(0)),
            sent,
            arrived: sent + Duration::from_nanos(exchange),
        };
        assert_eq!(timing.close(span(100, 400, 350)), (Nanoseconds(300), Nanoseconds(50)));
        assert_eq!(timing.close(span(400, 100, 50)), (Nanoseconds(0), Nanoseconds(50)));
        assert_eq!(timing.close(span(0, 900, 50)), (Nanoseconds(50), Nanoseconds(0)));
        let decode = timing.take_totals().decode;
        assert_eq!((decode.compute.0, decode.wait.0, decode.wire.0), (500, 350, 100));
    }

    #[test]
    fn hop_counts_as_wire_up_to_the_wait_and_rest_as_bubble() {
        let ring = Arc::new(SyncLog::alone());
        let mut timing = StepTiming::new(Rank(1), Arc::clone(&ring));
        timing.begin_step(false, 1);
        let (began, time) = (Instant::now(), Nanoseconds);
        let mut take = |compute, waited, hop: Option<u64>| {
            let hop = Hop { from: Rank(0), step: 7, bytes: 8256, time: hop.map(time) };
            timing.close_hop(time(compute), began, began + Duration::from_nanos(waited), hop);
        };
        take(100, 500, Some(60));
        // It had arrived long before, so there was no wait.
        take(900, 10, Some(80));
        take(50, 400, None);
        timing.close_sending(time(300), began, began + Duration::from_nanos(20));
        take_last(&mut timing, began);
        let decode = timing.take_totals().decode;
        assert_eq!((decode.compute.0, decode.wire.0, decode.bubble.0), (1350, 70, 440 + 400 + 20));
        assert!((decode.network_fraction() - 70.0 / 1420.0).abs() < 1e-9);
        let found = ring.hops().since(&mut 0);
        let times: Vec<_> = found.iter().map(|one| (one.hop, one.blocked.0, one.compute.0, one.sending.0)).collect();
        let expected =
            [(Some(time(60)), 440, 100, 0), (Some(time(80)), 0, 900, 0), (None, 400, 50, 0), (None, 0, 300, 20)];
        assert_eq!(times, expected);
    }

    #[test]
    fn only_unusually_long_waits_for_plans_are_stalls() {
        let ring = Arc::new(SyncLog::alone());
        let mut timing = StepTiming::new(Rank(1), Arc::clone(&ring));
        let (sent, slowest) = (Instant::now(), SlowestRank { compute: Nanoseconds(0), rank: Rank(0) });
        let mut wait = |milliseconds| {
            let arrived = sent + Duration::from_millis(milliseconds);
            let (compute, last) = (Nanoseconds(0), (Rank(0), Nanoseconds(milliseconds * 1_000_000)));
            timing.close_plan(ExchangeTiming { compute, slowest, last, sent, arrived });
            ring.plan_stalls().0 / 1_000_000
        };
        (0..1000).for_each(|_| assert_eq!(wait(3), 0));
        assert!((92..=93).contains(&wait(95)), "the usual wait does not count");
        assert!((92..=93).contains(&wait(15)));
    }

    fn take_last(timing: &mut StepTiming, began: Instant) {
        timing.close_hop(Nanoseconds(0), began, began, Hop { from: Rank(0), step: 8, bytes: 0, time: None });
    }
}
