//! Benchmarks of all-reduces on a stage's own links, ordered by its first rank: the basis of `auto`, and the result of
//! a link benchmark. The tensors are synthetic and belong to no request.
use std::time::{Duration, Instant};

use collectives::{Algorithm, Table, table::TOKENS_TIMED};
use common::{ids::Rank, units::Nanoseconds};
use protocol::{
    bench::{BenchLinks, LINK_SECONDS_MAX, LINK_TOKENS_MAX, are_distinct},
    frame::FrameKind,
};
use serde::{Deserialize, Serialize};
use telemetry::{LinkBench, LinkTime, bench::collectives::median_and_p99};

use super::{CollectiveError, FrameTag, Group};

/// Most rounds in one order.
const ROUNDS_MAX: u32 = 33;
/// Longest encoded order.
const ORDER_BYTES_MAX: usize = 64 * 1024;
/// Time after which a benchmark starts no further all-reduce.
const BUDGET: Duration = Duration::from_secs(LINK_SECONDS_MAX as u64);

const _: () =
    assert!(TOKENS_TIMED[TOKENS_TIMED.len() - 1] == LINK_TOKENS_MAX, "ranks that tune have room for any order");

/// An order from rank 0 of the stage to the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum BenchOrder {
    /// Sum `tokens` tokens with each of the algorithms, one after another, `repeats` times.
    Time { tokens: u32, repeats: u32, algorithms: Vec<Algorithm> },
    /// Use this table from now on.
    Use(Table),
}

/// All-reduces to time: `tokens` tokens with each of the algorithms, one after another, `repeats` times.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimedRounds<'a> {
    pub(super) tokens: u32,
    pub(super) repeats: u32,
    pub(super) algorithms: &'a [Algorithm],
}

/// Times of all-reduces in nanoseconds, by algorithm.
pub(super) type AlgorithmTimes = Vec<(Algorithm, Vec<u64>)>;

/// Tensors that are summed only to measure time.
#[derive(Debug)]
pub(super) struct Dummies {
    part: Vec<f32>,
    hidden: Vec<f32>,
}

impl Dummies {
    /// Creates tensors of at most `values` values.
    pub(super) fn new(values: usize) -> Self {
        Self { part: vec![0.5; values], hidden: vec![0.0; values] }
    }
}

/// When a link benchmark must end, and how long its current size may take.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    size: Instant,
    end: Instant,
}

impl Group {
    /// Times all-reduces between the ranks of the stage. The other ranks must call [`Self::follow_order`] whenever a
    /// frame of kind [`FrameKind::Tune`] is at the front. Every order is a separate step: `step` is the latest one
    /// before and after.
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
        // The first one waits for ranks that are still loading.
        let first = TimedRounds { tokens: 1, repeats: 1, algorithms: &wanted.algorithms[..1] };
        self.lead_order(step, first, &mut dummies)?;
        let begin = Instant::now();
        for (index, tokens) in wanted.tokens.iter().enumerate() {
            // Time that a size leaves of its share goes to the next one.
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

    /// Times all algorithms for one number of tokens, as often as time permits, possibly never.
    fn bench_size(
        &mut self,
        wanted: &BenchLinks,
        tokens: u32,
        step: &mut u64,
        deadline: Deadline,
        dummies: &mut Dummies,
    ) -> Result<AlgorithmTimes, CollectiveError> {
        let mut found: AlgorithmTimes = wanted.algorithms.iter().map(|one| (*one, Vec::new())).collect();
        let once = Instant::now();
        for algorithm in &wanted.algorithms {
            if Instant::now() >= deadline.end {
                return Ok(Vec::new());
            }
            let rounds = TimedRounds { tokens, repeats: 1, algorithms: std::slice::from_ref(algorithm) };
            self.lead_order(step, rounds, dummies)?;
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
                // The first one does not count: it waits for links that still carry messages of the previous algorithm.
                let rounds = TimedRounds { tokens, repeats: counted + 1, algorithms: &[*algorithm] };
                let times = self.lead_order(step, rounds, dummies)?;
                times.iter().for_each(|(_, times)| all.extend_from_slice(&times[1..]));
            }
            left -= counted;
        }
        Ok(found)
    }

    /// Orders some rounds as a separate step, and takes part in them.
    fn lead_order(
        &mut self,
        step: &mut u64,
        rounds: TimedRounds<'_>,
        dummies: &mut Dummies,
    ) -> Result<AlgorithmTimes, CollectiveError> {
        *step += 1;
        self.begin_step(*step);
        let TimedRounds { tokens, repeats, algorithms } = rounds;
        self.order(&BenchOrder::Time { tokens, repeats, algorithms: algorithms.to_vec() })?;
        self.time(rounds, dummies)
    }

    /// Executes the front order, which is `step`: times all-reduces.
    ///
    /// # Errors
    /// The order is invalid, a peer is lost or out of step, or the wait was aborted.
    pub fn follow_order(&mut self, first: Rank, step: u64) -> Result<(), CollectiveError> {
        self.begin_step(step);
        let BenchOrder::Time { tokens, repeats, algorithms } = self.take_order(first)? else {
            let (got, expected) = ("a table of candidates".into(), "an order to time all-reduces".into());
            return Err(CollectiveError::OutOfStep { rank: first, got, expected });
        };
        let mut dummies = Dummies::new(tokens as usize * self.settings().columns);
        self.time(TimedRounds { tokens, repeats, algorithms: &algorithms }, &mut dummies)?;
        self.forget();
        Ok(())
    }

    /// Discards the accounting of timed all-reduces, which belong to no request.
    pub(super) fn forget(&mut self) {
        self.timing.take_totals();
        self.timing.idle();
    }

    pub(super) fn order(&mut self, order: &BenchOrder) -> Result<(), CollectiveError> {
        let payload = postcard::to_stdvec(order).expect("an order holds only types that postcard encodes");
        let sequence = self.next_sequence();
        self.tell(FrameKind::Tune, sequence, &payload)
    }

    pub(super) fn take_order(&mut self, first: Rank) -> Result<BenchOrder, CollectiveError> {
        let (step, sequence) = (self.step, self.next_sequence());
        let links = self.links().expect("a rank that follows has links");
        links.wait_for(std::iter::once(first))?;
        let (_, payload) = links.front(first, FrameTag::new(FrameKind::Tune, step, sequence))?;
        let order = decode(payload).ok_or_else(|| CollectiveError::OutOfStep {
            rank: first,
            got: "an invalid timing order".into(),
            expected: "numbers of tokens, or a table of candidates".into(),
        })?;
        links.consume(first)?;
        Ok(order)
    }

    /// Runs all-reduces; returns how long each took on this rank.
    pub(super) fn time(
        &mut self,
        TimedRounds { tokens, repeats, algorithms }: TimedRounds<'_>,
        dummies: &mut Dummies,
    ) -> Result<AlgorithmTimes, CollectiveError> {
        let values = tokens as usize * self.settings().columns;
        let (part, hidden) = (&dummies.part[..values], &mut dummies.hidden[..values]);
        let mut found: AlgorithmTimes = algorithms.iter().map(|one| (*one, Vec::new())).collect();
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

/// Decodes an order; `None` if this rank cannot execute it.
fn decode(payload: &[u8]) -> Option<BenchOrder> {
    let order = Some(payload).filter(|payload| payload.len() <= ORDER_BYTES_MAX);
    let order: BenchOrder = order.and_then(|payload| postcard::from_bytes(payload).ok())?;
    let is_sound = match &order {
        BenchOrder::Time { tokens, repeats, algorithms } => {
            (1..=LINK_TOKENS_MAX).contains(tokens) && (1..=ROUNDS_MAX).contains(repeats) && are_distinct(algorithms)
        }
        BenchOrder::Use(table) => table.is_sound(),
    };
    is_sound.then_some(order)
}

#[cfg(test)]
mod tests {
    use collectives::TableRow;

    use super::*;

    #[test]
    fn invalid_orders_are_rejected() {
        let taken = |order: &BenchOrder| decode(&postcard::to_stdvec(order).expect("it is encoded"));
        let row = TableRow { tokens: 1, algorithm: Algorithm::Direct, timed: Vec::new() };
        let good = BenchOrder::Use(Table { rows: vec![row.clone()] });
        assert_eq!(taken(&good).as_ref(), Some(&good));
        let time = |tokens, repeats, algorithms| BenchOrder::Time { tokens, repeats, algorithms };
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
            BenchOrder::Use(Table { rows: Vec::new() }),
            BenchOrder::Use(Table { rows: vec![other] }),
            BenchOrder::Use(Table { rows: vec![row.clone(), row] }),
        ] {
            assert_eq!(taken(&bad), None);
        }
        assert_eq!(decode(&[0xff; 40]), None);
    }
}
