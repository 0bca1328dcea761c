//! The engine of a head: the daemon's scheduler with a model of compute. A step takes a time for each token; the token
//! that it samples is a function of seed, model and position.
use std::{collections::BTreeMap, time::Duration};

use common::{fault::FaultKind, ids::ModelRoots};
use daemon::node::BoundedSize;
use engine::{
    RequestKey,
    head::admission::refusal,
    plan::{Limits, Plan, Sequences},
    scheduler::{Admitted, Scheduler},
};
use protocol::message::{Generate, Prompt};
use topology::{Topology, state::StateCount};

/// Time of a step, and of each token in it.
const STEP: Duration = Duration::from_millis(26);
const TOKEN: Duration = Duration::from_micros(400);
/// Longest prompt.
const PROMPT_TOKENS: u64 = 280;

/// The token of a request of a model at a position of its answer.
pub(super) fn token(seed: u64, model: &ModelRoots, position: usize) -> u32 {
    let seed = seed ^ u64::from(model.identity.0[0]);
    (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(position as u64 * 0x2545_f491) >> 17) as u32
}

/// The tokens of a prompt: every third request shares its beginning with others.
fn tokens_of(prompt: &Prompt, seed: u64) -> Vec<u32> {
    match prompt {
        Prompt::Tokens(tokens) => tokens.clone(),
        _ => {
            let kind = if seed.is_multiple_of(3) { 0 } else { seed as u32 % 1000 };
            (0..=(seed % PROMPT_TOKENS) as u32).map(|place| place ^ kind).collect()
        }
    }
}

/// A request in the engine.
#[derive(Debug)]
struct Computed {
    seed: u64,
    count: usize,
    max_tokens: usize,
}

/// What a step has given a request.
#[derive(Debug)]
pub(super) struct Sampled {
    pub(super) key: RequestKey,
    pub(super) id: u32,
    pub(super) is_last: bool,
}

/// What a submitted request begins with.
#[derive(Debug)]
pub(super) enum Begun {
    Refused(FaultKind),
    /// Its prompt; whether nothing is left to compute.
    Started {
        prompt: Vec<u32>,
        is_over: bool,
    },
}

/// The engine of a head.
#[derive(Debug)]
pub(super) struct HeadEngine {
    scheduler: Scheduler,
    limits: Limits,
    requests: BTreeMap<RequestKey, Computed>,
    plan: Plan,
    /// The sequences as the other ranks know them from the plans.
    follower: Sequences,
    /// Whether the plan is being computed.
    is_computing: bool,
    /// KV blocks in use.
    held: u32,
}

impl HeadEngine {
    pub(super) fn new(topology: &Topology) -> Self {
        let limits = Limits {
            slots: usize::from(topology.slots),
            // Fewer than all slots could use: requests wait for blocks.
            blocks: topology.kv_blocks(None),
            window: None,
            context_length: topology.context_length as usize,
            vocabulary_length: usize::MAX,
            states: StateCount::default(),
        };
        Self {
            scheduler: Scheduler::new(limits),
            limits,
            requests: BTreeMap::new(),
            plan: Plan::default(),
            follower: Sequences::new(limits),
            is_computing: false,
            held: 0,
        }
    }

    /// Whether a step is to be computed.
    pub(super) fn has_work(&self) -> bool {
        self.is_computing || self.scheduler.has_work()
    }

    /// Takes a request.
    pub(super) fn submit(&mut self, key: RequestKey, generate: &Generate) -> Begun {
        let seed = generate.sampling.seed;
        let prompt = tokens_of(&generate.prompt, seed);
        if let Some(kind) = refusal(&self.limits, &prompt, &generate.resumed) {
            return Begun::Refused(kind);
        }
        let (count, most) = (generate.resumed.len(), generate.max_tokens as usize);
        let max_tokens = most.min(self.limits.context_length + 1 - prompt.len());
        if count >= max_tokens {
            return Begun::Started { prompt, is_over: true };
        }
        self.requests.insert(key, Computed { seed, count, max_tokens });
        let all = [&prompt[..], &generate.resumed[..]].concat();
        let (sampling, grammar) = (generate.sampling.clone(), None);
        let left = max_tokens - count;
        self.scheduler.submit(Admitted { key, prompt: all, max_tokens: left, sampling, drafts_max: 0, grammar });
        Begun::Started { prompt, is_over: false }
    }

    /// Ends a request; returns whether it was here.
    pub(super) fn cancel(&mut self, key: RequestKey) -> bool {
        self.scheduler.end(key);
        self.requests.remove(&key).is_some()
    }

    /// Begins the next step; returns how long it takes.
    ///
    /// # Errors
    /// The other ranks cannot apply its plan.
    pub(super) fn begin_step(&mut self) -> Result<Option<Duration>, String> {
        self.is_computing = self.scheduler.next_plan(&mut self.plan);
        if !self.is_computing {
            return Ok(None);
        }
        self.follower.apply(&self.plan).map_err(|error| error.to_string())?;
        Ok(Some(STEP + TOKEN * self.plan.entries.len() as u32))
    }

    /// Ends the step under way.
    pub(super) fn end_step(&mut self, model: &ModelRoots) -> Vec<Sampled> {
        let mut all = Vec::new();
        if !std::mem::replace(&mut self.is_computing, false) {
            return all;
        }
        for entry in self.plan.entries.iter().filter(|entry| entry.wants_logits) {
            let Some(key) = self.scheduler.key(entry.slot) else { continue };
            let Some(request) = self.requests.get_mut(&key) else { continue };
            let id = token(request.seed, model, request.count);
            request.count += 1;
            let is_last = request.count >= request.max_tokens;
            self.scheduler.sampled(entry.slot, id);
            all.push(Sampled { key, id, is_last });
        }
        for ended in all.iter().filter(|sampled| sampled.is_last) {
            self.scheduler.end(ended.key);
            self.requests.remove(&ended.key);
        }
        all
    }

    /// What an engine without requests still holds.
    pub(super) fn sizes(&mut self) -> Vec<BoundedSize> {
        let of = |what, count| BoundedSize { what, count, most: 0 };
        let is_idle = self.requests.is_empty() && !self.is_computing;
        self.held = self.scheduler.kv_changed().map_or(self.held, |kv| kv.held);
        if !is_idle {
            return Vec::new();
        }
        let steps = usize::from(self.scheduler.has_work());
        vec![of("KV blocks without requests", self.held as usize), of("steps without requests", steps)]
    }
}
