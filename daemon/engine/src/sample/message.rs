//! Messages between ranks for choosing a token: little-endian and bounded; malformed messages are errors.
use std::cmp::Ordering;

use common::sampling::{LOGPROBS_MAX, TOP_K_MAX};

use super::{AHEAD_MAX, CANDIDATES_MORE, List, SampleError};

/// A token that may be sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) id: u32,
    /// Logit as computed by the model.
    pub(super) raw: f32,
    /// Logit after bias, penalties and temperature.
    pub(super) scaled: f32,
}

/// First-round summary of a rank's slice of the vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    pub(super) raw_max: f32,
    /// Sum of exp(raw - raw_max) if log probabilities are wanted, else 0.
    pub(super) raw_sum: f64,
    pub(super) scaled_max: f32,
    /// Sum of exp(scaled - scaled_max) if the nucleus is one of the whole vocabulary, else 0.
    pub(super) scaled_sum: f64,
    /// Most probable raw logits, best first.
    pub(super) top: List<(u32, f32), { LOGPROBS_MAX as usize }>,
    pub(super) candidates: Candidates,
}

/// A rank's best candidates.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Candidates {
    /// Best first.
    pub(super) list: List<Candidate, CANDIDATES_MORE>,
    /// The slice has no others.
    pub(super) exhausted: bool,
}

/// A query of the chooser in a further round. `place` is the row of the token among the step's rows that want logits.
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for every token")]
#[derive(Clone, Debug, PartialEq)]
pub enum Query {
    /// How much probability is ahead of each (scaled logit, id), relative to exp(reference)?
    Ahead {
        /// Row in the step.
        place: u16,
        /// Exponents are relative to this.
        reference: f32,
        /// (scaled logit, id)
        candidates: List<(f32, u32), AHEAD_MAX>,
    },
    /// The next candidates in the order of logit + noise.
    More {
        /// Row in the step.
        place: u16,
        /// Least scaled logit of a token that may still be sampled. Since wire version 16.
        floor: f32,
    },
    /// The k best by scaled logit.
    Best {
        /// Row in the step.
        place: u16,
        /// How many.
        count: u16,
    },
}

/// A rank's answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer(pub(super) AnswerBody);

#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for every token")]
#[derive(Clone, Debug, PartialEq)]
pub(super) enum AnswerBody {
    Ahead(List<f64, AHEAD_MAX>),
    Candidates(Candidates),
}

impl Query {
    /// Row of the token in the step.
    pub fn place(&self) -> usize {
        match self {
            Self::Ahead { place, .. } | Self::More { place, .. } | Self::Best { place, .. } => usize::from(*place),
        }
    }

    /// Appends the encoded query to a payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Ahead { place, reference, candidates } => {
                out.push(0);
                out.extend(place.to_le_bytes());
                out.extend(reference.to_le_bytes());
                out.extend((candidates.len() as u16).to_le_bytes());
                for (scaled, id) in candidates {
                    out.extend(scaled.to_le_bytes());
                    out.extend(id.to_le_bytes());
                }
            }
            Self::More { place, floor } => {
                out.push(1);
                out.extend(place.to_le_bytes());
                out.extend(floor.to_le_bytes());
            }
            Self::Best { place, count } => {
                out.push(2);
                out.extend(place.to_le_bytes());
                out.extend(count.to_le_bytes());
            }
        }
    }

    /// Decodes a payload.
    ///
    /// # Errors
    /// The payload is not a valid query.
    pub fn decode(bytes: &[u8]) -> Result<Self, SampleError> {
        let mut reader = Reader(bytes);
        let kind = reader.u8()?;
        let place = reader.u16()?;
        let query = match kind {
            0 => {
                let reference = reader.f32()?;
                let count = reader.count(AHEAD_MAX)?;
                let candidates = (0..count).map(|_| Ok((reader.f32()?, reader.u32()?))).collect::<Result<_, _>>()?;
                Self::Ahead { place, reference, candidates }
            }
            1 => Self::More { place, floor: reader.f32()? },
            2 => Self::Best { place, count: reader.count(TOP_K_MAX as usize)? as u16 },
            _ => return Err(SampleError::Broken("unknown query")),
        };
        reader.end()?;
        Ok(query)
    }
}

impl Answer {
    /// The candidates, if the answer contains them.
    pub(super) fn candidates(&self) -> Option<&Candidates> {
        match &self.0 {
            AnswerBody::Candidates(candidates) => Some(candidates),
            AnswerBody::Ahead(_) => None,
        }
    }

    /// Appends the encoded answer to a payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match &self.0 {
            AnswerBody::Ahead(masses) => {
                out.push(0);
                out.extend((masses.len() as u16).to_le_bytes());
                masses.iter().for_each(|mass| out.extend(mass.to_le_bytes()));
            }
            AnswerBody::Candidates(candidates) => {
                out.push(1);
                candidates.encode(out);
            }
        }
    }

    /// Decodes a payload.
    ///
    /// # Errors
    /// The payload is not a valid answer.
    pub fn decode(bytes: &[u8]) -> Result<Self, SampleError> {
        let mut reader = Reader(bytes);
        let body = match reader.u8()? {
            0 => {
                let count = reader.count(AHEAD_MAX)?;
                AnswerBody::Ahead((0..count).map(|_| reader.f64()).collect::<Result<_, _>>()?)
            }
            1 => AnswerBody::Candidates(Candidates::decode(&mut reader, TOP_K_MAX as usize)?),
            _ => return Err(SampleError::Broken("unknown answer")),
        };
        reader.end()?;
        Ok(Self(body))
    }
}

impl Candidates {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.exhausted));
        out.extend((self.list.len() as u16).to_le_bytes());
        for candidate in &self.list {
            out.extend(candidate.id.to_le_bytes());
            out.extend(candidate.raw.to_le_bytes());
            out.extend(candidate.scaled.to_le_bytes());
        }
    }

    fn decode(reader: &mut Reader<'_>, most: usize) -> Result<Self, SampleError> {
        let exhausted = reader.u8()? != 0;
        let count = reader.count(most)?;
        let list =
            (0..count).map(|_| Ok(Candidate { id: reader.u32()?, raw: reader.number()?, scaled: reader.number()? }));
        Ok(Self { list: list.collect::<Result<_, _>>()?, exhausted })
    }
}

impl Summary {
    /// Largest encoded summary in bytes, for any parameters.
    pub const BYTES_MAX: usize = 24 + 2 + LOGPROBS_MAX as usize * 8 + 3 + CANDIDATES_MORE * 12;

    /// Summary of logits that are not finite: its largest logit is infinite, which is the case in no other summary.
    pub fn broken() -> Self {
        let (top, candidates) = (List::new(), Candidates::default());
        Self { raw_max: f32::INFINITY, raw_sum: 0.0, scaled_max: f32::INFINITY, scaled_sum: 0.0, top, candidates }
    }

    /// Whether the logits were not finite.
    pub fn is_broken(&self) -> bool {
        self.raw_max == f32::INFINITY
    }

    /// Appends the encoded summary to a payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.raw_max.to_le_bytes());
        out.extend(self.raw_sum.to_le_bytes());
        out.extend(self.scaled_max.to_le_bytes());
        out.extend(self.scaled_sum.to_le_bytes());
        out.extend((self.top.len() as u16).to_le_bytes());
        for (id, logit) in &self.top {
            out.extend(id.to_le_bytes());
            out.extend(logit.to_le_bytes());
        }
        self.candidates.encode(out);
    }

    /// Decodes a summary from the front of a payload; returns the rest.
    ///
    /// # Errors
    /// The payload does not begin with a valid summary.
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), SampleError> {
        let mut reader = Reader(bytes);
        let raw_max = reader.number()?;
        let raw_sum = reader.f64()?;
        let scaled_max = reader.number()?;
        let scaled_sum = reader.f64()?;
        let count = reader.count(LOGPROBS_MAX as usize)?;
        let top = (0..count).map(|_| Ok((reader.u32()?, reader.number()?))).collect::<Result<_, SampleError>>()?;
        let candidates = Candidates::decode(&mut reader, CANDIDATES_MORE)?;
        Ok((Self { raw_max, raw_sum, scaled_max, scaled_sum, top, candidates }, reader.0))
    }
}

impl Chosen {
    /// Appends the encoded token to a payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.id.to_le_bytes());
        out.extend(self.rounds.to_le_bytes());
        out.extend((self.top_logprobs.len() as u16).to_le_bytes());
        for (id, logprob) in &self.top_logprobs {
            out.extend(id.to_le_bytes());
            out.extend(logprob.to_le_bytes());
        }
    }

    /// Decodes a token from the front of a payload; returns the rest.
    ///
    /// # Errors
    /// The payload does not begin with a valid token.
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), SampleError> {
        let mut reader = Reader(bytes);
        let (id, rounds) = (reader.u32()?, reader.u32()?);
        let count = reader.count(LOGPROBS_MAX as usize + 1)?;
        let top_logprobs =
            (0..count).map(|_| Ok((reader.u32()?, reader.number()?))).collect::<Result<_, SampleError>>()?;
        Ok((Self { id, rounds, top_logprobs }, reader.0))
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], SampleError> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(SampleError::Broken("it is truncated"))?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn u8(&mut self) -> Result<u8, SampleError> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, SampleError> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, SampleError> {
        self.take().map(u32::from_le_bytes)
    }

    fn f32(&mut self) -> Result<f32, SampleError> {
        self.number()
    }

    /// Reads a number that is not NaN.
    fn number(&mut self) -> Result<f32, SampleError> {
        let number = f32::from_le_bytes(self.take()?);
        if number.is_nan() { Err(SampleError::Broken("a logit is NaN")) } else { Ok(number) }
    }

    fn f64(&mut self) -> Result<f64, SampleError> {
        let number = f64::from_le_bytes(self.take()?);
        if number >= 0.0 { Ok(number) } else { Err(SampleError::Broken("a sum is negative")) }
    }

    fn count(&mut self, most: usize) -> Result<usize, SampleError> {
        let count = usize::from(self.u16()?);
        if count <= most { Ok(count) } else { Err(SampleError::Broken("too many entries")) }
    }

    fn end(&self) -> Result<(), SampleError> {
        if self.0.is_empty() { Ok(()) } else { Err(SampleError::Broken("bytes follow its end")) }
    }
}

/// A sampled token.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// Token id.
    pub id: u32,
    /// The most probable tokens with their natural-log probabilities before temperature, penalties and bias, best
    /// first; the sampled token is appended if it is not among them. Empty if none were requested.
    pub top_logprobs: List<(u32, f32), { LOGPROBS_MAX as usize + 1 }>,
    /// Rounds beyond the first.
    pub rounds: u32,
}

impl Chosen {
    /// Not a token id: a constrained answer cannot continue.
    pub const NONE: u32 = u32::MAX;

    /// Not a token id: the logits of the sequence are not finite.
    pub const BROKEN: u32 = u32::MAX - 1;

    /// No token: a constrained answer cannot continue.
    pub fn none() -> Self {
        Self { id: Self::NONE, top_logprobs: List::new(), rounds: 0 }
    }

    /// No token: the logits are not finite.
    pub fn broken() -> Self {
        Self { id: Self::BROKEN, ..Self::none() }
    }
}

/// Orders by descending score, then ascending id.
pub(super) fn order<T: PartialOrd>(a: (T, u32), b: (T, u32)) -> Ordering {
    b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal).then(a.1.cmp(&b.1))
}
