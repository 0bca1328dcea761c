//! What strangers may take of a node before they have shown a key: how many at a time, in all and from one address, and how often. Pure:
//! time comes in from outside.
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

/// Connections whose handshake is not done, in all.
const HALF_OPEN_MAX: usize = 64;
/// Connections from one address that it may open in one go.
const BURST: f64 = 512.0;
/// And each second after that. One whose handshake succeeds does not count.
const PER_SECOND: f64 = 256.0;
/// Addresses that are told apart.
const SOURCES_MAX: usize = 1024;
/// Lines of the log about refused connections each second, and about what viewers were refused.
const LINES_PER_SECOND: u32 = 5;

/// A connection whose handshake is not done.
#[derive(Debug)]
struct HalfOpen {
    ticket: u64,
    source: IpAddr,
    /// Ends it.
    end: CancellationToken,
}

/// What one address has left.
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

/// The right to try a handshake, until [`CancellationToken::cancelled`].
#[derive(Debug)]
pub(super) struct Ticket {
    number: u64,
    source: IpAddr,
    /// Others need the place.
    pub(super) end: CancellationToken,
}

impl Limits {
    /// Somebody connected: a ticket, or `None` where the address came too often. Where all places are taken, the oldest of the address
    /// with the most of them ends: who is quick gets through whatever others do.
    pub(super) fn admit(&mut self, source: IpAddr, now: Duration) -> Option<Ticket> {
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
        Some(Ticket { number, source, end })
    }

    /// A handshake is over; one that succeeded does not count against its address.
    pub(super) fn done(&mut self, ticket: &Ticket, succeeded: bool) {
        self.half_open.retain(|half_open| half_open.ticket != ticket.number);
        if let Some(bucket) = self.buckets.get_mut(&ticket.source).filter(|_| succeeded) {
            bucket.left = (bucket.left + 1.0).min(BURST);
        }
    }

    fn evict(&mut self) {
        let count = |source: IpAddr| self.half_open.iter().filter(|half_open| half_open.source == source).count();
        let most = self.half_open.iter().map(|half_open| count(half_open.source)).max().unwrap_or(0);
        // They stand in the order in which they came.
        if let Some(oldest) = self.half_open.iter().position(|half_open| count(half_open.source) == most) {
            self.half_open.remove(oldest).end.cancel();
        }
    }

    fn bucket(&mut self, source: IpAddr, now: Duration) -> &mut Bucket {
        if self.buckets.len() >= SOURCES_MAX && !self.buckets.contains_key(&source) {
            self.buckets.values_mut().for_each(|bucket| bucket.refill(now));
            self.buckets.retain(|_, bucket| bucket.left < BURST);
        }
        // Beyond what is told apart, strangers share one bucket.
        let is_full = self.buckets.len() >= SOURCES_MAX && !self.buckets.contains_key(&source);
        let source = if is_full { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { source };
        let bucket = self.buckets.entry(source).or_insert(Bucket { left: BURST, at: now });
        bucket.refill(now);
        bucket
    }
}

/// An IPv4 address as it is, an IPv6 address by its network of 64 bits: a host has all of that.
pub(super) fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

/// Keeps a flood out of the log: a few lines a second, and how many were left out.
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
    /// Lets so many lines through each second.
    pub(super) fn of(lines_per_second: u32) -> Self {
        Self { lines_per_second, second: 0, told: 0, left_out: 0 }
    }

    /// Lines that were left out since the last one.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Whether a line may be written now, with how many were left out before it.
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
    fn half_open_ones_are_bounded_and_the_oldest_of_the_busiest_address_ends_first() {
        let mut limits = Limits::default();
        let other = limits.admit(address(2), START).expect("the first");
        let mut flood: Vec<Ticket> =
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
    fn who_comes_too_often_is_turned_away_for_a_while_unless_each_has_a_key() {
        let mut limits = Limits::default();
        let mut knock = |source, now, succeeded| {
            let ticket = limits.admit(source, now);
            if let Some(ticket) = &ticket {
                limits.done(ticket, succeeded);
            }
            ticket.is_some()
        };
        assert!((0..10_000).all(|_| knock(address(1), START, true)), "with a key as often as wanted");
        assert_eq!((0..10_000).filter(|_| knock(address(1), START, false)).count(), BURST as usize);
        assert!(knock(address(2), START, false), "others come in");
        let later = START + Duration::from_secs(1);
        assert_eq!((0..10_000).filter(|_| knock(address(1), later, false)).count(), PER_SECOND as usize);
    }

    #[test]
    fn what_is_known_of_addresses_is_bounded_and_ipv6_counts_by_network() {
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
    fn the_log_says_a_few_lines_a_second_and_how_many_were_left_out() {
        let mut quiet = Quiet::default();
        let told = (0..1000).filter(|_| quiet.may_tell(START).is_some()).count();
        assert_eq!(told, LINES_PER_SECOND as usize);
        assert_eq!(quiet.may_tell(START + Duration::from_secs(1)), Some(1000 - told as u64));
    }
}
