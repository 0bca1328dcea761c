//! The sampling options, and the request that they form.
use clap::Args;
use common::sampling::SamplingParameters;
use protocol::message::{self, STOP_BYTES_MAX};

fn number(text: &str, least: f32, most: f32) -> Result<f32, String> {
    let value: f32 = text.parse().map_err(|_| "expected a number".to_owned())?;
    if (least..=most).contains(&value) { Ok(value) } else { Err(format!("expected {least} to {most}")) }
}

fn stop(text: &str) -> Result<String, String> {
    let fits = (1..=STOP_BYTES_MAX).contains(&text.len());
    if fits { Ok(text.into()) } else { Err(format!("expected 1 to {STOP_BYTES_MAX} bytes")) }
}

/// Sampling options.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct Sampling {
    /// Sampling temperature; 0 is greedy
    #[arg(long, default_value_t = 0.8, value_name = "T", allow_negative_numbers = true, value_parser = |text: &str| number(text, 0.0, 100.0))]
    temperature: f32,
    /// Seed of the random numbers [default: random, printed]
    #[arg(long, hide_short_help = true, value_name = "S")]
    seed: Option<u64>,
    /// Largest number of tokens to generate
    #[arg(long, default_value_t = 64, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// Sample from the K most probable tokens; 0 = all
    #[arg(long, hide_short_help = true, default_value_t = 0, value_name = "K", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(0..=1024))]
    top_k: u32,
    /// Sample from the smallest set of most probable tokens with this total probability; 1 = all
    #[arg(long, hide_short_help = true, default_value_t = 1.0, value_name = "P", allow_negative_numbers = true, value_parser = |text: &str| number(text, 0.0, 1.0))]
    top_p: f32,
    /// Sample from tokens with at least this probability relative to the most probable one; 0 = all
    #[arg(long, hide_short_help = true, default_value_t = 0.0, value_name = "P", allow_negative_numbers = true, value_parser = |text: &str| number(text, 0.0, 1.0))]
    min_p: f32,
    /// Divide the logits of tokens that have appeared by this factor; 1 = off
    #[arg(long, hide_short_help = true, default_value_t = 1.0, value_name = "X", allow_negative_numbers = true, value_parser = |text: &str| number(text, 0.01, 100.0))]
    repeat_penalty: f32,
    /// Subtract this from the logits of tokens that have appeared
    #[arg(long, hide_short_help = true, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true, value_parser = |text: &str| number(text, -100.0, 100.0))]
    presence_penalty: f32,
    /// Subtract this from the logits of tokens for each time they have appeared
    #[arg(long, hide_short_help = true, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true, value_parser = |text: &str| number(text, -100.0, 100.0))]
    frequency_penalty: f32,
    /// Stop at this text; repeatable
    #[arg(long, hide_short_help = true, value_name = "TEXT", value_parser = stop)]
    stop: Vec<String>,
}

impl Sampling {
    /// The request for a prompt. Without `--seed`, the seed is random.
    pub(crate) fn request(&self, prompt: String, logprobs: u32) -> message::Generate {
        let sampling = SamplingParameters {
            temperature: self.temperature,
            seed: self.seed.unwrap_or_else(random_seed),
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logprobs,
            ..SamplingParameters::default()
        };
        message::Generate::new(prompt, self.max_tokens, sampling, self.stop.clone())
    }

    /// Sets a parameter by its name, with the limits of its option.
    ///
    /// # Errors
    /// The name is unknown or the value invalid; the message lists the valid ones.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let whole = |least: u32, most: u32| {
            let number = value.parse::<u32>().ok().filter(|number| (least..=most).contains(number));
            number.ok_or_else(|| format!("{name} is {value:?}: expected a whole number from {least} to {most}"))
        };
        let real = |least: f32, most: f32| {
            number(value, least, most).map_err(|reason| format!("{name} is {value:?}: {reason}"))
        };
        match name.replace('-', "_").as_str() {
            "temperature" => self.temperature = real(0.0, 100.0)?,
            "top_p" => self.top_p = real(0.0, 1.0)?,
            "min_p" => self.min_p = real(0.0, 1.0)?,
            "repeat_penalty" => self.repeat_penalty = real(0.01, 100.0)?,
            "top_k" => self.top_k = whole(0, 1024)?,
            "max_tokens" => self.max_tokens = whole(1, u32::MAX)?,
            "seed" if value == "random" => self.seed = None,
            "seed" => {
                let seed =
                    value.parse().map_err(|_| format!("seed is {value:?}: expected a whole number or random"))?;
                self.seed = Some(seed);
            }
            _ => {
                let names = "temperature, max_tokens, top_p, top_k, min_p, repeat_penalty, seed";
                return Err(format!("unknown setting {name}; known: {names}"));
            }
        }
        Ok(())
    }

    /// The parameters that [`Self::set`] accepts, in one line.
    pub(crate) fn summary(&self) -> String {
        let seed = self.seed.map_or_else(|| "random".to_owned(), |seed| seed.to_string());
        format!(
            "temperature {}, max_tokens {}, top_p {}, top_k {}, min_p {}, repeat_penalty {}, seed {seed}",
            self.temperature, self.max_tokens, self.top_p, self.top_k, self.min_p, self.repeat_penalty
        )
    }
}

/// A random 32-bit number from the system, short enough to be typed.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish() >> 32
}
