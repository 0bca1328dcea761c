//! Decodes on one rank with and without a draft model, in turns, and prints the median of the ratios:
//! `cargo run --release -p bramble-engine --example speculation -- TARGET.gguf DRAFT.gguf [THREADS] [TOKENS] [ROUNDS]`.
//! The exit code is 1 if an answer differs.
use std::{
    path::Path,
    process::ExitCode,
    sync::{Arc, mpsc},
    thread,
    time::Instant,
};

use collectives::Choice;
use common::{
    ids::{MemberIndex, Rank},
    precision::{Exchange, KvFormat},
    sampling::SamplingParameters,
};
use engine::{
    RequestKey, Setup, Variant,
    collective::{Abort, Group, Settings, StepTiming, SyncLog},
    model::{KvCache, Model, Shard, Source, StateCache},
    plan::Limits,
    port::{EngineEvent, EngineOrder, Prepared, RequestEvent},
};
use gguf::GgufFile;
use kernels::{Compute, Kernels, Pool, PoolOptions};
use models::ModelSpec;
use protocol::message::Finished;
use topology::{KvBlocks, Layout, ShardPlan, StateCount, cut_stages};

const CONTEXT: usize = 2048;
const BLOCKS: usize = 128;

/// A model on one rank.
struct Loaded {
    spec: ModelSpec,
    shard: Shard,
    cache: KvCache,
}

fn load(path: &str, kernels: &'static Kernels) -> Loaded {
    let file = Arc::new(GgufFile::open(Path::new(path)).expect("a model file"));
    let spec = models::read(&file).expect("a valid model");
    let plans: Vec<ShardPlan> = cut_stages(&spec, &[(0..spec.block_count(), vec![1])]).expect("one rank holds all");
    let progress = &|_| true;
    let (cache, expert_memory, is_hollow, plan) = (None, None, false, &plans[0]);
    let source = Source { file: &file, spec: &spec, plan, kernels, cache, expert_memory, is_hollow, progress };
    let shard = Shard::load(source).expect("enough memory");
    let cache = KvCache::new(KvFormat::F16, &spec, plan, KvBlocks::alike(BLOCKS)).expect("enough memory");
    Loaded { spec, shard, cache }
}

fn setup(target: Loaded, draft: Loaded, threads: usize, kernels: &'static Kernels) -> Setup {
    let Loaded { spec, shard, cache } = target;
    let states = StateCount::in_model(&spec, 4);
    let limits = Limits {
        slots: 4,
        blocks: KvBlocks::alike(BLOCKS),
        window: None,
        context_length: CONTEXT,
        vocabulary_length: spec.vocabulary_length,
        states,
    };
    let states = StateCache::new(&spec, &shard.plan, states).expect("enough memory");
    let place = Layout::tensor_parallel(1).place(MemberIndex(0));
    let settings = Settings { exchange: Exchange::F32, columns: spec.embedding_length, choice: Choice::Auto, kernels };
    let ring = Arc::new(SyncLog::new(Rank(0), place.group.clone()));
    let model = Box::new(move || {
        let pool = Pool::new(PoolOptions { threads, cores: (0..threads).collect(), spin: false });
        let compute = Compute::new(kernels, pool.expect("threads can be started"));
        Model::new(shard, cache, compute, CONTEXT).with_states(states)
    });
    Setup {
        node: "pi0".into(),
        place,
        limits,
        model,
        draft: Some(Box::new(move |compute: &Compute| Model::new(draft.shard, draft.cache, compute.clone(), CONTEXT))),
        group: Group::new(None, settings, StepTiming::new(Rank(0), ring)),
        transfers: None,
        store: None,
        variant: Variant::default(),
        end_tokens: Vec::new(),
        vocabulary: None,
        abort: Arc::new(Abort::new().expect("a file descriptor is free")),
    }
}

/// An engine, and how many requests it has served.
struct Served {
    orders: mpsc::Sender<EngineOrder>,
    events: mpsc::Receiver<EngineEvent>,
    key: u64,
}

impl Served {
    /// The ids of an answer, and its end.
    fn ask(&mut self, prompt: Vec<u32>, max_tokens: u32, temperature: f32, drafts_max: u16) -> (Vec<u32>, Finished) {
        self.key += 1;
        let sampling = SamplingParameters { temperature, seed: 7, ..SamplingParameters::default() };
        let prepared = Prepared {
            received: Instant::now(),
            prompt,
            resumed: Vec::new(),
            is_stopped: false,
            max_tokens,
            ignores_end: true,
            sampling,
            drafts_max,
            grammar: None,
        };
        self.orders.send(EngineOrder::Begin(RequestKey(self.key), Box::new(prepared))).expect("the engine runs");
        let mut ids = Vec::new();
        loop {
            match self.events.recv().expect("the engine runs") {
                EngineEvent::Request(_, RequestEvent::Token(token)) => ids.push(token.id),
                EngineEvent::Request(_, RequestEvent::Finished(finished)) => return (ids, *finished),
                EngineEvent::Request(_, RequestEvent::Refused(fault)) => panic!("{fault}"),
                _ => {}
            }
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |index: usize, default: usize| arguments.get(index).map_or(default, |text| text.parse().expect("a number"));
    let (threads, tokens, rounds) = (number(2, 1), number(3, 128) as u32, number(4, 9));
    let kernels = Kernels::choose(None).expect("this machine has kernels");
    let (target, draft) = (load(&arguments[0], kernels), load(&arguments[1], kernels));
    let (read, drafted) = (target.shard.token_bytes(), draft.shard.token_bytes());
    println!("the draft model reads {:.1} % of the bytes", 100.0 * drafted as f64 / read as f64);
    let vocabulary = target.spec.vocabulary_length as u32;
    let setup = setup(target, draft, threads, kernels);
    let (orders, received) = mpsc::channel();
    let (sender, events) = mpsc::channel();
    let engine = thread::Builder::new().stack_size(32 << 20).spawn(move || {
        engine::run(setup, &received, &move |event: EngineEvent| drop(sender.send(event)));
    });
    let mut served = Served { orders, events, key: 0 };
    let mut is_same = true;
    for temperature in [0.0, 0.8] {
        let (mut ratios, mut counts) = (Vec::new(), (0, 0));
        for round in 0..=rounds as u32 {
            let prompt: Vec<u32> =
                (0..32).map(|index| 300 + (round * 7919 + index * 104_729) % (vocabulary - 300)).collect();
            let (with, plain) =
                (served.ask(prompt.clone(), tokens, temperature, u16::MAX), served.ask(prompt, tokens, temperature, 0));
            is_same &= with.0 == plain.0;
            let token_ns =
                |end: &Finished| (end.times.last_token.0 - end.times.first_token.0) as f64 / f64::from(tokens - 1);
            if round > 0 {
                // In the first round, the times of steps are learned.
                ratios.push(token_ns(&plain.1) / token_ns(&with.1));
                counts = (counts.0 + with.1.times.drafted_tokens, counts.1 + with.1.times.accepted_tokens);
            }
            println!(
                "  {:.2} ms a token, {:.2} without, {} of {} accepted",
                token_ns(&with.1) / 1e6,
                token_ns(&plain.1) / 1e6,
                with.1.times.accepted_tokens,
                with.1.times.drafted_tokens
            );
        }
        println!(
            "temperature {temperature}: {:.2} times as fast (median of {rounds}), {} of {} accepted",
            median(ratios),
            counts.1,
            counts.0
        );
    }
    drop(served.orders);
    engine.expect("a thread can be started").join().expect("the engine ends");
    println!("{}", if is_same { "all answers are the same" } else { "an answer differs" });
    ExitCode::from(u8::from(!is_same))
}
