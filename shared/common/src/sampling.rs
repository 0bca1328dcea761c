//! Sampling parameters of a request and their bounds. The sampler itself is in the daemon.
use serde::{Deserialize, Serialize};

/// Largest top-k; 0 disables it.
pub const TOP_K_MAX: u32 = 1024;
/// Most probable tokens that can be reported per step.
pub const LOGPROBS_MAX: u32 = 20;
/// Most log probabilities of a prompt: its tokens times the number reported at each position.
pub const SCORES_MAX: usize = 1 << 18;
/// Most biased tokens.
pub const LOGIT_BIAS_MAX: usize = 1024;

/// Parameters of a request's sampling, applied in this order: bias, penalties, temperature, top-k, top-p, min-p,
/// sampling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplingParameters {
    /// Divisor of the logits; 0 selects the most probable token (greedy).
    pub temperature: f32,
    /// Sample among this many most probable tokens; 0 disables it.
    pub top_k: u32,
    /// Sample among the most probable tokens whose probabilities add up to this share of those that top-k left; 1
    /// disables it.
    pub top_p: f32,
    /// Sample among tokens with at least this probability relative to the most probable token; 0 disables it.
    pub min_p: f32,
    /// Divisor of positive logits and factor of negative logits of tokens that appeared; 1 disables it (Keskar et al.
    /// 2019).
    pub repeat_penalty: f32,
    /// Subtracted from the logits of tokens that appeared; 0 disables it.
    pub presence_penalty: f32,
    /// Subtracted once for each appearance of a token; 0 disables it.
    pub frequency_penalty: f32,
    /// Number of latest tokens that the penalties consider, prompt included.
    pub penalty_last_n: u32,
    /// Added to the logits of individual tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed; random numbers are a function of it, the position and the token's id.
    pub seed: u64,
    /// Most probable tokens to report per step.
    pub logprobs: u32,
    /// Report the log probabilities of the prompt's tokens, too, with `logprobs` most probable tokens at each position. Since
    /// wire version 11.
    #[serde(default, with = "crate::version::since_11")]
    pub scores_prompt: bool,
    /// Report the embedding of the prompt instead of an answer. Since wire version 11.
    #[serde(default, with = "crate::version::since_11")]
    pub embeds: bool,
}

/// A parameter for which a model's file may have a default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpenParameter {
    /// `general.sampling.temp`.
    Temperature,
    /// `general.sampling.top_k`.
    TopK,
    /// `general.sampling.top_p`.
    TopP,
    /// `general.sampling.min_p`.
    MinP,
    /// `general.sampling.penalty_repeat`.
    RepeatPenalty,
}

/// Defaults of a model's file; it need not have all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingDefaults {
    /// `general.sampling.temp`.
    pub temperature: Option<f32>,
    /// `general.sampling.top_k`.
    pub top_k: Option<u32>,
    /// `general.sampling.top_p`.
    pub top_p: Option<f32>,
    /// `general.sampling.min_p`.
    pub min_p: Option<f32>,
    /// `general.sampling.penalty_repeat`.
    pub repeat_penalty: Option<f32>,
}

impl SamplingDefaults {
    /// Replaces the parameters that a client left open; keeps them if the result is out of bounds.
    pub fn fill(&self, sampling: &mut SamplingParameters, open: &[OpenParameter]) {
        let mut filled = sampling.clone();
        for parameter in open {
            match parameter {
                OpenParameter::Temperature => filled.temperature = self.temperature.unwrap_or(filled.temperature),
                OpenParameter::TopK => filled.top_k = self.top_k.unwrap_or(filled.top_k),
                OpenParameter::TopP => filled.top_p = self.top_p.unwrap_or(filled.top_p),
                OpenParameter::MinP => filled.min_p = self.min_p.unwrap_or(filled.min_p),
                OpenParameter::RepeatPenalty => {
                    filled.repeat_penalty = self.repeat_penalty.unwrap_or(filled.repeat_penalty);
                }
            }
        }
        if filled.check().is_ok() {
            *sampling = filled;
        }
    }
}

/// A parameter out of bounds.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{name} is {value}, but must be {bounds}")]
pub struct SamplingError {
    name: &'static str,
    value: String,
    bounds: String,
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
            scores_prompt: false,
            embeds: false,
        }
    }
}

/// Below this temperature, answers are greedy: logits divided by it could overflow.
const TEMPERATURE_MIN: f32 = 1e-5;

impl SamplingParameters {
    /// Replaces a temperature that is too small to matter by 0.
    pub fn settle(&mut self) {
        if self.temperature < TEMPERATURE_MIN {
            self.temperature = 0.0;
        }
    }

    /// Whether all positions of the prompt are computed, because those in the cache have neither logits nor hidden states.
    pub fn needs_whole_prompt(&self) -> bool {
        self.scores_prompt || self.embeds
    }

    /// Checks all bounds; NaN violates each of them.
    ///
    /// # Errors
    /// The first parameter that is out of its bounds.
    pub fn check(&self) -> Result<(), SamplingError> {
        let within = |name, value: f32, least: f32, most: f32| {
            let error = SamplingError { name, value: value.to_string(), bounds: format!("from {least} to {most}") };
            if (least..=most).contains(&value) { Ok(()) } else { Err(error) }
        };
        let at_most = |name, value: u64, most: u64| {
            let error = SamplingError { name, value: value.to_string(), bounds: format!("at most {most}") };
            if value <= most { Ok(()) } else { Err(error) }
        };
        within("temperature", self.temperature, 0.0, 100.0)?;
        within("top_p", self.top_p, 0.0, 1.0)?;
        within("min_p", self.min_p, 0.0, 1.0)?;
        within("repeat_penalty", self.repeat_penalty, 0.01, 100.0)?;
        within("presence_penalty", self.presence_penalty, -100.0, 100.0)?;
        within("frequency_penalty", self.frequency_penalty, -100.0, 100.0)?;
        at_most("top_k", u64::from(self.top_k), u64::from(TOP_K_MAX))?;
        at_most("logprobs", u64::from(self.logprobs), u64::from(LOGPROBS_MAX))?;
        at_most("the number of biased tokens", self.logit_bias.len() as u64, LOGIT_BIAS_MAX as u64)?;
        self.logit_bias.iter().try_for_each(|(_, bias)| within("a logit bias", *bias, -1000.0, 1000.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiny_temperatures_are_0() {
        for (given, expected) in [(1e-45, 0.0), (1e-38, 0.0), (1e-6, 0.0), (1e-5, 1e-5), (0.7, 0.7)] {
            let mut parameters = SamplingParameters { temperature: given, ..SamplingParameters::default() };
            parameters.settle();
            assert_eq!(parameters.temperature, expected, "{given}");
        }
    }

    #[test]
    fn defaults_fill_open_parameters_within_their_bounds() {
        let defaults = SamplingDefaults { temperature: Some(0.6), top_k: Some(20), ..SamplingDefaults::default() };
        let given = SamplingParameters { top_k: 7, ..SamplingParameters::default() };
        let mut filled = given.clone();
        defaults.fill(&mut filled, &[OpenParameter::Temperature, OpenParameter::TopP]);
        assert_eq!(filled, SamplingParameters { temperature: 0.6, ..given.clone() });
        let mut kept = given.clone();
        SamplingDefaults { top_p: Some(7.0), ..defaults }.fill(&mut kept, &[OpenParameter::TopP]);
        assert_eq!(kept, given, "a file cannot ask for the impossible");
    }

    #[test]
    fn every_parameter_has_bounds_and_nan_is_outside_of_them() {
        let check = |change: fn(&mut SamplingParameters)| {
            let mut parameters = SamplingParameters::default();
            change(&mut parameters);
            parameters.check()
        };
        assert_eq!(check(|_| {}), Ok(()));
        assert!(check(|p| p.temperature = f32::NAN).is_err());
        assert!(check(|p| p.temperature = -0.1).is_err());
        assert!(check(|p| p.top_p = 1.1).is_err());
        assert!(check(|p| p.min_p = f32::INFINITY).is_err());
        assert!(check(|p| p.repeat_penalty = 0.0).is_err());
        assert!(check(|p| p.presence_penalty = f32::NAN).is_err());
        assert!(check(|p| p.frequency_penalty = 101.0).is_err());
        assert!(check(|p| p.top_k = TOP_K_MAX + 1).is_err());
        assert!(check(|p| p.logprobs = 21).is_err());
        assert!(check(|p| p.logit_bias = vec![(0, 0.0); LOGIT_BIAS_MAX + 1]).is_err());
        assert!(check(|p| p.logit_bias = vec![(0, f32::NAN)]).is_err());
    }
}
