//! Which expert has which slot: the latest used ones have one. Experts are numbers, slots too; no bytes.

/// In place of a slot or of an expert.
const NONE: u32 = u32::MAX;

/// An expert that was given a slot and is not there yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Missing {
    /// Its slot.
    pub(super) slot: usize,
    /// Its number in its layer.
    pub(super) expert: usize,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The expert that it holds.
    expert: u32,
    /// Number of the latest choice that used it; 0: none.
    used: u64,
}

/// The slots and their experts.
#[derive(Debug)]
pub(super) struct Latest {
    /// For each expert its slot.
    places: Vec<u32>,
    slots: Vec<Slot>,
    /// Choices so far.
    choices: u64,
    uses: [u64; 2],
}

impl Latest {
    /// As many empty slots for this many experts.
    pub(super) fn new(experts: usize, slots: usize) -> Self {
        let slots = vec![Slot { expert: NONE, used: 0 }; slots];
        Self { places: vec![NONE; experts], slots, choices: 0, uses: [0; 2] }
    }

    /// Numbers of slots and of experts.
    pub(super) fn counts(&self) -> [usize; 2] {
        [self.slots.len(), self.places.len()]
    }

    /// How many of the chosen experts had a slot, and how many had none.
    pub(super) fn uses(&self) -> [u64; 2] {
        self.uses
    }

    /// The slot of an expert.
    pub(super) fn slot(&self, expert: usize) -> Option<usize> {
        self.places.get(expert).filter(|slot| **slot != NONE).map(|slot| *slot as usize)
    }

    /// Gives each of these experts of a layer, at most as many as there are slots, a slot: those without one get the
    /// slots that were used the longest time ago. `missing` are these, by slot.
    pub(super) fn choose(&mut self, first: usize, experts: &[usize], missing: &mut Vec<Missing>) {
        assert!(experts.len() <= self.slots.len(), "a step uses no more experts at a time than there are slots");
        missing.clear();
        self.choices += 1;
        for expert in experts {
            if let Some(slot) = self.slot(first + expert) {
                self.slots[slot].used = self.choices;
                self.uses[0] += 1;
            }
        }
        for expert in experts.iter().copied() {
            if self.slot(first + expert).is_some() {
                continue;
            }
            // A scan of some thousand slots takes a thousandth of the read that follows.
            let oldest = self.slots.iter().enumerate().min_by_key(|(_, slot)| slot.used);
            let Some((slot, _)) = oldest.filter(|(_, slot)| slot.used < self.choices) else { return };
            self.forget(slot);
            self.slots[slot] = Slot { expert: (first + expert) as u32, used: self.choices };
            self.places[first + expert] = slot as u32;
            self.uses[1] += 1;
            missing.push(Missing { slot, expert });
        }
        missing.sort_unstable_by_key(|missing| missing.slot);
    }

    /// Empties a slot.
    pub(super) fn forget(&mut self, slot: usize) {
        let before = std::mem::replace(&mut self.slots[slot], Slot { expert: NONE, used: 0 });
        if let Some(place) = self.places.get_mut(before.expert as usize) {
            *place = NONE;
        }
    }
}
