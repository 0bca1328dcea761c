//! The states of recurrent layers: for each slot, and saved ones, which plans copy. For each layer of the stage the state
//! of this rank's units. A state cannot be taken back: tokens of a sequence with speculative tokens pass through a copy
//! of it, layer by layer, and what they change is logged. The state itself follows with the sequence's next step, whose
//! position shows which of them were accepted.
use std::{io, ops::Range};

use common::{ids::Slot, limits::SLOTS_MAX};
use models::{Mixer, ModelSpec};
use smallvec::SmallVec;
use topology::{ShardPlan, StateCount, state::LOGGED_MAX};

use super::runs;
use crate::model::{batch::BatchToken, region::Region};

/// A layer's part of the memory, in floats.
#[derive(Debug)]
struct LayerFloats {
    /// Where its part of a state is.
    state: Range<usize>,
    /// Where its log begins.
    log: usize,
    /// Floats with which a token changes its state.
    input: usize,
    mixer: Mixer,
    /// Units of the mixer on this rank; 0 without a state.
    units: usize,
}

/// A unit of a layer in a state.
#[derive(Clone, Copy, Debug)]
pub struct UnitPlace {
    /// Number of the state.
    pub state: u16,
    /// The layer.
    pub layer: usize,
    /// The unit of the mixer, numbered on this rank.
    pub unit: usize,
}

/// Tokens of a sequence in the log.
#[derive(Clone, Copy, Debug)]
struct LoggedRun {
    slot: Slot,
    /// Position of the first one, before which the state is.
    position: u32,
    /// Number of the first one in the log.
    first: usize,
    count: usize,
    /// How many of them the state follows in this step.
    accepted: usize,
}

type LoggedRuns = SmallVec<[LoggedRun; SLOTS_MAX as usize]>;

/// The states of one rank.
#[derive(Debug)]
pub struct StateCache {
    layers: Vec<LayerFloats>,
    /// Floats of a state.
    length: usize,
    count: usize,
    /// What the states of this step follow before its tokens.
    followed: LoggedRuns,
    /// Runs whose log is not followed, those of this step included.
    logged: LoggedRuns,
    /// States, log, and the state of a layer ahead of its slot's. `None`: no layer has a state.
    region: Option<Region>,
}

/// Accepted tokens of an earlier step, which a state follows.
pub(super) struct Followed<'a> {
    /// The state in the layer.
    pub state: &'a mut [f32],
    /// What all tokens of that step changed; each kind of inputs is together.
    pub log: &'a mut [f32],
    /// How many tokens that step had.
    pub count: usize,
    /// How many of them are accepted.
    pub accepted: usize,
}

/// The state that a run of tokens passes through.
pub(super) struct Passed<'a> {
    /// The state in the layer.
    pub state: &'a mut [f32],
    /// Where its inputs are logged; empty if no token is speculative.
    pub log: &'a mut [f32],
}

impl StateCache {
    /// The states of a model without recurrent layers.
    pub fn none() -> Self {
        let [followed, logged] = [LoggedRuns::new(), LoggedRuns::new()];
        Self { layers: Vec::new(), length: 0, count: 0, followed, logged, region: None }
    }

    /// Creates the states of a rank; the system allocates the memory when it is first written.
    ///
    /// # Errors
    /// The system has no address space for it.
    pub fn new(spec: &ModelSpec, plan: &ShardPlan, count: StateCount) -> io::Result<Self> {
        let (mut length, mut log) = (0, 0);
        let layers = plan.layers.clone().map(|layer| {
            let (begin, input) = (length, plan.input_length(spec, layer));
            length += plan.state_length(spec, layer);
            log += LOGGED_MAX * input;
            let (mixer, state) = (spec.layer(layer).mixer.clone(), begin..length);
            let units = if state.is_empty() { 0 } else { plan.cut_of(spec, layer).heads.len() };
            LayerFloats { state, log: log - LOGGED_MAX * input, input, mixer, units }
        });
        let layers = layers.collect();
        let bytes =
            usize::try_from(count.floats(spec, plan)).ok().and_then(|floats| floats.checked_mul(size_of::<f32>()));
        let bytes = bytes.ok_or(io::ErrorKind::OutOfMemory)?;
        let region = (length > 0).then(|| Region::new(bytes)).transpose()?;
        Ok(Self { layers, length, count: count.all(), region, ..Self::none() })
    }

    /// Begins a step: the log of its sequences is followed as far as they continue it, or forgotten.
    pub(in crate::model) fn begin(&mut self, tokens: &[BatchToken]) {
        self.followed.clear();
        if self.region.is_none() {
            return;
        }
        for run in runs(tokens).map(|(_, run)| run) {
            let known = self.logged.iter().position(|logged| logged.slot == run[0].slot);
            let Some(known) = known.map(|index| self.logged.swap_remove(index)) else { continue };
            let accepted = run[0].position.saturating_sub(known.position) as usize;
            if (1..=known.count).contains(&accepted) {
                self.followed.push(LoggedRun { accepted, ..known });
            }
        }
        let mut first = 0;
        for run in runs(tokens).map(|(_, run)| run).filter(|run| is_speculative(run)) {
            let (BatchToken { slot, position, .. }, count) = (run[0], run.len());
            if first == 0 {
                // No other sequence has a log: steps with speculative tokens have tokens of all that had some before.
                self.logged.clear();
            }
            if first + count <= LOGGED_MAX {
                self.logged.push(LoggedRun { slot, position, first, count, accepted: 0 });
                first += count;
            }
        }
    }

    /// Number of states that follow an earlier step.
    pub(super) fn followed(&self) -> usize {
        self.followed.len()
    }

    /// One of them in a layer.
    pub(super) fn follow(&mut self, layer: usize, index: usize) -> Followed<'_> {
        let LoggedRun { slot, first, count, accepted, .. } = self.followed[index];
        let LayerFloats { state, log, input, .. } = &self.layers[layer];
        let (state, log) = (state.clone(), log + first * input..log + (first + count) * input);
        let begin = slot.index() * self.length;
        let [states, logs, _] = self.parts();
        Followed { state: &mut states[begin + state.start..begin + state.end], log: &mut logs[log], count, accepted }
    }

    /// The state of a sequence in a layer, as it is before the first token of this run: zeros at the beginning of a
    /// text.
    pub(super) fn before(&mut self, layer: usize, run: &[BatchToken]) -> Passed<'_> {
        let Some(BatchToken { slot, position, .. }) = run.first().copied() else {
            return Passed { state: &mut [], log: &mut [] };
        };
        let mut logged = self.logged.iter().filter(|_| is_speculative(run));
        let logged = logged.find(|logged| (logged.slot, logged.position, logged.count) == (slot, position, run.len()));
        let LayerFloats { state, log, input, .. } = &self.layers[layer];
        let log = logged.map(|logged| log + logged.first * input..log + (logged.first + logged.count) * input);
        let (part, begin) = (state.clone(), slot.index() * self.length);
        let [states, logs, ahead] = self.parts();
        let state = &mut states[begin + part.start..begin + part.end];
        if position == 0 {
            state.fill(0.0);
        }
        let Some(log) = log else { return Passed { state, log: &mut [] } };
        let ahead = &mut ahead[..state.len()];
        ahead.copy_from_slice(state);
        Passed { state: ahead, log: &mut logs[log] }
    }

    /// Copies a state.
    pub fn copy(&mut self, from: usize, to: usize) {
        let length = self.length;
        self.parts()[0].copy_within(from * length..(from + 1) * length, to * length);
        self.logged.retain(|logged| logged.slot.index() != to);
    }

    /// Number of states.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Units of a layer's mixer on this rank, each with a part of the state; 0 if the layer has no state.
    pub fn units(&self, layer: usize) -> usize {
        self.layers.get(layer).map_or(0, |floats| floats.units)
    }

    /// Bytes of a unit's part of a state in a layer.
    pub fn part_bytes(&self, layer: usize) -> usize {
        self.layers.get(layer).map_or(0, |floats| floats.mixer.state_length(1) * size_of::<f32>())
    }

    /// Appends a unit's part of a state, in the same form for any number of units on a rank.
    pub fn part(&self, place: UnitPlace, out: &mut Vec<u8>) {
        let is_here = usize::from(place.state) < self.count && place.unit < self.units(place.layer);
        let (Some(layer), Some(region), true) = (self.layers.get(place.layer), &self.region, is_here) else { return };
        let begin = usize::from(place.state) * self.length + layer.state.start;
        let floats: &[f32] = &bytemuck::cast_slice(region.bytes())[begin..];
        for range in layer.mixer.state_ranges(layer.units, place.unit) {
            out.extend_from_slice(bytemuck::cast_slice(&floats[range]));
        }
    }

    /// Stores a part from another rank ([`Self::part`]); false if there is no such place, or the part has another size.
    pub fn take_over(&mut self, place: UnitPlace, mut part: &[u8]) -> bool {
        let is_here = usize::from(place.state) < self.count && place.unit < self.units(place.layer);
        let is_here = is_here && part.len() == self.part_bytes(place.layer);
        let (Some(layer), Some(region), true) = (self.layers.get(place.layer), &mut self.region, is_here) else {
            return false;
        };
        let begin = (usize::from(place.state) * self.length + layer.state.start) * size_of::<f32>();
        let bytes = &mut region.bytes_mut()[begin..];
        for range in layer.mixer.state_ranges(layer.units, place.unit) {
            let place = range.start * size_of::<f32>()..range.end * size_of::<f32>();
            let (now, rest) = part.split_at(place.len());
            bytes[place].copy_from_slice(now);
            part = rest;
        }
        true
    }

    /// The states, the log, and the state of a layer ahead of its slot's.
    fn parts(&mut self) -> [&mut [f32]; 3] {
        let Some(region) = &mut self.region else { return [&mut [], &mut [], &mut []] };
        let states = self.length * self.count;
        let log = self.layers.iter().map(|layer| LOGGED_MAX * layer.input).sum();
        let (states, rest) = bytemuck::cast_slice_mut(region.bytes_mut()).split_at_mut(states);
        let (log, ahead) = rest.split_at_mut(log);
        [states, log, ahead]
    }
}

/// Whether the last tokens of a run are speculative.
fn is_speculative(run: &[BatchToken]) -> bool {
    run.last().is_some_and(|token| token.is_speculative)
}

#[cfg(test)]
mod tests {
    use models::known;
    use topology::shard::cut_stage;

    use super::*;

    /// A model with layers of a kind and of attention.
    fn spec(name: &str) -> ModelSpec {
        known::MODELS.iter().find(|model| model.name == name).expect("it is known").spec()
    }

    /// The first layers of a model on each of so many ranks, with four states.
    fn caches(spec: &ModelSpec, ranks: usize) -> Vec<StateCache> {
        let plans = cut_stage(spec, &(0..4), &vec![1; ranks]).expect("each rank has some");
        let count = StateCount { slots: 2, saved: 2 };
        plans.iter().map(|plan| StateCache::new(spec, plan, count).expect("there is memory")).collect()
    }

    fn tokens(slot: u16, positions: Range<u32>, is_speculative: bool) -> Vec<BatchToken> {
        let first = positions.start;
        let tokens = positions.map(|position| BatchToken {
            slot: Slot(slot),
            position,
            token: 1,
            wants_logits: true,
            is_speculative: is_speculative && position > first,
        });
        tokens.collect()
    }

    #[test]
    fn states_follow_accepted_tokens_and_forget_others() {
        let mut cache = caches(&spec("lfm2-1.2b"), 1).remove(0);
        let run = tokens(1, 5..9, true);
        cache.begin(&run);
        let Passed { state, log } = cache.before(0, &run);
        assert_eq!(log.len(), 4 * 2048);
        state.fill(1.0);
        log.fill(2.0);
        assert!(cache.before(0, &tokens(1, 5..6, false)).state.iter().all(|value| *value == 0.0), "a copy was changed");
        // The second slot's sequence has two accepted tokens; the first slot's has none in the log.
        cache.begin(&[tokens(0, 3..4, false), tokens(1, 7..8, false)].concat());
        assert_eq!(cache.followed(), 1);
        let Followed { log, count, accepted, .. } = cache.follow(0, 0);
        assert_eq!((count, accepted, log.len(), log[0]), (4, 2, 4 * 2048, 2.0));
        cache.begin(&tokens(1, 8..9, false));
        assert_eq!(cache.followed(), 0, "each is followed once");
        for (copied, first) in [(true, 11), (false, 9), (false, 14)] {
            let run = tokens(1, 9..13, true);
            cache.begin(&run);
            if copied {
                cache.copy(2, 1);
            }
            cache.begin(&tokens(1, first..first + 1, false));
            assert_eq!(cache.followed(), 0, "another sequence, nothing accepted, or more than there were");
        }
    }

    #[test]
    fn parts_of_states_move_between_cuts_and_wrong_places_are_refused() {
        for name in ["lfm2-1.2b", "qwen3.5-4b", "granite-4.0-h-micro", "nemotron-nano-9b-v2"] {
            let spec = spec(name);
            let (mut whole, mut halves) = (caches(&spec, 1).remove(0), caches(&spec, 2));
            let layer = (0..4).find(|layer| whole.units(*layer) > 0).expect("it has states");
            let length = whole.length;
            let [states, ..] = whole.parts();
            states[3 * length..].iter_mut().enumerate().for_each(|(index, value)| *value = index as f32);
            let mut first = 0;
            for half in &mut halves {
                for unit in 0..half.units(layer) {
                    let mut part = Vec::new();
                    whole.part(UnitPlace { state: 3, layer, unit: first + unit }, &mut part);
                    assert_eq!(part.len(), half.part_bytes(layer));
                    let place = UnitPlace { state: 1, layer, unit };
                    assert!(half.take_over(place, &part) && !half.take_over(place, &part[1..]));
                    assert!(!half.take_over(UnitPlace { state: 4, ..place }, &part));
                    assert!(!half.take_over(UnitPlace { unit: half.units(layer), ..place }, &part));
                    let mut back = Vec::new();
                    half.part(place, &mut back);
                    assert_eq!(back, part, "{name}");
                }
                first += half.units(layer);
            }
            assert_eq!(first, whole.units(layer), "{name}");
        }
    }
}
