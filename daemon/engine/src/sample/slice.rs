//! Sampling work on the logits of a rank's own vocabulary slice: bias, penalties, temperature, sums, best candidates.
use std::cmp::Ordering;

use common::sampling::SamplingParameters;

use super::{
    AHEAD_MAX, CANDIDATES_FIRST, CANDIDATES_MORE, Candidate, List, SampleError, floor,
    message::{Answer, AnswerBody, Candidates, Query, Summary},
    random::Noise,
};
use crate::sample::message::order;

/// Initial capacity in tokens for the history that penalties look back on; a longer history grows its list by doubling.
const HISTORY_ROOM: usize = 4096;

/// A rank's slice for one row of a step; reuses its buffers from step to step.
#[derive(Debug)]
pub struct Slice {
    begin: u32,
    raw: Vec<f32>,
    scaled: Vec<f32>,
    noise: Noise,
    /// Score and id of the last candidate sent in the order of logit + noise.
    last: Option<(f64, u32)>,
    history: Vec<u32>,
}

impl Slice {
    /// Creates a slice whose first token has the id `begin`.
    pub fn new(begin: u32) -> Self {
        let (raw, scaled, history) = (Vec::new(), Vec::new(), Vec::new());
        Self { begin, raw, scaled, noise: Noise::new(0, 0), last: None, history }
    }

    /// Does the same with capacity for `length` tokens.
    pub fn with_room(begin: u32, length: usize) -> Self {
        let (raw, scaled) = (Vec::with_capacity(length), Vec::with_capacity(length));
        Self { raw, scaled, history: Vec::with_capacity(HISTORY_ROOM), ..Self::new(begin) }
    }

    /// Summarises the logits after a position. `history` is all tokens up to it, oldest first. A mask has one bit for
    /// each id from 0 on; tokens without a bit are treated as if they did not exist. Logits that are not finite give
    /// [`Summary::broken`]: no token can be sampled for that sequence, on any rank, and no other sequence is
    /// affected.
    pub fn summary(
        &mut self,
        parameters: &SamplingParameters,
        position: u32,
        history: &[u32],
        logits: &[f32],
        mask: Option<&[u32]>,
    ) -> Summary {
        if logits.iter().any(|logit| logit.is_nan() || *logit == f32::INFINITY) {
            return Summary::broken();
        }
        self.raw.clear();
        self.raw.extend_from_slice(logits);
        if let Some(mask) = mask {
            for (logit, id) in self.raw.iter_mut().zip(self.begin..) {
                let is_allowed = mask.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1);
                if !is_allowed {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        self.scaled.clear();
        self.scaled.extend_from_slice(&self.raw);
        self.adjust(parameters, history);
        if parameters.temperature > 0.0 {
            let inverse = 1.0 / parameters.temperature;
            self.scaled.iter_mut().for_each(|logit| *logit *= inverse);
        }
        self.noise = Noise::new(parameters.seed, position);
        self.last = None;
        let (raw_max, scaled_max) = (largest(&self.raw), largest(&self.scaled));
        if scaled_max == f32::INFINITY {
            return Summary::broken();
        }
        // An exponential for each token of the vocabulary costs as much as a layer: only for answers that need the sums.
        let is_nucleus = parameters.temperature > 0.0 && parameters.top_k == 0 && parameters.top_p < 1.0;
        let raw_sum = if parameters.logprobs > 0 { exponentials(&self.raw, raw_max) } else { 0.0 };
        let scaled_sum = if is_nucleus { exponentials(&self.scaled, scaled_max) } else { 0.0 };
        let by_logit = |slice: &Self, count: usize| best(slice.scaled.iter().copied(), count);
        let top = best(self.raw.iter().copied(), parameters.logprobs as usize);
        let top = top.into_iter().map(|(logit, index)| (self.begin + index, logit)).collect();
        let candidates = match parameters.top_k as usize {
            _ if parameters.temperature <= 0.0 => self.candidates(&by_logit(self, 1)),
            k if (1..=CANDIDATES_MORE).contains(&k) => self.candidates(&by_logit(self, k)),
            // The largest logit of all ranks may exclude more; this one only what is excluded anyway.
            0 => self.more(CANDIDATES_FIRST, floor(parameters.min_p, scaled_max)),
            _ => Candidates::default(),
        };
        Summary { raw_max, raw_sum, scaled_max, scaled_sum, top, candidates }
    }

    /// Summarises the logits at a position of a prompt, whose next token is known: the only candidate is that token, on the
    /// rank that has it. No bias, penalty or mask applies.
    pub fn prompted(&mut self, parameters: &SamplingParameters, id: u32, logits: &[f32]) -> Summary {
        if logits.iter().any(|logit| logit.is_nan() || *logit == f32::INFINITY) {
            return Summary::broken();
        }
        let raw_max = largest(logits);
        let top = best(logits.iter().copied(), parameters.logprobs as usize);
        let top = top.into_iter().map(|(logit, index)| (self.begin + index, logit)).collect();
        let own = id.checked_sub(self.begin).and_then(|index| logits.get(index as usize)).copied();
        let list = own.into_iter().map(|raw| Candidate { id, raw, scaled: raw }).collect();
        Summary {
            raw_max,
            raw_sum: exponentials(logits, raw_max),
            scaled_max: own.unwrap_or(f32::NEG_INFINITY),
            scaled_sum: 0.0,
            top,
            candidates: Candidates { list, exhausted: true },
        }
    }

    /// Answers a query about the latest logits.
    ///
    /// # Errors
    /// None today; reserved for a query that this rank cannot answer.
    pub fn answer(&mut self, query: &Query) -> Result<Answer, SampleError> {
        let body = match query {
            Query::Ahead { reference, candidates, .. } => AnswerBody::Ahead(self.ahead(*reference, candidates)),
            Query::More { floor, .. } => AnswerBody::Candidates(self.more(CANDIDATES_MORE, *floor)),
            Query::Best { count, .. } => {
                let list = best(self.scaled.iter().copied(), usize::from(*count));
                AnswerBody::Candidates(self.candidates(&list))
            }
        };
        Ok(Answer(body))
    }

    /// Applies bias and penalties in place, to this slice's tokens only.
    fn adjust(&mut self, parameters: &SamplingParameters, history: &[u32]) {
        let (begin, length) = (self.begin, self.scaled.len());
        let own = |id: u32| id.checked_sub(begin).map(|index| index as usize).filter(|index| *index < length);
        for (id, bias) in &parameters.logit_bias {
            if let Some(index) = own(*id) {
                self.scaled[index] += bias;
            }
        }
        let is_off = parameters.repeat_penalty == 1.0
            && parameters.presence_penalty == 0.0
            && parameters.frequency_penalty == 0.0;
        if is_off {
            return;
        }
        let recent = &history[history.len().saturating_sub(parameters.penalty_last_n as usize)..];
        self.history.clear();
        self.history.reserve((parameters.penalty_last_n as usize).min(HISTORY_ROOM));
        self.history.extend(recent.iter().copied().filter(|id| own(*id).is_some()));
        self.history.sort_unstable();
        for same in self.history.chunk_by(|a, b| a == b) {
            let Some(index) = own(same[0]) else { continue };
            let logit = &mut self.scaled[index];
            let penalty = parameters.repeat_penalty;
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            *logit -= parameters.presence_penalty + parameters.frequency_penalty * same.len() as f32;
        }
    }

    fn candidates(&self, list: &[(f32, u32)]) -> Candidates {
        let exhausted = list.len() == self.scaled.len();
        Candidates { list: list.iter().map(|(_, index)| self.candidate(*index)).collect(), exhausted }
    }

    fn candidate(&self, index: u32) -> Candidate {
        let place = index as usize;
        Candidate { id: self.begin + index, raw: self.raw[place], scaled: self.scaled[place] }
    }

    /// The next candidates in the order of scaled logit + noise, without those below a scaled logit.
    fn more(&mut self, count: usize, floor: f32) -> Candidates {
        let mut list: List<(f64, u32), { CANDIDATES_MORE + 1 }> = List::new();
        for (index, scaled) in self.scaled.iter().enumerate() {
            if *scaled < floor {
                continue;
            }
            let id = self.begin + index as u32;
            let scaled = f64::from(*scaled);
            let full = list.len() == count;
            // Most tokens have no chance, which is detected without a logarithm.
            if scaled == f64::NEG_INFINITY || full && !self.noise.may_exceed(id, list[count - 1].0 - scaled) {
                continue;
            }
            let entry = (scaled + self.noise.of(id), id);
            let is_after_last = self.last.is_none_or(|last| order(last, entry) == Ordering::Less);
            if is_after_last && (!full || order(entry, list[count - 1]) == Ordering::Less) {
                let place = list.partition_point(|other| order(*other, entry) == Ordering::Less);
                list.insert(place, entry);
                list.truncate(count);
            }
        }
        self.last = list.last().copied().or(self.last);
        let exhausted = list.len() < count;
        Candidates { list: list.iter().map(|(_, id)| self.candidate(id - self.begin)).collect(), exhausted }
    }

    /// Probability ahead of each candidate in the order (scaled logit, id), relative to exp(reference).
    fn ahead(&self, reference: f32, candidates: &[(f32, u32)]) -> List<f64, AHEAD_MAX> {
        let mut masses = List::from_elem(0.0, candidates.len());
        let Some(last) = candidates.iter().copied().max_by(|a, b| order(*a, *b)) else { return masses };
        for (index, scaled) in self.scaled.iter().enumerate() {
            let own = (*scaled, self.begin + index as u32);
            // Most tokens are behind all candidates and need no exponential.
            if order(own, last) != Ordering::Less {
                continue;
            }
            let mass = (f64::from(*scaled) - f64::from(reference)).exp();
            for (sum, candidate) in masses.iter_mut().zip(candidates) {
                if order(own, *candidate) == Ordering::Less {
                    *sum += mass;
                }
            }
        }
        masses
    }
}

/// The largest value; -inf for an empty slice.
fn largest(values: &[f32]) -> f32 {
    values.iter().fold(f32::NEG_INFINITY, |largest, value| largest.max(*value))
}

/// The sum of exp(value - largest), summed in order; 0 if the largest value is -inf.
fn exponentials(values: &[f32], largest: f32) -> f64 {
    if largest == f32::NEG_INFINITY {
        return 0.0;
    }
    values.iter().map(|value| (f64::from(*value) - f64::from(largest)).exp()).sum()
}

/// The `count` best as (value, index), best first; entries of -inf are skipped.
fn best(values: impl Iterator<Item = f32>, count: usize) -> List<(f32, u32), { CANDIDATES_MORE + 1 }> {
    let mut list = List::new();
    if count == 0 {
        return list;
    }
    for (index, value) in values.enumerate() {
        let is_out = list.len() == count && value <= list[count - 1].0;
        if !is_out && value > f32::NEG_INFINITY {
            let entry = (value, index as u32);
            let place = list.partition_point(|other| order(*other, entry) == Ordering::Less);
            list.insert(place, entry);
            list.truncate(count);
        }
    }
    list
}
