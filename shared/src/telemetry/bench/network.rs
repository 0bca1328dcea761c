//! Links between nodes as the nodes measured them, and the table of them.
use serde::{Deserialize, Serialize};

use crate::{
    latency::ratio,
    units::{Bytes, Nanoseconds},
};

/// The link from a peer to the node that measured it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerLink {
    /// The peer's name.
    pub peer: String,
    /// Round trips of a small message.
    pub pings: u32,
    /// Half of them took no longer, from program to program.
    pub p50: Nanoseconds,
    /// 99 of 100 took no longer.
    pub p99: Nanoseconds,
    /// Bits a second of what the peer streamed, without headers of the network.
    pub bits_per_second: u64,
    /// What came of the stream.
    pub bytes: Bytes,
}

/// All peers streaming to one node at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incast {
    /// How many.
    pub senders: u16,
    /// Bits a second of all together.
    pub bits_per_second: u64,
    /// Of the sender that got least through.
    pub slowest: u64,
    /// Of the one that got most through.
    pub fastest: u64,
}

/// What a node found about its network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkBench {
    /// In the order in which they were asked for.
    pub links: Vec<PeerLink>,
    /// All at once, where that was asked for and there are at least two.
    pub incast: Option<Incast>,
}

/// A link as a node knows it from an earlier measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownLink {
    /// The peer's name.
    pub peer: String,
    /// The median round trip.
    pub round_trip: Nanoseconds,
    /// Bits a second from the peer to this node.
    pub bits_per_second: u64,
    /// When it was measured by the node's clock: milliseconds since 1970.
    pub unix_ms: u64,
}

/// Lines of what each node found, which is named with it.
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
