//! A replica of a model on simulated nodes, and a step of it as actions of each rank: plan, layers with two all-reduces
//! each, hand-over between stages, candidates, sampled token. The same messages as the daemon's, in the same order.
use std::{
    cell::RefCell,
    collections::{BTreeMap, btree_map::Entry},
    ops::Range,
};

use collectives::{Algorithm, Choice, payload_bytes};
use common::limits::FRAME_HEADER_BYTES;
use common::{
    ids::LayerIndex,
    limits::NODES_MAX,
    precision::{Exchange, KvFormat},
};
use telemetry::SyncKind;
use topology::{CutError, Layout, ShardPlan, cut_stages, sizes::ModelSizes};

use super::{
    collective::{self, Tensor},
    costs::{Load, half_layer_ns, output_ns},
    network::{Action, Closing, Link, NodeSpeed, Stuck},
    profile::{Machine, NodeProfile},
};
use crate::holding::Holding;

/// Bytes of a plan per token, and fixed bytes: varints of slot, position, token and flags.
const PLAN_BYTES: [u64; 2] = [8, 16];
/// Bytes of each prompt token in the plan that opens its sequence.
const PROMPT_TOKEN_BYTES: u64 = 3;
/// Bytes of a rank's candidates (16 with id and two logits, maxima and sums), and of its times.
const CANDIDATES_BYTES: [u64; 2] = [224, 64];
/// Bytes of a sampled token.
const DRAWN_BYTES: u64 = 32;

/// The machine and the relative share of each rank of a stage.
pub type Machines = Vec<(Machine, u32)>;

/// Configuration of a simulated replica.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// Layers and ranks of each stage; all stages have the same number of ranks.
    pub stages: Vec<(Range<usize>, Machines)>,
    /// Format of partial sums.
    pub exchange: Exchange,
    /// The all-reduce algorithm.
    pub choice: Choice,
    /// Format of the KV cache.
    pub kv: KvFormat,
}

impl Setup {
    /// `ranks` equal machines that share every layer of a model.
    pub fn equal(profile: &NodeProfile, ranks: usize, block_count: usize, link: Link) -> Self {
        Self {
            stages: vec![(0..block_count, vec![(Machine { profile: profile.clone(), link }, 1); ranks])],
            exchange: Exchange::Q80,
            choice: Choice::Auto,
            kv: KvFormat::F16,
        }
    }
}

/// Why a replica cannot be simulated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SimulateError {
    /// The model cannot be cut for this number of ranks.
    #[error(transparent)]
    Cut(#[from] CutError),
    /// Stages that are not consecutive, have no rank or different numbers of ranks, or too many nodes.
    #[error("{0}; give each stage consecutive layers and as many ranks, at most {NODES_MAX} nodes in all")]
    Stages(&'static str),
    /// Inconsistent schedules.
    #[error("the simulation is stuck: {0}; report a bug with the command line")]
    Stuck(#[from] Stuck),
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Whether it contains prompt tokens.
    pub is_prefill: bool,
    /// Tokens of the step.
    pub tokens: u32,
    /// Positions before each sequence's first token in the step.
    pub context: u32,
    /// Number of sequences that the tokens belong to.
    pub sequences: u32,
    /// Tokens sampled after the step.
    pub wants_logits: u32,
    /// Prompt tokens of the sequence that its plan opens.
    pub opens: u32,
}

impl Step {
    /// One token of each of these sequences.
    pub fn decode(sequences: u32, context: u32) -> Self {
        Self { is_prefill: false, tokens: sequences, context, sequences, wants_logits: sequences, opens: 0 }
    }

    /// A prompt in chunks of at most this many tokens.
    pub fn prefill(prompt: u32, chunk: u32) -> impl Iterator<Item = Self> {
        (0..prompt).step_by(chunk.max(1) as usize).map(move |context| {
            let tokens = chunk.min(prompt - context);
            let is_last = context + tokens == prompt;
            let opens = if context == 0 { prompt } else { 0 };
            Self { is_prefill: true, tokens, context, sequences: 1, wants_logits: u32::from(is_last), opens }
        })
    }
}

/// A rank's part of a replica.
#[derive(Clone, Debug)]
struct ReplicaRank {
    machine: Machine,
    plan: ShardPlan,
    stage: usize,
    /// Rank within the stage.
    rank: usize,
}

/// A replica that generates the actions of steps.
#[derive(Clone, Debug)]
pub struct Replica<'a> {
    sizes: &'a ModelSizes,
    setup: &'a Setup,
    seats: Vec<ReplicaRank>,
    /// Ranks per stage.
    world: usize,
    /// The algorithm of each stage and token count, cached once chosen.
    chosen: RefCell<BTreeMap<(usize, u32), Algorithm>>,
}

impl<'a> Replica<'a> {
    /// Creates a replica of a model.
    ///
    /// # Errors
    /// The model cannot be cut like this, or the stages are inconsistent.
    pub fn new(sizes: &'a ModelSizes, setup: &'a Setup) -> Result<Self, SimulateError> {
        let world = setup.stages.first().map_or(0, |(_, ranks)| ranks.len());
        if world == 0 || setup.stages.len() * world > NODES_MAX {
            return Err(SimulateError::Stages("no rank, or too many nodes"));
        }
        let mut expected = 0;
        let mut cuts = Vec::new();
        for (layers, ranks) in &setup.stages {
            if layers.start != expected || layers.is_empty() || ranks.len() != world {
                return Err(SimulateError::Stages(
                    "a stage does not follow the previous stage, or has another number of ranks",
                ));
            }
            expected = layers.end;
            cuts.push((layers.clone(), ranks.iter().map(|(_, weight)| *weight).collect()));
        }
        let plans = cut_stages(&sizes.spec, &cuts)?;
        let machines = setup.stages.iter().flat_map(|(_, ranks)| ranks).map(|(machine, _)| machine.clone());
        let seats = machines
            .zip(plans)
            .enumerate()
            .map(|(index, (machine, plan))| ReplicaRank { machine, plan, stage: index / world, rank: index % world })
            .collect();
        Ok(Self { sizes, setup, seats, world, chosen: RefCell::new(BTreeMap::new()) })
    }

    /// The nodes' parameters for the network simulation.
    pub fn speeds(&self) -> Vec<NodeSpeed> {
        self.seats.iter().map(|seat| seat.machine.speed()).collect()
    }

    /// Number of stages.
    pub fn stages(&self) -> usize {
        self.setup.stages.len()
    }

    /// Most tokens of a step, as in the daemon's engine.
    pub fn step_tokens(&self) -> u32 {
        let (stages, ranks) = (self.stages() as u16, self.world as u16);
        Layout::alike(1, stages, ranks).step_tokens() as u32
    }

    /// Number of ranks of all stages.
    pub fn ranks(&self) -> usize {
        self.seats.len()
    }

    /// The shard of each rank.
    pub fn holdings(&self) -> impl Iterator<Item = Holding<'_>> {
        self.seats.iter().map(|seat| self.holding(seat))
    }

    fn holding<'s>(&'s self, seat: &'s ReplicaRank) -> Holding<'s> {
        Holding { sizes: self.sizes, plan: &seat.plan }
    }

    /// The algorithm of a stage for steps of this many tokens.
    ///
    /// # Errors
    /// Inconsistent schedules.
    pub fn algorithm(&self, stage: usize, tokens: u32) -> Result<Algorithm, SimulateError> {
        let known = self.chosen.borrow().get(&(stage, tokens)).copied();
        if let Some(algorithm) = known {
            return Ok(algorithm);
        }
        let machines: Vec<Machine> = self.setup.stages[stage].1.iter().map(|(machine, _)| machine.clone()).collect();
        let algorithm = collective::choose(self.setup.choice, &machines, self.tensor(tokens))?;
        self.chosen.borrow_mut().insert((stage, tokens), algorithm);
        Ok(algorithm)
    }

    fn tensor(&self, tokens: u32) -> Tensor {
        Tensor { tokens, columns: self.sizes.spec.embedding_length, exchange: self.setup.exchange }
    }

    /// Appends a step to the actions of each rank. Does not wait for the tokens that the step samples: see
    /// [`Self::land`].
    ///
    /// # Errors
    /// Inconsistent schedules.
    pub fn step(&self, step: Step, actions: &mut [Vec<Action>]) -> Result<(), SimulateError> {
        for (index, seat) in self.seats.iter().enumerate() {
            self.rank_step(index, seat, step, &mut actions[index])?;
        }
        Ok(())
    }

    /// The head receives the tokens of the oldest step that samples, and marks the time.
    pub fn land(&self, mark: u32, head: &mut Vec<Action>) {
        if self.stages() > 1 {
            head.extend([Action::Enter, receive(self.sampler()), Action::Close(Closing::HandOver)]);
        }
        head.push(Action::Mark(mark));
    }

    /// The first rank of the last stage.
    fn sampler(&self) -> usize {
        (self.stages() - 1) * self.world
    }

    fn rank_step(
        &self,
        index: usize,
        seat: &ReplicaRank,
        step: Step,
        out: &mut Vec<Action>,
    ) -> Result<(), SimulateError> {
        self.plan(index, seat, step, out);
        if seat.stage > 0 {
            out.extend([Action::Enter, receive(index - self.world), Action::Close(Closing::HandOver)]);
        }
        // By the number of hidden states that ranks add up at once: usually one of each token.
        let mut reduces: BTreeMap<usize, Vec<Action>> = BTreeMap::new();
        for layer in seat.plan.layers.clone() {
            let (tokens, spec) = (step.tokens as usize, &self.sizes.spec);
            let states = spec.layer(layer).exchanges(tokens, self.world, spec.embedding_length);
            for (kind, states) in [SyncKind::Attention, SyncKind::FeedForward].into_iter().zip(states) {
                out.push(Action::Compute(self.compute(seat, layer, kind, step)));
                if self.world > 1 && states > 0 {
                    let actions = match reduces.entry(states) {
                        Entry::Occupied(known) => known.into_mut(),
                        Entry::Vacant(place) => place.insert(self.reduce(seat, states as u32)?),
                    };
                    out.push(Action::Enter);
                    out.extend(&*actions);
                    out.push(Action::Close(Closing::AllReduce(LayerIndex(layer as u32), kind)));
                }
            }
        }
        if seat.stage + 1 < self.stages() {
            let values = step.tokens as usize * self.sizes.spec.embedding_length;
            let format = self.setup.exchange.hand_over(self.sizes.spec.has_wide_states());
            let bytes = (FRAME_HEADER_BYTES + payload_bytes(format, 1, values)) as u64;
            out.extend([Action::Enter, send(index + self.world, bytes), Action::Close(Closing::Bubble)]);
        } else if step.wants_logits > 0 {
            self.sample(index, seat, step, out);
        }
        Ok(())
    }

    /// The all-reduce of a rank over so many hidden states.
    fn reduce(&self, seat: &ReplicaRank, states: u32) -> Result<Vec<Action>, SimulateError> {
        let algorithm = self.algorithm(seat.stage, states)?;
        let (tensor, first) = (self.tensor(states), seat.stage * self.world);
        Ok(collective::actions(algorithm, seat.rank, self.world, first, tensor, &seat.machine.profile))
    }

    /// The head's plan goes to the ranks of its stage and to the leaders of the other stages, which forward it to their
    /// ranks.
    fn plan(&self, index: usize, seat: &ReplicaRank, step: Step, out: &mut Vec<Action>) {
        let Step { is_prefill, tokens, opens, .. } = step;
        let [each, besides] = PLAN_BYTES;
        let bytes =
            FRAME_HEADER_BYTES as u64 + besides + each * u64::from(tokens) + PROMPT_TOKEN_BYTES * u64::from(opens);
        let begins = Action::Step { is_prefill, tokens };
        let leader = seat.stage * self.world;
        if index == 0 {
            out.extend([begins, Action::Compute(seat.machine.profile.step_ns)]);
        } else {
            let from = if index == leader { 0 } else { leader };
            let closing = if self.stages() > 1 { Closing::Bubble } else { Closing::Message };
            out.extend([Action::Enter, receive(from), Action::Close(closing), begins]);
        }
        if index == leader {
            out.extend((leader + 1..leader + self.world).map(|to| send(to, bytes)));
        }
        if index == 0 {
            out.extend((1..self.stages()).map(|stage| send(stage * self.world, bytes)));
        }
    }

    /// Logits of the own rows, candidates to the sampler, sampled tokens to the head.
    fn sample(&self, index: usize, seat: &ReplicaRank, step: Step, out: &mut Vec<Action>) {
        let work_ns = output_ns(&seat.machine.profile, &self.holding(seat), step.wants_logits);
        out.extend([Action::Compute(work_ns), Action::Enter]);
        let [each, besides] = CANDIDATES_BYTES;
        let head = FRAME_HEADER_BYTES as u64 + besides;
        let sampler = self.sampler();
        if index != sampler {
            out.push(send(sampler, head + each * u64::from(step.wants_logits)));
        } else if self.world > 1 {
            let others = (sampler + 1..sampler + self.world).fold(0, |set, rank| set | 1 << rank);
            out.push(Action::Receive { from: others, work_ns: 0, is_sum: false });
        }
        out.push(Action::Close(Closing::Message));
        if index == sampler && self.stages() > 1 {
            let bytes =
                FRAME_HEADER_BYTES as u64 + besides * self.ranks() as u64 + DRAWN_BYTES * u64::from(step.wants_logits);
            out.push(send(0, bytes));
        }
    }

    /// Nanoseconds of half a layer.
    fn compute(&self, seat: &ReplicaRank, layer: usize, kind: SyncKind, step: Step) -> u64 {
        let (sequences, context) = (f64::from(step.sequences), f64::from(step.context));
        let each = f64::from(step.tokens) / sequences.max(1.0);
        let seen = context + (each + 1.0) / 2.0;
        let load = Load {
            tokens: step.tokens,
            sequences,
            read: sequences * (context + each),
            pairs: f64::from(step.tokens) * seen,
        };
        half_layer_ns(&seat.machine.profile, &self.holding(seat), self.setup.kv, layer, kind, load)
    }
}

fn send(to: usize, bytes: u64) -> Action {
    Action::Send { to: to as u16, bytes, work_ns: 0 }
}

fn receive(from: usize) -> Action {
    Action::Receive { from: 1 << from, work_ns: 0, is_sum: false }
}
