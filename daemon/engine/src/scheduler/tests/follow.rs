//! For random arrivals, cancellations and pipeline depths, every plan that is sent can be applied, and a rank that
//! applies it reads only the keys and values, and the state, of its own previous tokens.
use std::collections::{BTreeMap, VecDeque};

use common::sampling::SamplingParameters;

use topology::{KvBlocks, StateCount};

use super::*;
use crate::plan::{Constraint, Sequences};

const LIMITS: Limits = Limits {
    slots: 5,
    blocks: KvBlocks::alike(24),
    window: None,
    context_length: 256,
    vocabulary_length: 8,
    states: StateCount::NONE,
};

/// A seeded random number generator.
struct HistoryRandom(u64);

impl HistoryRandom {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// Number of random histories, each with a few hundred arrivals, cancellations, steps and tokens.
const HISTORIES: u64 = 100_000;

/// A model of a rank: for each row of a block, a hash of all tokens that its keys and values depend on.
struct Rank {
    sequences: Sequences,
    window: Option<usize>,
    whole: LayerMemory,
    windowed: LayerMemory,
    /// For each state of a recurrent layer, a hash of the tokens that led to it.
    states: Vec<Option<u64>>,
    /// The same for the tokens of a step with speculative tokens, which the states follow later.
    logged: BTreeMap<Slot, Vec<u64>>,
}

/// The blocks of a layer.
type LayerMemory = Vec<[Option<u64>; KV_BLOCK_LENGTH]>;

/// For each position, a hash of the tokens up to it (FNV-1a over their ids).
fn beginnings(tokens: &[u32]) -> Vec<u64> {
    let mut sum = 0xcbf2_9ce4_8422_2325;
    let sums = tokens.iter().map(|token| {
        sum = (sum ^ u64::from(*token + 1)).wrapping_mul(0x0100_0000_01b3_u64).rotate_left(23);
        sum
    });
    sums.collect()
}

impl Rank {
    fn new(limits: Limits) -> Self {
        let [whole, windowed] =
            [limits.blocks.whole, limits.blocks.windowed].map(|count| vec![[None; KV_BLOCK_LENGTH]; count]);
        let states = vec![None; limits.states.all()];
        let (sequences, logged) = (Sequences::new(limits), BTreeMap::new());
        Self { sequences, window: limits.window, whole, windowed, states, logged }
    }

    fn step(&mut self, plan: &Plan) {
        self.sequences.apply(plan).expect("the plan can be applied");
        for (from, to) in &plan.copies {
            self.whole[*to as usize] = self.whole[*from as usize];
        }
        for (from, to) in &plan.states {
            self.states[usize::from(*to)] = self.states[usize::from(*from)];
            self.logged.remove(&Slot(*to));
        }
        if !self.states.is_empty() {
            self.recur();
        }
        // A layer stores the keys and values of all tokens before any token reads them.
        self.visit(plan, |memory, place, row, beginnings| memory[place.0][place.1] = Some(beginnings[row]), false);
        let window = self.window;
        self.visit(
            plan,
            |memory, place, row, beginnings| assert_eq!(memory[place.0][place.1], Some(beginnings[row]), "{window:?}"),
            true,
        );
    }

    /// Passes the tokens of a plan through the states of their slots.
    fn recur(&mut self) {
        let mut logged = BTreeMap::new();
        for rows in self.sequences.batch().tokens.chunk_by(|one, two| one.slot == two.slot) {
            let (slot, last) = (rows[0].slot, rows[rows.len() - 1]);
            let beginnings = beginnings(&self.sequences.get(slot).expect("it is open").tokens);
            let (first, end) = (rows[0].position as usize, last.position as usize + 1);
            let (state, known) = (&mut self.states[slot.index()], self.logged.remove(&slot).unwrap_or_default());
            let before = first.checked_sub(1).map(|before| beginnings[before]);
            let follows = before.is_none() || *state == before || before.is_some_and(|before| known.contains(&before));
            assert!(follows, "the state is that before position {first}");
            *state = if last.is_speculative { before } else { Some(beginnings[end - 1]) };
            if last.is_speculative {
                logged.insert(slot, beginnings[first..end].to_vec());
            }
        }
        if !logged.is_empty() {
            self.logged = logged;
        }
    }

    /// Visits the rows of a plan in both memories, or the rows that they read.
    fn visit(&mut self, plan: &Plan, with: impl Fn(&mut LayerMemory, (usize, usize), usize, &[u64]), reads: bool) {
        for rows in plan.entries.chunk_by(|one, two| one.slot == two.slot) {
            let slot = rows[0].slot;
            let beginnings = beginnings(&self.sequences.get(slot).expect("it is open").tokens);
            let tables = self.sequences.batch().tables;
            let (first, last) = (rows[0].position as usize, rows[rows.len() - 1].position as usize);
            let memories = [(&mut self.whole, &tables.whole[slot.index()], None)];
            let windowed = self.window.map(|window| (&mut self.windowed, &tables.windowed[slot.index()], Some(window)));
            for (memory, table, window) in memories.into_iter().chain(windowed) {
                let seen = window.map_or(0, |window: usize| (first + 1).saturating_sub(window));
                for row in if reads { seen } else { first }..=last {
                    let place = (table[row / KV_BLOCK_LENGTH] as usize, row % KV_BLOCK_LENGTH);
                    with(memory, place, row, &beginnings);
                }
            }
        }
    }

    /// Writes the keys and values, and the state, of a prompt that another group has computed.
    fn receive(&mut self, remote: &AwaitedPrompt, prompt: &[u32], tokens: usize) {
        if let Some(state) = remote.state {
            self.states[usize::from(state)] = tokens.checked_sub(1).map(|last| beginnings(prompt)[last]);
        }
        let first = remote.first_block as usize * KV_BLOCK_LENGTH;
        for (position, beginning) in beginnings(prompt).into_iter().enumerate().take(tokens).skip(first) {
            let (index, row) = (position / KV_BLOCK_LENGTH, position % KV_BLOCK_LENGTH);
            self.whole[remote.blocks[index] as usize][row] = Some(beginning);
            let seen = index.checked_sub(remote.windowed.0 as usize);
            if let Some(block) = seen.and_then(|seen| remote.windowed.1.get(seen)) {
                self.windowed[*block as usize][row] = Some(beginning);
            }
        }
    }
}

/// How many tokens of a prompt come from elsewhere, those that are cached included.
fn awaited_length(remote: &AwaitedPrompt, prompt: &[u32]) -> usize {
    match remote.source {
        KvSource::Group => prompt.len() - 1,
        KvSource::Store { tokens } => tokens,
    }
}

/// The head with its pipeline, and its requests.
struct World {
    random: HistoryRandom,
    scheduler: Scheduler,
    rank: Rank,
    stages: usize,
    /// Rows whose tokens are wanted, of the in-flight steps.
    under_way: VecDeque<Vec<(Slot, RequestKey, u32)>>,
    /// For each request, its prompt and how many more tokens it may have.
    requests: BTreeMap<RequestKey, (Vec<u32>, usize)>,
    away: Vec<AwaitedPrompt>,
    /// Whether the model has neither windows nor states.
    is_plain: bool,
    keys: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = HistoryRandom(seed);
        let stages = 1 + random.below(8);
        let window = (random.below(2) == 0).then(|| 1 + random.below(80));
        let blocks = KvBlocks::of(20 * KV_BLOCK_LENGTH as u32, LIMITS.slots as u16, window);
        let blocks = if window.is_some() { blocks } else { LIMITS.blocks };
        let states = if random.below(3) == 0 { StateCount::of(LIMITS.slots) } else { StateCount::NONE };
        let limits = Limits { blocks, window, states, ..LIMITS };
        let scheduler = Scheduler::new(limits).with_stages(stages, 1 + random.below(64));
        let scheduler = if seed.is_multiple_of(4) { scheduler.without_sharing() } else { scheduler };
        let (rank, requests) = (Rank::new(limits), BTreeMap::new());
        let (is_plain, under_way) = (window.is_none() && states == StateCount::NONE, VecDeque::new());
        Self { random, scheduler, rank, stages, under_way, requests, away: Vec::new(), is_plain, keys: 0 }
    }

    fn submit(&mut self) {
        self.keys += 1;
        let key = RequestKey(self.keys);
        // Few distinct texts, so that many share a prefix.
        let (kind, length) = (self.random.below(3), 1 + self.random.below(100));
        let prompt: Vec<u32> = (0..length).map(|index| ((index * (kind + 1)) / 7 % 8) as u32).collect();
        let max_tokens = 1 + self.random.below(40);
        self.requests.insert(key, (prompt.clone(), max_tokens));
        let schema = common::chat::Grammar::Json;
        let grammar =
            (self.random.below(8) == 0).then_some(Constraint { grammar: schema.into(), begin: length as u32 });
        let drafts_max = self.random.below(ROWS_MAX);
        let request =
            Admitted { key, prompt, max_tokens, sampling: SamplingParameters::default(), drafts_max, grammar };
        match self.random.below(5) {
            0 if length > 1 => self.scheduler.submit_awaiting(request, KvSource::Group),
            1 if length > KV_BLOCK_LENGTH => {
                let tokens = (1 + self.random.below((length - 1) / KV_BLOCK_LENGTH)) * KV_BLOCK_LENGTH;
                self.scheduler.submit_awaiting(request, KvSource::Store { tokens });
            }
            _ => self.scheduler.submit(request),
        }
    }

    fn cancel(&mut self) {
        let keys: Vec<RequestKey> = self.requests.keys().copied().collect();
        if !keys.is_empty() {
            let key = keys[self.random.below(keys.len())];
            self.end(key);
        }
    }

    fn end(&mut self, key: RequestKey) {
        self.requests.remove(&key);
        self.away.retain(|remote| remote.key != key);
        self.scheduler.end(key);
    }

    fn send(&mut self) {
        let mut plan = Plan::default();
        let random = &mut self.random;
        self.scheduler.release_compiled(|_| random.below(4) == 0);
        let is_sent = self.under_way.len() < self.stages && self.scheduler.next_plan(&mut plan);
        while let Some(remote) = self.scheduler.next_awaited() {
            // The order is sent before the plan: keys and values may arrive before the step.
            if self.random.below(2) == 0 {
                let prompt = &self.requests[&remote.key].0;
                self.rank.receive(&remote, prompt, awaited_length(&remote, prompt));
            }
            self.away.push(remote);
        }
        if !is_sent {
            return;
        }
        self.rank.step(&plan);
        let wanted = plan.entries.iter().filter(|entry| entry.wants_logits);
        let rows = wanted.filter_map(|entry| Some((entry.slot, self.scheduler.key(entry.slot)?, entry.token)));
        self.under_way.push_back(rows.collect());
    }

    /// Receives the tokens of the oldest in-flight step.
    fn land(&mut self) {
        let Some(rows) = self.under_way.pop_front() else { return };
        for of_slot in rows.chunk_by(|one, two| one.0 == two.0) {
            for (index, (slot, key, _)) in of_slot.iter().enumerate() {
                if self.scheduler.key(*slot) != Some(*key) {
                    break;
                }
                let token = self.random.below(8) as u32;
                let rest = self.requests.get_mut(key).map(|(_, rest)| rest).expect("it runs");
                *rest -= 1;
                match *rest {
                    0 => self.end(*key),
                    _ => self.scheduler.sampled(*slot, token),
                }
                // A rejected speculative token ends the run.
                if of_slot.get(index + 1).is_none_or(|(.., draft)| *draft != token) {
                    break;
                }
            }
        }
    }

    fn arrive(&mut self) {
        if self.away.is_empty() {
            return;
        }
        let remote = self.away.swap_remove(self.random.below(self.away.len()));
        let prompt = &self.requests[&remote.key].0;
        let all = awaited_length(&remote, prompt);
        let tokens = match self.random.below(3) {
            0 => 0,
            // A part is of use only in layers that attend to everything.
            1 if remote.source != KvSource::Group && self.is_plain => {
                (remote.first_block as usize + 1) * KV_BLOCK_LENGTH
            }
            _ => all,
        };
        // The head orders nothing if the beginning is cached meanwhile.
        let tokens = if tokens > remote.first_block as usize * KV_BLOCK_LENGTH { tokens.min(all) } else { 0 };
        self.rank.receive(&remote, prompt, tokens);
        self.scheduler.resume_with_kv(remote.slot, tokens);
    }

    fn turn(&mut self) {
        match self.random.below(16) {
            0..2 => self.submit(),
            2 => self.cancel(),
            3 => self.arrive(),
            4 => {
                let takes = self.random.below(2) == 0;
                self.scheduler.set_masks_ready(takes);
            }
            5..11 => self.send(),
            _ => self.land(),
        }
    }
}

/// Runs every second history from `first` on.
fn follow(first: u64) {
    for seed in (first..HISTORIES).step_by(2) {
        let mut world = World::new(seed);
        let turns = 20 + world.random.below(160);
        (0..turns).for_each(|_| world.turn());
        // No further requests: everything that is left ends.
        world.scheduler.set_masks_ready(true);
        let mut turns = 0;
        while !world.requests.is_empty() && turns < 20_000 {
            world.arrive();
            world.send();
            world.land();
            turns += 1;
        }
        while !world.under_way.is_empty() {
            world.land();
        }
        assert!(world.requests.is_empty() && !world.scheduler.has_work(), "seed {seed}: {:?}", world.requests);
        assert_eq!(world.scheduler.blocks.available(), LIMITS.blocks.whole, "seed {seed}");
    }
}

#[test]
fn every_sent_plan_can_be_applied() {
    follow(0);
}

#[test]
fn every_sent_plan_can_be_applied_in_odd_histories() {
    // A separate test, so that the two run in parallel.
    follow(1);
}
