//! How tokens are drawn: the parameters of a request.
use serde::{Deserialize, Serialize};

/// Parameters of a request's sampling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplingParameters {
    /// 0 = greedy.
    pub temperature: f32,
    /// 0 = off.
    pub top_k: u32,
    /// 1 = off.
    pub top_p: f32,
    /// 0 = off.
    pub min_p: f32,
    /// 1 = off.
    pub repeat_penalty: f32,
    /// 0 = off.
    pub presence_penalty: f32,
    /// 0 = off.
    pub frequency_penalty: f32,
    /// Tokens that the penalties look back on.
    pub penalty_last_n: u32,
    /// Added to the logits of single tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Most probable tokens to report, 0 to 20.
    pub logprobs: u32,
}

impl SamplingParameters {
    /// Temporary.
    ///
    /// # Errors
    /// None.
    pub fn check(&self) -> Result<(), std::fmt::Error> {
        Ok(())
    }
}

impl Default for SamplingParameters {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_last_n: 64,
            logit_bias: Vec::new(),
            seed: 0,
            logprobs: 0,
        }
    }
}
