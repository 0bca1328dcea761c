//! A token from plan to text allocates nothing: scheduling, plans over sockets, layers, candidates, drawing, detokenizing and
//! the hand-over to the driver, on all threads of one rank and of two, after 16 tokens that let the buffers grow.
use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use daemon::{
    collective::{Abort, Accounting, Group, Links, Seat, Settings, SyncRing},
    engine::{self, RequestKey, Setup, plan::Limits},
    kernels::{Compute, Kernels, Pool, PoolOptions},
    model::{KvCache, Model, Shard, Source},
    node::{EngineCommand, Progress},
};
use harness::{ranks::sockets, tiny_model::TinyModel};
use shared::{
    gguf::{Architecture, BlockFormat, GgufFile, Shape},
    ids::{Epoch, MemberIndex, Rank, TopologyHash},
    protocol::message::{Generate, ToolFormat},
    sampling::SamplingParameters,
    schedule::Choice,
    tokenizer::Tokenizer,
    topology::{Exchange, KvFormat, Layout, cut, spec::KV_BLOCK_LENGTH},
};

use crate::ALL_CALLS;

const WARM_UP: usize = 16;
const TOKENS: usize = 216;
const BLOCKS: usize = 8;
const QUEUE: usize = 64;

/// The engine of one rank; the head's model, links and tokenizer are its own.
fn rank(
    file: &Arc<GgufFile>,
    (number, plan): (usize, shared::topology::ShardPlan),
    streams: Vec<Option<std::net::TcpStream>>,
) -> Setup {
    let shape = Shape::read(file).expect("the model is good");
    let kernels = Kernels::choose(None).expect("a table is there");
    let source = Source { file, shape: &shape, plan: &plan, kernels, cache: None, progress: &|_| true };
    let shard = Shard::load(source).expect("the shard can be loaded");
    let kv = KvCache::new(KvFormat::F16, shape.block_count, BLOCKS, plan.heads_kv.len(), shape.head_length);
    let kv = kv.expect("there is memory");
    let abort = Arc::new(Abort::new().expect("the system has descriptors"));
    let rank = Rank(number as u16);
    let place = Layout::tensor_parallel(streams.len() as u16).place(MemberIndex(number as u16));
    let seat = Seat { own: rank, stage: place.group.clone(), epoch: Epoch(1), hash: TopologyHash(2) };
    let is_alone = streams.len() == 1;
    let links = (!is_alone).then(|| Links::new(seat, streams, Arc::clone(&abort), false).expect("sockets are good"));
    let accounting = Accounting::new(rank, Arc::new(SyncRing::default()));
    let model = Box::new(move || {
        let pool = Pool::new(PoolOptions { threads: 2, cores: Vec::new(), spin: false });
        Model::new(shard, kv, Compute { kernels, pool })
    });
    let limits = Limits {
        slots: 1,
        blocks: BLOCKS,
        context_length: BLOCKS * KV_BLOCK_LENGTH,
        vocabulary_length: shape.vocabulary_length,
    };
    let tokenizer = (number == 0).then(|| Tokenizer::from_metadata(file.metadata()).expect("the model has one"));
    let settings = Settings { exchange: Exchange::F32, columns: shape.embedding_length, choice: Choice::Auto };
    let group = Group::new(links, settings, accounting);
    Setup { node: format!("pi{number}"), place, limits, model, group, transfers: None, tokenizer, abort }
}

/// Allocations of all threads between the tokens `WARM_UP` and `TOKENS` of an answer; `at_token` runs on the engine's thread.
fn answer(world: usize, sampling: SamplingParameters, at_token: &(dyn Fn() + Sync)) -> usize {
    let bytes = TinyModel::new(Architecture::Llama).with_format(BlockFormat::Q4K).bytes();
    let file = Arc::new(GgufFile::from_bytes(vec![bytes]).expect("the model is good"));
    let shape = Shape::read(&file).expect("the model is good");
    let plans = cut(&shape, &vec![1; world]).expect("the model can be cut");
    let mut ranks = plans.into_iter().enumerate().zip(sockets(world)).map(|(plan, streams)| rank(&file, plan, streams));
    let head = ranks.next().expect("a world has a head");
    // No token ends the answer.
    let ends: Vec<(u32, f32)> = [0, 1, 2].map(|id| (id, -1e9)).to_vec();
    let sampling = SamplingParameters { logit_bias: ends, ..sampling };
    let prompt = "ROMEO:".to_owned();
    let generate = Generate::new(prompt, TOKENS as u32 + 1, sampling, vec!["\u{1}".into()]);
    let (orders, of_head) = mpsc::channel();
    orders.send(EngineCommand::Submit(RequestKey(1), Arc::new(generate))).expect("the engine listens");
    thread::scope(|scope| {
        for follower in ranks {
            let (stop, orders) = mpsc::channel();
            stop.send(EngineCommand::Stop).expect("the receiver is there");
            // The head's end closes the links: the follower ends by that.
            scope.spawn(move || engine::run(follower, &orders, &|_| {}));
        }
        // As the driver takes them.
        let (sender, mut receiver) = tokio::sync::mpsc::channel::<Progress>(QUEUE);
        // The daemon's queue has turned over long before: it carries everything that happens to a node.
        for _ in 0..8 {
            let fill = |_| sender.blocking_send(Progress::Started(RequestKey(0), Vec::new(), ToolFormat::None));
            (0..QUEUE).try_for_each(fill).expect("the receiver is there");
            (0..QUEUE).for_each(|_| drop(receiver.blocking_recv()));
        }
        let (count, before, after) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let (seen, began, ended) = (&count, &before, &after);
        let sink = move |progress: Progress| {
            if matches!(&progress, Progress::Token(_, event) if event.id.is_some()) {
                match seen.fetch_add(1, Ordering::Relaxed) + 1 {
                    WARM_UP => began.store(ALL_CALLS.load(Ordering::Relaxed), Ordering::Relaxed),
                    TOKENS => ended.store(ALL_CALLS.load(Ordering::Relaxed), Ordering::Relaxed),
                    _ => {}
                }
                at_token();
            }
            sender.blocking_send(progress).expect("somebody listens");
        };
        thread::scope(|scope| {
            scope.spawn(move || engine::run(head, &of_head, &sink));
            while let Some(progress) = receiver.blocking_recv() {
                match progress {
                    Progress::Finished(..) => orders.send(EngineCommand::Stop).expect("the engine listens"),
                    Progress::Started(..) | Progress::Token(..) => {}
                    other => panic!("{other:?}"),
                }
            }
        });
        assert!(count.into_inner() > TOKENS, "the answer is as long as was asked for");
        after.into_inner() - before.into_inner()
    })
}

fn sampling(change: impl FnOnce(&mut SamplingParameters)) -> SamplingParameters {
    let mut sampling = SamplingParameters::default();
    change(&mut sampling);
    sampling
}

/// Runs a test in a process of its own: what it counts are the allocations of all threads.
fn alone(name: &str, test: impl FnOnce()) {
    const IS_ALONE: &str = "BRAMBLE_TEST_IS_ALONE";
    if std::env::var_os(IS_ALONE).is_some() {
        return test();
    }
    let own = std::env::current_exe().expect("the test runs from a file");
    let run = Command::new(own).args(["--exact", name]).env(IS_ALONE, "1").output().expect("the test can run itself");
    let printed = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && printed.contains("1 passed"), "{printed}");
}

#[test]
fn a_token_allocates_nothing() {
    let ways = [
        SamplingParameters::default(),
        sampling(|way| way.temperature = 0.0),
        sampling(|way| (way.top_k, way.top_p, way.min_p) = (40, 0.9, 0.05)),
        // Further rounds between the ranks.
        sampling(|way| (way.temperature, way.top_p) = (1.5, 0.95)),
        sampling(|way| (way.repeat_penalty, way.frequency_penalty) = (1.2, 0.1)),
    ];
    alone("engine::a_token_allocates_nothing", || {
        for world in [1, 2] {
            for way in &ways {
                assert_eq!(answer(world, way.clone(), &|| {}), 0, "{world} ranks, {way:?}");
            }
        }
    });
}

#[test]
fn an_allocation_for_each_token_is_seen() {
    alone("engine::an_allocation_for_each_token_is_seen", || {
        let wasteful = || drop(std::hint::black_box(Box::new(1)));
        assert_eq!(answer(2, SamplingParameters::default(), &wasteful), TOKENS - WARM_UP);
    });
}
