//! Timing of requests by stage, and the latest traces. Milliseconds since the request was accepted; the head's own
//! times are added to the time at which the request was sent there, so that clocks of two machines are never compared.
use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use common::{latency::ratio, units::Nanoseconds};
use serde_json::{Value, json};

use super::answer::Ended;

/// Most traces kept.
const KEPT: usize = 256;

/// The latest traces, oldest first.
#[derive(Debug, Default)]
pub(super) struct Traces(Mutex<VecDeque<Value>>);

impl Traces {
    /// Stores a trace; drops the oldest if there are too many.
    pub(super) fn keep(&self, trace: Value) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(trace);
    }

    /// The latest `limit` traces, oldest first.
    pub(super) fn latest(&self, limit: usize) -> Vec<Value> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().skip(kept.len().saturating_sub(limit)).cloned().collect()
    }
}

/// llama-server's timings of one answer, extended with its trace. `first_byte` and `done` are when the client received
/// them.
pub(super) fn timings(ended: &Ended, first_byte: Option<Duration>, done: Duration) -> Value {
    let times = &ended.finished.times;
    let prompt_ms = times.first_token.0.saturating_sub(times.dispatched.0) as f64 / 1e6;
    let predicted_ms = times.last_token.0.saturating_sub(times.first_token.0) as f64 / 1e6;
    let prompt_n = ended.prompt_tokens.saturating_sub(times.cached_tokens as usize) as f64;
    let predicted_n = f64::from(times.sampled_tokens);
    json!({
        "cache_n": times.cached_tokens,
        "stored_n": times.stored_tokens,
        "prompt_n": prompt_n as u64,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": ratio(prompt_ms, prompt_n),
        "prompt_per_second": ratio(1e3 * prompt_n, prompt_ms),
        "predicted_n": times.sampled_tokens,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": times.tpot_ms(),
        "predicted_per_second": ratio(1e3 * (predicted_n - 1.0).max(0.0), predicted_ms),
        "draft_n": times.drafted_tokens,
        "draft_n_accepted": times.accepted_tokens,
        "trace": trace(ended, first_byte, done),
    })
}

/// The times of an answer's stages.
pub(super) fn trace(ended: &Ended, first_byte: Option<Duration>, done: Duration) -> Value {
    let times = &ended.finished.times;
    let dispatched = milliseconds(ended.dispatched);
    let received = ended.first_token.map_or(dispatched, milliseconds);
    // A resumed answer has the times of its last head; its prefill was before them.
    let (start, prefilled, first_token) = match ended.resumed {
        0 => {
            let of_head = |time: Nanoseconds| dispatched + time.milliseconds();
            (of_head(times.dispatched), of_head(times.prefill_done()), of_head(times.first_token))
        }
        _ => (dispatched, received, received),
    };
    let first_token = first_token.min(received.max(start));
    let prefilled = prefilled.min(first_token);
    let done = milliseconds(done);
    let first_byte = first_byte.map_or(done, milliseconds);
    let head = ended.finished.ranks.first();
    let synchronisation = head.map_or(0, |rank| {
        let both = rank.both();
        both.wait.0 + both.wire.0
    });
    json!({
        "t_accept": 0.0,
        "t_dispatch": dispatched,
        "t_prefill_start": start,
        "t_prefill_done": prefilled,
        "t_first_token": first_token,
        "t_first_byte_sent": first_byte,
        "t_done": done,
        "queueing_ms": start,
        "prefill_ms": (prefilled - start).max(0.0),
        "sampling_ms": (first_token - prefilled).max(0.0),
        "decode_ms": (milliseconds(ended.last_token) - first_token).max(0.0),
        "synchronisation_ms": synchronisation as f64 / 1e6,
        "flush_ms": (first_byte - first_token).max(0.0),
        "head": ended.head,
        "resumed": ended.resumed,
    })
}

/// Milliseconds.
pub(super) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use common::{latency::RequestTimes, units::Nanoseconds};

    use super::*;

    fn numbers(value: &Value) -> Vec<(String, f64)> {
        let object = value.as_object().expect("an object");
        object.iter().filter_map(|(key, value)| Some((key.clone(), value.as_f64()?))).collect()
    }

    #[test]
    fn stages_come_in_order_and_nothing_is_nan() {
        let mut ended = Ended::default();
        let timings = timings(&ended, None, Duration::ZERO);
        assert_eq!(timings["prompt_per_second"], 0.0);
        assert!(numbers(&timings).iter().chain(&numbers(&timings["trace"])).all(|(_, value)| value.is_finite()));
        let ms = |ms: u64| Nanoseconds(ms * 1_000_000);
        ended.finished.times = RequestTimes {
            dispatched: ms(5),
            first_token: ms(25),
            prefilled: ms(23),
            last_token: ms(125),
            prompt_tokens: 40,
            cached_tokens: 30,
            sampled_tokens: 11,
            ..RequestTimes::default()
        };
        (ended.prompt_tokens, ended.tokens) = (40, 11);
        ended.dispatched = Duration::from_millis(2);
        (ended.first_token, ended.last_token) = (Some(Duration::from_millis(28)), Duration::from_millis(130));
        let timings = super::timings(&ended, Some(Duration::from_millis(29)), Duration::from_millis(131));
        assert_eq!((timings["prompt_n"].as_u64(), timings["cache_n"].as_u64()), (Some(10), Some(30)));
        assert_eq!(timings["prompt_per_second"], 500.0);
        assert_eq!(timings["predicted_per_second"], 100.0);
        let stages = [
            "t_accept",
            "t_dispatch",
            "t_prefill_start",
            "t_prefill_done",
            "t_first_token",
            "t_first_byte_sent",
            "t_done",
        ];
        let times: Vec<f64> = stages.iter().map(|stage| timings["trace"][stage].as_f64().expect("a time")).collect();
        assert_eq!(times, [0.0, 2.0, 7.0, 25.0, 27.0, 29.0, 131.0]);
        assert!(times.is_sorted());
        let stage = |name: &str| timings["trace"][name].as_f64();
        assert_eq!((stage("prefill_ms"), stage("sampling_ms"), stage("flush_ms")), (Some(18.0), Some(2.0), Some(2.0)));
    }

    #[test]
    fn only_the_latest_traces_are_kept() {
        let traces = Traces::default();
        (0..KEPT + 3).for_each(|index| traces.keep(json!(index)));
        assert_eq!(traces.latest(2), [json!(KEPT + 1), json!(KEPT + 2)]);
        assert_eq!(traces.latest(usize::MAX).len(), KEPT);
    }
}
