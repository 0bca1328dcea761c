//! TEMPORARY greedy sampler: replaced by the sampling branch.
#![allow(missing_docs, reason = "temporary")]
use shared::sampling::SamplingParameters;
#[derive(Debug, thiserror::Error)]
#[error("sampling: {0}")]
pub struct SampleError(String);
#[derive(Debug)]
pub struct Slice {
    begin: u32,
}
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    best: Option<(f32, u32)>,
}
impl Slice {
    pub fn new(begin: u32) -> Self {
        Self { begin }
    }
    pub fn summary(
        &mut self,
        _p: &SamplingParameters,
        _pos: u32,
        _h: &[u32],
        logits: &[f32],
    ) -> Result<Summary, SampleError> {
        let best = logits.iter().enumerate().fold(None, |b: Option<(f32, u32)>, (i, l)| {
            if b.is_none_or(|b| *l > b.0) { Some((*l, self.begin + i as u32)) } else { b }
        });
        Ok(Summary { best })
    }
    pub fn answer(&mut self, _q: &Query) -> Result<Answer, SampleError> {
        Ok(Answer)
    }
}
impl Summary {
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (l, i) = self.best.unwrap_or((f32::NEG_INFINITY, 0));
        out.extend(l.to_le_bytes());
        out.extend(i.to_le_bytes());
    }
    pub fn decode(b: &[u8]) -> Result<(Self, &[u8]), SampleError> {
        let (h, r) = b.split_first_chunk::<8>().ok_or_else(|| SampleError("short".into()))?;
        Ok((
            Self {
                best: Some((
                    f32::from_le_bytes([h[0], h[1], h[2], h[3]]),
                    u32::from_le_bytes([h[4], h[5], h[6], h[7]]),
                )),
            },
            r,
        ))
    }
}
#[derive(Debug)]
pub struct Query;
impl Query {
    pub fn place(&self) -> usize {
        0
    }
    pub fn encode(&self, _o: &mut Vec<u8>) {}
    pub fn decode(_b: &[u8]) -> Result<Self, SampleError> {
        Ok(Self)
    }
}
#[derive(Debug)]
pub struct Answer;
impl Answer {
    pub fn encode(&self, _o: &mut Vec<u8>) {}
    pub fn decode(_b: &[u8]) -> Result<Self, SampleError> {
        Ok(Self)
    }
}
#[derive(Debug)]
pub enum Step {
    Done(Chosen),
    Ask(Query),
}
#[derive(Debug)]
pub struct Chosen {
    pub id: u32,
    pub top_logprobs: Vec<(u32, f32)>,
    pub rounds: u32,
}
#[derive(Debug)]
pub struct Chooser;
impl Chooser {
    pub fn new(
        _place: usize,
        _p: &SamplingParameters,
        _pos: u32,
        s: Vec<Summary>,
    ) -> Result<(Self, Step), SampleError> {
        let id = s.iter().filter_map(|s| s.best).fold((f32::NEG_INFINITY, 0), |a, b| if b.0 > a.0 { b } else { a }).1;
        Ok((Self, Step::Done(Chosen { id, top_logprobs: Vec::new(), rounds: 0 })))
    }
    pub fn answer(&mut self, _a: Vec<Answer>) -> Result<Step, SampleError> {
        Err(SampleError("unreachable".into()))
    }
}
