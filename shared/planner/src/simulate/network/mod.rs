//! The discrete-event core. A message occupies the sender's core, queues for the sender's network card, travels, queues
//! for the receiver's card and occupies the receiver's core when the receiver waits for it: so a star takes `2a +
//! 2(N-1)m/B` and a direct exchange `a + (N-1)m/B`. Times are in nanoseconds since the start, sizes in bytes. Messages
//! from one node to another keep their order.
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use common::{
    ids::{LayerIndex, Rank},
    limits::NODES_MAX,
    units::Nanoseconds,
};
use telemetry::{Arrival, PhaseTotals, RankTotals, SyncKind, SyncRecord};

use super::jitter::{Jitter, Noise};

/// The link of a node to the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Half of a small message's round trip from program to program in nanoseconds, including the time of both cores.
    pub alpha_ns: u64,
    /// Bits per second that a network card can send, and at the same time receive.
    pub bits_per_second: u64,
    /// Largest payload of a packet in bytes, and its overhead on the wire; `None` disables packet overhead.
    pub packets: Option<(u64, u64)>,
}

impl Link {
    /// TCP with timestamps over Ethernet: 1448 bytes in a frame of 1538, preamble and gap included. A link of 1 Gb/s
    /// then carries 941 Mb/s, which iperf also measures on a Raspberry Pi.
    pub const ETHERNET: Option<(u64, u64)> = Some((1448, 90));
    /// Payload bytes of such a packet.
    pub const ETHERNET_PAYLOAD: f64 = 1448.0;
    /// Overhead of such a packet on the wire in bytes.
    pub const ETHERNET_BESIDES: f64 = 90.0;

    /// Nanoseconds that these bytes occupy a network card.
    pub fn busy_ns(&self, bytes: u64) -> u64 {
        let wire = bytes + self.packets.map_or(0, |(most, more)| bytes.div_ceil(most.max(1)).max(1) * more);
        let bits = self.bits_per_second.max(1);
        match wire.checked_mul(8_000_000_000) {
            Some(product) => product.div_ceil(bits),
            None => (u128::from(wire) * 8_000_000_000).div_ceil(u128::from(bits)) as u64,
        }
    }
}

/// Message costs of a node's core, its compute speed, and its link to the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeSpeed {
    /// Its port: a message travels at the lower rate of sender and receiver, with the larger of both latencies.
    pub link: Link,
    /// Core time to send a message, in nanoseconds.
    pub send_ns: u64,
    /// Core time to receive a message, in nanoseconds.
    pub receive_ns: u64,
    /// Factor of compute times in thousandths: 1000 for nominal speed, 1200 for 20 % longer.
    pub slowness: u64,
}

/// The cause of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// An all-reduce, which is recorded.
    AllReduce(LayerIndex, SyncKind),
    /// Another message.
    Message,
    /// Pipeline bubble: the plan of another stage, or until it accepts a hand-over.
    Bubble,
    /// A hand-over from another stage: its hop counts as wire, the rest as pipeline bubble.
    HandOver,
}

/// An action of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Starts a step.
    Step {
        /// Whether it contains prompt tokens.
        is_prefill: bool,
        /// Its tokens.
        tokens: u32,
    },
    /// Computes for this many nanoseconds.
    Compute(u64),
    /// Ends compute and enters a collective: the time since the previous collective is the node's own.
    Enter,
    /// Sends a message.
    Send {
        /// The receiving node.
        to: u16,
        /// Its bytes, header included.
        bytes: u64,
        /// Nanoseconds to produce it (rounding a partial sum), in addition to the message itself.
        work_ns: u64,
    },
    /// Waits for one message from each node.
    Receive {
        /// The nodes, as bits.
        from: u64,
        /// Nanoseconds to use each message (adding it to a sum), in addition to the message itself.
        work_ns: u64,
        /// Whether they are parts of a sum, the last of which is recorded as late; a late result does not imply a late
        /// sender.
        is_sum: bool,
    },
    /// Ends a collective: the time since it began is wait and wire, or the pipeline's bubble.
    Close(Closing),
    /// Ends a step; its time is recorded under this number.
    Mark(u32),
}

/// Nodes wait for messages that no node sends: the actions are inconsistent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node {node} waits for nodes {missing:#b}, which send nothing more")]
pub struct Stuck {
    /// The first of these nodes.
    pub node: usize,
    /// The nodes that it waits for, as bits.
    pub missing: u64,
}

/// Callbacks while nodes act.
pub trait Observer {
    /// An all-reduce of a layer ended on a node.
    fn sync(&mut self, _node: usize, _record: &SyncRecord) {}
    /// A node reached a mark at this time.
    fn mark(&mut self, _node: usize, _mark: u32, _at: u64) {}
}

impl Observer for () {}

/// A message that waits to be read.
#[derive(Clone, Copy, Debug)]
struct Arrived {
    sent: u64,
    first: u64,
    at: u64,
    compute: u64,
}

/// The first byte of a message reaches a network card. Ordered by time, then by send order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Reach {
    at: u64,
    number: u64,
    from: u16,
    to: u16,
    bytes: u64,
    /// The last byte cannot arrive earlier.
    not_before: u64,
    compute: u64,
    /// When the sender passed it to its kernel.
    sent: u64,
}

#[derive(Clone, Debug)]
struct Node {
    speed: NodeSpeed,
    jitter: Jitter,
    clock: u64,
    out_free: u64,
    in_free: u64,
    action: usize,
    missing: u64,
    span: Span,
    /// Arrival of the first and last byte from each peer since the span began, in order of their first messages.
    heard: Vec<Arrival>,
    is_prefill: bool,
    tokens: u32,
    totals: RankTotals,
}

/// The current collective, as in the daemon's accounting.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    /// Whether the collective has begun and not ended.
    is_open: bool,
    left: u64,
    compute: u64,
    entered: u64,
    slowest: (u64, u16),
    last: (u64, u16),
    late: (u64, u16),
    /// Travel time of the latest message.
    hop: u64,
}

/// Nodes on a switch.
#[derive(Clone, Debug)]
pub struct Network {
    nodes: Vec<Node>,
    /// Messages to read, indexed by `[to, from]`.
    inbox: Vec<VecDeque<Arrived>>,
    flying: BinaryHeap<Reverse<Reach>>,
    sent: u64,
}

impl Network {
    /// Creates idle nodes.
    ///
    /// # Panics
    /// More than `NODES_MAX` nodes.
    pub fn new(speeds: &[NodeSpeed], noise: &Noise, seed: u64) -> Self {
        assert!(speeds.len() <= NODES_MAX, "a node is a bit of a u64");
        let nodes: Vec<Node> = speeds
            .iter()
            .enumerate()
            .map(|(index, speed)| Node {
                speed: *speed,
                jitter: Jitter::new(noise.clone(), seed, index),
                clock: 0,
                out_free: 0,
                in_free: 0,
                action: 0,
                missing: 0,
                span: Span::default(),
                heard: Vec::new(),
                is_prefill: false,
                tokens: 0,
                totals: RankTotals::default(),
            })
            .collect();
        let inbox = vec![VecDeque::new(); nodes.len() * nodes.len()];
        Self { nodes, inbox, flying: BinaryHeap::new(), sent: 0 }
    }

    /// Executes the actions of each node, starting from its state after the previous run.
    ///
    /// # Errors
    /// A node waits for a message that no node sends.
    pub fn run(&mut self, actions: &[Vec<Action>], observer: &mut dyn Observer) -> Result<(), Stuck> {
        assert_eq!(actions.len(), self.nodes.len(), "every node has its actions");
        for (node, actions) in actions.iter().enumerate() {
            self.nodes[node].action = 0;
            self.advance(node, actions, observer);
        }
        while let Some(Reverse(reach)) = self.flying.pop() {
            let to = usize::from(reach.to);
            let node = &mut self.nodes[to];
            let first = reach.at.max(node.in_free);
            let done = (first + node.speed.link.busy_ns(reach.bytes)).max(reach.not_before);
            node.in_free = done;
            self.inbox[to * actions.len() + usize::from(reach.from)].push_back(Arrived {
                first,
                at: done,
                compute: reach.compute,
                sent: reach.sent,
            });
            if node.missing & 1 << reach.from != 0 {
                self.advance(to, &actions[to], observer);
            }
        }
        match self.nodes.iter().position(|node| node.missing != 0) {
            Some(node) => Err(Stuck { node, missing: self.nodes[node].missing }),
            None => Ok(()),
        }
    }

    /// A node's time.
    pub fn clock(&self, node: usize) -> u64 {
        self.nodes[node].clock
    }

    /// The latest node's time.
    pub fn latest(&self) -> u64 {
        self.nodes.iter().map(|node| node.clock).max().unwrap_or(0)
    }

    /// Where a node's time went, and what it sent.
    pub fn totals(&self, node: usize) -> &RankTotals {
        &self.nodes[node].totals
    }

    /// Executes actions until the end or until a message is missing.
    fn advance(&mut self, index: usize, actions: &[Action], observer: &mut dyn Observer) {
        while let Some(action) = actions.get(self.nodes[index].action) {
            let node = &mut self.nodes[index];
            match *action {
                Action::Step { is_prefill, tokens } => {
                    (node.is_prefill, node.tokens) = (is_prefill, tokens);
                    let phase = node.phase();
                    phase.steps += 1;
                    phase.tokens += u64::from(tokens);
                }
                Action::Compute(usual) => {
                    let slow = usual.saturating_mul(node.speed.slowness) / 1000;
                    node.clock += node.jitter.stretch(slow);
                }
                Action::Enter => node.enter(index),
                Action::Send { to, bytes, work_ns } => self.send(index, to, bytes, work_ns),
                Action::Receive { from, work_ns, is_sum } => {
                    if !self.receive(index, from, work_ns, is_sum) {
                        return;
                    }
                }
                Action::Close(closing) => node.close(index, closing, observer),
                Action::Mark(mark) => observer.mark(index, mark, node.clock),
            }
            self.nodes[index].action += 1;
        }
    }

    fn send(&mut self, index: usize, to: u16, bytes: u64, work_ns: u64) {
        let NodeSpeed { link: Link { alpha_ns, .. }, receive_ns, .. } = self.nodes[usize::from(to)].speed;
        let node = &mut self.nodes[index];
        let sent = node.clock;
        node.clock += work_ns + node.speed.send_ns;
        let begin = node.clock.max(node.out_free);
        node.out_free = begin + node.speed.link.busy_ns(bytes);
        let alpha_ns = alpha_ns.max(node.speed.link.alpha_ns);
        // Alpha already includes the core time of both ends for a small message.
        let travel = node.jitter.stretch(alpha_ns.saturating_sub(node.speed.send_ns + receive_ns));
        // As in frame headers: the longest compute time that the sender has seen.
        let known = node.span.compute.max(node.span.slowest.0);
        let compute = if node.span.is_open { known } else { node.clock - node.span.left };
        let not_before = node.out_free + travel;
        let phase = node.phase();
        phase.bytes_sent += bytes;
        phase.messages_sent += 1;
        self.sent += 1;
        let reach =
            Reach { at: begin + travel, number: self.sent, from: index as u16, to, bytes, not_before, compute, sent };
        self.flying.push(Reverse(reach));
    }

    /// Reads messages in order of arrival; returns whether all expected ones have arrived.
    fn receive(&mut self, index: usize, from: u64, work_ns: u64, is_sum: bool) -> bool {
        let world = self.nodes.len();
        let node = &mut self.nodes[index];
        if node.missing == 0 {
            node.missing = from & !(1 << index);
            node.span.last = (node.clock, index as u16);
        }
        loop {
            let mut wanted = node.missing;
            let mut first = None;
            while wanted != 0 {
                let peer = wanted.trailing_zeros() as usize;
                wanted &= wanted - 1;
                let at = self.inbox[index * world + peer].front().map(|arrived| (arrived.at, peer));
                first = match (first, at) {
                    (Some(first), Some(at)) => Some(at.min(first)),
                    (first, at) => first.or(at),
                };
            }
            let Some((_, peer)) = first else { return node.missing == 0 };
            let arrived = self.inbox[index * world + peer].pop_front().expect("it was in front");
            node.take(arrived, peer as u16, work_ns, is_sum);
        }
    }
}

impl Node {
    fn phase(&mut self) -> &mut PhaseTotals {
        if self.is_prefill { &mut self.totals.prefill } else { &mut self.totals.decode }
    }

    fn enter(&mut self, index: usize) {
        let own = index as u16;
        let compute = self.clock - self.span.left;
        self.heard.clear();
        self.span = Span {
            is_open: true,
            left: self.span.left,
            compute,
            entered: self.clock,
            slowest: (0, own),
            last: (self.clock, own),
            late: (0, own),
            hop: 0,
        };
    }

    /// Reads a message; records how long it was the only one missing, and the maximum of these times.
    fn take(&mut self, arrived: Arrived, from: u16, work_ns: u64, is_sum: bool) {
        self.missing &= !(1 << from);
        let seen = self.clock.max(arrived.at);
        self.hear(Rank(from), self.clock.max(arrived.first), seen);
        if is_sum && self.missing == 0 && arrived.at > self.clock {
            let late = seen - self.span.last.0;
            self.span.late = self.span.late.max((late, from));
        }
        self.clock = seen + self.speed.receive_ns + work_ns;
        self.span.hop = arrived.at.saturating_sub(arrived.sent) + self.speed.receive_ns;
        self.span.last = (self.clock, from);
        self.span.slowest = self.span.slowest.max((arrived.compute, from));
    }

    /// Records when the first and the last byte of a message were read.
    fn hear(&mut self, rank: Rank, first: u64, whole: u64) {
        let since = |at: u64| Nanoseconds(at - self.span.entered.min(at));
        let (first, whole) = (since(first), since(whole));
        match self.heard.iter_mut().find(|heard| heard.rank == rank) {
            Some(heard) => heard.whole = whole,
            None => self.heard.push(Arrival { rank, first, whole }),
        }
    }

    /// As in the daemon's accounting: wait is the slowest peer's compute beyond the own, wire is the rest.
    fn close(&mut self, index: usize, closing: Closing, observer: &mut dyn Observer) {
        let Span { compute, entered, slowest, late, hop, .. } = self.span;
        (self.span.is_open, self.span.left) = (false, self.clock);
        let exchange = self.clock - entered;
        if matches!(closing, Closing::Bubble | Closing::HandOver) {
            let wire = if closing == Closing::HandOver { hop.min(exchange) } else { 0 };
            let phase = self.phase();
            phase.compute.0 += compute;
            phase.wire.0 += wire;
            phase.bubble.0 += exchange - wire;
            return;
        }
        let wait = slowest.0.saturating_sub(compute).min(exchange);
        let wire = exchange - wait;
        let phase = self.phase();
        phase.compute.0 += compute;
        phase.wait.0 += wait;
        phase.wire.0 += wire;
        let Closing::AllReduce(layer, kind) = closing else { return };
        self.heard.sort_unstable_by_key(|heard| heard.rank);
        let record = SyncRecord {
            step: 0,
            enter: Nanoseconds(entered),
            exit: Nanoseconds(self.clock),
            layer,
            kind,
            tokens: self.tokens,
            compute: Nanoseconds(compute),
            wait: Nanoseconds(wait),
            wire: Nanoseconds(wire),
            slowest: Rank(if wait > 0 { slowest.1 } else { index as u16 }),
            last: Rank(late.1),
            late: Nanoseconds(late.0),
            arrivals: std::mem::take(&mut self.heard),
        };
        observer.sync(index, &record);
        // Reuse the list for the next record: one allocation for a million tokens.
        self.heard = record.arrivals;
    }
}

#[cfg(test)]
mod tests;
