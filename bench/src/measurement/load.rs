//! The requests of a load and their times: random arrivals (open loop), a trace, or each request as soon as the
//! previous one is done (closed loop). Pure.
use std::time::Duration;

use serde::Deserialize;

use super::stats::Random;

/// Largest number of requests of a load.
pub const REQUESTS_MAX: usize = 1_000_000;
/// Maximum size of a trace file in bytes.
pub const TRACE_BYTES_MAX: u64 = 256 << 20;
/// Largest length of a random prompt in tokens.
pub const PROMPT_TOKENS_MAX: u32 = 1 << 17;
/// Token ids that every vocabulary has and none treats as special: bytes (in Llama, after three special tokens).
const TOKENS: std::ops::Range<u32> = 3..256;

/// The prompt of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// A text.
    Text(String),
    /// This many random tokens, different for each request.
    Made(u32),
}

/// A request to send.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its prompt.
    pub prompt: Prompt,
    /// Largest number of tokens to generate.
    pub max_tokens: u32,
}

/// The tokens of a random prompt, determined by the seed. Different seeds give different prefixes, so that no prefix
/// is in a cache.
pub fn tokens(count: u32, seed: u64) -> Vec<u32> {
    let mut random = Random::new(seed);
    let span = u64::from(TOKENS.end - TOKENS.start);
    (0..count.min(PROMPT_TOKENS_MAX)).map(|_| TOKENS.start + (random.bits() % span) as u32).collect()
}

/// Arrival times of independent requests: a Poisson process with `rate` per second, until `until` or `count` requests.
pub fn arrivals(rate: f64, until: Duration, count: usize, seed: u64) -> Vec<Duration> {
    let mut random = Random::new(seed);
    let mut at = 0.0;
    let times = std::iter::from_fn(|| {
        at += -random.share().ln() / rate;
        (at < until.as_secs_f64()).then(|| Duration::from_secs_f64(at))
    });
    times.take(count.min(REQUESTS_MAX)).collect()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TraceLine {
    at_ms: f64,
    prompt: Option<String>,
    prompt_tokens: Option<u32>,
    max_tokens: u32,
}

/// Parses a trace with one JSON object per line: `at_ms`, `prompt` or `prompt_tokens`, and `max_tokens`. Returns the
/// requests ordered by time.
///
/// # Errors
/// The first invalid line, with its number.
pub fn trace(text: &str) -> Result<Vec<(Duration, Job)>, String> {
    let mut jobs = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        jobs.push(trace_line(line).map_err(|error| format!("line {}: {error}", index + 1))?);
        if jobs.len() > REQUESTS_MAX {
            return Err(format!("more than {REQUESTS_MAX} requests"));
        }
    }
    if jobs.is_empty() {
        return Err("the file has no requests".into());
    }
    jobs.sort_by_key(|(at, _)| *at);
    Ok(jobs)
}

fn trace_line(line: &str) -> Result<(Duration, Job), String> {
    let line: TraceLine = serde_json::from_str(line).map_err(|error| error.to_string())?;
    if !(0.0..=86_400_000.0).contains(&line.at_ms) {
        return Err("at_ms must be 0 to 86400000 (a day)".into());
    }
    let prompt = match (line.prompt, line.prompt_tokens) {
        (Some(text), None) if !text.is_empty() => Prompt::Text(text),
        (None, Some(count)) if (1..=PROMPT_TOKENS_MAX).contains(&count) => Prompt::Made(count),
        _ => return Err(format!("expected either prompt, a text, or prompt_tokens, 1 to {PROMPT_TOKENS_MAX}")),
    };
    if line.max_tokens == 0 {
        return Err("max_tokens must be at least 1".into());
    }
    Ok((Duration::from_secs_f64(line.at_ms / 1e3), Job { prompt, max_tokens: line.max_tokens }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_have_the_rate_and_exponential_gaps() {
        let found = arrivals(50.0, Duration::from_secs(200), usize::MAX, 1);
        assert!((found.len() as f64 / 10_000.0 - 1.0).abs() < 0.03, "{}", found.len());
        assert!(found.is_sorted());
        let gaps: Vec<f64> = found.windows(2).map(|two| (two[1] - two[0]).as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        // The standard deviation of an exponential distribution is its mean.
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.05, "{}", variance.sqrt() / mean);
        assert_eq!(arrivals(50.0, Duration::from_secs(200), 7, 1), found[..7]);
        assert_ne!(arrivals(50.0, Duration::from_secs(200), 7, 2), found[..7]);
    }

    #[test]
    fn trace_is_ordered_by_time_and_invalid_line_is_named() {
        let text = "{\"at_ms\":20,\"prompt\":\"x\",\"max_tokens\":2}\n\n{\"at_ms\":1.5,\"prompt_tokens\":9,\"max_tokens\":1}\n";
        let made = (Duration::from_micros(1500), Job { prompt: Prompt::Made(9), max_tokens: 1 });
        let said = (Duration::from_millis(20), Job { prompt: Prompt::Text("x".into()), max_tokens: 2 });
        assert_eq!(trace(text), Ok(vec![made, said]));
        for (wrong, part) in [
            ("", "no requests"),
            ("\n{\"at_ms\":-1,\"prompt\":\"x\",\"max_tokens\":2}", "line 2: at_ms"),
            ("{\"at_ms\":1,\"max_tokens\":2}", "either prompt"),
            ("{\"at_ms\":1,\"prompt_tokens\":999999999,\"max_tokens\":2}", "either prompt"),
            ("{\"at_ms\":1,\"prompt\":\"x\",\"max_tokens\":0}", "at least 1"),
            ("{\"at_ms\":1,\"prompt\":\"x\",\"max_tokens\":1,\"rate\":2}", "rate"),
            ("at_ms 1", "line 1"),
        ] {
            assert!(trace(wrong).is_err_and(|error| error.contains(part)), "{wrong}");
        }
    }

    #[test]
    fn random_prompts_differ_from_their_first_tokens_on() {
        let (one, other) = (tokens(64, 1), tokens(64, 2));
        assert!(one.len() == 64 && one[..8] != other[..8] && one == tokens(64, 1));
        assert!(one.iter().all(|token| TOKENS.contains(token)));
    }
}
