//! All-reduces timed on a stage's own links, as its first rank orders: what `auto` decides by, and what a bench of the links
//! shows. Tensors are made up; none of it belongs to a request.
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use shared::{
    ids::Rank,
    protocol::{
        bench::{BenchLinks, LINK_SECONDS_MAX, LINK_TOKENS_MAX, are_distinct},
        frame::FrameKind,
    },
    schedule::{Algorithm, Table, table::TOKENS_TIMED},
    telemetry::{LinkBench, LinkTime, bench::collectives::median_and_p99},
    units::Nanoseconds,
};

use super::{CollectiveError, Group};

/// Most rounds of one order.
const ROUNDS_MAX: u32 = 33;
/// Longest order.
const ORDER_BYTES_MAX: usize = 64 * 1024;
/// No all-reduce of a bench begins after this.
const BUDGET: Duration = Duration::from_secs(LINK_SECONDS_MAX as u64);

const _: () =
    assert!(TOKENS_TIMED[TOKENS_TIMED.len() - 1] == LINK_TOKENS_MAX, "ranks that tune have room for any order");

/// What rank 0 of the stage tells the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Order {
    /// Sum `tokens` tokens by each of the algorithms in turn, so many times.
    Time { tokens: u32, repeats: u32, algorithms: Vec<Algorithm> },
    /// This table is used from now on.
    Use(Table),
}

/// Times of all-reduces in nanoseconds, by algorithm.
pub(super) type Times = Vec<(Algorithm, Vec<u64>)>;

/// Tensors that are summed for their time alone.
#[derive(Debug)]
pub(super) struct Dummies {
    part: Vec<f32>,
    hidden: Vec<f32>,
}

impl Dummies {
    /// Tensors of at most so many values.
    pub(super) fn new(values: usize) -> Self {
        Self { part: vec![0.5; values], hidden: vec![0.0; values] }
    }
}

/// When a bench of links has to end, and until when its present size may take.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    size: Instant,
    end: Instant,
}

impl Group {
    /// Times all-reduces between the ranks of the stage, whose others are in [`Self::follow_order`] whenever a frame of kind
    /// [`FrameKind::Tune`] is in front. Every order is a step of its own: `step` is the latest one before and after.
    ///
    /// # Errors
    /// A peer is lost or out of step, or the wait was aborted.
    pub fn bench(&mut self, wanted: &BenchLinks, step: &mut u64) -> Result<LinkBench, CollectiveError> {
        let (exchange, columns) = (self.settings().exchange, self.settings().columns);
        let most = wanted.tokens.iter().copied().max().unwrap_or(1) as usize;
        let mut dummies = Dummies::new(most * columns);
        let mut found = LinkBench {
            ranks: self.links().map_or(1, |links| links.stage().len() as u16),
            exchange,
            columns: columns as u32,
            times: Vec::new(),
            left_out: Vec::new(),
        };
        // The first one waits for ranks that still load.
        self.lead_order(step, (1, 1, &wanted.algorithms[..1]), &mut dummies)?;
        let begin = Instant::now();
        for (index, tokens) in wanted.tokens.iter().enumerate() {
            // What a size leaves of its share is there for the next.
            let share = BUDGET * (index as u32 + 1) / wanted.tokens.len() as u32;
            let deadline = Deadline { size: begin + share, end: begin + BUDGET };
            let times = self.bench_size(wanted, *tokens, step, deadline, &mut dummies)?;
            let used = self.table().algorithm(*tokens as usize);
            let before = found.times.len();
            for (algorithm, mut times) in times {
                times.sort_unstable();
                let Some((p50, p99)) = median_and_p99(&times) else { continue };
                let (p50, p99, count) = (Nanoseconds(p50), Nanoseconds(p99), times.len() as u32);
                let (bytes, is_used) = (4 * u64::from(*tokens) * columns as u64, algorithm == used);
                found.times.push(LinkTime { tokens: *tokens, algorithm, bytes, count, p50, p99, is_used });
            }
            if found.times.len() == before {
                found.left_out.push(*tokens);
            }
        }
        self.forget();
        self.links().map_or(Ok(()), super::Links::flush_stage)?;
        Ok(found)
    }

    /// All algorithms for one number of tokens, as often as there is time: no times at all where there is none.
    fn bench_size(
        &mut self,
        wanted: &BenchLinks,
        tokens: u32,
        step: &mut u64,
        deadline: Deadline,
        dummies: &mut Dummies,
    ) -> Result<Times, CollectiveError> {
        let mut found: Times = wanted.algorithms.iter().map(|one| (*one, Vec::new())).collect();
        let once = Instant::now();
        for algorithm in &wanted.algorithms {
            if Instant::now() >= deadline.end {
                return Ok(Vec::new());
            }
            self.lead_order(step, (tokens, 1, std::slice::from_ref(algorithm)), dummies)?;
        }
        let round = once.elapsed().as_secs_f64().max(1e-6);
        let mut left = wanted.repeats;
        while left > 0 {
            let until = if left == wanted.repeats { deadline.end } else { deadline.size };
            let room = until.saturating_duration_since(Instant::now()).as_secs_f64() / round;
            if room < 2.0 {
                break;
            }
            let counted = left.min(ROUNDS_MAX - 1).min(room as u32 - 1);
            for (algorithm, all) in &mut found {
                // The first one does not count: it waits for links that still carry the messages of the algorithm before.
                let times = self.lead_order(step, (tokens, counted + 1, &[*algorithm]), dummies)?;
                times.iter().for_each(|(_, times)| all.extend_from_slice(&times[1..]));
            }
            left -= counted;
        }
        Ok(found)
    }

    /// Orders some rounds as a step of their own, and takes part in them.
    fn lead_order(
        &mut self,
        step: &mut u64,
        (tokens, repeats, algorithms): (u32, u32, &[Algorithm]),
        dummies: &mut Dummies,
    ) -> Result<Times, CollectiveError> {
        *step += 1;
        self.begin_step(*step);
        self.order(&Order::Time { tokens, repeats, algorithms: algorithms.to_vec() })?;
        self.time((tokens, repeats, algorithms), dummies)
    }

    /// Does what the order in front, which is `step`, says: times all-reduces.
    ///
    /// # Errors
    /// It is no such order, a peer is lost or out of step, or the wait was aborted.
    pub fn follow_order(&mut self, first: Rank, step: u64) -> Result<(), CollectiveError> {
        self.begin_step(step);
        let Order::Time { tokens, repeats, algorithms } = self.take_order(first)? else {
            let (got, expected) = ("a table of candidates".into(), "all-reduces to be timed".into());
            return Err(CollectiveError::OutOfStep { rank: first, got, expected });
        };
        let mut dummies = Dummies::new(tokens as usize * self.settings().columns);
        self.time((tokens, repeats, &algorithms), &mut dummies)?;
        self.forget();
        Ok(())
    }

    /// What was timed belongs to no request.
    pub(super) fn forget(&mut self) {
        self.accounting.take_totals();
        self.accounting.idle();
    }

    pub(super) fn order(&mut self, order: &Order) -> Result<(), CollectiveError> {
        let payload = postcard::to_stdvec(order).expect("an order holds only types that postcard encodes");
        let sequence = self.next_sequence();
        self.tell(FrameKind::Tune, sequence, &payload)
    }

    pub(super) fn take_order(&mut self, first: Rank) -> Result<Order, CollectiveError> {
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

    /// Sums `tokens` tokens by each algorithm in turn, so many times; returns how long each took on this rank.
    pub(super) fn time(
        &mut self,
        (tokens, repeats, algorithms): (u32, u32, &[Algorithm]),
        dummies: &mut Dummies,
    ) -> Result<Times, CollectiveError> {
        let values = tokens as usize * self.settings().columns;
        let (part, hidden) = (&dummies.part[..values], &mut dummies.hidden[..values]);
        let mut found: Times = algorithms.iter().map(|one| (*one, Vec::new())).collect();
        for _ in 0..repeats {
            for (algorithm, times) in &mut found {
                let began = Instant::now();
                self.all_reduce_by(*algorithm, part, hidden, |_, _, _| ())?;
                times.push(began.elapsed().as_nanos() as u64);
            }
        }
        Ok(found)
    }
}

/// An order that this rank can follow.
fn decode(payload: &[u8]) -> Option<Order> {
    let order = Some(payload).filter(|payload| payload.len() <= ORDER_BYTES_MAX);
    let order: Order = order.and_then(|payload| postcard::from_bytes(payload).ok())?;
    let is_sound = match &order {
        Order::Time { tokens, repeats, algorithms } => {
            (1..=LINK_TOKENS_MAX).contains(tokens) && (1..=ROUNDS_MAX).contains(repeats) && are_distinct(algorithms)
        }
        Order::Use(table) => table.is_sound(),
    };
    is_sound.then_some(order)
}

#[cfg(test)]
mod tests {
    use shared::schedule::TableRow;

    use super::*;

    #[test]
    fn orders_that_cannot_be_are_not_followed() {
        let taken = |order: &Order| decode(&postcard::to_stdvec(order).expect("it is encoded"));
        let row = TableRow { tokens: 1, algorithm: Algorithm::Direct, timed: Vec::new() };
        let good = Order::Use(Table { rows: vec![row.clone()] });
        assert_eq!(taken(&good).as_ref(), Some(&good));
        let time = |tokens, repeats, algorithms| Order::Time { tokens, repeats, algorithms };
        let all = || Algorithm::ALL.to_vec();
        assert!(taken(&time(LINK_TOKENS_MAX, ROUNDS_MAX, all())).is_some());
        let other = TableRow { algorithm: Algorithm::Ring, ..row.clone() };
        for bad in [
            time(LINK_TOKENS_MAX + 1, 1, all()),
            time(0, 1, all()),
            time(1, 0, all()),
            time(1, u32::MAX, all()),
            time(1, 1, Vec::new()),
            time(1, 1, vec![Algorithm::Star; 2]),
            Order::Use(Table { rows: Vec::new() }),
            Order::Use(Table { rows: vec![other] }),
            Order::Use(Table { rows: vec![row.clone(), row] }),
        ] {
            assert_eq!(taken(&bad), None);
        }
        assert_eq!(decode(&[0xff; 40]), None);
    }
}
