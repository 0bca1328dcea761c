//! A whole model on this machine alone: load, prefill, decode at several contexts, memory.
use std::{path::Path, sync::Arc, time::Instant};

use anyhow::{Context, bail, ensure};
use serde::Serialize;
use shared::{
    gguf::{GgufFile, Shape},
    ids::{Rank, Slot},
    latency::ratio,
    topology::{Exchange, KvFormat, cut, spec::KV_BLOCK_LENGTH},
};

use super::{
    NodeArguments,
    bandwidth::{Bandwidth, Probe},
    median,
};
use crate::{
    collective::{Accounting, Group, SyncRing},
    engine::plan::STEP_TOKENS_MAX,
    health::machine::allowed_cores,
    kernels::{Compute, Kernels, Pool, PoolOptions},
    model::{Batch, BatchToken, KvCache, Model, Shard, Source},
};

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Found {
    model: String,
    kernels: String,
    threads: usize,
    /// What this machine reads with one thread, and with all of them.
    read_one: Bandwidth,
    read_all: Bandwidth,
    /// Seconds from opening the file to a shard whose pages are all there.
    load_seconds: f64,
    /// Weights that a decoded token reads, in bytes.
    weight_bytes: u64,
    prefill: Vec<Prefill>,
    decode: Vec<Decode>,
    rows: Vec<Rows>,
    /// The most probable token behind each id that was given.
    ids: Vec<u32>,
    /// Peak resident memory in bytes, file pages included.
    resident_peak: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
struct Prefill {
    tokens: u32,
    tokens_per_second: f64,
    /// Multiply-adds per second, in thousands of millions.
    gmacs: f64,
}

#[derive(Clone, Debug, Serialize)]
struct Decode {
    context: u32,
    tokens_per_second: f64,
    /// Bytes of weights and KV cache that a token reads.
    bytes: u64,
    /// Bytes read per second by what the machine can.
    share_of_bandwidth: f64,
}

/// A step of several tokens.
#[derive(Clone, Debug, Serialize)]
struct Rows {
    rows: u32,
    milliseconds: f64,
    /// Relative to a step of one.
    times_of_one: f64,
}

struct Bench {
    model: Model,
    group: Group,
    tables: Vec<Vec<u32>>,
}

/// Rounds of each way to read, before and after the work.
const PROBES: usize = 3;
/// Steps of each number of rows.
const ROW_STEPS: u32 = 16;

pub(super) fn run(arguments: &NodeArguments, kernels: &'static Kernels) -> anyhow::Result<Found> {
    let cores: Vec<usize> = allowed_cores().into_iter().map(usize::from).collect();
    let threads = arguments.threads.map_or(cores.len(), usize::from);
    // More threads than cores must not spin.
    let options = PoolOptions { threads, spin: threads <= cores.len(), cores };
    let before = bandwidth(kernels, &options)?;
    forget_peak();
    let begin = Instant::now();
    let path = &arguments.model;
    let (shape, shard) = load(path, kernels)?;
    let load_seconds = begin.elapsed().as_secs_f64();
    let weight_bytes = shard.byte_length();
    if let Some(id) = arguments.ids.iter().find(|id| **id as usize >= shape.vocabulary_length) {
        bail!("--ids has {id}, {} has {} tokens", path.display(), shape.vocabulary_length);
    }
    let mut bench = Bench::new(arguments, kernels, options.clone(), &shape, shard)?;
    let macs = macs(bench.model.shard());
    let prefill = arguments.prefill.iter().filter(|tokens| **tokens > 0).map(|tokens| {
        let seconds = median((0..arguments.repeats).map(|_| bench.prefill(*tokens)).collect());
        let per_second = f64::from(*tokens) / seconds;
        Prefill { tokens: *tokens, tokens_per_second: per_second, gmacs: per_second * macs as f64 / 1e9 }
    });
    let prefill = prefill.collect();
    let decode = |context: &u32| {
        let seconds = median((0..arguments.repeats).map(|_| bench.decode(*context, arguments.tokens)).collect());
        let bytes = weight_bytes + kv_bytes(&shape, arguments.kv, u64::from(*context + arguments.tokens / 2));
        let tokens_per_second = f64::from(arguments.tokens) / seconds;
        Decode { context: *context, tokens_per_second, bytes, share_of_bandwidth: 0.0 }
    };
    let mut decode: Vec<Decode> = arguments.context.iter().map(decode).collect();
    let rows = bench.rows(&arguments.rows);
    let ids = bench.greedy(&arguments.ids);
    let resident_peak = resident_peak();
    drop(bench);
    // The machine is shared: what it reads is the best of before and after.
    let after = bandwidth(kernels, &options)?;
    let (read_one, read_all) = (before.0.better(after.0), before.1.better(after.1));
    for one in &mut decode {
        one.share_of_bandwidth = ratio(one.bytes as f64 * one.tokens_per_second, read_all.bytes_per_second);
    }
    Ok(Found {
        model: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        kernels: kernels.name.into(),
        threads,
        read_one,
        read_all,
        load_seconds,
        weight_bytes,
        prefill,
        decode,
        rows,
        ids,
        resident_peak,
    })
}

/// With one thread and with all.
fn bandwidth(kernels: &Kernels, options: &PoolOptions) -> anyhow::Result<(Bandwidth, Bandwidth)> {
    let probe = Probe::new()?;
    let of = |threads: usize| {
        let pool = Pool::new(PoolOptions { threads, ..options.clone() });
        pool.pin_caller();
        probe.best(kernels, &pool, PROBES)
    };
    let one = of(1);
    Ok((one, if options.threads == 1 { one } else { of(options.threads) }))
}

fn load(path: &Path, kernels: &'static Kernels) -> anyhow::Result<(Shape, Shard)> {
    let file = Arc::new(GgufFile::open(path).with_context(|| format!("cannot use {}", path.display()))?);
    let shape = Shape::read(&file)?;
    let plans = cut(&shape, &[1])?;
    let source = Source { file: &file, shape: &shape, plan: &plans[0], kernels, cache: None, progress: &|_| true };
    let shard = Shard::load(source)?;
    Ok((shape, shard))
}

/// Multiply-adds of a token in the weight matrices of all layers.
fn macs(shard: &Shard) -> u64 {
    let of_layer = |layer: &crate::model::weights::Layer| {
        let matrices =
            [&layer.query, &layer.key, &layer.value, &layer.attention_output, &layer.gate, &layer.up, &layer.down];
        matrices.iter().map(|matrix| matrix.rows as u64 * matrix.columns as u64).sum::<u64>()
    };
    shard.layers.iter().map(of_layer).sum()
}

fn kv_bytes(shape: &Shape, format: KvFormat, positions: u64) -> u64 {
    let heads = 2 * (shape.block_count * shape.head_count_kv) as u64;
    heads * format.head_bytes(shape.head_length) as u64 * positions
}

impl Bench {
    fn new(
        arguments: &NodeArguments,
        kernels: &'static Kernels,
        options: PoolOptions,
        shape: &Shape,
        shard: Shard,
    ) -> anyhow::Result<Self> {
        let longest = arguments.prefill.iter().chain(&arguments.context).max().map_or(0, |tokens| *tokens as usize);
        let rows = arguments.rows.iter().max().map_or(0, |rows| *rows as usize);
        let behind = (arguments.tokens as usize + 1).max(rows).max(arguments.ids.len());
        let positions = longest + behind;
        ensure!(
            positions <= shape.context_length,
            "{positions} positions are asked for, {} has {}; give smaller --context and --prefill",
            arguments.model.display(),
            shape.context_length
        );
        let blocks = positions.div_ceil(KV_BLOCK_LENGTH);
        let mut cache = KvCache::new(arguments.kv, shape.block_count, blocks, shape.head_count_kv, shape.head_length)?;
        cache.fill();
        let pool = Pool::new(options);
        pool.pin_caller();
        let accounting = Accounting::new(Rank(0), Arc::new(SyncRing::default()));
        Ok(Self {
            model: Model::new(shard, cache, Compute { kernels, pool }),
            group: Group::new(None, Exchange::F32, accounting),
            tables: vec![(0..blocks as u32).collect()],
        })
    }

    /// Steps of so many tokens, all of which want logits; the sizes take turns.
    fn rows(&mut self, rows: &[u32]) -> Vec<Rows> {
        if rows.is_empty() {
            return Vec::new();
        }
        // One row is what the others are compared with.
        let rows: Vec<u32> = std::iter::once(1).chain(rows.iter().copied().filter(|rows| *rows != 1)).collect();
        let mut seconds = vec![Vec::new(); rows.len()];
        for _ in 0..ROW_STEPS {
            for (rows, seconds) in rows.iter().zip(&mut seconds) {
                let begin = Instant::now();
                self.step(0..*rows, |_| true);
                seconds.push(begin.elapsed().as_secs_f64());
            }
        }
        let seconds: Vec<f64> = seconds.into_iter().map(median).collect();
        let one = seconds[0];
        let found = rows.iter().zip(&seconds);
        found.map(|(rows, s)| Rows { rows: *rows, milliseconds: s * 1e3, times_of_one: s / one }).collect()
    }

    /// Seconds for a prompt of so many tokens, in steps as the engine makes them.
    fn prefill(&mut self, tokens: u32) -> f64 {
        let begin = Instant::now();
        for first in (0..tokens).step_by(STEP_TOKENS_MAX) {
            let last = (first + STEP_TOKENS_MAX as u32).min(tokens);
            self.step(first..last, |position| position + 1 == tokens);
        }
        begin.elapsed().as_secs_f64()
    }

    /// Seconds for so many tokens one by one behind a context.
    fn decode(&mut self, context: u32, tokens: u32) -> f64 {
        self.step(context..context + 1, |_| true);
        let begin = Instant::now();
        (context..context + tokens).for_each(|position| self.step(position..position + 1, |_| true));
        begin.elapsed().as_secs_f64()
    }

    /// The most probable token behind each id.
    fn greedy(&mut self, ids: &[u32]) -> Vec<u32> {
        let best_of = |(position, token): (usize, &u32)| {
            let entry = BatchToken { slot: Slot(0), position: position as u32, token: *token, wants_logits: true };
            let logits = self.model.forward(Batch { tokens: &[entry], blocks: &self.tables }, &mut self.group);
            let logits = logits.expect("a lone rank has nobody to lose");
            logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(id, _)| id as u32)
        };
        ids.iter().enumerate().map(best_of).collect()
    }

    fn step(&mut self, positions: std::ops::Range<u32>, wants_logits: impl Fn(u32) -> bool) {
        let token = |position| BatchToken {
            slot: Slot(0),
            position,
            token: 3 + position % 250,
            wants_logits: wants_logits(position),
        };
        let batch: Vec<BatchToken> = positions.map(token).collect();
        let logits = self.model.forward(Batch { tokens: &batch, blocks: &self.tables }, &mut self.group);
        logits.expect("a lone rank has nobody to lose");
    }
}

/// Begins VmHWM anew, where the system allows it: what was probed before is not the model's.
fn forget_peak() {
    if let Err(error) = std::fs::write("/proc/self/clear_refs", "5") {
        tracing::debug!("VmHWM holds the probe, too: {error}");
    }
}

/// VmHWM of this process.
fn resident_peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// The lines of the table.
pub(super) fn table(found: &Found) -> Vec<String> {
    let mut lines = vec![
        format!("{}, kernels {}, {} threads", found.model, found.kernels, found.threads),
        format!(
            "read bandwidth   {:.1} GB/s with one thread, {:.1} with all",
            found.read_one.bytes_per_second / 1e9,
            found.read_all.bytes_per_second / 1e9
        ),
        format!(
            "load             {:.2} s, {:.0} MB of weights a token",
            found.load_seconds,
            found.weight_bytes as f64 / 1e6
        ),
    ];
    for one in &found.prefill {
        let (tokens, rate, gmacs) = (one.tokens, one.tokens_per_second, one.gmacs);
        lines.push(format!("prefill {tokens:>5}    {rate:>8.1} tokens/s   {gmacs:>6.1} GMAC/s"));
    }
    for one in &found.decode {
        let (context, rate, share) = (one.context, one.tokens_per_second, one.share_of_bandwidth * 100.0);
        lines.push(format!("decode at {context:>5}  {rate:>8.2} tokens/s   {share:>5.0} % of the bandwidth"));
    }
    for one in &found.rows {
        let (rows, time, times) = (one.rows, one.milliseconds, one.times_of_one);
        lines.push(format!("step of {rows:>2} rows  {time:>8.2} ms         {times:>5.2} of one row"));
    }
    let peak = found.resident_peak.map_or("unknown".into(), |bytes| format!("{:.0} MB", bytes as f64 / 1e6));
    lines.push(format!("resident         {peak} at most, file pages included"));
    lines
}
