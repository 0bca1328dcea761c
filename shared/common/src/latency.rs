//! The single definition of all latencies: TTFT, TPOT, rates and the histogram.
use serde::{Deserialize, Serialize};

use crate::units::Nanoseconds;

/// Times of one request on the head's clock, in nanoseconds since the request was received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestTimes {
    /// The engine took it from the queue.
    pub dispatched: Nanoseconds,
    /// The first token was sampled.
    pub first_token: Nanoseconds,
    /// The last token was sampled.
    pub last_token: Nanoseconds,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of the prompt found in the prefix cache.
    pub cached_tokens: u32,
    /// Sampled tokens, the end token included.
    pub sampled_tokens: u32,
    /// Speculative tokens that were proposed.
    pub drafted_tokens: u32,
    /// Speculative tokens that the model accepted.
    pub accepted_tokens: u32,
    /// Times of the remote prefill; zeros if there was none.
    pub transfer: TransferTimes,
    /// End of prefill: the prompt has passed the last stage and no token is sampled yet. 0: not reported.
    #[serde(default, with = "crate::version::since_5")]
    pub prefilled: Nanoseconds,
    /// The first token was written to the requesting session's socket. 0: not reported.
    #[serde(default, with = "crate::version::since_5")]
    pub sent: Nanoseconds,
    /// Time of receipt on the head's clock, from which `sent` counts. 0: not reported.
    #[serde(default, with = "crate::version::since_5")]
    pub received: Nanoseconds,
    /// Those of the cached tokens whose keys and values were read from the disks of the ranks.
    #[serde(default, with = "crate::version::since_13")]
    pub stored_tokens: u32,
}

/// A prompt computed by a prefill group, as seen by the head of the decode group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferTimes {
    /// Tokens whose keys and values were received.
    pub tokens: u32,
    /// Bytes of these keys and values, summed over all ranks.
    pub bytes: u64,
    /// From the request until the first step of the prefill group, on its clock.
    pub queued: Nanoseconds,
    /// From the group's first step to its last, on its clock.
    pub compute: Nanoseconds,
    /// The remaining time until the keys and values were available: the part of the transfer that compute did not hide.
    pub visible: Nanoseconds,
}

impl RequestTimes {
    /// Time to first token in milliseconds: from receipt of the request to the first token, queueing included.
    pub fn ttft_ms(&self) -> f64 {
        self.first_token.milliseconds()
    }

    /// End of prefill; the time of the first token if the peer does not report it.
    pub fn prefill_done(&self) -> Nanoseconds {
        if self.prefilled.0 == 0 {
            self.first_token
        } else {
            self.prefilled.clamp(self.dispatched.min(self.first_token), self.first_token)
        }
    }

    /// From the end of prefill to the first token: sampling.
    pub fn sampling(&self) -> Nanoseconds {
        Nanoseconds(self.first_token.0.saturating_sub(self.prefill_done().0))
    }

    /// From the first token until it was written to the session's socket; 0 if not reported.
    pub fn flush(&self) -> Nanoseconds {
        Nanoseconds(self.sent.0.saturating_sub(self.first_token.0))
    }

    /// Time per output token after the first, in milliseconds; 0 for a single token.
    pub fn tpot_ms(&self) -> f64 {
        let span = self.last_token.0.saturating_sub(self.first_token.0);
        ratio(Nanoseconds(span).milliseconds(), f64::from(self.sampled_tokens.saturating_sub(1)))
    }

    /// Prompt tokens per second, from the end of queueing to the first token.
    pub fn prefill_tokens_per_second(&self) -> f64 {
        let span = self.first_token.0.saturating_sub(self.dispatched.0);
        ratio(f64::from(self.prompt_tokens), span as f64 / 1e9)
    }

    /// Tokens per second after the first token.
    pub fn decode_tokens_per_second(&self) -> f64 {
        ratio(1e3, self.tpot_ms())
    }
}

/// `a / b`, or 0 if `b` is 0: numbers in JSON are never NaN or infinite.
pub fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

/// Buckets per power of two: values are resolved to 1/8.
const STEPS: u32 = 8;
/// Buckets for values up to 2^40 ns (18 minutes); the last bucket takes all larger values.
const BUCKETS: usize = (40 * STEPS) as usize;

/// A fixed-size histogram of times with logarithmic buckets (relative error below 7 %).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: Box<[u32; BUCKETS]>,
    total: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: Box::new([0; BUCKETS]), total: 0 }
    }
}

impl Histogram {
    /// Counts one value.
    pub fn record(&mut self, value: Nanoseconds) {
        let bucket = &mut self.counts[bucket_of(value.0)];
        *bucket = bucket.saturating_add(1);
        self.total += 1;
    }

    /// Values counted.
    pub fn count(&self) -> u64 {
        self.total
    }

    /// The value below which the share `quantile` (0 to 1) of all values lies; `None` if empty.
    pub fn quantile(&self, quantile: f64) -> Option<Nanoseconds> {
        let wanted = ((self.total as f64 * quantile).ceil() as u64).clamp(1, self.total.max(1));
        let mut seen = 0;
        self.counts.iter().enumerate().find_map(|(bucket, count)| {
            seen += u64::from(*count);
            (seen >= wanted && *count > 0).then(|| Nanoseconds(middle_of(bucket)))
        })
    }
}

fn bucket_of(value: u64) -> usize {
    let value = value.max(u64::from(STEPS));
    let power = 63 - value.leading_zeros();
    let step = (value >> (power - 3)) as u32 & (STEPS - 1);
    (((power - 3) * STEPS + step) as usize).min(BUCKETS - 1)
}

fn middle_of(bucket: usize) -> u64 {
    let (power, step) = (bucket as u64 / u64::from(STEPS), bucket as u64 % u64::from(STEPS));
    let low = (u64::from(STEPS) + step) << power;
    low + (1 << power) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_within_seven_percent_of_the_true_value() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), None);
        for value in 1..=10_000 {
            histogram.record(Nanoseconds(value * 1000));
        }
        for (quantile, truth) in [(0.5, 5e6), (0.95, 9.5e6), (0.99, 9.9e6)] {
            let found = histogram.quantile(quantile).expect("values were recorded").0 as f64;
            assert!((found / truth - 1.0).abs() < 0.07, "{quantile}: {found} instead of {truth}");
        }
    }

    #[test]
    fn times_follow_their_definitions() {
        let times = RequestTimes {
            dispatched: Nanoseconds(10_000_000),
            first_token: Nanoseconds(110_000_000),
            last_token: Nanoseconds(310_000_000),
            prompt_tokens: 50,
            sampled_tokens: 5,
            ..RequestTimes::default()
        };
        assert_eq!(times.ttft_ms(), 110.0);
        assert_eq!(times.tpot_ms(), 50.0);
        assert_eq!(times.prefill_tokens_per_second(), 500.0);
        assert_eq!(times.decode_tokens_per_second(), 20.0);
        assert_eq!(RequestTimes::default().decode_tokens_per_second(), 0.0);
    }

    #[test]
    fn stages_of_the_first_token_follow_each_other() {
        let ms = |ms: u64| Nanoseconds(ms * 1_000_000);
        let told = RequestTimes { dispatched: ms(10), first_token: ms(100), ..RequestTimes::default() };
        assert_eq!((told.prefill_done(), told.sampling(), told.flush()), (ms(100), ms(0), ms(0)), "an older peer");
        let told = RequestTimes { prefilled: ms(97), sent: ms(104), ..told };
        assert_eq!((told.prefill_done(), told.sampling(), told.flush()), (ms(97), ms(3), ms(4)));
        let odd = RequestTimes { prefilled: ms(300), sent: ms(1), ..told };
        assert_eq!((odd.prefill_done(), odd.sampling(), odd.flush()), (ms(100), ms(0), ms(0)));
    }
}
