//! Runs a model on n ranks as threads of this process over loopback sockets and joins the logits of every rank's
//! vocabulary slice. The model code is that of brambled, without its processes.
use std::{
    net::{TcpListener, TcpStream},
    ops::Range,
    sync::Arc,
    thread,
};

use collectives::Choice;
use common::{
    ids::{Epoch, MemberIndex, Slot, TopologyHash},
    limits::KV_BLOCK_LENGTH,
    precision::{Exchange, KvFormat},
};
use engine::{
    collective::{Abort, Calls, Group, Links, Seat, Settings, StepTiming, SyncLog},
    model::{Batch, BatchToken, BlockTables, KvCache, Model, Pooled, Shard, Source, StateCache},
};
use gguf::GgufFile;
use kernels::{Compute, Kernels, Pool, PoolOptions};
use models::ModelSpec;
use telemetry::{PhaseTotals, SyncRecord};
use topology::{KvBlocks, Layout, Place, ShardPlan, StateCount, cut_stages, split_model};

use crate::predicting::Predicting;

/// How a model is run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Relative share of each rank of a stage; the length is the size of the tensor-parallel group.
    pub weights: Vec<u32>,
    /// Pipeline stages, as equal as possible.
    pub stages: usize,
    /// Format in which partial sums are exchanged.
    pub exchange: Exchange,
    /// All-reduce algorithm.
    pub collective: Choice,
    /// Format of the KV cache.
    pub kv: KvFormat,
    /// Tokens of each step; the last number repeats until the sequence is complete.
    pub chunks: Vec<usize>,
    /// Threads per rank.
    pub threads: usize,
    /// Name of the kernel table; `None`: the best one for this machine.
    pub kernels: Option<&'static str>,
    /// Bytes of memory for experts, which then stay on the disk.
    pub expert_memory: Option<usize>,
    /// Whether the logits are those of the file's predictor.
    pub predicts: bool,
}

impl Run {
    /// `world` equal ranks, exact exchange and KV cache, the whole sequence in one step.
    pub fn exact(world: usize) -> Self {
        Self {
            weights: vec![1; world],
            stages: 1,
            exchange: Exchange::F32,
            collective: Choice::Auto,
            kv: KvFormat::F32,
            chunks: vec![usize::MAX],
            threads: 1,
            kernels: None,
            expert_memory: None,
            predicts: false,
        }
    }
}

/// Logits after each token, and the counters of each rank.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Logits `[token, vocabulary]`.
    pub logits: Vec<Vec<f32>>,
    /// Bytes, messages and times of each rank.
    pub totals: Vec<PhaseTotals>,
    /// System calls of each rank's links.
    pub calls: Vec<Calls>,
    /// The latest all-reduces of each rank, as many as its log holds.
    pub records: Vec<Vec<SyncRecord>>,
    /// The embedding on each rank of the last stage `[rank, embedding_length]`, if the model is made for embeddings.
    pub embeddings: Vec<Vec<f32>>,
}

/// Connected sockets between all pairs of `world` ranks on a loopback address.
///
/// # Panics
/// If loopback cannot be used.
pub fn sockets(world: usize) -> Vec<Vec<Option<TcpStream>>> {
    let mut links: Vec<Vec<Option<TcpStream>>> = (0..world).map(|_| (0..world).map(|_| None).collect()).collect();
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind to loopback");
    let address = listener.local_addr().expect("a bound listener has an address");
    for (low, high) in (0..world).flat_map(|low| (low + 1..world).map(move |high| (low, high))) {
        let dialled = TcpStream::connect(address).expect("connect over loopback");
        let (accepted, _) = listener.accept().expect("accept over loopback");
        links[low][high] = Some(dialled);
        links[high][low] = Some(accepted);
    }
    links
}

/// Runs a sequence through all ranks and returns the logits after each token.
///
/// # Panics
/// If the model cannot be cut or loaded, or a rank fails.
pub fn run(file: &Arc<GgufFile>, tokens: &[u32], how: &Run) -> Outcome {
    let spec = models::read(file).expect("the model is valid");
    let layers =
        split_model(&spec, &vec![1; spec.block_count()], 0, &vec![1; how.stages]).expect("a layer for each stage");
    let stages: Vec<_> =
        layers.iter().map(|layers| (layers.start as usize..layers.end as usize, how.weights.clone())).collect();
    let plans = cut_stages(&spec, &stages).expect("the model can be cut");
    let layout = Layout::alike(1, how.stages as u16, how.weights.len() as u16);
    let vocabulary = spec.vocabulary_length;
    let logits = vec![vec![f32::NAN; vocabulary]; tokens.len()];
    let mut outcome =
        Outcome { logits, totals: Vec::new(), calls: Vec::new(), records: Vec::new(), embeddings: Vec::new() };
    // A rank that is done keeps its links open until all are; the others would otherwise declare it lost.
    let ranks: Vec<RankResult> = thread::scope(|scope| {
        let spec = &spec;
        let parts = plans.into_iter().zip(sockets(layout.node_count())).enumerate();
        let threads: Vec<_> = parts
            .map(|(rank, (plan, streams))| {
                let place = layout.place(MemberIndex(rank as u16));
                scope.spawn(move || rank_of(file, spec, plan, place, streams, tokens, how))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("the rank finishes")).collect()
    });
    for (rows, logits, mut group, records, embedding) in ranks {
        outcome.embeddings.extend(embedding);
        outcome.records.push(records);
        outcome.totals.push(group.timing.take_totals().decode);
        outcome.calls.push(group.links().map_or_else(Calls::default, |links| links.calls()));
        if rows.is_empty() {
            continue;
        }
        for (whole, part) in outcome.logits.iter_mut().zip(logits.chunks(rows.len())) {
            whole[rows.clone()].copy_from_slice(part);
        }
    }
    outcome
}

/// Vocabulary rows, their logits, the group, the latest all-reduces, and the embedding.
type RankResult = (Range<usize>, Vec<f32>, Group, Vec<SyncRecord>, Option<Vec<f32>>);

/// A rank's part of a model, with `blocks` KV blocks.
fn loaded(
    file: &Arc<GgufFile>,
    spec: &ModelSpec,
    plan: &ShardPlan,
    compute: &Compute,
    blocks: usize,
    how: &Run,
) -> Model {
    let source = Source {
        file,
        spec,
        plan,
        kernels: compute.kernels,
        cache: None,
        expert_memory: how.expert_memory,
        is_hollow: false,
        progress: &|_| true,
    };
    let shard = Shard::load(source).expect("the shard can be loaded");
    let cache = KvCache::new(how.kv, spec, plan, KvBlocks::alike(blocks)).expect("enough memory");
    Model::new(shard, cache, compute.clone(), spec.context_length)
}

fn rank_of(
    file: &Arc<GgufFile>,
    spec: &ModelSpec,
    plan: ShardPlan,
    place: Place,
    streams: Vec<Option<TcpStream>>,
    tokens: &[u32],
    how: &Run,
) -> RankResult {
    let vocabulary = plan.vocabulary.clone();
    let kernels = Kernels::choose(how.kernels).expect("the table is supported here");
    let blocks = tokens.len().div_ceil(KV_BLOCK_LENGTH);
    let states = StateCache::new(spec, &plan, StateCount::of(1)).expect("enough memory");
    let pool = Pool::new(PoolOptions { threads: how.threads, cores: Vec::new(), spin: false });
    let compute = Compute::new(kernels, pool.expect("threads can be started"));
    let mut predicting = how.predicts.then(|| {
        let own = models::read_predictor(file, spec).expect("the file has a predictor");
        let plans = cut_stages(&own, &[(0..1, how.weights.clone())]).expect("the predictor can be cut");
        Predicting::new(loaded(file, &own, &plans[place.rank.index()], &compute, blocks, how))
    });
    let mut model = loaded(file, spec, &plan, &compute, blocks, how).with_states(states);
    let ring = Arc::new(SyncLog::new(place.rank, place.group.clone()));
    let timing = StepTiming::new(place.rank, Arc::clone(&ring));
    let seat = Seat { own: place.rank, stage: place.group.clone(), epoch: Epoch(1), hash: TopologyHash(2) };
    let abort = Arc::new(Abort::new().expect("a file descriptor is free"));
    let links = (streams.len() > 1).then(|| Links::new(seat, streams, abort, false).expect("the sockets are valid"));
    let settings = Settings { exchange: how.exchange, columns: spec.embedding_length, choice: how.collective, kernels };
    let mut group = Group::new(links, settings, timing).with_wide_states(spec.has_wide_states());
    // Blocks in reverse order: code must not assume that a sequence is contiguous.
    let tables = vec![(0..blocks as u32).rev().collect::<Vec<u32>>()];
    let mut logits = Vec::new();
    let mut pooled = spec.pooling.filter(|_| place.next().is_none()).map(Pooled::new);
    let mut chunks =
        how.chunks.iter().copied().chain(std::iter::repeat(*how.chunks.last().expect("at least one chunk length")));
    let mut begin = 0;
    let mut step = 0;
    while begin < tokens.len() {
        let end = begin.saturating_add(chunks.next().unwrap_or(1).max(1)).min(tokens.len());
        let batch: Vec<BatchToken> = (begin..end)
            .map(|position| BatchToken {
                slot: Slot(0),
                position: position as u32,
                token: tokens[position],
                wants_logits: true,
                is_speculative: false,
            })
            .collect();
        step += 1;
        group.begin_step(step);
        group.timing.begin_step(false, batch.len() as u32);
        if let Some(before) = place.before() {
            group.take_over(before, model.hidden(batch.len()), |_| ()).expect("receive from the previous stage");
        }
        let all = Batch { tokens: &batch, tables: BlockTables::alike(&tables) };
        let part = model.forward(all, &mut group).expect("all ranks run");
        match &mut predicting {
            Some(predicting) => logits.extend(predicting.step(&mut model, all, &mut group)),
            None => logits.extend_from_slice(part),
        }
        if let Some(pooled) = &mut pooled {
            model.pool(0..batch.len(), pooled);
        }
        if let Some(next) = place.next() {
            group.hand_over(next, model.hidden(batch.len()), &[]).expect("hand over to the next stage");
        }
        begin = end;
    }
    group.links().map_or(Ok(()), Links::flush).expect("the peers are connected");
    let mut records = Vec::new();
    ring.read_since(&mut 0, |record| records.push(record.clone()));
    (vocabulary, logits, group, records, pooled.map(|pooled| model.embedding(pooled)))
}

/// Largest error relative to the largest logit, over all rows; NaN if any value is NaN.
///
/// # Panics
/// If the rows have other lengths.
pub fn max_error(found: &[Vec<f32>], exact: &[Vec<f32>]) -> f64 {
    let lengths = [found, exact].map(|rows| rows.iter().map(Vec::len).collect::<Vec<_>>());
    assert_eq!(lengths[0], lengths[1]);
    let largest = exact.iter().flatten().fold(0.0_f64, |largest, value| largest.max(f64::from(value.abs())));
    let differences = found.iter().flatten().zip(exact.iter().flatten()).map(|(a, b)| f64::from((a - b).abs()));
    differences
        .reduce(|most, difference| if most.is_nan() || difference < most { most } else { difference })
        .unwrap_or(0.0)
        / largest
}

/// Root mean square of the error relative to that of the exact logits.
pub fn rms_error(found: &[Vec<f32>], exact: &[Vec<f32>]) -> f64 {
    let square = |value: f32| f64::from(value) * f64::from(value);
    let differences: f64 = found.iter().flatten().zip(exact.iter().flatten()).map(|(a, b)| square(a - b)).sum();
    let exact: f64 = exact.iter().flatten().map(|value| square(*value)).sum();
    (differences / exact).sqrt()
}
