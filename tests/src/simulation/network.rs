//! Connections between nodes. Messages keep their order within a connection; a cut direction holds them back until it
//! heals; a reset closes both ends. A machine without power answers nothing and, once it is back, resets connections
//! that it does not know. Kernels probe idle connections: a machine that is gone or cut off ends them after a while,
//! one that has come back ends them soon after its start.
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use common::ids::{Epoch, MemberIndex, TopologyHash};
use protocol::message::{Beat, Request, Response};

/// Connections of a machine that is gone end after this; a machine that has come back resets them this long after its
/// start.
pub(super) const GONE_AFTER: Duration = Duration::from_secs(10);
pub(super) const PROBE_AFTER: Duration = Duration::from_secs(3);

/// A message on a connection.
#[derive(Clone, Debug)]
pub(super) enum Packet {
    /// A session's request.
    Request(Box<Request>),
    /// A session's response, with the number of the engine run that it came from.
    Response(Box<Response>, Option<u64>),
    /// A rank opens a link.
    Dial {
        /// Epoch of the assignment.
        epoch: Epoch,
        /// Hash of the assignment's topology.
        hash: TopologyHash,
        /// The dialling member.
        from: MemberIndex,
        /// Whether this is the data link or the control link.
        is_data: bool,
    },
    /// Whether the link is accepted.
    Welcome(bool),
    Beat(Beat),
    /// The other end has closed.
    Closed,
}

/// One of the two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) node: usize,
    /// Which start of its daemon.
    pub(super) life: u64,
}

/// A TCP connection.
#[derive(Debug)]
pub(super) struct Connection {
    /// The dialling and the accepting end.
    pub(super) ends: [End; 2],
    /// Whether each end still has it open.
    pub(super) is_open: [bool; 2],
    /// Latest arrival time at each end; preserves the order.
    latest: [Duration; 2],
    held: [VecDeque<Packet>; 2],
}

/// An arrival of a packet.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) at: Duration,
    pub(super) connection: u64,
    /// Receiving end.
    pub(super) end: usize,
    pub(super) packet: Packet,
}

/// All connections, and the directions that are cut.
#[derive(Debug, Default)]
pub(super) struct Network {
    /// Connections by number.
    pub(super) connections: BTreeMap<u64, Connection>,
    cut: BTreeSet<(usize, usize)>,
    delays: BTreeMap<(usize, usize), Duration>,
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

    /// Cuts or heals a direction; returns the arrivals of the packets that were held back, which are due after healing.
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

    /// Sets how much longer packets take in a direction.
    pub(super) fn set_delay(&mut self, from: usize, to: usize, delay: Duration) {
        self.delays.insert((from, to), delay);
    }

    /// Most packets that are held back on one connection.
    pub(super) fn held_most(&self) -> usize {
        self.connections.values().flat_map(|one| &one.held).map(VecDeque::len).max().unwrap_or(0)
    }

    /// Whether a direction is cut.
    pub(super) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cut.contains(&(from, to))
    }

    /// Sends from an end; returns the arrival at the other end unless the direction is cut.
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
        let way = (connection.ends[from].node, connection.ends[end].node);
        let at = (at + self.delays.get(&way).copied().unwrap_or_default()).max(connection.latest[end]);
        connection.latest[end] = at;
        Some(Arrival { at, connection: number, end, packet })
    }

    /// Connections between two machines.
    pub(super) fn between(&self, one: usize, two: usize) -> Vec<u64> {
        let nodes = |connection: &Connection| connection.ends.map(|end| end.node);
        self.connections
            .iter()
            .filter(|(_, connection)| nodes(connection) == [one, two] || nodes(connection) == [two, one])
            .map(|(number, _)| *number)
            .collect()
    }

    /// Which end of a connection a machine is; for a connection to itself, the dialling end.
    pub(super) fn end_of(&self, number: u64, node: usize) -> Option<usize> {
        self.connections.get(&number)?.ends.iter().position(|end| end.node == node)
    }

    /// Open connections of a daemon, each with the daemon's end.
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

    /// Removes connections that both ends have closed.
    pub(super) fn sweep(&mut self) {
        self.connections.retain(|_, connection| connection.is_open[0] || connection.is_open[1]);
    }
}
