//! Requests as observed by the sender, and their summary. TTFT and TPOT are defined in `common::latency`. Pure.
use std::collections::BTreeMap;

use common::{
    latency::{RequestTimes, ratio},
    units::Nanoseconds,
};
use serde::{Deserialize, Serialize};

use super::stats::{Percentiles, median};

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The answer is complete.
    Done,
    /// The server refused it because of overload (429 or 503), with this error code.
    Refused(String),
    /// It failed with this error code.
    Failed(String),
}

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Scheduled time, since the start of the load.
    pub due: Nanoseconds,
    /// Delay of the sender after the scheduled time.
    pub late: Nanoseconds,
    /// Times since the scheduled time, with the arrival of the first and last token at the sender, and token counts.
    pub times: RequestTimes,
    /// End of the answer, refusal or failure, since the scheduled time.
    pub ended_at: Nanoseconds,
    /// How it ended.
    pub ended: Ended,
    /// Stages of the time to first token, if the server reports them.
    pub stages: Option<Stages>,
}

/// Stages of the time to first token, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stages {
    /// Waiting in the queue.
    pub queue: f64,
    /// Computing on the head.
    pub compute: f64,
    /// Waking threads and waiting for the last one.
    pub threads: f64,
    /// Waiting for other ranks to compute.
    pub wait: f64,
    /// Transfers between ranks.
    pub wire: f64,
    /// Waiting for another pipeline stage.
    pub bubble: f64,
    /// From the end of the prefill to the first token.
    #[serde(default)]
    pub sampling: f64,
    /// From the first token until the first byte of the answer was written to the socket.
    #[serde(default)]
    pub flush: f64,
    /// Everything else: between this program and the head, and on the head between steps.
    pub rest: f64,
}

impl Stages {
    /// Names and times in display order.
    pub fn named(&self) -> [(&'static str, f64); 9] {
        [
            ("queue", self.queue),
            ("compute", self.compute),
            ("threads", self.threads),
            ("wait", self.wait),
            ("wire", self.wire),
            ("bubble", self.bubble),
            ("sampling", self.sampling),
            ("flush", self.flush),
            ("rest", self.rest),
        ]
    }

    /// Share of `wait` and `wire` in the time of the steps on the head.
    pub fn network_fraction(self) -> f64 {
        let network = self.wait + self.wire;
        ratio(network, self.compute + self.threads + network)
    }

    /// Sets `rest` so that the stages add up to the TTFT.
    pub fn filled(self, ttft_ms: f64) -> Self {
        let known: f64 = Self { rest: 0.0, ..self }.named().iter().map(|(_, time)| time).sum();
        Self { rest: (ttft_ms - known).max(0.0), ..self }
    }

    /// The median of each stage; `None` without values.
    pub fn median(all: &[Self]) -> Option<Self> {
        let of = |pick: fn(&Self) -> f64| median(&all.iter().map(pick).collect::<Vec<_>>());
        Some(Self {
            queue: of(|it| it.queue)?,
            compute: of(|it| it.compute)?,
            threads: of(|it| it.threads)?,
            wait: of(|it| it.wait)?,
            wire: of(|it| it.wire)?,
            bubble: of(|it| it.bubble)?,
            sampling: of(|it| it.sampling)?,
            flush: of(|it| it.flush)?,
            rest: of(|it| it.rest)?,
        })
    }
}

/// Latency objectives of a good answer; `None` = no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Slo {
    /// Time to first token, in milliseconds.
    pub ttft_ms: Option<f64>,
    /// Time per output token, in milliseconds.
    pub tpot_ms: Option<f64>,
}

impl Slo {
    fn is_met(&self, times: &RequestTimes) -> bool {
        let within = |value: f64, limit: Option<f64>| limit.is_none_or(|limit| value <= limit);
        within(times.ttft_ms(), self.ttft_ms) && within(times.tpot_ms(), self.tpot_ms)
    }
}

/// Summary of a load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of requests sent.
    pub requests: u64,
    /// Number of complete answers.
    pub completed: u64,
    /// Time from the first request to the last answer, in seconds.
    pub seconds: f64,
    /// Prompt tokens of complete answers.
    pub prompt_tokens: u64,
    /// Output tokens of complete answers.
    pub tokens: u64,
    /// Complete answers per second.
    pub completed_per_second: f64,
    /// Output tokens of complete answers per second.
    pub tokens_per_second: f64,
    /// Prompt tokens of complete answers per second.
    pub prompt_tokens_per_second: f64,
    /// Output tokens per second while all requests decoded; `None` if they never did at the same time.
    pub steady_tokens_per_second: Option<f64>,
    /// Time to first token since the scheduled time, in milliseconds.
    pub ttft_ms: Percentiles,
    /// Time per output token after the first, in milliseconds.
    pub tpot_ms: Percentiles,
    /// Time from the scheduled time to the end of the answer, in milliseconds.
    pub e2e_ms: Percentiles,
    /// Complete answers that met the objectives.
    pub good: u64,
    /// Complete answers per second that met the objectives.
    pub goodput_per_second: f64,
    /// Requests that the server refused because of overload.
    pub refused: u64,
    /// Time from sending to the refusal, in milliseconds.
    pub refusal_ms: Percentiles,
    /// Requests without a complete answer by error code, including refusals.
    pub errors: BTreeMap<String, u64>,
    /// Delay of sending in milliseconds: above a few milliseconds, this machine limits the load.
    pub late_ms: Percentiles,
    /// Median stages of the time to first token.
    pub stages: Option<Stages>,
}

impl Summary {
    /// Summarizes the samples of a load.
    pub fn of(samples: &[Sample], slo: &Slo) -> Self {
        let milliseconds = |time: Nanoseconds| time.milliseconds();
        let done = || samples.iter().filter(|sample| sample.ended == Ended::Done);
        let percentiles = |values: &mut dyn Iterator<Item = f64>| Percentiles::of(values.collect());
        let refused = || samples.iter().filter(|sample| matches!(sample.ended, Ended::Refused(_)));
        let begin = samples.iter().map(|sample| sample.due.0).min().unwrap_or(0);
        let end = samples.iter().map(|sample| sample.due.0 + sample.ended_at.0).max().unwrap_or(0);
        let seconds = (end - begin) as f64 / 1e9;
        let tokens: u64 = done().map(|sample| u64::from(sample.times.sampled_tokens)).sum();
        let prompt_tokens: u64 = done().map(|sample| u64::from(sample.times.prompt_tokens)).sum();
        let good = done().filter(|sample| slo.is_met(&sample.times)).count() as u64;
        let mut errors = BTreeMap::new();
        for sample in samples {
            if let Ended::Refused(code) | Ended::Failed(code) = &sample.ended {
                *errors.entry(code.clone()).or_default() += 1;
            }
        }
        let stages: Vec<Stages> = done().filter_map(|sample| sample.stages).collect();
        let completed = done().count() as u64;
        Self {
            requests: samples.len() as u64,
            completed,
            seconds,
            prompt_tokens,
            tokens,
            completed_per_second: ratio(completed as f64, seconds),
            tokens_per_second: ratio(tokens as f64, seconds),
            prompt_tokens_per_second: ratio(prompt_tokens as f64, seconds),
            steady_tokens_per_second: steady(samples),
            ttft_ms: percentiles(&mut done().map(|sample| sample.times.ttft_ms())),
            // An answer of one token has no TPOT.
            tpot_ms: percentiles(
                &mut done().filter(|sample| sample.times.sampled_tokens > 1).map(|sample| sample.times.tpot_ms()),
            ),
            e2e_ms: percentiles(&mut done().map(|sample| milliseconds(sample.ended_at))),
            good,
            goodput_per_second: ratio(good as f64, seconds),
            refused: refused().count() as u64,
            refusal_ms: percentiles(
                &mut refused().map(|sample| milliseconds(Nanoseconds(sample.ended_at.0.saturating_sub(sample.late.0)))),
            ),
            errors,
            late_ms: percentiles(&mut samples.iter().map(|sample| milliseconds(sample.late))),
            stages: Stages::median(&stages),
        }
    }
}

impl Summary {
    /// Summarizes consecutive loads as if they were one, with the median of their steady rates.
    pub fn of_waves(waves: Vec<Vec<Sample>>, slo: &Slo) -> Self {
        let rates: Vec<f64> = waves.iter().filter_map(|wave| steady(wave)).collect();
        let (mut all, mut begin) = (Vec::new(), 0);
        for wave in waves {
            let end = wave.iter().map(|sample| sample.due.0 + sample.ended_at.0).max().unwrap_or(0);
            all.extend(wave.into_iter().map(|sample| Sample { due: Nanoseconds(sample.due.0 + begin), ..sample }));
            begin += end;
        }
        Self { steady_tokens_per_second: median(&rates), ..Self::of(&all, slo) }
    }
}

/// Output tokens per second while every request of a wave decodes, that is from the latest first token to the earliest
/// last token: the sum of the decode rates of the requests.
fn steady(samples: &[Sample]) -> Option<f64> {
    if samples.is_empty() || samples.iter().any(|sample| sample.ended != Ended::Done) {
        return None;
    }
    let begin = samples.iter().map(|sample| sample.due.0 + sample.times.first_token.0).max()?;
    let end = samples.iter().map(|sample| sample.due.0 + sample.times.last_token.0).min()?;
    let is_long = samples.iter().all(|sample| sample.times.sampled_tokens > 1);
    (is_long && begin < end).then(|| samples.iter().map(|sample| sample.times.decode_tokens_per_second()).sum())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A complete answer: scheduled time, TTFT and time of the last token in milliseconds, and the number of tokens.
    pub(in crate::measurement) fn sample(due: u64, first: u64, last: u64, tokens: u32) -> Sample {
        let ms = |ms: u64| Nanoseconds(ms * 1_000_000);
        Sample {
            due: ms(due),
            late: ms(0),
            times: RequestTimes {
                first_token: ms(first),
                last_token: ms(last),
                prompt_tokens: 10,
                sampled_tokens: tokens,
                ..RequestTimes::default()
            },
            ended_at: ms(last),
            ended: Ended::Done,
            stages: None,
        }
    }

    #[test]
    fn summary_covers_complete_answers_and_goodput_those_within_slo() {
        let failed = Sample { ended: Ended::Failed("lost".into()), ended_at: Nanoseconds(1), ..sample(0, 0, 0, 0) };
        let mut refused = Sample { ended: Ended::Refused("queue_full".into()), ..sample(5, 0, 0, 0) };
        (refused.ended_at, refused.late) = (Nanoseconds(5_000_000), Nanoseconds(3_000_000));
        let samples = [sample(0, 100, 400, 4), sample(600, 200, 1400, 4), failed, refused];
        let summary = Summary::of(&samples, &Slo { ttft_ms: Some(150.0), tpot_ms: Some(100.0) });
        assert_eq!((summary.requests, summary.completed, summary.good, summary.refused), (4, 2, 1, 1));
        assert_eq!((summary.seconds, summary.tokens_per_second, summary.goodput_per_second), (2.0, 4.0, 0.5));
        assert_eq!((summary.ttft_ms.p50, summary.ttft_ms.p95, summary.tpot_ms.p95), (100.0, 200.0, 400.0));
        assert_eq!((summary.refusal_ms.p50, summary.late_ms.p99), (2.0, 3.0));
        assert_eq!(summary.errors, BTreeMap::from([("lost".into(), 1), ("queue_full".into(), 1)]));
        assert_eq!(Summary::of(&[], &Slo::default()), Summary::default());
    }

    #[test]
    fn steady_rate_needs_all_requests_decoding_at_once() {
        let together = [sample(0, 100, 500, 5), sample(0, 300, 900, 13)];
        assert_eq!(Summary::of(&together, &Slo::default()).steady_tokens_per_second.map(f64::round), Some(30.0));
        let waves = vec![together.to_vec(), together.to_vec()];
        let summary = Summary::of_waves(waves, &Slo::default());
        assert_eq!(summary.steady_tokens_per_second.map(f64::round), Some(30.0));
        assert_eq!((summary.requests, summary.seconds, summary.tokens_per_second), (4, 1.8, 20.0));
        let apart = [sample(0, 100, 300, 5), sample(0, 400, 900, 6)];
        assert_eq!(Summary::of(&apart, &Slo::default()).steady_tokens_per_second, None);
    }

    #[test]
    fn stages_add_up_to_the_time_to_first_token() {
        let stages = Stages { queue: 1.0, compute: 3.0, sampling: 0.5, flush: 1.5, ..Stages::default() };
        assert_eq!(stages.filled(10.0).rest, 4.0);
        assert_eq!(stages.filled(3.0).rest, 0.0);
        let both = [stages.filled(10.0), stages.filled(20.0)];
        assert_eq!(Stages::median(&both).map(|stages| (stages.queue, stages.rest)), Some((1.0, 9.0)));
        assert_eq!(Stages::median(&[]), None);
    }
}
