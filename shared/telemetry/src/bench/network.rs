//! Links between nodes as measured by the nodes, and their table.
use common::{
    latency::ratio,
    units::{Bytes, Nanoseconds},
};
use serde::{Deserialize, Serialize};

/// The link from a peer to the node that measured it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerLink {
    /// The peer's name.
    pub peer: String,
    /// Round trips of a small message.
    pub pings: u32,
    /// Median round trip from program to program.
    pub p50: Nanoseconds,
    /// 99th percentile.
    pub p99: Nanoseconds,
    /// Bits per second of the peer's stream, without network headers.
    pub bits_per_second: u64,
    /// Bytes of the stream that arrived.
    pub bytes: Bytes,
}

/// All peers streaming to one node at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incast {
    /// Number of senders.
    pub senders: u16,
    /// Bits per second of all senders together.
    pub bits_per_second: u64,
    /// Bits per second of the slowest sender.
    pub slowest: u64,
    /// Bits per second of the fastest sender.
    pub fastest: u64,
}

/// A node's measurements of its network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkBench {
    /// In the requested order.
    pub links: Vec<PeerLink>,
    /// The incast, if it was requested and there are at least two peers.
    pub incast: Option<Incast>,
}

/// A link known from an earlier measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownLink {
    /// The peer's name.
    pub peer: String,
    /// The median round trip.
    pub round_trip: Nanoseconds,
    /// Bits per second from the peer to this node.
    pub bits_per_second: u64,
    /// Time of the measurement by the node's clock: milliseconds since 1970.
    pub unix_ms: u64,
}

/// Lines of text for the measurements of each node, given with its name.
pub fn network_table(found: &[(String, NetworkBench)]) -> Vec<String> {
    let width =
        found.iter().flat_map(|(node, bench)| bench.links.iter().map(move |link| node.len() + link.peer.len() + 3));
    let width = width.max().unwrap_or(0).max("from > to".len());
    let megabits = |bits: u64| bits as f64 / 1e6;
    let mut lines =
        vec![format!("{:<width$}  {:>9}  {:>9}  {:>9}  {:>6}", "from > to", "RTT p50", "RTT p99", "Mb/s", "pings")];
    for (node, link) in found.iter().flat_map(|(node, bench)| bench.links.iter().map(move |link| (node, link))) {
        let us = |time: Nanoseconds| format!("{:.0} us", ratio(time.0 as f64, 1e3));
        lines.push(format!(
            "{:<width$}  {:>9}  {:>9}  {:>9.1}  {:>6}",
            format!("{} > {node}", link.peer),
            us(link.p50),
            us(link.p99),
            megabits(link.bits_per_second),
            link.pings
        ));
    }
    for (node, incast) in found.iter().filter_map(|(node, bench)| Some((node, bench.incast?))) {
        lines.push(format!(
            "incast to {node}: {} senders, {:.1} Mb/s together, {:.1} to {:.1} Mb/s each",
            incast.senders,
            megabits(incast.bits_per_second),
            megabits(incast.slowest),
            megabits(incast.fastest)
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_names_both_ends_of_each_link() {
        let link = |peer: &str| PeerLink {
            peer: peer.into(),
            pings: 200,
            p50: Nanoseconds(210_400),
            p99: Nanoseconds(1_400_000),
            bits_per_second: 941_200_000,
            bytes: Bytes(29_000_000),
        };
        let incast = Incast { senders: 2, bits_per_second: 938_000_000, slowest: 400_000_000, fastest: 538_000_000 };
        let one = NetworkBench { links: vec![link("pi2"), link("pi3")], incast: Some(incast) };
        let lines = network_table(&[("pi1".into(), one)]);
        assert_eq!(lines.len(), 4);
        assert_eq!(lines[1], "pi2 > pi1     210 us    1400 us      941.2     200");
        assert_eq!(lines[3], "incast to pi1: 2 senders, 938.0 Mb/s together, 400.0 to 538.0 Mb/s each");
    }
}
