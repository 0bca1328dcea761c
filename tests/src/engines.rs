//! Engines of a replica as threads of this process over loopback sockets: requests in, answers out. The same code that brambled
//! runs, without its processes and its queue.
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

use daemon::{
    collective::{Abort, Accounting, Group, Links, Seat, Settings, SyncRing},
    engine::{
        self, RequestKey, Setup,
        grammar::PieceSource,
        plan::Limits,
        port::{EngineOrder, Prepared},
    },
    kernels::{Compute, Kernels, Pool, PoolOptions},
    model::{KvCache, Model, Shard, Source},
    node::Progress,
    text::{ModelText, Preparer, Unprepared, inline::Inline},
};
use shared::{
    gguf::{GgufFile, Shape},
    ids::{Epoch, MemberIndex, Rank, TopologyHash},
    protocol::{
        error::{Fault, FaultKind},
        message::{Finished, Generate, TokenLogprob},
    },
    schedule::Choice,
    tokenizer::Tokenizer,
    topology::{Exchange, KvFormat, Layout, ShardPlan, cut_stages, split_layers},
};

use crate::ranks::sockets;

/// Longest time without any progress.
const PATIENCE: Duration = Duration::from_secs(120);

/// How a replica runs.
#[derive(Clone, Copy, Debug)]
pub struct Replica {
    /// Stages of the pipeline.
    pub stages: u16,
    /// Ranks of each stage.
    pub ranks: u16,
    /// Sequences at the same time.
    pub slots: usize,
    /// KV blocks of each rank.
    pub blocks: usize,
    /// Longest sequence.
    pub context_length: usize,
    /// Threads of each rank.
    pub threads: usize,
    /// Whether the head drafts no tokens and computes every prompt anew.
    pub is_plain: bool,
    /// Format of the KV cache.
    pub kv: KvFormat,
    /// Whether ranks can read the vocabulary, which constrained answers need.
    pub knows_pieces: bool,
}

/// What came of a request.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// Tokens that were told.
    pub ids: Vec<u32>,
    /// Their text.
    pub text: String,
    /// Bytes of text that were told with each token and those before it.
    pub told: Vec<usize>,
    /// Of each token.
    pub logprobs: Vec<Vec<TokenLogprob>>,
    /// The end.
    pub finished: Option<Finished>,
    /// Why it never began.
    pub refused: Option<Fault>,
}

impl Replica {
    /// One stage of so many ranks with a context of 1024 tokens, room for four times that in 16 slots.
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
        }
    }

    /// Two stages of one rank each.
    pub fn pipeline() -> Self {
        Self { stages: 2, ..Self::of(1) }
    }

    /// The setups of all ranks, the head first.
    ///
    /// # Panics
    /// The model cannot be cut or loaded.
    pub fn setups(&self, file: &Arc<GgufFile>) -> Vec<Setup> {
        let shape = Shape::read(file).expect("the model is good");
        let weights = vec![1; usize::from(self.stages)];
        let layers = split_layers(&vec![1; shape.block_count], 0, &weights).expect("a layer for each stage");
        let ranks = vec![1; usize::from(self.ranks)];
        let stages: Vec<_> =
            layers.iter().map(|layers| (layers.start as usize..layers.end as usize, ranks.clone())).collect();
        let plans = cut_stages(&shape, &stages).expect("the model can be cut");
        let world = plans.len();
        let parts = plans.into_iter().zip(sockets(world)).enumerate();
        parts.map(|(rank, (plan, streams))| self.setup(file, &shape, (rank, plan), streams)).collect()
    }

    fn setup(
        &self,
        file: &Arc<GgufFile>,
        shape: &Shape,
        (number, plan): (usize, ShardPlan),
        streams: Vec<Option<TcpStream>>,
    ) -> Setup {
        let kernels = Kernels::choose(None).expect("a table is there");
        let source = Source { file, shape, plan: &plan, kernels, cache: None, is_hollow: false, progress: &|_| true };
        let shard = Shard::load(source).expect("the shard can be loaded");
        let heads = plan.heads_kv.len();
        let kv = KvCache::new(self.kv, plan.layers.len(), self.blocks, heads, shape.head_length);
        let kv = kv.expect("there is memory");
        let abort = Arc::new(Abort::new().expect("the system has descriptors"));
        let rank = Rank(number as u16);
        let layout = Layout::alike(1, self.stages, self.ranks);
        let place = layout.place(MemberIndex(number as u16));
        let seat = Seat { own: rank, stage: place.group.clone(), epoch: Epoch(1), hash: TopologyHash(2) };
        let has_links = streams.len() > 1;
        let links = has_links.then(|| Links::new(seat, streams, Arc::clone(&abort), false).expect("sockets are good"));
        let threads = self.threads;
        let model = Box::new(move || {
            let pool = Pool::new(PoolOptions { threads, cores: Vec::new(), spin: false });
            Model::new(shard, kv, Compute { kernels, pool })
        });
        let limits = self.limits(shape);
        let tokenizer = (number == 0).then(|| tokenizer(file));
        let settings =
            Settings { exchange: Exchange::F32, columns: shape.embedding_length, choice: Choice::Auto, kernels };
        let ring = Arc::new(SyncRing::new(rank, place.group.clone()));
        let group = Group::new(links, settings, Accounting::new(rank, ring));
        let pieces = self.knows_pieces && place.is_last_stage();
        let pieces = pieces.then(|| PieceSource {
            aside: |job| thread::Builder::new().spawn(job).is_ok(),
            file: Arc::clone(file),
            vocabulary_length: shape.vocabulary_length,
        });
        let (node, plain, transfers) = (format!("pi{number}"), self.is_plain, None);
        Setup { node, place, limits, model, group, transfers, plain, tokenizer, pieces, abort }
    }

    fn limits(&self, shape: &Shape) -> Limits {
        Limits {
            slots: self.slots,
            blocks: self.blocks,
            context_length: self.context_length,
            vocabulary_length: shape.vocabulary_length,
        }
    }

    /// Prepares requests for the head where it is called.
    ///
    /// # Panics
    /// The model has no tokenizer.
    pub fn preparer(&self, file: &Arc<GgufFile>) -> Preparer<Inline> {
        let (tokenizer, shape) = (tokenizer(file), Shape::read(file).expect("the model is good"));
        let text = ModelText::new("m".into(), PathBuf::new(), file, Arc::clone(&tokenizer), self.limits(&shape));
        let source = text.template.clone().expect("its template can be read");
        Preparer::new(Arc::new(text), Inline::new(source, PathBuf::new(), Some(tokenizer)))
    }

    /// Runs requests in batches: those of one are submitted together, the next batch when all of them are done.
    ///
    /// # Panics
    /// An engine fails, or nothing happens for two minutes.
    pub fn answers(&self, file: &Arc<GgufFile>, batches: &[Vec<Generate>]) -> Vec<Vec<Answer>> {
        let mut setups = self.setups(file).into_iter();
        let head = setups.next().expect("a replica has a head");
        let (orders, of_head) = mpsc::channel();
        let (sender, receiver) = mpsc::channel();
        let (mut preparer, refuse) = (self.preparer(file), sender.clone());
        thread::scope(|scope| {
            for follower in setups {
                let (stop, orders) = mpsc::channel();
                stop.send(EngineOrder::Stop).expect("the receiver is there");
                // The head's end closes the links: the follower ends by that.
                scope.spawn(move || engine::run(follower, &orders, &|_| {}));
            }
            scope.spawn(move || {
                let sink = move |progress: Progress| drop(sender.send(progress));
                engine::run(head, &of_head, &sink);
            });
            let mut submit = |(number, generate): (usize, &Generate)| {
                let key = RequestKey(number as u64);
                match begin(&mut preparer, key, generate) {
                    Ok(order) => orders.send(order).expect("the engine listens"),
                    Err(kind) => {
                        let refused = Progress::Refused(key, Fault::new("pi0", kind));
                        refuse.send(refused).expect("this thread listens");
                    }
                }
            };
            let mut run = |batch: &Vec<Generate>| {
                batch.iter().enumerate().for_each(&mut submit);
                collect(&receiver, batch.len())
            };
            let answers = batches.iter().map(&mut run).collect();
            orders.send(EngineOrder::Stop).expect("the engine listens");
            answers
        })
    }

    /// Runs requests one after the other on engines that know nothing of the ones before.
    pub fn each_alone(&self, file: &Arc<GgufFile>, requests: &[Generate]) -> Vec<Answer> {
        let alone = |generate: &Generate| self.answers(file, &[vec![generate.clone()]]).remove(0).remove(0);
        requests.iter().map(alone).collect()
    }
}

fn tokenizer(file: &GgufFile) -> Arc<Tokenizer> {
    Arc::new(Tokenizer::from_metadata(file.metadata()).expect("the model has one"))
}

/// What the engine is told of a request.
///
/// # Errors
/// The request cannot be run.
pub fn begin(preparer: &mut Preparer<Inline>, key: RequestKey, generate: &Generate) -> Result<EngineOrder, FaultKind> {
    let (received, generate) = (Instant::now(), Arc::new(generate.clone()));
    match preparer.prepare(&generate, 0) {
        Ok(prompt) => {
            let tool_format = preparer.tool_format();
            Ok(EngineOrder::Begin(key, Box::new(Prepared { received, generate, prompt, tool_format })))
        }
        Err(Unprepared::Refused(kind)) => Err(kind),
        Err(Unprepared::Elsewhere) => unreachable!("all of it is done here"),
    }
}

/// Takes in the progress of requests 0 to `count` until all are done.
fn collect(receiver: &mpsc::Receiver<Progress>, count: usize) -> Vec<Answer> {
    let mut answers: BTreeMap<u64, Answer> = BTreeMap::new();
    let mut done = 0;
    while done < count {
        match receiver.recv_timeout(PATIENCE) {
            Ok(Progress::Started(RequestKey(key), prompt, _)) => {
                answers.insert(key, Answer { prompt, ..Answer::default() });
            }
            Ok(Progress::Token(RequestKey(key), event)) => {
                let answer = answers.get_mut(&key).expect("it has started");
                answer.text.push_str(&event.text);
                answer.ids.extend(event.id);
                answer.told.extend(event.id.map(|_| answer.text.len()));
                answer.logprobs.extend(event.id.map(|_| event.logprobs));
            }
            Ok(Progress::Finished(RequestKey(key), finished)) => {
                answers.get_mut(&key).expect("it has started").finished = Some(*finished);
                done += 1;
            }
            Ok(Progress::Refused(RequestKey(key), fault)) => {
                answers.insert(key, Answer { refused: Some(fault), ..Answer::default() });
                done += 1;
            }
            Ok(Progress::Kv(_) | Progress::Dispatched(_)) => {}
            Ok(other) => panic!("{other:?}"),
            Err(RecvTimeoutError::Timeout) => panic!("nothing happens for {PATIENCE:?}, {done} of {count} are done"),
            Err(RecvTimeoutError::Disconnected) => panic!("the engine ended"),
        }
    }
    answers.into_values().collect()
}

impl Answer {
    /// The end.
    ///
    /// # Panics
    /// There was none.
    pub fn end(&self) -> &Finished {
        self.finished.as_ref().expect("it has ended")
    }
}
