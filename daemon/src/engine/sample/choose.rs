//! The chooser: merges the ranks' summaries and draws the token, asking further rounds where they do not decide.
//!
//! The draw is the argmax of scaled logit + noise over the allowed tokens. Walking tokens in the order of that score, the
//! first allowed one is the draw; whether one is inside the nucleus follows from the probability ahead of it.
use std::cmp::Ordering;

use shared::sampling::SamplingParameters;

use super::{
    AHEAD_MAX, CANDIDATES_MORE, Candidate, SampleError,
    message::{Answer, AnswerBody, Candidates, Query, Summary},
    random::Noise,
    slice::order,
};

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// Its id.
    pub id: u32,
    /// The most probable tokens with their natural-log probability before temperature, penalties and bias, best first;
    /// the chosen one is added at the end if it is not among them. Empty if none were asked for.
    pub top_logprobs: Vec<(u32, f32)>,
    /// Rounds beyond the first.
    pub rounds: u32,
}

/// What comes next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// A token is chosen.
    Done(Chosen),
    /// Every rank must answer this.
    Ask(Query),
}

/// Chooses one token.
#[derive(Debug)]
pub struct Chooser {
    place: u16,
    parameters: SamplingParameters,
    noise: Noise,
    /// Largest scaled logit, and the sum of exp(scaled - largest) over the whole vocabulary.
    scaled: (f32, f64),
    /// The same of the raw logits.
    raw: (f32, f64),
    top: Vec<(u32, f32)>,
    walk: Walk,
    asked: Vec<Scored>,
    rounds: u32,
}

/// A candidate and its score.
#[derive(Clone, Copy, Debug)]
struct Scored {
    score: f64,
    candidate: Candidate,
}

/// The merged candidates in the order of their scores.
#[derive(Debug, Default)]
struct Walk {
    /// Not yet looked at, best first.
    ahead: Vec<Scored>,
    /// Score and id of each rank's last candidate; `None` where the rank has no others.
    frontier: Vec<Option<(f64, u32)>>,
}

impl Chooser {
    /// Looks at the first round: one summary a rank.
    ///
    /// # Errors
    /// No token has a finite logit.
    pub fn new(
        place: usize,
        parameters: &SamplingParameters,
        position: u32,
        summaries: Vec<Summary>,
    ) -> Result<(Self, Step), SampleError> {
        let raw = merge(summaries.iter().map(|summary| (summary.raw_max, summary.raw_sum)));
        let scaled = merge(summaries.iter().map(|summary| (summary.scaled_max, summary.scaled_sum)));
        let mut top: Vec<(u32, f32)> = summaries.iter().flat_map(|summary| summary.top.iter().copied()).collect();
        top.sort_by(|a, b| order((a.1, a.0), (b.1, b.0)));
        top.truncate(parameters.logprobs as usize);
        let mut chooser = Self {
            place: place as u16,
            parameters: parameters.clone(),
            noise: Noise::new(parameters.seed, position),
            scaled,
            raw,
            top,
            walk: Walk::default(),
            asked: Vec::new(),
            rounds: 0,
        };
        if !scaled.0.is_finite() {
            return Err(SampleError::NoToken);
        }
        let candidates: Vec<Candidates> = summaries.into_iter().map(|summary| summary.candidates).collect();
        let step = match parameters.top_k as usize {
            _ if parameters.temperature <= 0.0 => chooser.draw_among(candidates, 1)?,
            0 => {
                chooser.walk.frontier = vec![None; candidates.len()];
                chooser.take(candidates);
                chooser.walk_on()?
            }
            k if k <= CANDIDATES_MORE => chooser.draw_among(candidates, k)?,
            k => chooser.ask(Query::Best { place: chooser.place, count: k as u16 }),
        };
        Ok((chooser, step))
    }

    /// Looks at the answers to the latest question, one a rank.
    ///
    /// # Errors
    /// They do not answer it.
    pub fn answer(&mut self, answers: Vec<Answer>) -> Result<Step, SampleError> {
        let mut masses = vec![0.0; self.asked.len()];
        let mut candidates = Vec::with_capacity(answers.len());
        for Answer(body) in answers {
            match body {
                AnswerBody::Ahead(list) if list.len() == masses.len() && !list.is_empty() => {
                    masses.iter_mut().zip(list).for_each(|(sum, mass)| *sum += mass);
                }
                AnswerBody::Candidates(list) if masses.is_empty() => candidates.push(list),
                _ => return Err(SampleError::Broken("an answer to another question")),
            }
        }
        if !masses.is_empty() {
            let limit = f64::from(self.parameters.top_p) * self.scaled.1;
            let asked = std::mem::take(&mut self.asked);
            let inside = asked.iter().zip(masses).find(|(_, mass)| *mass == 0.0 || *mass < limit);
            return match inside {
                Some((scored, _)) => Ok(self.done(scored.candidate)),
                None => self.walk_on(),
            };
        }
        match self.parameters.top_k as usize {
            0 => {
                if candidates.iter().all(|list| list.list.is_empty()) {
                    return Err(SampleError::NoToken);
                }
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

    /// All that may be drawn is here: the `count` best of all ranks.
    fn draw_among(&mut self, candidates: Vec<Candidates>, count: usize) -> Result<Step, SampleError> {
        let mut list: Vec<Candidate> = candidates.into_iter().flat_map(|candidates| candidates.list).collect();
        list.sort_by(|a, b| order((a.scaled, a.id), (b.scaled, b.id)));
        list.truncate(count);
        let first = *list.first().ok_or(SampleError::NoToken)?;
        if self.parameters.temperature <= 0.0 {
            return Ok(self.done(first));
        }
        let mass = |candidate: &Candidate| (f64::from(candidate.scaled) - f64::from(first.scaled)).exp();
        let limit = f64::from(self.parameters.top_p) * list.iter().map(mass).sum::<f64>();
        let mut ahead = 0.0;
        let mut best: Option<Scored> = None;
        for candidate in &list {
            let is_inside = ahead == 0.0 || ahead < limit;
            ahead += mass(candidate);
            let scored = self.score(*candidate);
            let is_better = best.is_none_or(|best| scored.order(&best) == Ordering::Less);
            if is_inside && mass(candidate) >= f64::from(self.parameters.min_p) && is_better {
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
    fn take(&mut self, candidates: Vec<Candidates>) {
        for (rank, candidates) in candidates.into_iter().enumerate() {
            let scored: Vec<Scored> = candidates.list.iter().map(|candidate| self.score(*candidate)).collect();
            let last = scored.last().map(|scored| (scored.score, scored.candidate.id));
            self.walk.frontier[rank] = if candidates.exhausted { None } else { last };
            self.walk.ahead.extend(scored);
        }
        self.walk.ahead.sort_by(Scored::order);
    }

    /// Looks at candidates while no rank can hold a better one that it did not send.
    fn walk_on(&mut self) -> Result<Step, SampleError> {
        let frontier = self.walk.frontier.iter().flatten().copied().min_by(|a, b| order(*a, *b));
        let is_sure = |scored: &Scored| {
            frontier.is_none_or(|frontier| order((scored.score, scored.candidate.id), frontier) != Ordering::Greater)
        };
        let sure = self.walk.ahead.iter().take_while(|scored| is_sure(scored)).count().min(AHEAD_MAX);
        let least = f64::from(self.parameters.min_p);
        let relative = |scored: &Scored| (f64::from(scored.candidate.scaled) - f64::from(self.scaled.0)).exp();
        let looked_at: Vec<Scored> = self.walk.ahead.drain(..sure).filter(|scored| relative(scored) >= least).collect();
        if self.parameters.top_p >= 1.0
            && let Some(first) = looked_at.first()
        {
            return Ok(self.done(first.candidate));
        }
        if looked_at.is_empty() {
            if sure > 0 {
                return self.walk_on();
            }
            if frontier.is_none() {
                return Err(SampleError::NoToken);
            }
            return Ok(self.ask(Query::More { place: self.place }));
        }
        let candidates = looked_at.iter().map(|scored| (scored.candidate.scaled, scored.candidate.id)).collect();
        self.asked = looked_at;
        Ok(self.ask(Query::Ahead { place: self.place, reference: self.scaled.0, candidates }))
    }

    fn done(&self, chosen: Candidate) -> Step {
        let normaliser = f64::from(self.raw.0) + self.raw.1.ln();
        let logprob = |logit: f32| (f64::from(logit) - normaliser) as f32;
        let mut top_logprobs: Vec<(u32, f32)> = self.top.iter().map(|(id, logit)| (*id, logprob(*logit))).collect();
        if self.parameters.logprobs > 0 && top_logprobs.iter().all(|(id, _)| *id != chosen.id) {
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
    let share = |slice: (f32, f64)| {
        if slice.1 > 0.0 { slice.1 * (f64::from(slice.0) - f64::from(largest)).exp() } else { 0.0 }
    };
    (largest, slices.map(share).sum())
}
