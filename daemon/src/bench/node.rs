//! A whole model on this machine: load, prefill, decode at several contexts, memory.
use std::{sync::Arc, time::Instant};

use anyhow::{bail, ensure};
use collectives::Choice;
use common::{
    ids::{Rank, Slot},
    latency::ratio,
    limits::KV_BLOCK_LENGTH,
    precision::{Exchange, KvFormat},
};
use engine::{
    collective::{Group, Settings, StepTiming, SyncLog},
    model::{Batch, BatchToken, BlockTables, KvCache, Model, Shard, StateCache},
};
use kernels::{Compute, Kernels, Pool, PoolOptions};
use models::ModelSpec;
use planner::holding::kv_position_bytes;
use protocol::bench::{CONTEXT_DEFAULT, PREFILL_DEFAULT};
use telemetry::bench::{Decode, Load, NodeBench, Prefill, Rows};
use topology::{KvBlocks, StateCount, layout::STEP_TOKENS_MAX};

use super::{
    NodeArguments, bandwidth,
    cold::{self, Cold, forget_peak, load_cold, resident_peak},
    median,
    progress::Reporter,
};
use crate::health::machine::allowed_cores;

struct ModelBench {
    model: Model,
    group: Group,
    tables: Vec<Vec<u32>>,
}

/// Steps per number of rows.
const ROW_STEPS: u32 = 16;

/// The work to do, with notes on parts left out.
struct Work {
    prefill: Vec<u32>,
    context: Vec<u32>,
    /// Capacity of the KV cache in positions.
    positions: usize,
    skipped: Vec<String>,
}

pub(super) fn run(arguments: &NodeArguments, kernels: &'static Kernels) -> anyhow::Result<NodeBench> {
    let cores: Vec<usize> = allowed_cores().into_iter().map(usize::from).collect();
    let threads = arguments.threads.map_or(cores.len(), usize::from);
    // More threads than cores must not spin.
    let options = PoolOptions { threads, spin: threads <= cores.len(), cores };
    let path = &arguments.model;
    let work = Work::of(arguments, &models::read(&cold::open(path)?)?)?;
    // If the peak cannot be reset, nothing large may precede its measurement.
    let resets = forget_peak();
    let searches = if threads == 1 { 1 } else { 2 };
    let steps = searches + usize::from(resets) + 2 + work.prefill.len() + work.context.len();
    let mut reporter = Reporter::new(steps + usize::from(!arguments.rows.is_empty()), arguments.progress);
    let bandwidth =
        |before, reporter: &mut Reporter| bandwidth::measure(kernels, &options, arguments.read_mib, before, reporter);
    let before = if resets { Some(bandwidth(None, &mut reporter)?) } else { None };
    forget_peak();
    reporter.begin("load from the disk");
    let (shard, cold) = load_cold(path, kernels)?;
    let weight_bytes = shard.token_bytes();
    let bench = ModelBench::new(arguments, kernels, options.clone(), &work, shard)?;
    let (prefill, decode, rows, ids) = bench.work(arguments, &work, &mut reporter);
    let resident_peak = resident_peak();
    reporter.begin("load from the page cache");
    let begin = Instant::now();
    drop(cold::load(path, kernels)?);
    let warm_seconds = begin.elapsed().as_secs_f64();
    // The machine is shared: its bandwidth is the best of before and after.
    let bandwidth = bandwidth(before, &mut reporter)?;
    let Cold { seconds: cold_seconds, disk_bytes: cold_disk_bytes, note: cold_note } = cold;
    Ok(NodeBench {
        model: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        kernels: kernels.name.into(),
        threads: threads as u16,
        bandwidth,
        load: Load { cold_seconds, cold_disk_bytes, cold_note, warm_seconds },
        weight_bytes,
        prefill,
        decode,
        rows,
        ids,
        skipped: work.skipped,
        resident_peak,
    })
}

impl Work {
    fn of(arguments: &NodeArguments, spec: &ModelSpec) -> anyhow::Result<Self> {
        let path = arguments.model.display();
        if let Some(id) = arguments.ids.iter().find(|id| **id as usize >= spec.vocabulary_length) {
            bail!("--ids contains {id}, {path} has only {} tokens", spec.vocabulary_length);
        }
        let room = spec.context_length;
        let rows = arguments.rows.iter().max().map_or(0, |rows| *rows as usize);
        // Tokens that are decoded after a context, including the token before them.
        let behind = (arguments.tokens as usize + 1).max(rows).max(arguments.ids.len());
        let mut skipped = Vec::new();
        let mut fitting = |what: &str, given: &[u32], defaults: &[u32], behind: usize| {
            if !given.is_empty() {
                return given.to_vec();
            }
            let (fit, over) = defaults.iter().partition::<Vec<u32>, _>(|tokens| **tokens as usize + behind <= room);
            skipped.extend(
                over.into_iter()
                    .map(|tokens| format!("{what} {tokens} is left out: the model's context is {room} tokens")),
            );
            fit
        };
        let prefill = fitting("prefill", &arguments.prefill, &PREFILL_DEFAULT, 0);
        let context = fitting("decode at", &arguments.context, &CONTEXT_DEFAULT, behind);
        let longest = |list: &[u32]| list.iter().max().map_or(0, |tokens| *tokens as usize);
        let positions = longest(&prefill).max(longest(&context) + behind);
        ensure!(
            positions <= room,
            "{positions} positions are requested, {path} has {room}; reduce --context, --prefill and --tokens"
        );
        let prefill = prefill.into_iter().filter(|tokens| *tokens > 0).collect();
        Ok(Self { prefill, context, positions, skipped })
    }
}

/// Multiply-adds per token in the weight matrices of all layers.
fn macs(shard: &Shard) -> u64 {
    let matrices = shard.layers.iter().flat_map(|layer| layer.matrices());
    matrices.map(|(matrix, used)| (matrix.rows * matrix.columns * used) as u64).sum()
}

/// Bytes of states that a token reads and writes.
fn state_bytes(shard: &Shard) -> u64 {
    let floats = shard.plan.layers.clone().map(|layer| shard.plan.state_length(&shard.spec, layer) as u64);
    2 * floats.sum::<u64>() * size_of::<f32>() as u64
}

/// Bytes of keys and values that a token behind so many positions reads.
fn kv_bytes(shard: &Shard, format: KvFormat, positions: u64) -> u64 {
    let bytes = shard.plan.layers.clone().map(|layer| {
        let seen = shard
            .spec
            .layer(layer)
            .attention()
            .and_then(|own| own.window)
            .map_or(positions, |window| positions.min(window as u64));
        seen * kv_position_bytes(format, &shard.spec, &shard.plan, layer)
    });
    bytes.sum()
}

impl ModelBench {
    fn new(
        arguments: &NodeArguments,
        kernels: &'static Kernels,
        options: PoolOptions,
        work: &Work,
        shard: Shard,
    ) -> anyhow::Result<Self> {
        let spec = &shard.spec;
        let blocks = work.positions.div_ceil(KV_BLOCK_LENGTH);
        let mut cache = KvCache::new(arguments.kv, spec, &shard.plan, KvBlocks::alike(blocks))?;
        cache.fill();
        let states = StateCache::new(spec, &shard.plan, StateCount::in_model(spec, 1))?;
        let pool = Pool::new(options)?;
        pool.pin_caller();
        let timing = StepTiming::new(Rank(0), Arc::new(SyncLog::alone()));
        let settings =
            Settings { exchange: Exchange::F32, columns: spec.embedding_length, choice: Choice::Auto, kernels };
        Ok(Self {
            model: Model::new(shard, cache, Compute::new(kernels, pool), work.positions).with_states(states),
            group: Group::new(None, settings, timing),
            tables: vec![(0..blocks as u32).collect()],
        })
    }

    /// Runs all measurements, then frees the memory.
    fn work(
        mut self,
        arguments: &NodeArguments,
        work: &Work,
        reporter: &mut Reporter,
    ) -> (Vec<Prefill>, Vec<Decode>, Vec<Rows>, Vec<u32>) {
        let macs = macs(self.model.shard());
        let token_bytes = self.model.shard().token_bytes() + state_bytes(self.model.shard());
        let prefill = work.prefill.iter().map(|tokens| {
            reporter.begin(format_args!("prefill of {tokens} tokens"));
            let seconds = median((0..arguments.repeats).map(|_| self.prefill(*tokens)).collect());
            let tokens_per_second = ratio(f64::from(*tokens), seconds);
            Prefill { tokens: *tokens, tokens_per_second, gmacs: tokens_per_second * macs as f64 / 1e9 }
        });
        let prefill = prefill.collect();
        let decode = work.context.iter().map(|context| {
            reporter.begin(format_args!("decode at {context} tokens"));
            let bytes =
                token_bytes + kv_bytes(self.model.shard(), arguments.kv, u64::from(*context + arguments.tokens / 2));
            let (mut rates, mut shares) = (Vec::new(), Vec::new());
            let mut limit = self.read_weights();
            for _ in 0..arguments.repeats {
                let rate = ratio(f64::from(arguments.tokens), self.decode(*context, arguments.tokens));
                // On a shared machine the limit varies: the measurements right before and right after count.
                let before = std::mem::replace(&mut limit, self.read_weights());
                rates.push(rate);
                shares.push(ratio(bytes as f64 * rate, before.max(limit)));
            }
            let (tokens_per_second, share_of_bandwidth) = (median(rates), median(shares));
            Decode { context: *context, tokens_per_second, bytes, share_of_bandwidth }
        });
        let decode = decode.collect();
        if !arguments.rows.is_empty() {
            reporter.begin("steps of several tokens");
        }
        let (rows, ids) = (self.rows(&arguments.rows), self.greedy(&arguments.ids));
        (prefill, decode, rows, ids)
    }

    /// Times steps with these numbers of tokens, all with logits; the sizes alternate.
    fn rows(&mut self, rows: &[u32]) -> Vec<Rows> {
        if rows.is_empty() {
            return Vec::new();
        }
        // One row is the reference for the others.
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

    /// Seconds to prefill a prompt of this many tokens, in the engine's steps.
    fn prefill(&mut self, tokens: u32) -> f64 {
        let begin = Instant::now();
        for first in (0..tokens).step_by(STEP_TOKENS_MAX) {
            let last = (first + STEP_TOKENS_MAX as u32).min(tokens);
            self.step(first..last, |position| position + 1 == tokens);
        }
        begin.elapsed().as_secs_f64()
    }

    /// Bytes per second at which the same threads read the weights without other work.
    fn read_weights(&self) -> f64 {
        let compute = self.model.compute();
        bandwidth::now(compute.kernels, &compute.pool, self.model.shard().bytes())
    }

    /// Seconds to decode this many tokens after a context.
    fn decode(&mut self, context: u32, tokens: u32) -> f64 {
        self.step(context..context + 1, |_| true);
        let begin = Instant::now();
        (context..context + tokens).for_each(|position| self.step(position..position + 1, |_| true));
        begin.elapsed().as_secs_f64()
    }

    /// The most probable next token after each id.
    fn greedy(&mut self, ids: &[u32]) -> Vec<u32> {
        let next = ids.iter().enumerate().map(|(position, token)| {
            let entry = BatchToken {
                slot: Slot(0),
                position: position as u32,
                token: *token,
                wants_logits: true,
                is_speculative: false,
            };
            let logits = self
                .model
                .forward(Batch { tokens: &[entry], tables: BlockTables::alike(&self.tables) }, &mut self.group);
            let logits = logits.expect("a single rank has no peer to lose");
            logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(id, _)| id as u32)
        });
        next.collect()
    }

    fn step(&mut self, positions: std::ops::Range<u32>, wants_logits: impl Fn(u32) -> bool) {
        let batch = positions.map(|position| BatchToken {
            slot: Slot(0),
            position,
            token: 3 + position % 250,
            wants_logits: wants_logits(position),
            is_speculative: false,
        });
        let batch: Vec<BatchToken> = batch.collect();
        let logits =
            self.model.forward(Batch { tokens: &batch, tables: BlockTables::alike(&self.tables) }, &mut self.group);
        logits.expect("a single rank has no peer to lose");
    }
}
