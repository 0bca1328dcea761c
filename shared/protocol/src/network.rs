//! Requests to measure links, with their bounds, and the messages between the two nodes of a measurement. The measuring
//! node dials and receives: a node streams only to a peer that dialled it with the cluster's key. Pure.
use common::limits::NODES_MAX;
use serde::{Deserialize, Serialize};

/// Most peers of a node.
pub const PEERS_MAX: usize = NODES_MAX - 1;
/// Most round trips to each peer.
pub const PINGS_MAX: u32 = 1000;
/// Round trips to each peer where no number is given.
pub const PINGS_DEFAULT: u32 = 200;
/// Shortest and longest stream in milliseconds.
pub const STREAM_MS: std::ops::RangeInclusive<u32> = 5..=1000;
/// Milliseconds of a stream where no number is given.
pub const STREAM_MS_DEFAULT: u32 = 250;
/// Most bytes of a stream of any duration.
pub const STREAM_BYTES_MAX: u64 = 1 << 30;
/// Everything that one node is asked to measure ends within this.
pub const NETWORK_SECONDS_MAX: u32 = 120;
/// A measurement connection between two nodes ends within this time.
pub const LINE_SECONDS_MAX: u32 = 30;
/// Bytes of the body of a small message: about a frame that carries no tensor.
pub const PING_BYTES: usize = 64;
/// Bytes of the body of each message of a stream.
pub const CHUNK_BYTES: usize = 16 << 10;
/// Longest address or name in bytes.
const TEXT_BYTES_MAX: usize = 255;

/// A node to measure the link to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbour {
    /// Its name; a node that answers with another name is not measured.
    pub name: String,
    /// `ADDRESS:PORT`.
    pub address: String,
}

/// The links from some nodes to the one that is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BenchNetwork {
    /// The nodes, one after another.
    pub peers: Vec<Neighbour>,
    /// Round trips to each.
    pub pings: u32,
    /// Time that each streams, in milliseconds.
    pub stream_ms: u32,
    /// Whether all of them stream at once in the end.
    pub incast: bool,
}

impl BenchNetwork {
    /// Checks every bound.
    ///
    /// # Errors
    /// Names the value out of bounds, and the bounds.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=PEERS_MAX).contains(&self.peers.len()) {
            return Err(format!("peers: {} are given; give 1 to {PEERS_MAX}", self.peers.len()));
        }
        let is_short = |text: &String| (1..=TEXT_BYTES_MAX).contains(&text.len());
        if !self.peers.iter().all(|peer| is_short(&peer.name) && is_short(&peer.address)) {
            return Err(format!("peers: a name or address is empty or too long; use 1 to {TEXT_BYTES_MAX} bytes"));
        }
        if let Some(peer) = self.peers.iter().enumerate().find_map(|(index, peer)| {
            self.peers[..index].iter().any(|other| other.name == peer.name).then_some(&peer.name)
        }) {
            return Err(format!("peers: {peer} is given twice"));
        }
        if !(1..=PINGS_MAX).contains(&self.pings) {
            return Err(format!("pings is {}; give 1 to {PINGS_MAX}", self.pings));
        }
        if !STREAM_MS.contains(&self.stream_ms) {
            let (least, most) = (STREAM_MS.start(), STREAM_MS.end());
            return Err(format!("stream-ms is {}; give {least} to {most}", self.stream_ms));
        }
        let seconds = self.peers.len() as u64 * u64::from(self.stream_ms) / 1000;
        let most = u64::from(NETWORK_SECONDS_MAX / 2);
        if seconds > most {
            return Err(format!(
                "streams to {} peers take {seconds} s; at most {most} s: lower stream-ms",
                self.peers.len()
            ));
        }
        Ok(())
    }
}

/// What the node that measures asks of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Send the message back.
    Echo,
    /// Send messages of [`CHUNK_BYTES`] for this many milliseconds.
    Stream {
        /// Milliseconds.
        ms: u32,
    },
}

impl Probe {
    /// The body of its message.
    pub fn encode(self) -> [u8; PING_BYTES] {
        let mut body = [0; PING_BYTES];
        if let Self::Stream { ms } = self {
            body[0] = 1;
            body[1..5].copy_from_slice(&ms.to_le_bytes());
        }
        body
    }

    /// Decodes a message; `None` if it is malformed or out of bounds.
    pub fn decode(body: &[u8]) -> Option<Self> {
        let (kind, ms) = body.first_chunk::<5>().map(|[kind, ms @ ..]| (*kind, u32::from_le_bytes(*ms)))?;
        match kind {
            _ if body.len() != PING_BYTES => None,
            0 => Some(Self::Echo),
            1 if STREAM_MS.contains(&ms) => Some(Self::Stream { ms }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bench() -> BenchNetwork {
        let peer = Neighbour { name: "pi2".into(), address: "10.0.0.2:9999".into() };
        BenchNetwork { peers: vec![peer], pings: PINGS_DEFAULT, stream_ms: STREAM_MS_DEFAULT, incast: true }
    }

    #[test]
    fn network_bench_is_bounded() {
        assert_eq!(bench().check(), Ok(()));
        for (named, change) in [
            ("peers", (|bench| bench.peers.clear()) as fn(&mut BenchNetwork)),
            ("peers", |bench| bench.peers = vec![bench.peers[0].clone(); PEERS_MAX + 1]),
            ("peers", |bench| bench.peers[0].name.clear()),
            ("peers", |bench| bench.peers[0].address = "x".repeat(TEXT_BYTES_MAX + 1)),
            ("pings", |bench| bench.pings = 0),
            ("pings", |bench| bench.pings = PINGS_MAX + 1),
            ("stream-ms", |bench| bench.stream_ms = STREAM_MS.end() + 1),
            ("stream-ms", |bench| bench.stream_ms = 0),
        ] {
            let mut bench = bench();
            change(&mut bench);
            let error = bench.check().expect_err(named);
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn probe_round_trips_and_other_messages_are_rejected() {
        for probe in [Probe::Echo, Probe::Stream { ms: 5 }, Probe::Stream { ms: 1000 }] {
            assert_eq!(Probe::decode(&probe.encode()), Some(probe));
        }
        let long = Probe::Stream { ms: u32::MAX }.encode();
        for bad in [&[][..], &[0; 5], &[2; PING_BYTES], &[0; PING_BYTES + 1], &long] {
            assert_eq!(Probe::decode(bad), None);
        }
    }
}
