//! The clocks of the other ranks: how far each is from the own one, so that what a rank says of when it sent something can be compared with
//! when that came. Heartbeats measure it the way NTP does. Whatever holds a heartbeat up makes it later, never earlier: in each direction
//! the quickest of the latest ones counts, and half of their difference is what the clocks are apart.
use std::{
    collections::VecDeque,
    sync::{
        OnceLock,
        atomic::{AtomicI64, Ordering},
    },
    time::Instant,
};

use shared::{ids::Rank, topology::spec::NODES_MAX, units::Nanoseconds};

/// Exchanges that are looked at: with a heartbeat every half second those of 16 seconds, in which clocks part by some microseconds.
const EXCHANGES: usize = 32;
/// From so many on the quickest are believed: a single one may have been held up anywhere.
const EXCHANGES_MIN: usize = 4;
/// No exchange yet.
const UNKNOWN: i64 = i64::MIN;

/// The own clock: since this process first asked, never set back.
pub fn now() -> Nanoseconds {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    // Zero stands for a peer that tells no time.
    Nanoseconds(BEGIN.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1)
}

/// How far the clocks of the ranks of a replica are from the own one.
#[derive(Debug)]
pub struct Clocks([AtomicI64; NODES_MAX]);

impl Default for Clocks {
    fn default() -> Self {
        Self([const { AtomicI64::new(UNKNOWN) }; NODES_MAX])
    }
}

impl Clocks {
    /// A rank's clock is ahead of the own one by so many nanoseconds.
    pub fn set(&self, rank: Rank, ahead: i64) {
        if let Some(place) = self.0.get(rank.index()) {
            place.store(ahead, Ordering::Relaxed);
        }
    }

    /// How long something was on the way that a rank sent when its clock said `sent`, and that came when the own one said `arrived`;
    /// `None` until its clock is known.
    pub fn on_the_way(&self, rank: Rank, sent: Nanoseconds, arrived: Nanoseconds) -> Option<Nanoseconds> {
        let ahead = self.0.get(rank.index())?.load(Ordering::Relaxed);
        let sent = (sent.0 as i64).checked_sub(ahead).filter(|_| ahead != UNKNOWN && sent.0 > 0)?;
        // Clocks are compared within some microseconds: nothing comes before it was sent.
        Some(Nanoseconds((arrived.0 as i64).saturating_sub(sent).max(0) as u64))
    }
}

/// An exchange of heartbeats: sent and received there, sent back and received here. The first and the last are of the own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// When the own heartbeat was sent.
    pub sent: Nanoseconds,
    /// When the peer received it.
    pub received: Nanoseconds,
    /// When the peer sent its next one.
    pub answered: Nanoseconds,
    /// When that came.
    pub came: Nanoseconds,
}

/// What is known of one peer's clock: by how much its heartbeats and the own ones came later than they were sent, each by the clock of its
/// end, in nanoseconds.
#[derive(Debug, Default)]
pub struct Comparison(VecDeque<(i64, i64)>);

impl Comparison {
    /// Takes an exchange in. Returns how far the peer's clock is ahead of the own one, once enough of them have been compared.
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
    fn the_quickest_of_each_direction_count_and_old_ones_are_forgotten() {
        let mut comparison = Comparison::default();
        let ahead = 5_000_000_000;
        // Each is held up in one direction: half of that would be wrong.
        assert_eq!(comparison.take(exchange(ahead, 10, 40_000, 1_040_000)), None);
        assert_eq!(comparison.take(exchange(ahead, 20, 140_000, 44_000)), None);
        assert_eq!(comparison.take(exchange(ahead, 25, 60_000, 144_000)), None);
        assert_eq!(comparison.take(exchange(ahead, 30, 900_000, 44_000)), Some(ahead - 2_000));
        // The clock was set: after so many exchanges nothing of before is left.
        for _ in 0..EXCHANGES {
            comparison.take(exchange(-7_000, 1_000_000_000, 50_000, 50_000));
        }
        assert_eq!(comparison.take(exchange(-7_000, 1_000_000_000, 60_000, 50_000)), Some(-7_000));
        // What a peer may say does not overflow.
        let most = Nanoseconds(u64::MAX);
        for one in [Nanoseconds(0), most] {
            comparison.take(Exchange { sent: one, received: most, answered: Nanoseconds(0), came: one });
        }
    }

    #[test]
    fn a_way_is_known_once_the_clock_is() {
        let (clocks, rank) = (Clocks::default(), Rank(2));
        let time = Nanoseconds;
        assert_eq!(clocks.on_the_way(rank, time(100), time(150)), None);
        clocks.set(rank, 1_000);
        assert_eq!(clocks.on_the_way(rank, time(1_100), time(150)), Some(time(50)));
        assert_eq!(clocks.on_the_way(rank, time(1_160), time(150)), Some(time(0)), "not before it was sent");
        assert_eq!(clocks.on_the_way(rank, time(0), time(150)), None, "a peer that tells no time");
        assert_eq!(clocks.on_the_way(Rank(999), time(5), time(150)), None);
        assert!(clocks.on_the_way(rank, time(u64::MAX), time(150)).is_some());
        let first = now();
        assert!(first.0 > 0 && now() >= first);
    }
}
