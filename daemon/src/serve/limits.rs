//! Limits for unauthenticated peers: concurrent handshakes in total and per address, and their rate. Pure: the time is
//! a parameter.
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

/// Maximum of concurrent handshakes.
const HALF_OPEN_MAX: usize = 64;
/// Connections that one address may open at once.
const BURST: f64 = 512.0;
/// Connections per second after that. A connection whose handshake succeeds does not count.
const PER_SECOND: f64 = 256.0;
/// Maximum of addresses with separate limits.
const SOURCES_MAX: usize = 1024;
/// Log lines per second about refused connections, and about refused requests of viewers.
const LINES_PER_SECOND: u32 = 5;

/// A connection during its handshake.
#[derive(Debug)]
struct HalfOpen {
    ticket: u64,
    source: IpAddr,
    /// Cancels the handshake.
    end: CancellationToken,
}

/// Remaining connections of one address.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    at: Duration,
}

impl Bucket {
    fn refill(&mut self, now: Duration) {
        let seconds = now.saturating_sub(self.at).as_secs_f64();
        (self.left, self.at) = ((self.left + seconds * PER_SECOND).min(BURST), now);
    }
}

/// The limits of one port.
#[derive(Debug, Default)]
pub(super) struct Limits {
    half_open: Vec<HalfOpen>,
    buckets: HashMap<IpAddr, Bucket>,
    latest: u64,
}

/// The right to a handshake, until [`CancellationToken::cancelled`].
#[derive(Debug)]
pub(super) struct HandshakePermit {
    number: u64,
    source: IpAddr,
    /// Cancelled when another connection needs the place.
    pub(super) end: CancellationToken,
}

impl Limits {
    /// Admits a connection: a ticket, or `None` if the address connects too often. When all places are taken, the
    /// oldest handshake of the busiest address is cancelled, so that fast clients get through a flood.
    pub(super) fn admit(&mut self, source: IpAddr, now: Duration) -> Option<HandshakePermit> {
        let source = network_of(source);
        let bucket = self.bucket(source, now);
        if bucket.left < 1.0 {
            return None;
        }
        bucket.left -= 1.0;
        if self.half_open.len() >= HALF_OPEN_MAX {
            self.evict();
        }
        self.latest += 1;
        let (number, end) = (self.latest, CancellationToken::new());
        self.half_open.push(HalfOpen { ticket: number, source, end: end.clone() });
        Some(HandshakePermit { number, source, end })
    }

    /// Ends a handshake; a successful one does not count against its address.
    pub(super) fn done(&mut self, ticket: &HandshakePermit, succeeded: bool) {
        self.half_open.retain(|half_open| half_open.ticket != ticket.number);
        if let Some(bucket) = self.buckets.get_mut(&ticket.source).filter(|_| succeeded) {
            bucket.left = (bucket.left + 1.0).min(BURST);
        }
    }

    fn evict(&mut self) {
        let count = |source: IpAddr| self.half_open.iter().filter(|half_open| half_open.source == source).count();
        let most = self.half_open.iter().map(|half_open| count(half_open.source)).max().unwrap_or(0);
        // They are in order of arrival.
        if let Some(oldest) = self.half_open.iter().position(|half_open| count(half_open.source) == most) {
            self.half_open.remove(oldest).end.cancel();
        }
    }

    fn bucket(&mut self, source: IpAddr, now: Duration) -> &mut Bucket {
        if self.buckets.len() >= SOURCES_MAX && !self.buckets.contains_key(&source) {
            self.buckets.values_mut().for_each(|bucket| bucket.refill(now));
            self.buckets.retain(|_, bucket| bucket.left < BURST);
        }
        // Beyond the maximum, new addresses share one bucket.
        let is_full = self.buckets.len() >= SOURCES_MAX && !self.buckets.contains_key(&source);
        let source = if is_full { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { source };
        let bucket = self.buckets.entry(source).or_insert(Bucket { left: BURST, at: now });
        bucket.refill(now);
        bucket
    }
}

/// An IPv4 address unchanged, an IPv6 address as its /64 network, because a host has all of that.
pub(super) fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

/// Limits the rate of log lines, and counts those left out.
#[derive(Debug)]
pub(super) struct Quiet {
    lines_per_second: u32,
    second: u64,
    told: u32,
    left_out: u64,
}

impl Default for Quiet {
    fn default() -> Self {
        Self::of(LINES_PER_SECOND)
    }
}

impl Quiet {
    /// Allows this many lines per second.
    pub(super) fn of(lines_per_second: u32) -> Self {
        Self { lines_per_second, second: 0, told: 0, left_out: 0 }
    }

    /// Lines left out since the last one that was written.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Whether a line may be written now; returns how many were left out before it.
    pub(super) fn may_tell(&mut self, now: Duration) -> Option<u64> {
        if now.as_secs() != self.second {
            (self.second, self.told) = (now.as_secs(), 0);
        }
        if self.told >= self.lines_per_second {
            self.left_out += 1;
            return None;
        }
        self.told += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(100);

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn oldest_handshake_of_the_busiest_address_is_cancelled() {
        let mut limits = Limits::default();
        let other = limits.admit(address(2), START).expect("the first");
        let mut flood: Vec<HandshakePermit> =
            (0..300).map(|_| limits.admit(address(1), START).expect("within the burst")).collect();
        assert_eq!(limits.half_open.len(), HALF_OPEN_MAX);
        assert!(!other.end.is_cancelled(), "the flood ends its own");
        let alive = flood.split_off(300 - (HALF_OPEN_MAX - 1));
        assert!(flood.iter().all(|ticket| ticket.end.is_cancelled()));
        assert!(alive.iter().all(|ticket| !ticket.end.is_cancelled()));
        limits.done(&other, true);
        alive.iter().for_each(|ticket| limits.done(ticket, false));
        assert!(limits.half_open.is_empty());
    }

    #[test]
    fn frequent_connections_are_refused_unless_authenticated() {
        let mut limits = Limits::default();
        let mut knock = |source, now, succeeded| {
            let ticket = limits.admit(source, now);
            if let Some(ticket) = &ticket {
                limits.done(ticket, succeeded);
            }
            ticket.is_some()
        };
        assert!((0..10_000).all(|_| knock(address(1), START, true)), "with a key as often as needed");
        assert_eq!((0..10_000).filter(|_| knock(address(1), START, false)).count(), BURST as usize);
        assert!(knock(address(2), START, false), "others are admitted");
        let later = START + Duration::from_secs(1);
        assert_eq!((0..10_000).filter(|_| knock(address(1), later, false)).count(), PER_SECOND as usize);
    }

    #[test]
    fn tracked_addresses_are_bounded_and_ipv6_counts_by_network() {
        let mut limits = Limits::default();
        for number in 0..100_000_u128 {
            let ticket = limits.admit(IpAddr::V6(Ipv6Addr::from_bits(number << 64 | 1)), START);
            if let Some(ticket) = ticket {
                limits.done(&ticket, false);
            }
        }
        assert!(limits.buckets.len() <= SOURCES_MAX + 1 && limits.half_open.is_empty());
        let network = |low| network_of(IpAddr::V6(Ipv6Addr::from_bits(7_u128 << 64 | low)));
        assert_eq!(network(1), network(2));
        let mapped: IpAddr = "::ffff:10.0.0.9".parse().expect("an address");
        assert_eq!(network_of(mapped), address(9));
    }

    #[test]
    fn log_lines_are_limited_and_omissions_counted() {
        let mut quiet = Quiet::default();
        let told = (0..1000).filter(|_| quiet.may_tell(START).is_some()).count();
        assert_eq!(told, LINES_PER_SECOND as usize);
        assert_eq!(quiet.may_tell(START + Duration::from_secs(1)), Some(1000 - told as u64));
    }
}
