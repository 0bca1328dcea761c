//! Admission of connections to the API: a bounded number; when all are taken, the oldest idle connection of the address
//! with the most connections is closed. Some are reserved for monitoring. Pure.
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio_util::sync::CancellationToken;

/// Most concurrent connections that may request anything.
const CONNECTIONS_MAX: usize = 1024;
/// Additional connections, admitted while none of those is idle: they may request only /health and /metrics.
const RESERVED: usize = 32;

/// An open connection.
#[derive(Debug)]
struct OpenConnection {
    number: u64,
    source: IpAddr,
    working: Arc<AtomicUsize>,
    is_reserved: bool,
    end: CancellationToken,
}

/// All connections, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Connections {
    open: Vec<OpenConnection>,
    latest: u64,
}

/// One connection, as seen by its requests.
#[derive(Clone, Debug)]
pub(super) struct Visit {
    number: u64,
    /// Number of requests whose bodies are being read or whose answers are not fully written.
    working: Arc<AtomicUsize>,
    /// Number of requests that have arrived and whose answers are not fully written.
    open: Arc<AtomicUsize>,
    /// Whether it may request only /health and /metrics.
    pub(super) is_reserved: bool,
    /// Cancelled when another connection needs its place.
    pub(super) end: CancellationToken,
}

/// While this exists, the connection is not idle, or has a request.
#[derive(Debug)]
pub(super) struct Working(Arc<AtomicUsize>);

impl Connections {
    /// Admits a connection; `None`: all others are busy.
    pub(super) fn admit(&mut self, source: IpAddr) -> Option<Visit> {
        let is_reserved = self.open.len() >= CONNECTIONS_MAX && !self.evict();
        if is_reserved && self.open.len() >= CONNECTIONS_MAX + RESERVED {
            return None;
        }
        self.latest += 1;
        let (number, end, working) = (self.latest, CancellationToken::new(), Arc::<AtomicUsize>::default());
        let (source, open) = (network_of(source), Arc::default());
        let visit = Visit { number, working: Arc::clone(&working), open, is_reserved, end: end.clone() };
        self.open.push(OpenConnection { number, source, working, is_reserved, end });
        Some(visit)
    }

    /// Removes a connection that has ended.
    pub(super) fn done(&mut self, visit: &Visit) {
        self.open.retain(|open| open.number != visit.number);
    }

    /// Closes the oldest idle connection of the address that has the most; false: none is idle.
    pub(super) fn evict(&mut self) -> bool {
        let mut counts = HashMap::<IpAddr, usize>::new();
        self.open.iter().for_each(|open| *counts.entry(open.source).or_default() += 1);
        let is_idle = |open: &&OpenConnection| !open.is_reserved && open.working.load(Ordering::Relaxed) == 0;
        let most = self.open.iter().filter(is_idle).map(|open| counts[&open.source]).max();
        let oldest = self.open.iter().position(|open| is_idle(&open) && Some(counts[&open.source]) == most);
        let Some(oldest) = oldest else { return false };
        self.open.remove(oldest).end.cancel();
        true
    }
}

impl Visit {
    /// Marks a request as in progress: the connection stays until its answer is written.
    pub(super) fn working(&self) -> Working {
        Working::new(&self.working)
    }

    /// Marks a request as arrived until its answer is written.
    pub(super) fn open(&self) -> Working {
        Working::new(&self.open)
    }

    /// Whether a request has arrived whose answer is not fully written.
    pub(super) fn has_request(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }
}

impl Working {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An IPv4 address itself, or the 64-bit network of an IPv6 address: a host may use all of it.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn oldest_idle_connection_of_busiest_address_is_closed() {
        let mut connections = Connections::default();
        let other = connections.admit(address(2)).expect("there is room");
        let flood: Vec<Visit> = (0..3000).filter_map(|_| connections.admit(address(1))).collect();
        assert_eq!((flood.len(), connections.open.len()), (3000, CONNECTIONS_MAX), "each is admitted");
        assert!(!other.end.is_cancelled() && flood.iter().all(|visit| !visit.is_reserved));
        let ended = flood.iter().take_while(|visit| visit.end.is_cancelled()).count();
        assert_eq!(ended, 3000 - (CONNECTIONS_MAX - 1), "the oldest first");
        connections.done(&other);
        flood.iter().for_each(|visit| connections.done(visit));
        assert!(connections.open.is_empty());
    }

    #[test]
    fn busy_connection_stays_and_monitoring_places_are_left() {
        let mut connections = Connections::default();
        let visits: Vec<Visit> = (0..CONNECTIONS_MAX).filter_map(|_| connections.admit(address(1))).collect();
        let work: Vec<Working> = visits.iter().map(Visit::working).collect();
        let looks: Vec<Visit> = (0..100).filter_map(|_| connections.admit(address(1))).collect();
        assert_eq!(looks.len(), RESERVED);
        assert!(looks.iter().all(|visit| visit.is_reserved) && visits.iter().all(|visit| !visit.end.is_cancelled()));
        drop(work);
        let next = connections.admit(address(1)).expect("others are idle now");
        assert!(!next.is_reserved && visits[0].end.is_cancelled() && !visits[1].end.is_cancelled());
    }

    #[test]
    fn connections_of_one_ipv6_network_count_as_one_address() {
        let network = |low| network_of(IpAddr::V6(Ipv6Addr::from_bits(7_u128 << 64 | low)));
        assert_eq!(network(1), network(2));
        assert_eq!(network_of("::ffff:10.0.0.9".parse().expect("an address")), address(9));
    }
}
