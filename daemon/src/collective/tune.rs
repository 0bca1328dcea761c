//! `auto`: the ranks of a stage time the candidates on their own links before they serve; rank 0 decides and tells the rest.
//! What is timed is bounded in time; sizes that time does not reach keep the formula's choice.
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use shared::{
    ids::Rank,
    protocol::frame::FrameKind,
    schedule::{Algorithm, Choice, Table, TableRow, table::TOKENS_TIMED},
    units::Nanoseconds,
};

use super::{CollectiveError, Group};

/// Longest that a stage times, from the first collective that all ranks have done.
const BUDGET: Duration = Duration::from_millis(600);
/// Times that each candidate is timed for a number of tokens: the median counts.
const REPEATS: (u32, u32) = (3, 9);
/// A candidate replaces the formula's choice when its median is below this share of it: timings of busy machines vary.
const WORTH: f64 = 0.85;
/// Longest order.
const ORDER_BYTES_MAX: usize = 64 * 1024;

/// What rank 0 of the stage tells the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Order {
    /// Sum `tokens` tokens by each candidate in turn, so many times.
    Time { tokens: u32, repeats: u32 },
    /// This table is used from now on.
    Use(Table),
}

/// Tensors that are summed for their time alone.
#[derive(Debug)]
struct Dummies {
    part: Vec<f32>,
    hidden: Vec<f32>,
}

impl Group {
    /// Fills the table by timing, if the choice is left to it. All ranks of the stage call it before their first step.
    ///
    /// # Errors
    /// A peer is lost or out of step, or the wait was aborted.
    pub fn tune(&mut self) -> Result<(), CollectiveError> {
        let Some(links) = self.links() else { return Ok(()) };
        let (own, first, world) = (links.own(), Rank(links.first()), links.stage().len());
        if world < 2 || self.settings().choice != Choice::Auto || self.omits_exchange() {
            return Ok(());
        }
        self.begin_step(0);
        let values = TOKENS_TIMED[TOKENS_TIMED.len() - 1] as usize * self.settings().columns;
        let mut dummies = Dummies { part: vec![0.5; values], hidden: vec![0.0; values] };
        let result = if own == first { self.lead(&mut dummies) } else { self.follow(first, &mut dummies) };
        // None of it belongs to a request.
        self.accounting.take_totals();
        self.accounting.idle();
        result
    }

    fn lead(&mut self, dummies: &mut Dummies) -> Result<(), CollectiveError> {
        let mut table = self.table().clone();
        // The first collective waits for ranks that still load.
        self.order(&Order::Time { tokens: 1, repeats: 1 })?;
        self.time(1, 1, dummies)?;
        let began = Instant::now();
        for row in &mut table.rows {
            self.order(&Order::Time { tokens: row.tokens, repeats: 1 })?;
            let once = Instant::now();
            self.time(row.tokens, 1, dummies)?;
            let left = BUDGET.saturating_sub(began.elapsed());
            let repeats = (left.as_secs_f64() / 2.0 / once.elapsed().as_secs_f64().max(1e-6)) as u32;
            if repeats < REPEATS.0 {
                break;
            }
            let repeats = repeats.min(REPEATS.1);
            self.order(&Order::Time { tokens: row.tokens, repeats })?;
            row.timed = self.time(row.tokens, repeats, dummies)?;
            decide(row);
        }
        self.order(&Order::Use(table.clone()))?;
        self.set_table(table);
        self.links().map_or(Ok(()), super::Links::flush_stage)
    }

    fn follow(&mut self, first: Rank, dummies: &mut Dummies) -> Result<(), CollectiveError> {
        loop {
            match self.take_order(first)? {
                Order::Time { tokens, repeats } => drop(self.time(tokens, repeats, dummies)?),
                Order::Use(table) => {
                    self.set_table(table);
                    return Ok(());
                }
            }
        }
    }

    fn order(&mut self, order: &Order) -> Result<(), CollectiveError> {
        let payload = postcard::to_stdvec(order).expect("an order holds only types that postcard encodes");
        let sequence = self.next_sequence();
        self.tell(FrameKind::Tune, sequence, &payload)
    }

    fn take_order(&mut self, first: Rank) -> Result<Order, CollectiveError> {
        let (step, sequence) = (self.step, self.next_sequence());
        let links = self.links().expect("a rank that follows has links");
        links.wait_for(std::iter::once(first))?;
        let (_, payload) = links.front(first, (FrameKind::Tune, step, sequence))?;
        let order = decode(payload).ok_or_else(|| CollectiveError::OutOfStep {
            rank: first,
            got: "an order of timing that cannot be".into(),
            expected: "numbers of tokens, or a table of candidates".into(),
        })?;
        links.consume(first)?;
        Ok(order)
    }

    /// Sums by each candidate in turn; returns the median of each on this rank.
    fn time(
        &mut self,
        tokens: u32,
        repeats: u32,
        dummies: &mut Dummies,
    ) -> Result<Vec<(Algorithm, Nanoseconds)>, CollectiveError> {
        let values = tokens as usize * self.settings().columns;
        let (part, hidden) = (&dummies.part[..values], &mut dummies.hidden[..values]);
        let mut found: Vec<(Algorithm, Vec<u64>)> = Algorithm::candidates().map(|one| (one, Vec::new())).collect();
        for _ in 0..repeats {
            for (algorithm, times) in &mut found {
                let began = Instant::now();
                self.all_reduce_by(*algorithm, part, hidden, |_, _| ())?;
                times.push(began.elapsed().as_nanos() as u64);
            }
        }
        let median = |(algorithm, mut times): (Algorithm, Vec<u64>)| {
            times.sort_unstable();
            (algorithm, Nanoseconds(times.get(times.len() / 2).copied().unwrap_or(0)))
        };
        Ok(found.into_iter().map(median).collect())
    }
}

/// An order that this rank can follow.
fn decode(payload: &[u8]) -> Option<Order> {
    let order = Some(payload).filter(|payload| payload.len() <= ORDER_BYTES_MAX);
    let order: Order = order.and_then(|payload| postcard::from_bytes(payload).ok())?;
    let is_sound = match &order {
        Order::Time { tokens, repeats } => TOKENS_TIMED.contains(tokens) && (1..=REPEATS.1).contains(repeats),
        Order::Use(table) => table.is_sound(),
    };
    is_sound.then_some(order)
}

/// Takes the fastest, unless the formula's choice is nearly as fast.
fn decide(row: &mut TableRow) {
    let of = |wanted: Algorithm| row.timed.iter().find(|(algorithm, _)| *algorithm == wanted).map(|(_, time)| time.0);
    let Some(usual) = of(row.algorithm) else { return };
    let Some((fastest, time)) = row.timed.iter().min_by_key(|(_, time)| time.0) else { return };
    if (time.0 as f64) < WORTH * usual as f64 {
        row.algorithm = *fastest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(times: [u64; 3]) -> TableRow {
        let timed = Algorithm::candidates().zip(times.map(Nanoseconds)).collect();
        TableRow { tokens: 1, algorithm: Algorithm::Direct, timed }
    }

    #[test]
    fn the_usual_choice_stays_until_another_is_clearly_faster() {
        for (times, expected) in [
            ([100, 90, 200], Algorithm::Direct),
            ([100, 80, 200], Algorithm::ReduceScatter),
            ([100, 80, 70], Algorithm::Star),
        ] {
            let mut row = row(times);
            decide(&mut row);
            assert_eq!(row.algorithm, expected, "{times:?}");
        }
    }

    #[test]
    fn orders_that_cannot_be_are_not_followed() {
        let taken = |order: &Order| decode(&postcard::to_stdvec(order).expect("it is encoded"));
        let good = Order::Use(Table { rows: vec![row([1, 2, 3])] });
        assert_eq!(taken(&good).as_ref(), Some(&good));
        assert!(taken(&Order::Time { tokens: 128, repeats: 9 }).is_some());
        let other = TableRow { algorithm: Algorithm::Ring, ..row([1, 2, 3]) };
        for bad in [
            Order::Time { tokens: 129, repeats: 1 },
            Order::Time { tokens: 1, repeats: 0 },
            Order::Time { tokens: 1, repeats: u32::MAX },
            Order::Use(Table { rows: Vec::new() }),
            Order::Use(Table { rows: vec![other] }),
            Order::Use(Table { rows: vec![row([1, 2, 3]), row([1, 2, 3])] }),
        ] {
            assert_eq!(taken(&bad), None);
        }
        assert_eq!(decode(&[0xff; 40]), None);
    }
}
