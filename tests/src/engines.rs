//! Engines of one replica as threads of this process over loopback sockets: requests in, answers out. The same code that brambled
//! runs, without its processes.
use std::{
    collections::BTreeMap,
    net::TcpStream,
    ops::Range,
    sync::{Arc, mpsc},
    thread::{self, Builder},
};

use daemon::{
    collective::{Abort, Accounting, Group, Links, Seat, Settings, SyncRing},
    engine::{self, RequestKey, Setup, grammar::PieceSource, plan::Limits},
    kernels::{Compute, Kernels, Pool, PoolOptions},
    model::{KvCache, Model, Shard, Source},
    node::{EngineCommand, Progress},
};
use shared::{
    gguf::{GgufFile, Shape},
    ids::{Epoch, MemberIndex, TopologyHash},
    protocol::{
        error::Fault,
        message::{FinishReason, Generate},
    },
    schedule::Choice,
    tokenizer::{Tokenizer, template::ChatTemplate},
    topology::{Exchange, KvFormat, Layout, ShardPlan, cut_stages, spec::KV_BLOCK_LENGTH, split_layers},
};

use crate::ranks::sockets;

/// As the daemon gives its engine.
const STACK_BYTES: usize = 32 << 20;

/// How a model is run.
#[derive(Clone, Copy, Debug)]
pub struct Replica {
    /// Ranks of a stage.
    pub ranks: u16,
    /// Stages of the pipeline.
    pub stages: u16,
    /// Whether ranks can read the vocabulary.
    pub knows_pieces: bool,
}

impl Replica {
    /// `stages` of `ranks`.
    pub fn of(stages: u16, ranks: u16) -> Self {
        Self { ranks, stages, knows_pieces: true }
    }
}

/// An answer from its beginning to its end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// Sampled tokens.
    pub ids: Vec<u32>,
    /// Their text.
    pub text: String,
    /// Texts of the most probable tokens at every place, if asked for.
    pub told: Vec<String>,
    /// Why it ended.
    pub reason: Option<FinishReason>,
}

fn setup(file: &Arc<GgufFile>, how: Replica, rank: usize, plan: &ShardPlan, streams: Vec<Option<TcpStream>>) -> Setup {
    let shape = Shape::read(file).expect("the model is good");
    let kernels = Kernels::choose(None).expect("a table is there");
    let source = Source { file, shape: &shape, plan, kernels, cache: None, progress: &|_| true };
    let shard = Shard::load(source).expect("the shard can be loaded");
    let slots = 4;
    let blocks = slots * shape.context_length.div_ceil(KV_BLOCK_LENGTH);
    let kv = KvCache::new(KvFormat::F32, plan.layers.len(), blocks, plan.heads_kv.len(), shape.head_length);
    let kv = kv.expect("there is memory");
    let layout = Layout { replicas: 1, stages: how.stages, ranks: how.ranks };
    let place = layout.place(MemberIndex(rank as u16));
    let abort = Arc::new(Abort::new().expect("the system has descriptors"));
    let seat = Seat { own: place.rank, stage: place.group.clone(), epoch: Epoch(1), hash: TopologyHash(2) };
    let links =
        (streams.len() > 1).then(|| Links::new(seat, streams, Arc::clone(&abort), false).expect("sockets are good"));
    let settings = Settings { exchange: Exchange::F32, columns: shape.embedding_length, choice: Choice::Auto };
    let group = Group::new(links, settings, Accounting::new(place.rank, Arc::new(SyncRing::default())));
    let limits =
        Limits { slots, blocks, context_length: shape.context_length, vocabulary_length: shape.vocabulary_length };
    let tokenizer = place.is_head().then(|| Tokenizer::from_metadata(file.metadata()).expect("the model has one"));
    let template = tokenizer.as_ref().map(|tokenizer| ChatTemplate::from_metadata(file.metadata(), tokenizer));
    let pieces = how.knows_pieces && place.is_last_stage();
    let pieces = pieces.then(|| PieceSource { file: Arc::clone(file), vocabulary_length: shape.vocabulary_length });
    let model = Box::new(move || {
        let pool = Pool::new(PoolOptions { threads: 1, cores: Vec::new(), spin: false });
        Model::new(shard, kv, Compute { kernels, pool })
    });
    let template = template.unwrap_or(Ok(None));
    Setup { node: format!("pi{rank}"), place, limits, model, group, tokenizer, template, pieces, abort }
}

/// The answers to requests that all come at once.
///
/// # Panics
/// The model cannot be cut or loaded, or an engine breaks.
pub fn answers(file: &Arc<GgufFile>, how: Replica, requests: &[Generate]) -> Vec<Result<Answer, Fault>> {
    let shape = Shape::read(file).expect("the model is good");
    let (ranks, stages) = (usize::from(how.ranks), usize::from(how.stages));
    let layers = split_layers(&vec![1; shape.block_count], 0, &vec![1; stages]).expect("a layer for each stage");
    let stage = |layers: &Range<u32>| (layers.start as usize..layers.end as usize, vec![1; ranks]);
    let plans = cut_stages(&shape, &layers.iter().map(stage).collect::<Vec<_>>()).expect("the model can be cut");
    let parts = plans.iter().zip(sockets(ranks * stages)).enumerate();
    let mut setups = parts.map(|(rank, (plan, streams))| setup(file, how, rank, plan, streams)).collect::<Vec<_>>();
    let (orders, of_head) = mpsc::channel();
    for (key, generate) in requests.iter().enumerate() {
        let submit = EngineCommand::Submit(RequestKey(key as u64), Arc::new(generate.clone()));
        orders.send(submit).expect("the engine listens");
    }
    thread::scope(|scope| {
        let head = setups.remove(0);
        for follower in setups {
            let (stop, orders) = mpsc::channel();
            stop.send(EngineCommand::Stop).expect("the receiver is there");
            let run = move || engine::run(follower, &orders, &|_| {});
            Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, run).expect("a thread");
        }
        let (sender, receiver) = mpsc::channel();
        let sink = move |progress| sender.send(progress).expect("somebody listens");
        let run = move || engine::run(head, &of_head, &sink);
        Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, run).expect("a thread");
        let mut open: BTreeMap<RequestKey, Answer> = BTreeMap::new();
        let mut done: BTreeMap<RequestKey, Result<Answer, Fault>> = BTreeMap::new();
        while done.len() < requests.len() {
            match receiver.recv().expect("the engine goes on") {
                Progress::Started(key, prompt, _) => drop(open.insert(key, Answer { prompt, ..Answer::default() })),
                Progress::Token(key, event) => {
                    let answer = open.get_mut(&key).expect("it was started");
                    answer.ids.extend(event.id);
                    answer.text.push_str(&event.text);
                    answer.told.extend(event.logprobs.into_iter().map(|told| told.text));
                }
                Progress::Finished(key, finished) => {
                    let answer = open.remove(&key).expect("it was started");
                    done.insert(key, Ok(Answer { reason: Some(finished.reason), ..answer }));
                }
                Progress::Refused(key, fault) => drop(done.insert(key, Err(fault))),
                other => panic!("the engine says {other:?}"),
            }
        }
        orders.send(EngineCommand::Stop).expect("the engine listens");
        done.into_values().collect()
    })
}
