//! Connections between nodes: messages keep their order within one; a cut direction holds them back until it heals; a reset ends both
//! ends; a machine without power answers nothing and, when it is back, resets what it does not know. Kernels probe connections without
//! traffic: a machine that is gone or cut off ends them after a while, one that is back soon after its start.
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use shared::{
    ids::{Epoch, MemberIndex, TopologyHash},
    protocol::message::{Beat, Request, Response},
};

/// A machine that is gone ends its connections after this, one that has come back resets them so long after its start.
pub(super) const GONE_AFTER: Duration = Duration::from_secs(10);
pub(super) const PROBE_AFTER: Duration = Duration::from_secs(3);

/// What travels.
#[derive(Clone, Debug)]
pub(super) enum Packet {
    /// Of a session.
    Request(Box<Request>),
    /// Of a session, with the run of the engine that it came from.
    Response(Box<Response>, Option<u64>),
    /// A rank dials.
    Dial {
        /// The assignment.
        epoch: Epoch,
        /// The assignment's topology.
        hash: TopologyHash,
        /// Who dials.
        from: MemberIndex,
        /// Data link or control link.
        is_data: bool,
    },
    /// Whether the rank is let in.
    Welcome(bool),
    /// A heartbeat.
    Beat(Beat),
    /// The other end is closed.
    Closed,
}

/// One of the two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// Machine.
    pub(super) node: usize,
    /// Which start of its daemon.
    pub(super) life: u64,
}

/// A TCP connection.
#[derive(Debug)]
pub(super) struct Connection {
    /// Who dialled, who answered.
    pub(super) ends: [End; 2],
    /// Whether each end still has it open.
    pub(super) is_open: [bool; 2],
    /// Latest arrival at each end: order is kept.
    latest: [Duration; 2],
    held: [VecDeque<Packet>; 2],
}

/// An arrival.
#[derive(Debug)]
pub(super) struct Arrival {
    /// When.
    pub(super) at: Duration,
    /// Connection.
    pub(super) connection: u64,
    /// At which end.
    pub(super) end: usize,
    /// What.
    pub(super) packet: Packet,
}

/// All connections and which directions are cut.
#[derive(Debug, Default)]
pub(super) struct Network {
    /// By number.
    pub(super) connections: BTreeMap<u64, Connection>,
    cut: BTreeSet<(usize, usize)>,
    count: u64,
}

impl Network {
    /// Opens a connection.
    pub(super) fn open(&mut self, from: End, to: End) -> u64 {
        self.count += 1;
        let connection = Connection {
            ends: [from, to],
            is_open: [true; 2],
            latest: [Duration::ZERO; 2],
            held: [VecDeque::new(), VecDeque::new()],
        };
        self.connections.insert(self.count, connection);
        self.count
    }

    /// Cuts or heals a direction; what was held back arrives after healing.
    pub(super) fn set_cut(&mut self, from: usize, to: usize, is_cut: bool, at: Duration) -> Vec<Arrival> {
        if is_cut {
            self.cut.insert((from, to));
            return Vec::new();
        }
        self.cut.remove(&(from, to));
        let mut arrivals = Vec::new();
        for (number, connection) in &mut self.connections {
            for end in 0..2 {
                if connection.ends[1 - end].node == from && connection.ends[end].node == to {
                    for packet in std::mem::take(&mut connection.held[end]) {
                        let at = (at + Duration::from_millis(200)).max(connection.latest[end]);
                        connection.latest[end] = at;
                        arrivals.push(Arrival { at, connection: *number, end, packet });
                    }
                }
            }
        }
        arrivals
    }

    /// Whether a direction is cut.
    pub(super) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cut.contains(&(from, to))
    }

    /// Sends from an end; returns the arrival at the other one unless the way is cut.
    pub(super) fn send(&mut self, number: u64, from: usize, packet: Packet, at: Duration) -> Option<Arrival> {
        let connection = self.connections.get_mut(&number).filter(|connection| connection.is_open[from])?;
        let end = 1 - from;
        if matches!(packet, Packet::Closed) {
            connection.is_open[from] = false;
        }
        if self.cut.contains(&(connection.ends[from].node, connection.ends[end].node)) {
            connection.held[end].push_back(packet);
            return None;
        }
        let at = at.max(connection.latest[end]);
        connection.latest[end] = at;
        Some(Arrival { at, connection: number, end, packet })
    }

    /// Connections of two machines.
    pub(super) fn between(&self, one: usize, two: usize) -> Vec<u64> {
        let nodes = |connection: &Connection| connection.ends.map(|end| end.node);
        let is_between = |connection: &Connection| nodes(connection) == [one, two] || nodes(connection) == [two, one];
        self.connections.iter().filter(|(_, one)| is_between(one)).map(|(number, _)| *number).collect()
    }

    /// Which end of a connection a machine is; for one to itself the end that dialled.
    pub(super) fn end_of(&self, number: u64, node: usize) -> Option<usize> {
        self.connections.get(&number)?.ends.iter().position(|end| end.node == node)
    }

    /// Open connections of a daemon with the end that it is.
    pub(super) fn of(&self, own: End) -> Vec<(u64, usize)> {
        let mut found = Vec::new();
        for (number, connection) in &self.connections {
            for end in 0..2 {
                if connection.ends[end] == own && connection.is_open[end] {
                    found.push((*number, end));
                }
            }
        }
        found
    }

    /// Forgets connections that both ends have closed.
    pub(super) fn sweep(&mut self) {
        self.connections.retain(|_, connection| connection.is_open[0] || connection.is_open[1]);
    }
}
