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

use collectives::Choice;
use common::{
    fault::{Fault, FaultKind},
    ids::{Epoch, MemberIndex, Rank, TopologyHash},
    precision::{Exchange, KvFormat},
};
use daemon::text::{ModelText, Preparer, Unprepared, inline::Inline};
use engine::{
    self, RequestKey, Setup, Variant,
    collective::{Abort, Accounting, Group, Links, Seat, Settings, SyncRing},
    grammar::PieceSource,
    model::{KvCache, Model, Shard, Source},
    plan::Limits,
    port::{EngineOrder, Prepared, Progress},
};
use gguf::{GgufFile, Shape};
use kernels::{Compute, Kernels, Pool, PoolOptions};
use protocol::message::{Finished, Generate, TokenLogprob};
use tokenizer::Tokenizer;
use topology::{Layout, ShardPlan, cut_stages, split_layers};

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
    /// The end of the answer, once it has ended.
    pub finished: Option<Finished>,
    /// Why the request was refused, if it was.
    pub refused: Option<Fault>,
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
        let shape = Shape::read(file).expect("the model is valid");
        let weights = vec![1; usize::from(self.stages)];
        let layers = split_layers(&vec![1; shape.block_count], 0, &weights).expect("a layer for each stage");
        let ranks = vec![1; usize::from(self.ranks)];
        let stages: Vec<_> =
            layers.iter().map(|layers| (layers.start as usize..layers.end as usize, ranks.clone())).collect();
        let plans = cut_stages(&shape, &stages).expect("the model can be cut");
        let world = plans.len();
        let parts = plans.into_iter().zip(sockets(world)).enumerate();
        parts.map(|(rank, (plan, streams))| self.setup(file, &shape, rank, plan, streams)).collect()
    }

    fn setup(
        &self,
        file: &Arc<GgufFile>,
        shape: &Shape,
        number: usize,
        plan: ShardPlan,
        streams: Vec<Option<TcpStream>>,
    ) -> Setup {
        let kernels = Kernels::choose(None).expect("this machine has a kernel table");
        let source = Source { file, shape, plan: &plan, kernels, cache: None, is_hollow: false, progress: &|_| true };
        let shard = Shard::load(source).expect("the shard can be loaded");
        let heads = plan.heads_kv.len();
        let kv = KvCache::new(self.kv, plan.layers.len(), self.blocks, heads, shape.head_length);
        let kv = kv.expect("enough memory");
        let abort = Arc::new(Abort::new().expect("a file descriptor is free"));
        let rank = Rank(number as u16);
        let layout = Layout::alike(1, self.stages, self.ranks);
        let place = layout.place(MemberIndex(number as u16));
        let seat = Seat { own: rank, stage: place.group.clone(), epoch: Epoch(1), hash: TopologyHash(2) };
        let has_links = streams.len() > 1;
        let links =
            has_links.then(|| Links::new(seat, streams, Arc::clone(&abort), false).expect("the sockets are valid"));
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
        let (node, transfers) = (format!("pi{number}"), None);
        let variant = Variant { is_plain: self.is_plain, ..Variant::default() };
        Setup { node, place, limits, model, group, transfers, variant, tokenizer, pieces, abort }
    }

    fn limits(&self, shape: &Shape) -> Limits {
        Limits {
            slots: self.slots,
            blocks: self.blocks,
            context_length: self.context_length,
            vocabulary_length: shape.vocabulary_length,
        }
    }

    /// Prepares requests on the calling thread.
    ///
    /// # Panics
    /// If the model has no tokenizer.
    pub fn preparer(&self, file: &Arc<GgufFile>) -> Preparer<Inline> {
        let (tokenizer, shape) = (tokenizer(file), Shape::read(file).expect("the model is valid"));
        let text = ModelText::new("m".into(), PathBuf::new(), file, Arc::clone(&tokenizer), self.limits(&shape));
        let source = text.template.clone().expect("its template can be read");
        Preparer::new(Arc::new(text), Inline::new(source, PathBuf::new(), Some(tokenizer)))
    }

    /// Runs requests in batches: the requests of a batch are submitted together, the next batch once all of them are
    /// done.
    ///
    /// # Panics
    /// If an engine fails, or nothing happens for two minutes.
    pub fn answers(&self, file: &Arc<GgufFile>, batches: &[Vec<Generate>]) -> Vec<Vec<Answer>> {
        let mut setups = self.setups(file).into_iter();
        let head = setups.next().expect("a replica has a head");
        let (orders, of_head) = mpsc::channel();
        let (sender, receiver) = mpsc::channel();
        let (mut preparer, refuse) = (self.preparer(file), sender.clone());
        thread::scope(|scope| {
            for follower in setups {
                let (stop, orders) = mpsc::channel();
                stop.send(EngineOrder::Stop).expect("the engine holds the receiver");
                // The follower ends when the head closes the links.
                scope.spawn(move || engine::run(follower, &orders, &|_| {}));
            }
            scope.spawn(move || {
                engine::run(head, &of_head, &move |progress: Progress| drop(sender.send(progress)));
            });
            let answers = batches
                .iter()
                .map(&mut |batch: &Vec<Generate>| {
                    batch.iter().enumerate().for_each(&mut |(number, generate): (usize, &Generate)| {
                        let key = RequestKey(number as u64);
                        match begin(&mut preparer, key, generate) {
                            Ok(order) => orders.send(order).expect("the engine holds the receiver"),
                            Err(kind) => {
                                let refused = Progress::Refused(key, Fault::new("pi0", kind));
                                refuse.send(refused).expect("this thread holds the receiver");
                            }
                        }
                    });
                    collect(&receiver, batch.len())
                })
                .collect();
            orders.send(EngineOrder::Stop).expect("the engine holds the receiver");
            answers
        })
    }

    /// Runs requests one after another, each on new engines without any state of earlier requests.
    pub fn each_alone(&self, file: &Arc<GgufFile>, requests: &[Generate]) -> Vec<Answer> {
        requests.iter().map(|generate| self.answers(file, &[vec![generate.clone()]]).remove(0).remove(0)).collect()
    }
}

fn tokenizer(file: &GgufFile) -> Arc<Tokenizer> {
    Arc::new(Tokenizer::from_metadata(file.metadata()).expect("the model has a tokenizer"))
}

/// Prepares a request for the engine.
///
/// # Errors
/// If the request cannot be run.
pub fn begin(preparer: &mut Preparer<Inline>, key: RequestKey, generate: &Generate) -> Result<EngineOrder, FaultKind> {
    let (received, generate) = (Instant::now(), Arc::new(generate.clone()));
    match preparer.prepare(&generate, 0) {
        Ok(prompt) => {
            let tool_format = preparer.tool_format();
            Ok(EngineOrder::Begin(key, Box::new(Prepared { received, generate, prompt, tool_format })))
        }
        Err(Unprepared::Refused(kind)) => Err(kind),
        Err(Unprepared::Elsewhere) => unreachable!("`Inline` runs every job on this thread"),
    }
}

/// Collects the progress of requests 0 to `count` until all are done.
fn collect(receiver: &mpsc::Receiver<Progress>, count: usize) -> Vec<Answer> {
    let mut answers: BTreeMap<u64, Answer> = BTreeMap::new();
    let mut done = 0;
    while done < count {
        match receiver.recv_timeout(PATIENCE) {
            Ok(Progress::Started(RequestKey(key), prompt, _)) => {
                answers.insert(key, Answer { prompt, ..Answer::default() });
            }
            Ok(Progress::Token(RequestKey(key), event)) => {
                let answer = answers.get_mut(&key).expect("the request has started");
                answer.text.push_str(&event.text);
                answer.ids.extend(event.id);
                answer.told.extend(event.id.map(|_| answer.text.len()));
                answer.logprobs.extend(event.id.map(|_| event.logprobs));
            }
            Ok(Progress::Finished(RequestKey(key), finished)) => {
                answers.get_mut(&key).expect("the request has started").finished = Some(*finished);
                done += 1;
            }
            Ok(Progress::Refused(RequestKey(key), fault)) => {
                answers.insert(key, Answer { refused: Some(fault), ..Answer::default() });
                done += 1;
            }
            Ok(Progress::Kv(_) | Progress::Dispatched(_)) => {}
            Ok(other) => panic!("{other:?}"),
            Err(RecvTimeoutError::Timeout) => panic!("no progress for {PATIENCE:?}; {done} of {count} are done"),
            Err(RecvTimeoutError::Disconnected) => panic!("the engine ended"),
        }
    }
    answers.into_values().collect()
}

impl Answer {
    /// The end of the answer.
    ///
    /// # Panics
    /// If the request did not end.
    pub fn end(&self) -> &Finished {
        self.finished.as_ref().expect("the request has ended")
    }
}
