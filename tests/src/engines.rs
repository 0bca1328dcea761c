//! Runs the engines of a replica as threads of this process over loopback sockets: requests in, answers out. The engine
//! code is that of brambled, without its processes and its queue.
use std::{
    collections::BTreeMap,
    net::TcpStream,
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use collectives::{Algorithm, Choice};
use common::{
    fault::{Fault, FaultKind},
    ids::{Epoch, MemberIndex, Rank, TopologyHash},
    limits::KV_BLOCK_LENGTH,
    precision::{Exchange, KvFormat},
};
use daemon::{
    kv_store::{KvFolder, RankFiles},
    text::{AnswerEvent, Answers, ModelText, Preparer, Unprepared, inline::Inline, vocabulary},
};
use engine::{
    self, RequestKey, Setup, Variant,
    collective::{Abort, Group, Links, Seat, Settings, StepTiming, SyncLog},
    kv_store::{Part, Space, port::Disk},
    model::{KvCache, Model, Shard, Source, StateCache},
    plan::Limits,
    port::{EngineEvent, EngineOrder, ReplicaEvent, RequestEvent},
};
use gguf::GgufFile;
use kernels::{Compute, Kernels, Pool, PoolOptions};
use models::ModelSpec;
use protocol::bench::BenchLinks;
use protocol::message::{Finished, Generate, TokenEvent, TokenLogprob};
use tokenizer::Tokenizer;
use topology::{KvBlocks, Layout, ShardPlan, StateCount, cut_stages, split_model};

use crate::ranks::sockets;

/// Longest time without progress.
const PATIENCE: Duration = Duration::from_secs(120);

/// Configuration of a replica.
#[derive(Clone, Copy, Debug)]
pub struct Replica {
    /// Pipeline stages.
    pub stages: u16,
    /// Ranks per stage.
    pub ranks: u16,
    /// Maximum number of concurrent sequences.
    pub slots: usize,
    /// KV blocks per rank.
    pub blocks: usize,
    /// Maximum sequence length.
    pub context_length: usize,
    /// Threads per rank.
    pub threads: usize,
    /// Disables speculative decoding and the prefix cache.
    pub is_plain: bool,
    /// Format of the KV cache.
    pub kv: KvFormat,
    /// Whether ranks can read the vocabulary, which structured output needs.
    pub knows_pieces: bool,
    /// Whether the links of the first stage are benchmarked before any request.
    pub benches_first: bool,
}

/// The outcome of a request.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// Reported tokens.
    pub ids: Vec<u32>,
    /// Their text.
    pub text: String,
    /// Bytes of text reported up to and including each token.
    pub told: Vec<usize>,
    /// Log-probabilities of each token.
    pub logprobs: Vec<Vec<TokenLogprob>>,
    /// Tokens of the prompt with their log-probabilities, if requested.
    pub scored: Vec<TokenEvent>,
    /// The embedding of the prompt, if requested.
    pub embedding: Vec<f32>,
    /// The end of the answer, once it has ended.
    pub finished: Option<Finished>,
    /// Why the request was refused, if it was.
    pub refused: Option<Fault>,
}

/// A rank of a replica and its part of the model.
struct RankPlan {
    number: usize,
    plan: ShardPlan,
}

impl Replica {
    /// One stage of `ranks` ranks with a context of 1024 tokens, and KV blocks for four such sequences in 16 slots.
    pub fn of(ranks: u16) -> Self {
        Self {
            stages: 1,
            ranks,
            slots: 16,
            blocks: 128,
            context_length: 1024,
            threads: 1,
            is_plain: false,
            kv: KvFormat::F16,
            knows_pieces: true,
            benches_first: false,
        }
    }

    /// Two stages of one rank each.
    pub fn pipeline() -> Self {
        Self { stages: 2, ..Self::of(1) }
    }

    /// The setups of all ranks, the head first.
    ///
    /// # Panics
    /// If the model cannot be cut or loaded.
    pub fn setups(&self, file: &Arc<GgufFile>) -> Vec<Setup> {
        let spec = models::read(file).expect("the model is valid");
        let plans = self.plans(file);
        let world = plans.len();
        let parts = plans.into_iter().zip(sockets(world)).enumerate();
        parts.map(|(rank, (plan, streams))| self.setup(file, &spec, RankPlan { number: rank, plan }, streams)).collect()
    }

    /// The shards of all ranks.
    fn plans(&self, file: &Arc<GgufFile>) -> Vec<ShardPlan> {
        let spec = models::read(file).expect("the model is valid");
        let weights = vec![1; usize::from(self.stages)];
        let layers = split_model(&spec, &vec![1; spec.block_count()], 0, &weights).expect("a layer for each stage");
        let ranks = vec![1; usize::from(self.ranks)];
        let stages: Vec<_> =
            layers.iter().map(|layers| (layers.start as usize..layers.end as usize, ranks.clone())).collect();
        cut_stages(&spec, &stages).expect("the model can be cut")
    }

    fn setup(&self, file: &Arc<GgufFile>, spec: &ModelSpec, rank: RankPlan, streams: Vec<Option<TcpStream>>) -> Setup {
        let RankPlan { number, plan } = rank;
        let kernels = Kernels::choose(None).expect("this machine has a kernel table");
        let shard = shard(file, spec, &plan, kernels);
        let limits = self.limits(spec);
        let kv = KvCache::new(self.kv, spec, &plan, limits.blocks);
        let kv = kv.expect("enough memory");
        let states = StateCache::new(spec, &plan, limits.states).expect("enough memory");
        let abort = Arc::new(Abort::new().expect("a file descriptor is free"));
        let rank = Rank(number as u16);
        let layout = Layout::alike(1, self.stages, self.ranks);
        let place = layout.place(MemberIndex(number as u16));
        let seat = Seat { own: rank, stage: place.group.clone(), epoch: Epoch(1), hash: TopologyHash(2) };
        let has_links = streams.len() > 1;
        let links =
            has_links.then(|| Links::new(seat, streams, Arc::clone(&abort), false).expect("the sockets are valid"));
        let threads = self.threads;
        let context_length = spec.context_length;
        let model = Box::new(move || {
            let pool = Pool::new(PoolOptions { threads, cores: Vec::new(), spin: false });
            let compute = Compute::new(kernels, pool.expect("threads can be started"));
            Model::new(shard, kv, compute, context_length).with_states(states)
        });
        let end_tokens = self.model_text(file).end_tokens();
        let settings =
            Settings { exchange: Exchange::F32, columns: spec.embedding_length, choice: Choice::Auto, kernels };
        let ring = Arc::new(SyncLog::new(rank, place.group.clone()));
        let group = Group::new(links, settings, StepTiming::new(rank, ring));
        let knows_vocabulary = self.knows_pieces && place.is_last_stage();
        let vocabulary = knows_vocabulary.then(|| {
            vocabulary(Arc::clone(file), spec.vocabulary_length, |job| thread::Builder::new().spawn(job).is_ok())
        });
        let (node, transfers) = (format!("pi{number}"), None);
        let variant = Variant { is_plain: self.is_plain, ..Variant::default() };
        Setup {
            node,
            place,
            limits,
            model,
            draft: None,
            group,
            transfers,
            store: None,
            variant,
            end_tokens,
            vocabulary,
            abort,
        }
    }

    pub(crate) fn limits(&self, spec: &ModelSpec) -> Limits {
        let window = spec.window();
        let positions = (self.blocks.saturating_sub(self.slots) + 1) * KV_BLOCK_LENGTH;
        let blocks = KvBlocks::of(positions as u32, self.slots as u16, window);
        Limits {
            slots: self.slots,
            blocks: KvBlocks { whole: self.blocks, ..blocks },
            window,
            context_length: self.context_length,
            vocabulary_length: spec.vocabulary_length,
            states: StateCount::in_model(spec, self.slots),
        }
    }

    /// Prepares requests on the calling thread.
    ///
    /// # Panics
    /// If the model has no tokenizer.
    pub fn preparer(&self, file: &Arc<GgufFile>) -> Preparer<Inline> {
        let text = self.model_text(file);
        let tokenizer = Arc::clone(&text.tokenizer);
        let source = text.template.clone().expect("its template can be read");
        Preparer::new(Arc::new(text), Inline::new(source, PathBuf::new(), Some(tokenizer)))
    }

    fn model_text(&self, file: &Arc<GgufFile>) -> ModelText {
        let tokenizer = Tokenizer::from_metadata(file.metadata()).expect("the model has a tokenizer");
        let spec = models::read(file).expect("the model is valid");
        ModelText::new("m".into(), PathBuf::new(), file, Arc::new(tokenizer), self.limits(&spec))
    }

    /// Runs requests in batches: the requests of a batch are submitted together, the next batch once all of them are
    /// done.
    ///
    /// # Panics
    /// If an engine fails, or nothing happens for two minutes.
    pub fn answers(&self, file: &Arc<GgufFile>, batches: &[Vec<Generate>]) -> Vec<Vec<Answer>> {
        self.answers_on(file, batches, Vec::new())
    }

    /// The same with a folder of keys and values for each rank.
    ///
    /// # Panics
    /// As [`Self::answers`].
    pub fn answers_stored(
        &self,
        file: &Arc<GgufFile>,
        batches: &[Vec<Generate>],
        folders: &[Arc<KvFolder>],
    ) -> Vec<Vec<Answer>> {
        self.answers_on(file, batches, self.disks(file, folders))
    }

    /// What keys and values depend on besides the part of the model.
    pub fn space() -> Space {
        Space::of(&["a model"])
    }

    /// The disks of ranks with these folders.
    ///
    /// # Panics
    /// If no thread can be started.
    pub fn disks(&self, file: &Arc<GgufFile>, folders: &[Arc<KvFolder>]) -> Vec<Disk> {
        let plans = self.plans(file);
        let files = plans.iter().zip(folders).map(|(plan, folder)| {
            RankFiles::new(Arc::clone(folder), Part::of(plan), None).start().expect("threads can be started")
        });
        files.collect()
    }

    /// The same with a disk for each rank.
    ///
    /// # Panics
    /// As [`Self::answers`].
    pub fn answers_on(&self, file: &Arc<GgufFile>, batches: &[Vec<Generate>], disks: Vec<Disk>) -> Vec<Vec<Answer>> {
        let mut setups = self.setups(file);
        for (setup, disk) in setups.iter_mut().zip(disks) {
            setup.store = Some((disk, Self::space()));
        }
        self.run(file, setups, batches)
    }

    /// The same on these ranks.
    ///
    /// # Panics
    /// As [`Self::answers`].
    pub fn run(&self, file: &Arc<GgufFile>, setups: Vec<Setup>, batches: &[Vec<Generate>]) -> Vec<Vec<Answer>> {
        let mut setups = setups.into_iter();
        let head = setups.next().expect("a replica has a head");
        let (orders, of_head) = mpsc::channel();
        let (sender, receiver) = mpsc::channel();
        let (mut preparer, refuse) = (self.preparer(file), sender.clone());
        let answers = preparer.answers();
        thread::scope(|scope| {
            for follower in setups {
                let (stop, orders) = mpsc::channel();
                stop.send(EngineOrder::Stop).expect("the engine holds the receiver");
                // The follower ends when the head closes the links.
                scope.spawn(move || engine::run(follower, &orders, &|_| {}));
            }
            scope.spawn(move || {
                engine::run(head, &of_head, &move |event: EngineEvent| drop(sender.send(event)));
            });
            if self.benches_first {
                bench_links(&receiver, &orders);
            }
            let found = batches
                .iter()
                .map(&mut |batch: &Vec<Generate>| {
                    batch.iter().enumerate().for_each(&mut |(number, generate): (usize, &Generate)| {
                        let key = RequestKey(number as u64);
                        match begin(&mut preparer, &answers, key, generate) {
                            Ok(order) => orders.send(order).expect("the engine holds the receiver"),
                            Err(kind) => {
                                let refused = RequestEvent::Refused(Fault::new("pi0", kind));
                                refuse
                                    .send(EngineEvent::Request(key, refused))
                                    .expect("this thread holds the receiver");
                            }
                        }
                    });
                    collect(&receiver, &answers, &orders, batch.len())
                })
                .collect();
            orders.send(EngineOrder::Stop).expect("the engine holds the receiver");
            found
        })
    }

    /// Runs requests one after another, each on new engines without any state of earlier requests.
    pub fn each_alone(&self, file: &Arc<GgufFile>, requests: &[Generate]) -> Vec<Answer> {
        requests.iter().map(|generate| self.answers(file, &[vec![generate.clone()]]).remove(0).remove(0)).collect()
    }
}

/// The shard of a rank.
///
/// # Panics
/// If it cannot be loaded.
pub fn shard(file: &Arc<GgufFile>, spec: &ModelSpec, plan: &ShardPlan, kernels: &'static Kernels) -> Shard {
    let (cache, expert_memory, is_hollow, progress) = (None, None, false, &|_| true);
    let source = Source { file, spec, plan, kernels, cache, expert_memory, is_hollow, progress };
    Shard::load(source).expect("the shard can be loaded")
}

/// Prepares a request for the engine.
///
/// # Errors
/// If the request cannot be run.
pub fn begin(
    preparer: &mut Preparer<Inline>,
    answers: &Answers,
    key: RequestKey,
    generate: &Generate,
) -> Result<EngineOrder, FaultKind> {
    let received = Instant::now();
    match preparer.prepare(generate, 0) {
        Ok(prompt) => {
            let calls = preparer.call_grammar(generate, &prompt.ids);
            let prepared = answers.begin_with(key, received, generate, prompt, calls);
            Ok(EngineOrder::Begin(key, Box::new(prepared)))
        }
        Err(Unprepared::Refused(kind)) => Err(kind),
        Err(Unprepared::Elsewhere) => unreachable!("`Inline` runs every job on this thread"),
    }
}

/// Benchmarks the links of the head's stage.
fn bench_links(receiver: &mpsc::Receiver<EngineEvent>, orders: &mpsc::Sender<EngineOrder>) {
    let wanted = BenchLinks { tokens: vec![1], algorithms: vec![Algorithm::Direct], repeats: 3 };
    orders.send(EngineOrder::BenchLinks(RequestKey(0), wanted)).expect("the engine holds the receiver");
    loop {
        match receiver.recv_timeout(PATIENCE).expect("the engine runs") {
            EngineEvent::Request(_, RequestEvent::LinksBenched(_)) => return,
            EngineEvent::Replica(ReplicaEvent::Kv(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Collects the answers to requests 0 to `count` until all are done; cancels those that a stop string ends.
fn collect(
    receiver: &mpsc::Receiver<EngineEvent>,
    answers: &Answers,
    orders: &mpsc::Sender<EngineOrder>,
    count: usize,
) -> Vec<Answer> {
    let mut found: BTreeMap<u64, Answer> = BTreeMap::new();
    let mut done = 0;
    while done < count {
        let (key, event) = match receiver.recv_timeout(PATIENCE) {
            Ok(EngineEvent::Request(key, event)) => (key, event),
            Ok(EngineEvent::Replica(ReplicaEvent::Kv(_))) => continue,
            Ok(other) => panic!("{other:?}"),
            Err(RecvTimeoutError::Timeout) => panic!("no progress for {PATIENCE:?}; {done} of {count} are done"),
            Err(RecvTimeoutError::Disconnected) => panic!("the engine ended"),
        };
        let translated = answers.translate(key, event);
        if translated.is_stopped {
            orders.send(EngineOrder::Cancel(key)).expect("the engine holds the receiver");
        }
        for event in translated.events {
            done += usize::from(matches!(event, AnswerEvent::Finished(_) | AnswerEvent::Refused(_)));
            found.entry(key.0).or_default().add(event);
        }
    }
    found.into_values().collect()
}

impl Answer {
    fn add(&mut self, event: AnswerEvent) {
        match event {
            AnswerEvent::Started { prompt, .. } => self.prompt = prompt,
            AnswerEvent::Dispatched => {}
            AnswerEvent::Embedded(values) => self.embedding = values,
            AnswerEvent::Scored(tokens) => self.scored.extend(tokens),
            AnswerEvent::Token(event) => {
                self.text.push_str(&event.text);
                self.ids.extend(event.id);
                self.told.extend(event.id.map(|_| self.text.len()));
                self.logprobs.extend(event.id.map(|_| event.logprobs));
            }
            AnswerEvent::Finished(finished) => self.finished = Some(*finished),
            AnswerEvent::Refused(fault) => *self = Self { refused: Some(fault), ..Self::default() },
            AnswerEvent::LinksBenched(_) => panic!("no benchmark was requested"),
        }
    }

    /// The end of the answer.
    ///
    /// # Panics
    /// If the request did not end.
    pub fn end(&self) -> &Finished {
        self.finished.as_ref().expect("the request has ended")
    }
}
