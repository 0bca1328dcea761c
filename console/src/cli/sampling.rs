//! The options of how tokens are drawn, and the request that they make.
use clap::Args;
use shared::{
    protocol::message::{self, STOP_BYTES_MAX},
    sampling::SamplingParameters,
};

fn number(text: &str, least: f32, most: f32) -> Result<f32, String> {
    let value: f32 = text.parse().map_err(|_| "a number".to_owned())?;
    if (least..=most).contains(&value) { Ok(value) } else { Err(format!("from {least} to {most}")) }
}

fn stop(text: &str) -> Result<String, String> {
    let fits = (1..=STOP_BYTES_MAX).contains(&text.len());
    if fits { Ok(text.into()) } else { Err(format!("1 to {STOP_BYTES_MAX} bytes")) }
}

/// How tokens are drawn.
#[derive(Clone, Debug, Args)]
pub(super) struct Sampling {
    /// 0 = always the most probable token
    #[arg(long, default_value_t = 0.8, value_name = "T", value_parser = |text: &str| number(text, 0.0, 100.0))]
    temperature: f32,
    /// Draw among the K most probable tokens only; 0 = all
    #[arg(long, default_value_t = 0, value_name = "K", value_parser = clap::value_parser!(u32).range(0..=1024))]
    top_k: u32,
    /// Draw among the most probable tokens with this share of the probability; 1 = all
    #[arg(long, default_value_t = 1.0, value_name = "P", value_parser = |text: &str| number(text, 0.0, 1.0))]
    top_p: f32,
    /// Draw among tokens at least this probable, relative to the most probable; 0 = all
    #[arg(long, default_value_t = 0.0, value_name = "P", value_parser = |text: &str| number(text, 0.0, 1.0))]
    min_p: f32,
    /// Divide the logits of tokens that appeared by this; 1 = off
    #[arg(long, default_value_t = 1.0, value_name = "X", value_parser = |text: &str| number(text, 0.01, 100.0))]
    repeat_penalty: f32,
    /// Lower the logits of tokens that appeared by this
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true, value_parser = |text: &str| number(text, -100.0, 100.0))]
    presence_penalty: f32,
    /// Lower the logits of tokens by this for each time they appeared
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true, value_parser = |text: &str| number(text, -100.0, 100.0))]
    frequency_penalty: f32,
    /// Seed of the random numbers [default: random, printed]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Most tokens to generate
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// Text that ends the generation; may be given several times
    #[arg(long, value_name = "TEXT", value_parser = stop)]
    stop: Vec<String>,
}

impl Sampling {
    /// The request for a prompt, with a random seed where none was given.
    pub(super) fn request(&self, prompt: String, logprobs: u32) -> message::Generate {
        let sampling = SamplingParameters {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed.unwrap_or_else(random_seed),
            logprobs,
            ..SamplingParameters::default()
        };
        message::Generate::new(prompt, self.max_tokens, sampling, self.stop.clone())
    }
}

/// 32 bits from the system's randomness: short enough to be typed again.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish() >> 32
}
