//! The engine of a head: the daemon's scheduler with a model of compute. A step takes a time for each token. The token
//! that it samples is a function of seed, model, and all tokens before it, as a rank finds them in its KV blocks: an
//! engine that is given, feeds, copies or shares another token continues with another text.
use std::{collections::BTreeMap, time::Duration};

use common::{
    fault::FaultKind,
    ids::{ModelRoots, Slot},
    limits::KV_BLOCK_LENGTH,
};
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

/// A digest of two numbers.
fn mixed(one: u64, other: u64) -> u64 {
    (one ^ other.wrapping_mul(0xd6e8_feb8_6659_fd93)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

/// A digest of the rows of the KV cache that a token attends to: those of all tokens up to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Attended(u64);

impl Attended {
    /// Before the first token.
    const NOTHING: Self = Self(0xcbf2_9ce4_8422_2325);

    /// The row of the next token, which depends on all rows before it.
    fn row_of(self, token: u32) -> u64 {
        mixed(self.0, u64::from(token))
    }

    /// With one more row.
    fn with_row(self, row: u64) -> Self {
        Self(mixed(self.0, row))
    }

    /// The token that a request of a model samples next.
    fn sampled(self, seed: u64, model: &ModelRoots) -> u32 {
        mixed(mixed(self.0, seed), u64::from(model.identity.0[0])) as u32
    }
}

/// The text of a request without faults, computed from its beginning and not from what the daemons report.
#[derive(Debug)]
pub(super) struct ExpectedText {
    seed: u64,
    attended: Attended,
}

impl ExpectedText {
    /// Before the first token of the answer.
    pub(super) fn new(seed: u64) -> Self {
        let mut text = Self { seed, attended: Attended::NOTHING };
        prompt_of(seed).into_iter().for_each(|token| text.read(token));
        text
    }

    fn read(&mut self, token: u32) {
        self.attended = self.attended.with_row(self.attended.row_of(token));
    }

    /// The next token of a model's answer.
    pub(super) fn next_token(&mut self, model: &ModelRoots) -> u32 {
        let id = self.attended.sampled(self.seed, model);
        self.read(id);
        id
    }
}

/// The KV blocks of a rank, with a digest of each row's token and of all rows before it.
#[derive(Debug)]
struct KvRows(Vec<[u64; KV_BLOCK_LENGTH]>);

impl KvRows {
    /// Computes a plan that `sequences` have applied; returns what those tokens attend to after which one is sampled.
    fn compute(&mut self, plan: &Plan, sequences: &Sequences) -> Vec<(Slot, Attended)> {
        for (from, to) in &plan.copies {
            self.0[*to as usize] = self.0[*from as usize];
        }
        let tables = sequences.batch().tables.whole;
        let mut wanted = Vec::new();
        let runs = plan.entries.chunk_by(|one, next| one.slot == next.slot && one.position + 1 == next.position);
        for run in runs {
            let (slot, first) = (run[0].slot, run[0].position as usize);
            let table = &tables[slot.index()];
            let before = table.iter().flat_map(|block| &self.0[*block as usize]).take(first);
            let mut attended = before.fold(Attended::NOTHING, |attended, row| attended.with_row(*row));
            for (position, entry) in (first..).zip(run) {
                let row = attended.row_of(entry.token);
                self.0[table[position / KV_BLOCK_LENGTH] as usize][position % KV_BLOCK_LENGTH] = row;
                attended = attended.with_row(row);
                wanted.extend(entry.wants_logits.then_some((slot, attended)));
            }
        }
        wanted
    }
}

/// The prompt of a request: every third one shares its beginning with others.
fn prompt_of(seed: u64) -> Vec<u32> {
    let kind = if seed.is_multiple_of(3) { 0 } else { seed as u32 % 1000 };
    (0..=(seed % PROMPT_TOKENS) as u32).map(|place| place ^ kind).collect()
}

/// A request in the engine.
#[derive(Debug)]
struct Computed {
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
    /// The sequences as the other ranks know them from the plans, and what these ranks compute of them.
    follower: Sequences,
    rows: KvRows,
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
            rows: KvRows(vec![[0; KV_BLOCK_LENGTH]; limits.blocks.whole]),
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
        let prompt = match &generate.prompt {
            Prompt::Tokens(tokens) => tokens.clone(),
            _ => prompt_of(generate.sampling.seed),
        };
        if let Some(kind) = refusal(&self.limits, &prompt, &generate.resumed) {
            return Begun::Refused(kind);
        }
        let (count, most) = (generate.resumed.len(), generate.max_tokens as usize);
        let max_tokens = most.min(self.limits.context_length + 1 - prompt.len());
        if count >= max_tokens {
            return Begun::Started { prompt, is_over: true };
        }
        self.requests.insert(key, Computed { count, max_tokens });
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
        for (slot, attended) in self.rows.compute(&self.plan, &self.follower) {
            let Some(key) = self.scheduler.key(slot) else { continue };
            let Some(request) = self.requests.get_mut(&key) else { continue };
            // Ranks sample with the parameters that a plan has opened the sequence with.
            let Some(sequence) = self.follower.get(slot) else { continue };
            let id = attended.sampled(sequence.sampling.seed, model);
            request.count += 1;
            let is_last = request.count >= request.max_tokens;
            self.scheduler.sampled(slot, id);
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

#[cfg(test)]
mod tests {
    use common::sampling::SamplingParameters;

    use super::*;
    use crate::simulation::topology;

    /// The seed of a request with a prompt of 100 tokens, and how many tokens it asks for.
    const SEED: u64 = 379;
    const COUNT: usize = 40;

    fn engine() -> HeadEngine {
        HeadEngine::new(&topology("tp2"))
    }

    /// The answer of an engine without faults.
    fn expected() -> Vec<u32> {
        let (mut text, model) = (ExpectedText::new(SEED), topology("tp2").roots());
        (0..COUNT).map(|_| text.next_token(&model)).collect()
    }

    /// The tokens that an engine computes for a request; `spoil` changes each plan behind the checks of the ranks.
    fn answer(engine: &mut HeadEngine, prompt: &[u32], resumed: &[u32], mut spoil: impl FnMut(&mut Plan)) -> Vec<u32> {
        let sampling = SamplingParameters { seed: SEED, ..SamplingParameters::default() };
        let prompt = Prompt::Tokens(prompt.to_vec());
        let mut generate = Generate::new(prompt, COUNT as u32, sampling, Vec::new());
        generate.resumed = resumed.to_vec();
        let begun = engine.submit(RequestKey(7), &generate);
        assert!(matches!(begun, Begun::Started { is_over: false, .. }), "{begun:?}");
        let (mut ids, model) = (Vec::new(), topology("tp2").roots());
        while engine.has_work() {
            let time = engine.begin_step().expect("the ranks can apply the plan");
            assert!(time.is_some(), "there is a step");
            spoil(&mut engine.plan);
            ids.extend(engine.end_step(&model).into_iter().map(|sampled| sampled.id));
        }
        ids
    }

    /// The answer behind that to another prompt, which differs from position 80 on, in the middle of a block.
    fn answer_behind_another(prompt: &[u32], spoil: impl FnMut(&mut Plan)) -> Vec<u32> {
        let (mut engine, mut other) = (engine(), prompt.to_vec());
        other[80..].iter_mut().for_each(|token| *token += 1000);
        answer(&mut engine, &other, &[], |_| {});
        answer(&mut engine, prompt, &[], spoil)
    }

    #[test]
    fn answer_continues_only_behind_its_own_tokens() {
        let (prompt, whole) = (prompt_of(SEED), expected());
        assert_eq!(prompt.len(), 100);
        for count in [0, 1, 27, 28, 29, COUNT - 1] {
            assert_eq!(answer(&mut engine(), &prompt, &whole[..count], |_| {}), whole[count..], "after {count} tokens");
        }
        // The token after these is the one at 20.
        let known = &whole[..20];
        let (mut swapped, mut changed) = (known.to_vec(), known.to_vec());
        swapped.swap(3, 4);
        changed[0] ^= 1;
        let wrong = [
            ("the latest token is lost", known[..19].to_vec()),
            ("a token is lost", [&known[..5], &known[6..]].concat()),
            ("the latest token is doubled", [known, &known[19..]].concat()),
            ("two tokens are swapped", swapped),
            ("a token is another one", changed),
        ];
        for (what, resumed) in wrong {
            assert_ne!(answer(&mut engine(), &prompt, &resumed, |_| {})[0], whole[20], "{what}");
        }
        let mut other = prompt;
        other[50] ^= 1;
        assert_ne!(answer(&mut engine(), &other, known, |_| {})[0], whole[20], "the prompt is another one");
    }

    #[test]
    fn answer_depends_on_cached_blocks_and_fed_tokens() {
        let (prompt, whole) = (prompt_of(SEED), expected());
        let (mut cached, mut copies) = (0, 0);
        let found = answer_behind_another(&prompt, |plan| {
            cached += plan.opened.iter().map(|opened| opened.cached).sum::<u32>();
            copies += plan.copies.len();
        });
        assert_eq!((cached, copies), (80, 1), "a block is copied for its first 16 tokens");
        assert_eq!(found, whole);
        assert_ne!(answer_behind_another(&prompt, |plan| plan.copies.clear()), whole, "the copy is lost");
        assert_ne!(answer_behind_another(&prompt, |plan| plan.entries[0].token ^= 1), whole, "other tokens are fed");
    }
}
