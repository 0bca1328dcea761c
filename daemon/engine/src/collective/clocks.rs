//! Clock offsets of the other ranks, so that the time at which a rank sent something can be compared with the time at
//! which it arrived. Heartbeats measure them as in NTP. Any disturbance delays a heartbeat, it never speeds it up: the
//! fastest recent one in each direction counts, and half of their difference is the offset.
use std::{
    collections::VecDeque,
    sync::{
        OnceLock,
        atomic::{AtomicI64, Ordering},
    },
    time::Instant,
};

use common::{ids::Rank, limits::NODES_MAX, units::Nanoseconds};

/// Exchanges that are kept: 16 seconds at a heartbeat every half second, in which clocks drift apart by some
/// microseconds.
const EXCHANGES: usize = 32;
/// Exchanges needed before the fastest ones are trusted: a single one may have been delayed anywhere.
const EXCHANGES_MIN: usize = 4;
/// No exchange yet.
const UNKNOWN: i64 = i64::MIN;

/// This process's clock: time since its first use, never set back.
pub fn now() -> Nanoseconds {
    at(Instant::now())
}

/// This process's clock at another time.
pub fn at(time: Instant) -> Nanoseconds {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    // Zero stands for a peer that reports no time.
    Nanoseconds(time.saturating_duration_since(*BEGIN.get_or_init(Instant::now)).as_nanos() as u64 + 1)
}

/// Clock offsets of the ranks of a replica.
#[derive(Debug)]
pub struct Clocks([AtomicI64; NODES_MAX]);

impl Default for Clocks {
    fn default() -> Self {
        Self([const { AtomicI64::new(UNKNOWN) }; NODES_MAX])
    }
}

impl Clocks {
    /// Sets by how many nanoseconds a rank's clock is ahead of this one.
    pub fn set(&self, rank: Rank, ahead: i64) {
        if let Some(place) = self.0.get(rank.index()) {
            place.store(ahead, Ordering::Relaxed);
        }
    }

    /// Transmission time of something that a rank sent when its clock read `sent`, and that arrived when this one read
    /// `arrived`; `None` until the offset of its clock is known.
    pub fn on_the_way(&self, rank: Rank, sent: Nanoseconds, arrived: Nanoseconds) -> Option<Nanoseconds> {
        let ahead = self.0.get(rank.index())?.load(Ordering::Relaxed);
        let sent = (sent.0 as i64).checked_sub(ahead).filter(|_| ahead != UNKNOWN && sent.0 > 0)?;
        // Offsets are accurate within some microseconds: nothing arrives before it was sent.
        Some(Nanoseconds((arrived.0 as i64).saturating_sub(sent).max(0) as u64))
    }
}

/// One exchange of heartbeats. `sent` and `came` are by this process's clock, the others by the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// When this node's heartbeat was sent.
    pub sent: Nanoseconds,
    /// When the peer received it.
    pub received: Nanoseconds,
    /// When the peer sent its next heartbeat.
    pub answered: Nanoseconds,
    /// When that heartbeat arrived.
    pub came: Nanoseconds,
}

/// Recent exchanges with one peer: arrival minus sending time of its heartbeats and of this node's, each timestamp by
/// the clock of its own end, in nanoseconds.
#[derive(Debug, Default)]
pub struct Comparison(VecDeque<(i64, i64)>);

impl Comparison {
    /// Adds an exchange. Returns by how many nanoseconds the peer's clock is ahead of this one, once there are enough
    /// exchanges.
    pub fn take(&mut self, exchange: Exchange) -> Option<i64> {
        let [sent, received, answered, came] =
            [exchange.sent, exchange.received, exchange.answered, exchange.came].map(|time| time.0 as i64);
        if self.0.len() == EXCHANGES {
            self.0.pop_front();
        }
        self.0.push_back((received.saturating_sub(sent), came.saturating_sub(answered)));
        let there = self.0.iter().map(|one| one.0).min()?;
        let back = self.0.iter().map(|one| one.1).min()?;
        (self.0.len() >= EXCHANGES_MIN).then_some((there / 2).saturating_sub(back / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(ahead: i64, sent: u64, there: u64, back: u64) -> Exchange {
        let theirs = |own: u64| Nanoseconds((own as i64 + ahead) as u64);
        let (received, answered) = (sent + there, sent + there + 300_000_000);
        Exchange {
            sent: Nanoseconds(sent),
            received: theirs(received),
            answered: theirs(answered),
            came: Nanoseconds(answered + back),
        }
    }

    #[test]
    fn fastest_of_each_direction_counts_and_old_ones_expire() {
        let mut comparison = Comparison::default();
        let ahead = 5_000_000_000;
        // Each is delayed in one direction, so half of a single difference would be wrong.
        assert_eq!(comparison.take(exchange(ahead, 10, 40_000, 1_040_000)), None);
        assert_eq!(comparison.take(exchange(ahead, 20, 140_000, 44_000)), None);
        assert_eq!(comparison.take(exchange(ahead, 25, 60_000, 144_000)), None);
        assert_eq!(comparison.take(exchange(ahead, 30, 900_000, 44_000)), Some(ahead - 2_000));
        // The clock was set: after this many exchanges no earlier one is left.
        for _ in 0..EXCHANGES {
            comparison.take(exchange(-7_000, 1_000_000_000, 50_000, 50_000));
        }
        assert_eq!(comparison.take(exchange(-7_000, 1_000_000_000, 60_000, 50_000)), Some(-7_000));
        // Extreme values from a peer do not overflow.
        let most = Nanoseconds(u64::MAX);
        for one in [Nanoseconds(0), most] {
            comparison.take(Exchange { sent: one, received: most, answered: Nanoseconds(0), came: one });
        }
    }

    #[test]
    fn transmission_time_is_known_once_the_offset_is() {
        let (clocks, rank) = (Clocks::default(), Rank(2));
        let time = Nanoseconds;
        assert_eq!(clocks.on_the_way(rank, time(100), time(150)), None);
        clocks.set(rank, 1_000);
        assert_eq!(clocks.on_the_way(rank, time(1_100), time(150)), Some(time(50)));
        assert_eq!(clocks.on_the_way(rank, time(1_160), time(150)), Some(time(0)), "not before it was sent");
        assert_eq!(clocks.on_the_way(rank, time(0), time(150)), None, "a peer that reports no time");
        assert_eq!(clocks.on_the_way(Rank(999), time(5), time(150)), None);
        assert!(clocks.on_the_way(rank, time(u64::MAX), time(150)).is_some());
        let first = now();
        assert!(first.0 > 0 && now() >= first);
    }
}
