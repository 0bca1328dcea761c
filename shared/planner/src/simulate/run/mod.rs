//! Prompts and answers on a simulated replica: time to first token, time per token, throughput, and a breakdown of the
//! time.
use common::{latency::ratio, units::Nanoseconds};
use telemetry::{PhaseTotals, RankTotals};

use super::{
    jitter::Noise,
    network::{Action, Network, Observer},
    replica::{Replica, SimulateError, Step},
};

/// A simulated request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Tokens of the prompt, at least one.
    pub prompt: u32,
    /// Tokens of the answer after the first, at least one.
    pub tokens: u32,
    /// Noise of the times.
    pub noise: Noise,
    /// Seed of the noise.
    pub seed: u64,
}

impl Request {
    /// A request without noise.
    pub fn quiet(prompt: u32, tokens: u32) -> Self {
        Self { prompt: prompt.max(1), tokens: tokens.max(1), noise: Noise::None, seed: 0 }
    }
}

/// The result of a simulated request.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Time to the first token.
    pub ttft: Nanoseconds,
    /// Mean time of each token after the first.
    pub tpot: Nanoseconds,
    /// Time by cause and traffic of each rank.
    pub ranks: Vec<RankTotals>,
}

impl Outcome {
    /// Tokens per second after the first token.
    pub fn tokens_per_second(&self) -> f64 {
        ratio(1e9, self.tpot.0 as f64)
    }

    /// Share of wait and wire in the time of all ranks: in prefill and in decode.
    pub fn network_fractions(&self) -> [f64; 2] {
        [|rank: &RankTotals| rank.prefill, |rank: &RankTotals| rank.decode].map(|phase| {
            self.ranks
                .iter()
                .fold(PhaseTotals::default(), |mut sum, rank| {
                    sum.add(&phase(rank));
                    sum
                })
                .network_fraction()
        })
    }

    /// Bytes and messages of all ranks per token of the answer.
    pub fn sent_per_token(&self) -> [f64; 2] {
        let tokens = self.ranks.first().map_or(0, |rank| rank.decode.tokens) as f64;
        let sum =
            |count: fn(&PhaseTotals) -> u64| self.ranks.iter().map(|rank| count(&rank.decode)).sum::<u64>() as f64;
        [ratio(sum(|phase| phase.bytes_sent), tokens), ratio(sum(|phase| phase.messages_sent), tokens)]
    }
}

/// Times of the head's marks.
struct Marks(Vec<u64>);

impl Observer for Marks {
    fn mark(&mut self, _node: usize, _mark: u32, at: u64) {
        self.0.push(at);
    }
}

/// One prompt and its answer on an idle replica.
///
/// # Errors
/// Inconsistent schedules.
pub fn answer(replica: &Replica<'_>, request: &Request) -> Result<Outcome, SimulateError> {
    let mut network = Network::new(&replica.speeds(), &request.noise, request.seed);
    let mut marks = Marks(Vec::new());
    let mut actions = vec![Vec::new(); replica.ranks()];
    Step::prefill(request.prompt, replica.step_tokens()).try_for_each(|step| replica.step(step, &mut actions))?;
    replica.land(0, &mut actions[0]);
    network.run(&actions, &mut marks).map_err(SimulateError::Stuck)?;
    for token in 0..request.tokens {
        actions.iter_mut().for_each(Vec::clear);
        replica.step(Step::decode(1, request.prompt + token), &mut actions)?;
        replica.land(token + 1, &mut actions[0]);
        network.run(&actions, &mut marks).map_err(SimulateError::Stuck)?;
    }
    let [first, .., last] = marks.0[..] else {
        return Err(SimulateError::Stages("no token was sampled"));
    };
    let tpot = Nanoseconds((last - first) / u64::from(request.tokens));
    let ranks = (0..replica.ranks()).map(|rank| *network.totals(rank)).collect();
    Ok(Outcome { ttft: Nanoseconds(first), tpot, ranks })
}

/// Tokens per second of `sequences` concurrent answers at a context. They alternate in as many turns as there are
/// stages, so that no stage idles.
///
/// # Errors
/// Inconsistent schedules.
pub fn throughput(replica: &Replica<'_>, sequences: u32, context: u32) -> Result<f64, SimulateError> {
    /// Rounds of all turns: the first ones fill the pipeline and are not counted.
    const ROUNDS: [usize; 2] = [2, 6];
    let turns = replica.stages().min(sequences.max(1) as usize);
    let of_turn = |turn: usize| {
        let (turn, turns) = (turn as u32, turns as u32);
        sequences.max(1) / turns + u32::from(turn < sequences.max(1) % turns)
    };
    let [warm, counted] = ROUNDS.map(|rounds| rounds * turns);
    let mut actions = vec![Vec::new(); replica.ranks()];
    for step in 0..warm + counted {
        if step >= turns {
            replica.land(0, &mut actions[0]);
        }
        replica.step(Step::decode(of_turn(step % turns), context), &mut actions)?;
    }
    (0..turns).for_each(|_| replica.land(0, &mut actions[0]));
    let mut network = Network::new(&replica.speeds(), &Noise::None, 0);
    let mut marks = Marks(Vec::new());
    network.run(&actions, &mut marks).map_err(SimulateError::Stuck)?;
    let span = marks.0[warm + counted - 1] - marks.0[warm - 1];
    let tokens: u32 = (warm..warm + counted).map(|step| of_turn(step % turns)).sum();
    Ok(ratio(f64::from(tokens) * 1e9, span as f64))
}

/// Actions of one token at a context, and of the head receiving it: for runs of very many tokens.
///
/// # Errors
/// Inconsistent schedules.
pub fn token(replica: &Replica<'_>, context: u32) -> Result<Vec<Vec<Action>>, SimulateError> {
    let mut actions = vec![Vec::new(); replica.ranks()];
    replica.step(Step::decode(1, context), &mut actions)?;
    replica.land(0, &mut actions[0]);
    Ok(actions)
}

/// The number of nodes beyond which more nodes do not reduce the time: the start of the longest rise, from `(nodes,
/// time)` in ascending order.
pub fn knee(times: &[(usize, Nanoseconds)]) -> Option<usize> {
    let first = times.first()?;
    let mut best = *first;
    for (nodes, time) in &times[1..] {
        if time.0 >= best.1.0 {
            break;
        }
        best = (*nodes, *time);
    }
    Some(best.0)
}

#[cfg(test)]
mod tests;
