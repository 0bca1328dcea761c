//! A whole model on this machine alone: load, prefill, decode at several contexts, memory.
use std::{path::Path, sync::Arc, time::Instant};

use anyhow::{Context, ensure};
use serde::Serialize;
use shared::{
    gguf::{GgufFile, Shape},
    ids::{Rank, Slot},
    latency::ratio,
    topology::{Exchange, KvFormat, cut, spec::KV_BLOCK_LENGTH},
};

use super::{NodeArguments, bandwidth::Probe, median};
use crate::{
    collective::{Accounting, Group, SyncRing},
    engine::plan::STEP_TOKENS_MAX,
    health::machine::allowed_cores,
    kernels::{Compute, Kernels, Pool, PoolOptions},
    model::{Batch, BatchToken, KvCache, Model, Shard, weights::shard_bytes},
};

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Found {
    model: String,
    kernels: String,
    threads: usize,
    /// Bytes per second that this machine reads, with one thread and with all of them.
    read_one: f64,
    read_all: f64,
    /// Seconds from opening the file to a shard whose pages are all there.
    load_seconds: f64,
    /// Weights that a decoded token reads, in bytes.
    weight_bytes: u64,
    prefill: Vec<Prefill>,
    decode: Vec<Decode>,
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

struct Bench {
    model: Model,
    group: Group,
    tables: Vec<Vec<u32>>,
}

pub(super) fn run(arguments: &NodeArguments, kernels: &'static Kernels) -> anyhow::Result<Found> {
    let cores: Vec<usize> = allowed_cores().into_iter().map(usize::from).collect();
    let threads = arguments.threads.map_or(cores.len(), usize::from);
    // More threads than cores must not spin.
    let options = PoolOptions { threads, spin: threads <= cores.len(), cores };
    let (read_one, read_all) = bandwidth(kernels, &options);
    let begin = Instant::now();
    let path = &arguments.model;
    let (shape, shard, weight_bytes) = load(path)?;
    let load_seconds = begin.elapsed().as_secs_f64();
    let longest = arguments.prefill.iter().chain(&arguments.context).max().map_or(0, |tokens| *tokens as usize);
    let positions = longest + arguments.tokens as usize;
    ensure!(
        positions <= shape.context_length,
        "{positions} positions are asked for, {} has {}; give smaller --context and --prefill",
        path.display(),
        shape.context_length
    );
    let blocks = positions.div_ceil(KV_BLOCK_LENGTH);
    let cache = KvCache::new(arguments.kv, shape.block_count, blocks, shape.head_count_kv, shape.head_length);
    let macs = macs(&shard);
    let pool = Pool::new(options);
    pool.pin_caller();
    let accounting = Accounting::new(Rank(0), Arc::new(SyncRing::default()));
    let mut bench = Bench {
        model: Model::new(shard, cache, Compute { kernels, pool }),
        group: Group::new(None, Exchange::F32, accounting),
        tables: vec![(0..blocks as u32).collect()],
    };
    let prefill = arguments.prefill.iter().filter(|tokens| **tokens > 0).map(|tokens| {
        let seconds = median((0..arguments.repeats).map(|_| bench.prefill(*tokens)).collect());
        let per_second = f64::from(*tokens) / seconds;
        Prefill { tokens: *tokens, tokens_per_second: per_second, gmacs: per_second * macs as f64 / 1e9 }
    });
    let prefill = prefill.collect();
    let decode = arguments.context.iter().map(|context| {
        let seconds = median((0..arguments.repeats).map(|_| bench.decode(*context, arguments.tokens)).collect());
        let per_second = f64::from(arguments.tokens) / seconds;
        let bytes = weight_bytes + kv_bytes(&shape, arguments.kv, u64::from(*context + arguments.tokens / 2));
        let share_of_bandwidth = ratio(bytes as f64 * per_second, if threads == 1 { read_one } else { read_all });
        Decode { context: *context, tokens_per_second: per_second, bytes, share_of_bandwidth }
    });
    let decode = decode.collect();
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
        resident_peak: resident_peak(),
    })
}

fn bandwidth(kernels: &Kernels, options: &PoolOptions) -> (f64, f64) {
    let mut probe = Probe::new();
    let mut of = |threads: usize| {
        let pool = Pool::new(PoolOptions { threads, ..options.clone() });
        (0..3).map(|_| probe.read(kernels, &pool)).fold(0.0, f64::max)
    };
    let one = of(1);
    (one, if options.threads == 1 { one } else { of(options.threads) })
}

fn load(path: &Path) -> anyhow::Result<(Shape, Shard, u64)> {
    let file = Arc::new(GgufFile::open(path).with_context(|| format!("cannot use {}", path.display()))?);
    let shape = Shape::read(&file)?;
    let plans = cut(&shape, &[1])?;
    let bytes = shard_bytes(&file, &shape, &plans[0]);
    let shard = Shard::load(&file, &shape, &plans[0], &|_| true)?;
    Ok((shape, shard, bytes))
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
    let values = 2 * (shape.block_count * shape.head_count_kv * shape.head_length) as u64;
    values * format.value_bytes() as u64 * positions
}

impl Bench {
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
            found.read_one / 1e9,
            found.read_all / 1e9
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
    let peak = found.resident_peak.map_or("unknown".into(), |bytes| format!("{:.0} MB", bytes as f64 / 1e6));
    lines.push(format!("resident         {peak} at most, file pages included"));
    lines
}
