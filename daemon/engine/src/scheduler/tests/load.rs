//! The scheduler under requests that arrive at random, on a machine with known step times: TTFT, and its cost for
//! running answers. Times in microseconds.
use common::{limits::SLOTS_MAX, sampling::SamplingParameters};

use topology::{KvBlocks, StateCount};

use super::*;

const SLOTS: usize = SLOTS_MAX as usize;

/// A load: prompt and answer lengths in tokens.
#[derive(Clone, Copy, Debug)]
struct Mix {
    prompt: usize,
    answer: usize,
}

/// Measurements of one request.
#[derive(Clone, Copy, Debug)]
struct Measured {
    due: f64,
    first: f64,
    last: f64,
}

/// Random numbers above 0, at most 1 (SplitMix64).
struct UnitRandom(u64);

impl UnitRandom {
    fn share(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 53) as f64 + 1e-12
    }
}

/// Step time as measured on two cores with a model of 0.6 B weights, by number of tokens and of rows that need logits.
fn step_time(tokens: usize, rows: usize) -> f64 {
    const TOKENS: [(f64, f64); 11] = [
        (0.0, 0.0),
        (1.0, 4.6),
        (2.0, 6.0),
        (4.0, 12.5),
        (8.0, 17.5),
        (12.0, 22.0),
        (16.0, 27.0),
        (32.0, 40.0),
        (64.0, 79.0),
        (96.0, 118.0),
        (128.0, 126.0),
    ];
    let tokens = tokens as f64;
    let pair = TOKENS.windows(2).find(|pair| tokens <= pair[1].0).expect("a step has no more");
    let ((from, low), (to, high)) = (pair[0], pair[1]);
    1000.0 * (low + (high - low) * (tokens - from) / (to - from) + 1.25 * rows as f64)
}

/// Arrival process of the requests.
#[derive(Clone, Copy)]
enum ArrivalPattern {
    /// As soon as a previous request finishes, at this concurrency.
    Closed(usize),
    /// At random, at this rate per microsecond.
    Open(f64),
}

fn request(mix: Mix, number: usize) -> Admitted {
    let prompt = (0..mix.prompt).map(|index| (number * 1000 + index) as u32).collect();
    let (key, sampling) = (RequestKey(number as u64), SamplingParameters::default());
    Admitted { key, prompt, max_tokens: mix.answer, sampling, drafts_max: 0, grammar: None }
}

/// Serves `count` requests.
fn serve(mix: Mix, arrivals: ArrivalPattern, count: usize) -> Vec<Measured> {
    let blocks = SLOTS * (mix.prompt + mix.answer).div_ceil(KV_BLOCK_LENGTH);
    let limits = Limits {
        slots: SLOTS,
        blocks: KvBlocks::alike(blocks),
        window: None,
        context_length: 8192,
        vocabulary_length: 1 << 30,
        states: StateCount::NONE,
    };
    let (mut scheduler, mut plan, mut random) = (Scheduler::new(limits), Plan::default(), UnitRandom(7));
    let (mut seen, mut left) = (Vec::<Measured>::new(), vec![mix.answer; count]);
    let (mut now, mut due, mut done) = (0.0, 0.0, 0);
    while done < count {
        while seen.len() < count
            && match arrivals {
                ArrivalPattern::Closed(most) => seen.len() - done < most,
                ArrivalPattern::Open(_) => due <= now,
            }
        {
            scheduler.submit(request(mix, seen.len()));
            let since = if let ArrivalPattern::Open(rate) = arrivals {
                let since = due;
                due -= random.share().ln() / rate;
                since
            } else {
                now
            };
            seen.push(Measured { due: since, first: 0.0, last: 0.0 });
        }
        if !scheduler.next_plan(&mut plan) {
            now = due;
            continue;
        }
        let wanted = plan.entries.iter().filter(|entry| entry.wants_logits);
        let time = step_time(plan.entries.len(), wanted.clone().count());
        now += time;
        scheduler.record_time(&plan, Nanoseconds((1000.0 * time) as u64));
        for entry in wanted {
            let key = scheduler.key(entry.slot).expect("it runs");
            let index = key.0 as usize;
            if left[index] == mix.answer {
                seen[index].first = now;
            }
            (seen[index].last, left[index]) = (now, left[index] - 1);
            if left[index] == 0 {
                scheduler.end(key);
                done += 1;
            } else {
                scheduler.sampled(entry.slot, (1 << 29) + (entry.position * 31 + index as u32) % 1_000_003);
            }
        }
    }
    seen
}

/// Results of a load.
#[derive(Debug)]
struct LoadResult {
    /// TTFT at the 50th, 95th and 99th percentile, relative to that of a single request.
    first: [f64; 3],
    /// Mean time per token, relative to that at a concurrency of sixteen.
    token: f64,
}

/// Runs a mix at 80 % of its throughput at a concurrency of sixteen.
fn at_80_percent(mix: Mix, count: usize) -> LoadResult {
    let per_token = |seen: &[Measured]| {
        let sum: f64 = seen.iter().map(|seen| (seen.last - seen.first) / (mix.answer - 1) as f64).sum();
        sum / seen.len() as f64
    };
    let alone = serve(mix, ArrivalPattern::Closed(1), 3)[2];
    let full = serve(mix, ArrivalPattern::Closed(16), 320);
    let end = full.iter().map(|seen| seen.last).fold(0.0, f64::max);
    let seen = serve(mix, ArrivalPattern::Open(0.8 * full.len() as f64 / end), count);
    let mut first: Vec<f64> = seen.iter().map(|seen| (seen.first - seen.due) / (alone.first - alone.due)).collect();
    first.sort_by(f64::total_cmp);
    let first = [50, 95, 99].map(|percent| first[(count * percent).div_ceil(100) - 1]);
    LoadResult { first, token: per_token(&seen) / per_token(&full) }
}

#[test]
fn short_prompts_wait_little_at_80_percent_load() {
    let found = at_80_percent(Mix { prompt: 64, answer: 128 }, 2000);
    let [_, p95, p99] = found.first;
    assert!(p95 <= 2.0 && p99 <= 3.0 && found.token <= 1.0, "{found:?}");
}

#[test]
fn few_answers_do_not_delay_prefill_heavy_load() {
    for mix in [Mix { prompt: 64, answer: 32 }, Mix { prompt: 256, answer: 128 }, Mix { prompt: 1000, answer: 128 }] {
        let found = at_80_percent(mix, 1500);
        let [p50, _, p99] = found.first;
        assert!(p50 < 7.0 && p99 < 20.0 && found.token <= 1.0, "{mix:?}: {found:?}");
    }
}
