//! A token allocates nothing on its way from step plan to text: scheduling, plans over sockets, layers, candidates,
//! sampling, the hand-over to the driver and detokenising there, on all threads of one rank and of two, after 16 tokens
//! during which the buffers grow.
use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use common::{limits::KV_BLOCK_LENGTH, sampling::SamplingParameters};
use daemon::text::AnswerEvent;
use engine::{
    self, RequestKey,
    port::{EngineEvent, EngineOrder, RequestEvent},
};
use gguf::{BlockFormat, GgufFile};
use harness::tiny_model::Architecture;
use harness::{
    engines::{Replica, begin},
    tiny_model::TinyModel,
};
use protocol::message::Generate;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::ALL_CALLS;

const WARM_UP: usize = 16;
const TOKENS: usize = 216;
const BLOCKS: usize = 8;
const QUEUE: usize = 64;
/// Most tokens that the thread that detokenizes may be behind the engine's.
const LAG_MAX: usize = 4;
/// Longest wait of the engine's thread for the other one.
const PATIENCE: Duration = Duration::from_secs(60);

/// A queue like the driver's. In a daemon it has wrapped around long before, because it carries all events of a node.
fn queue() -> (Sender<EngineEvent>, Receiver<EngineEvent>) {
    let (sender, mut receiver) = channel(QUEUE);
    for _ in 0..8 {
        for _ in 0..QUEUE {
            let started = EngineEvent::Request(RequestKey(0), RequestEvent::Started);
            sender.blocking_send(started).expect("this thread holds the receiver");
        }
        (0..QUEUE).for_each(|_| drop(receiver.blocking_recv()));
    }
    (sender, receiver)
}

/// Allocations on all threads between the tokens `WARM_UP` and `TOKENS` of an answer; `at_token` runs on the engine's
/// thread.
fn answer(world: usize, sampling: SamplingParameters, at_token: &(dyn Fn() + Sync)) -> usize {
    let bytes = TinyModel::new(Architecture::Llama).with_format(BlockFormat::Q4K).bytes();
    let file = Arc::new(GgufFile::from_bytes(vec![bytes]).expect("the model is valid"));
    let context_length = BLOCKS * KV_BLOCK_LENGTH;
    let replica = Replica { slots: 1, blocks: BLOCKS, context_length, threads: 2, ..Replica::of(world as u16) };
    let mut ranks = replica.setups(&file).into_iter();
    let head = ranks.next().expect("a world has a head");
    // Prevents any token from ending the answer.
    let ends: Vec<(u32, f32)> = [0, 1, 2].map(|id| (id, -1e9)).to_vec();
    let sampling = SamplingParameters { logit_bias: ends, ..sampling };
    // At least as long as a step with speculative tokens, so that the per-row buffers have grown.
    let prompt = "abcdefghijklmnopqrstuvwxyzabcdefgh".to_owned();
    let generate = Generate::new(prompt, TOKENS as u32 + 1, sampling, vec!["\u{1}".into()]);
    let (orders, of_head) = mpsc::channel();
    let mut preparer = replica.preparer(&file);
    let answers = preparer.answers();
    let order = begin(&mut preparer, &answers, RequestKey(1), &generate).expect("the request is valid");
    orders.send(order).expect("the engine holds the receiver");
    thread::scope(|scope| {
        for follower in ranks {
            let (stop, orders) = mpsc::channel();
            stop.send(EngineOrder::Stop).expect("the engine holds the receiver");
            // The follower ends when the head closes the links.
            scope.spawn(move || engine::run(follower, &orders, &|_| {}));
        }
        let (sender, mut receiver) = queue();
        let (count, before, after) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let (seen, began, ended) = (&count, &before, &after);
        let translated = &AtomicUsize::new(0);
        // On a busy machine this thread may fall many tokens behind the engine's: the queue would then grow, and buffers
        // that grow with the first tokens here would be counted.
        let calls_after = |tokens: usize| {
            let begin = Instant::now();
            while translated.load(Ordering::Relaxed) < tokens {
                assert!(begin.elapsed() < PATIENCE, "token {tokens} is not translated");
                thread::yield_now();
            }
            ALL_CALLS.load(Ordering::Relaxed)
        };
        thread::scope(|scope| {
            scope.spawn(move || {
                engine::run(head, &of_head, &move |event: EngineEvent| {
                    if matches!(&event, EngineEvent::Request(_, RequestEvent::Token(_))) {
                        let number = seen.fetch_add(1, Ordering::Relaxed) + 1;
                        match number {
                            WARM_UP => began.store(calls_after(WARM_UP - 1), Ordering::Relaxed),
                            TOKENS => ended.store(calls_after(TOKENS - 1), Ordering::Relaxed),
                            _ => _ = calls_after(number.saturating_sub(LAG_MAX)),
                        }
                        at_token();
                    }
                    sender.blocking_send(event).expect("the receiver is open");
                })
            });
            while let Some(event) = receiver.blocking_recv() {
                let EngineEvent::Request(key, event) = event else { continue };
                let is_token = matches!(event, RequestEvent::Token(_));
                for event in answers.translate(key, event).events {
                    match event {
                        AnswerEvent::Finished(_) => {
                            orders.send(EngineOrder::Stop).expect("the engine holds the receiver");
                        }
                        AnswerEvent::Started { .. } | AnswerEvent::Dispatched | AnswerEvent::Token(_) => {}
                        other => panic!("{other:?}"),
                    }
                }
                translated.fetch_add(usize::from(is_token), Ordering::Relaxed);
            }
        });
        assert!(count.into_inner() > TOKENS, "the answer must have the requested length");
        after.into_inner() - before.into_inner()
    })
}

fn sampling(change: impl FnOnce(&mut SamplingParameters)) -> SamplingParameters {
    let mut sampling = SamplingParameters::default();
    change(&mut sampling);
    sampling
}

/// Runs a test in a separate process, because it counts the allocations of all threads.
fn alone(name: &str, test: impl FnOnce()) {
    const IS_ALONE: &str = "BRAMBLE_TEST_IS_ALONE";
    if std::env::var_os(IS_ALONE).is_some() {
        return test();
    }
    let own = std::env::current_exe().expect("the test runs from a file");
    let run =
        Command::new(own).args(["--exact", name]).env(IS_ALONE, "1").output().expect("run the test in a new process");
    let printed = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && printed.contains("1 passed"), "{printed}");
}

#[test]
fn token_allocates_nothing_in_the_whole_engine() {
    let ways = [
        SamplingParameters::default(),
        sampling(|way| way.temperature = 0.0),
        sampling(|way| (way.top_k, way.top_p, way.min_p) = (40, 0.9, 0.05)),
        // These parameters need further rounds between the ranks.
        sampling(|way| (way.temperature, way.top_p) = (1.5, 0.95)),
        sampling(|way| (way.repeat_penalty, way.frequency_penalty) = (1.2, 0.1)),
    ];
    alone("engine::token_allocates_nothing_in_the_whole_engine", || {
        for world in [1, 2] {
            for way in &ways {
                assert_eq!(answer(world, way.clone(), &|| {}), 0, "{world} ranks, {way:?}");
            }
        }
    });
}

#[test]
fn allocation_for_each_token_is_counted() {
    alone("engine::allocation_for_each_token_is_counted", || {
        assert_eq!(
            answer(2, SamplingParameters::default(), &|| drop(std::hint::black_box(Box::new(1)))),
            TOKENS - WARM_UP
        );
    });
}
