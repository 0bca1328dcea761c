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
    engine::{self, RequestKey, port::EngineOrder},
    node::Progress,
};
use harness::{
    engines::{Replica, begin},
    tiny_model::TinyModel,
};
use shared::{
    gguf::{Architecture, BlockFormat, GgufFile},
    protocol::message::{Generate, ToolFormat},
    sampling::SamplingParameters,
    topology::spec::KV_BLOCK_LENGTH,
};

use crate::ALL_CALLS;

const WARM_UP: usize = 16;
const TOKENS: usize = 216;
const BLOCKS: usize = 8;
const QUEUE: usize = 64;

/// Allocations of all threads between the tokens `WARM_UP` and `TOKENS` of an answer; `at_token` runs on the engine's thread.
fn answer(world: usize, sampling: SamplingParameters, at_token: &(dyn Fn() + Sync)) -> usize {
    let bytes = TinyModel::new(Architecture::Llama).with_format(BlockFormat::Q4K).bytes();
    let file = Arc::new(GgufFile::from_bytes(vec![bytes]).expect("the model is good"));
    let context_length = BLOCKS * KV_BLOCK_LENGTH;
    let replica = Replica { slots: 1, blocks: BLOCKS, context_length, threads: 2, ..Replica::of(world as u16) };
    let mut ranks = replica.setups(&file).into_iter();
    let head = ranks.next().expect("a world has a head");
    // No token ends the answer.
    let ends: Vec<(u32, f32)> = [0, 1, 2].map(|id| (id, -1e9)).to_vec();
    let sampling = SamplingParameters { logit_bias: ends, ..sampling };
    // As long as a step with drafts, and more: buffers by row have grown.
    let prompt = "abcdefghijklmnopqrstuvwxyzabcdefgh".to_owned();
    let generate = Generate::new(prompt, TOKENS as u32 + 1, sampling, vec!["\u{1}".into()]);
    let (orders, of_head) = mpsc::channel();
    let order = begin(&mut replica.preparer(&file), RequestKey(1), &generate).expect("the request is good");
    orders.send(order).expect("the engine listens");
    thread::scope(|scope| {
        for follower in ranks {
            let (stop, orders) = mpsc::channel();
            stop.send(EngineOrder::Stop).expect("the receiver is there");
            // The head's end closes the links: the follower ends by that.
            scope.spawn(move || engine::run(follower, &orders, &|_| {}));
        }
        // As the driver takes them.
        let (sender, mut receiver) = tokio::sync::mpsc::channel::<Progress>(QUEUE);
        // The daemon's queue has turned over long before: it carries everything that happens to a node.
        for _ in 0..8 {
            for _ in 0..QUEUE {
                let started = Progress::Started(RequestKey(0), Vec::new(), ToolFormat::None);
                sender.blocking_send(started).expect("the receiver is there");
            }
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
                    Progress::Finished(..) => orders.send(EngineOrder::Stop).expect("the engine listens"),
                    Progress::Started(..) | Progress::Dispatched(_) | Progress::Token(..) | Progress::Kv(_) => {}
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
