//! The chooser: merges the ranks' summaries and samples a token, with further rounds if the summaries do not decide.
//!
//! The sample is the argmax of scaled logit + noise over the allowed tokens. When tokens are walked in the order of
//! that score, the first allowed one is the sample; whether a token is inside the nucleus follows from the probability
//! mass ahead of it.
use std::cmp::Ordering;

use common::sampling::SamplingParameters;

use super::{
    AHEAD_MAX, CANDIDATES_FIRST, CANDIDATES_MORE, Candidate, List, SampleError, floor,
    message::{Answer, AnswerBody, Candidates, Query, Summary, order},
    random::Noise,
};
use crate::sample::message::Chosen;

/// Outcome of a sampling round.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// A token was sampled.
    Done(Chosen),
    /// Every rank must answer this query.
    Ask(Query),
}

/// Samples one token at a time; reuses its buffers.
#[derive(Debug, Default)]
pub struct Chooser {
    place: u16,
    draw: Draw,
    noise: Noise,
    /// Largest scaled logit, and the sum of exp(scaled - largest) over the whole vocabulary.
    scaled: (f32, f64),
    /// The same of the raw logits.
    raw: (f32, f64),
    top: Vec<(u32, f32)>,
    walk: CandidateWalk,
    /// Candidates whose rank in the order was queried, and the probability ahead of each.
    asked: Vec<(Scored, f64)>,
    /// Least scaled logit of a token that may still be sampled: below it, `min_p` or the nucleus excludes all.
    floor: f32,
    /// The tokens that [`Chooser::draw_among`] may sample.
    pool: Vec<Candidate>,
    rounds: u32,
}

/// The parameters that a sample depends on.
#[derive(Clone, Copy, Debug, Default)]
struct Draw {
    temperature: f32,
    top_k: usize,
    top_p: f64,
    min_p: f64,
    logprobs: usize,
}

/// A candidate and its score.
#[derive(Clone, Copy, Debug)]
struct Scored {
    score: f64,
    candidate: Candidate,
}

/// The merged candidates in order of score.
#[derive(Debug, Default)]
struct CandidateWalk {
    /// Not yet examined, best first.
    ahead: Vec<Scored>,
    /// Score and id of each rank's last candidate; `None` if the rank has no others.
    frontier: Vec<Option<(f64, u32)>>,
}

impl Chooser {
    /// Begins a token with the summaries of the first round, one a rank.
    ///
    /// # Errors
    /// A logit is not a number, or no token has a finite one.
    pub fn begin<'a>(
        &mut self,
        place: usize,
        parameters: &SamplingParameters,
        position: u32,
        summaries: impl Iterator<Item = &'a Summary> + Clone,
    ) -> Result<Step, SampleError> {
        if summaries.clone().any(Summary::is_broken) {
            return Err(SampleError::NotANumber);
        }
        self.place = place as u16;
        self.draw = Draw {
            temperature: parameters.temperature,
            top_k: parameters.top_k as usize,
            top_p: f64::from(parameters.top_p),
            min_p: f64::from(parameters.min_p),
            logprobs: parameters.logprobs as usize,
        };
        self.noise = Noise::new(parameters.seed, position);
        self.raw = merge(summaries.clone().map(|summary| (summary.raw_max, summary.raw_sum)));
        self.scaled = merge(summaries.clone().map(|summary| (summary.scaled_max, summary.scaled_sum)));
        self.floor = floor(parameters.min_p, self.scaled.0);
        self.top.clear();
        self.top.extend(summaries.clone().flat_map(|summary| summary.top.iter().copied()));
        self.top.sort_unstable_by(|a, b| order((a.1, a.0), (b.1, b.0)));
        self.top.truncate(self.draw.logprobs);
        self.walk.ahead.clear();
        self.walk.frontier.clear();
        self.asked.clear();
        // Whichever parameters come first: capacity for the candidates of the usual rounds.
        let ranks = summaries.clone().count();
        self.walk.frontier.reserve(ranks);
        self.walk.ahead.reserve(ranks * (CANDIDATES_FIRST + 2 * CANDIDATES_MORE));
        self.asked.reserve(AHEAD_MAX);
        self.rounds = 0;
        if !self.scaled.0.is_finite() {
            return Err(SampleError::NoToken);
        }
        let candidates = summaries.map(|summary| &summary.candidates);
        match self.draw.top_k {
            _ if self.draw.temperature <= 0.0 => self.draw_among(candidates, 1),
            0 => {
                self.walk.frontier.resize(candidates.clone().count(), None);
                self.take(candidates);
                self.walk_on()
            }
            k if k <= CANDIDATES_MORE => self.draw_among(candidates, k),
            k => Ok(self.ask(Query::Best { place: self.place, count: k as u16 })),
        }
    }

    /// Processes the answers to the latest query, one a rank.
    ///
    /// # Errors
    /// The answers do not match the query.
    pub fn answer(&mut self, answers: &[Answer]) -> Result<Step, SampleError> {
        const OTHER: SampleError = SampleError::Broken("an answer does not match the query");
        if !self.asked.is_empty() {
            for Answer(body) in answers {
                match body {
                    AnswerBody::Ahead(list) if list.len() == self.asked.len() => {
                        self.asked.iter_mut().zip(list).for_each(|((_, sum), mass)| *sum += mass);
                    }
                    _ => return Err(OTHER),
                }
            }
            let limit = self.draw.top_p * self.scaled.1;
            let inside = self.asked.iter().find(|(_, mass)| *mass == 0.0 || *mass < limit);
            let chosen = inside.map(|(scored, _)| scored.candidate);
            // If none is inside the nucleus, neither is any token that is less probable than one of them.
            self.floor = self.asked.iter().fold(self.floor, |floor, (scored, _)| floor.max(scored.candidate.scaled));
            self.asked.clear();
            return match chosen {
                Some(candidate) => Ok(self.done(candidate)),
                None => self.walk_on(),
            };
        }
        if answers.iter().any(|answer| answer.candidates().is_none()) {
            return Err(OTHER);
        }
        let candidates = answers.iter().filter_map(Answer::candidates);
        match self.draw.top_k {
            0 => {
                self.take(candidates);
                self.walk_on()
            }
            k => self.draw_among(candidates, k),
        }
    }

    fn ask(&mut self, query: Query) -> Step {
        self.rounds += 1;
        Step::Ask(query)
    }

    /// Samples among the `count` best tokens of all ranks, which are all known.
    fn draw_among<'a>(
        &mut self,
        candidates: impl Iterator<Item = &'a Candidates>,
        count: usize,
    ) -> Result<Step, SampleError> {
        self.pool.clear();
        self.pool.extend(candidates.flat_map(|candidates| candidates.list.iter().copied()));
        self.pool.sort_unstable_by(|a, b| order((a.scaled, a.id), (b.scaled, b.id)));
        self.pool.truncate(count);
        let first = *self.pool.first().ok_or(SampleError::NoToken)?;
        if self.draw.temperature <= 0.0 {
            return Ok(self.done(first));
        }
        let mass = |candidate: &Candidate| (f64::from(candidate.scaled) - f64::from(first.scaled)).exp();
        let limit = self.draw.top_p * self.pool.iter().map(mass).sum::<f64>();
        let mut ahead = 0.0;
        let mut best: Option<Scored> = None;
        for candidate in &self.pool {
            let is_inside = ahead == 0.0 || ahead < limit;
            ahead += mass(candidate);
            let scored = self.score(*candidate);
            let is_better = best.is_none_or(|best| scored.order(&best) == Ordering::Less);
            if is_inside && mass(candidate) >= self.draw.min_p && is_better {
                best = Some(scored);
            }
        }
        let best = best.ok_or(SampleError::NoToken)?;
        Ok(self.done(best.candidate))
    }

    fn score(&self, candidate: Candidate) -> Scored {
        Scored { score: f64::from(candidate.scaled) + self.noise.of(candidate.id), candidate }
    }

    /// Merges further candidates of each rank.
    fn take<'a>(&mut self, candidates: impl Iterator<Item = &'a Candidates>) {
        for (rank, candidates) in candidates.enumerate() {
            let before = self.walk.ahead.len();
            for candidate in &candidates.list {
                let scored = self.score(*candidate);
                self.walk.ahead.push(scored);
            }
            let last = self.walk.ahead[before..].last().map(|scored| (scored.score, scored.candidate.id));
            self.walk.frontier[rank] = if candidates.exhausted { None } else { last };
        }
        self.walk.ahead.sort_unstable_by(Scored::order);
    }

    /// Examines candidates while no rank can have a better one that it has not sent.
    fn walk_on(&mut self) -> Result<Step, SampleError> {
        loop {
            let frontier = self.walk.frontier.iter().flatten().copied().min_by(|a, b| order(*a, *b));
            let sure = self.walk.ahead.iter().take_while(|scored| {
                frontier
                    .is_none_or(|frontier| order((scored.score, scored.candidate.id), frontier) != Ordering::Greater)
            });
            let sure = sure.count().min(AHEAD_MAX);
            let (least, largest) = (self.draw.min_p, f64::from(self.scaled.0));
            let looked_at = self.walk.ahead.drain(..sure).filter(|scored| scored.candidate.scaled >= self.floor);
            let looked_at = looked_at.filter(|scored| (f64::from(scored.candidate.scaled) - largest).exp() >= least);
            self.asked.extend(looked_at.map(|scored| (scored, 0.0)));
            if let Some((first, _)) = self.asked.first()
                && self.draw.top_p >= 1.0
            {
                let chosen = first.candidate;
                return Ok(self.done(chosen));
            }
            if !self.asked.is_empty() {
                let asked = self.asked.iter();
                let candidates = asked.map(|(scored, _)| (scored.candidate.scaled, scored.candidate.id)).collect();
                return Ok(self.ask(Query::Ahead { place: self.place, reference: self.scaled.0, candidates }));
            }
            if sure == 0 && frontier.is_none() {
                return Err(SampleError::NoToken);
            }
            if sure == 0 {
                return Ok(self.ask(Query::More { place: self.place, floor: self.floor }));
            }
        }
    }

    fn done(&self, chosen: Candidate) -> Step {
        let normaliser = f64::from(self.raw.0) + self.raw.1.ln();
        let logprob = |logit: f32| (f64::from(logit) - normaliser) as f32;
        let mut top_logprobs: List<_, _> = self.top.iter().map(|(id, logit)| (*id, logprob(*logit))).collect();
        if self.draw.logprobs > 0 && top_logprobs.iter().all(|(id, _): &(u32, f32)| *id != chosen.id) {
            top_logprobs.push((chosen.id, logprob(chosen.raw)));
        }
        Step::Done(Chosen { id: chosen.id, top_logprobs, rounds: self.rounds })
    }
}

impl Scored {
    fn order(&self, other: &Self) -> Ordering {
        order((self.score, self.candidate.id), (other.score, other.candidate.id))
    }
}

/// Largest value over all slices, and the sum of exp(value - largest) in rank order.
fn merge(slices: impl Iterator<Item = (f32, f64)> + Clone) -> (f32, f64) {
    let largest = slices.clone().fold(f32::NEG_INFINITY, |largest, slice| largest.max(slice.0));
    let shares = slices.map(
        |(reference, sum)| {
            if sum > 0.0 { sum * (f64::from(reference) - f64::from(largest)).exp() } else { 0.0 }
        },
    );
    (largest, shares.sum())
}
