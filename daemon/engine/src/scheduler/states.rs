//! Saved states of recurrent layers, from which a later sequence with the same beginning continues: a state cannot be
//! taken back to an earlier position. Pure.
use common::{ids::Slot, limits::KV_BLOCK_LENGTH};
use topology::StateCount;

/// Last tokens of a prompt that its saved beginning leaves out: the next prompt of a conversation often differs in them,
/// because templates write the beginning of an answer in another way than the answer itself.
const TAIL: usize = 16;

/// A saved state.
#[derive(Debug, Default)]
struct SavedState {
    /// The tokens that led to it; none if nothing is saved.
    tokens: Vec<u32>,
    /// When it was last used; smaller is longer ago.
    used: u64,
    /// Whether the state of a remotely computed prompt is received into it.
    is_awaited: bool,
}

/// The saved states, and the copies that the ranks have not received.
#[derive(Debug)]
pub(super) struct SavedStates {
    /// Number of the first of them among all states.
    first: usize,
    saved: Vec<SavedState>,
    clock: u64,
    copies: Vec<(u16, u16)>,
}

impl SavedStates {
    pub(super) fn new(count: StateCount) -> Self {
        let saved = (0..count.saved).map(|_| SavedState::default()).collect();
        Self { first: count.slots, saved, clock: 0, copies: Vec::new() }
    }

    /// Whether the model has states.
    pub(super) const fn is_used(&self) -> bool {
        self.first > 0
    }

    /// Where the beginning of a prompt ends that is saved, if it is long enough.
    pub(super) fn boundary(&self, prompt: usize) -> Option<usize> {
        let boundary = prompt.saturating_sub(TAIL) / KV_BLOCK_LENGTH * KV_BLOCK_LENGTH;
        (self.is_used() && boundary > 0).then_some(boundary)
    }

    /// The longest saved beginning of a prompt that `is_cached`: its number and its length. The last token of a prompt
    /// never counts: its logits are needed.
    pub(super) fn longest(&self, prompt: &[u32], is_cached: impl Fn(usize) -> bool) -> Option<(usize, usize)> {
        let mut found: Vec<(usize, usize)> = self.saved.iter().map(|saved| saved.tokens.len()).enumerate().collect();
        found.retain(|(number, length)| {
            (1..prompt.len()).contains(length) && prompt.starts_with(&self.saved[*number].tokens)
        });
        found.sort_unstable_by_key(|(_, length)| std::cmp::Reverse(*length));
        found.into_iter().find(|(_, length)| is_cached(*length))
    }

    /// Lets a sequence begin with a saved state.
    pub(super) fn restore(&mut self, number: usize, slot: Slot) {
        self.touch(number);
        self.copies.push(((self.first + number) as u16, slot.0));
    }

    /// Marks a saved state as used now: of all, it is replaced last.
    pub(super) fn touch(&mut self, number: usize) {
        self.clock += 1;
        self.saved[number].used = self.clock;
    }

    /// The state to set aside for that of a remotely computed prompt: the one that was used longest ago; half of them at
    /// most are set aside. One that a copy uses which the ranks have not received is not available: the copy may come
    /// later than the state.
    fn available(&self) -> Option<usize> {
        let awaited = self.saved.iter().filter(|saved| saved.is_awaited).count();
        let free = self.saved.iter().enumerate().filter(|(saved, state)| {
            let number = self.number(*saved);
            !state.is_awaited && !self.copies.iter().any(|(from, to)| number == *from || number == *to)
        });
        let oldest = free.min_by_key(|(_, saved)| saved.used).map(|(number, _)| number);
        oldest.filter(|_| 2 * awaited < self.saved.len())
    }

    /// Whether a remotely computed prompt can begin: its state has room, or there are none.
    pub(super) fn has_room(&self) -> bool {
        !self.is_used() || self.available().is_some()
    }

    /// Sets a state aside for that of a remotely computed prompt.
    pub(super) fn set_aside(&mut self) -> Option<usize> {
        let number = self.available()?;
        self.saved[number] = SavedState { is_awaited: true, ..SavedState::default() };
        Some(number)
    }

    /// The number of a saved state among all.
    pub(super) const fn number(&self, saved: usize) -> u16 {
        (self.first + saved) as u16
    }

    /// Ends the wait for a state: it arrived and follows these tokens, or did not and follows none.
    pub(super) fn settle(&mut self, saved: usize, tokens: &[u32]) {
        self.clock += 1;
        let used = if tokens.is_empty() { 0 } else { self.clock };
        self.saved[saved] = SavedState { tokens: tokens.to_vec(), used, is_awaited: false };
    }

    /// Saves the state of a sequence that was fed these tokens, in place of the one that was used longest ago.
    pub(super) fn save(&mut self, slot: Slot, tokens: &[u32]) {
        self.clock += 1;
        let same = self.saved.iter().position(|saved| saved.tokens == tokens);
        if let Some(number) = same {
            self.saved[number].used = self.clock;
            return;
        }
        let free = self.saved.iter().enumerate().filter(|(_, saved)| !saved.is_awaited);
        let oldest = free.min_by_key(|(_, saved)| saved.used).map(|(number, _)| number);
        let Some(number) = oldest else { return };
        let saved = &mut self.saved[number];
        saved.used = self.clock;
        saved.tokens.clear();
        saved.tokens.extend_from_slice(tokens);
        self.copies.push((slot.0, (self.first + number) as u16));
    }

    /// Hands over the copies, in order.
    pub(super) fn take_copies(&mut self, out: &mut Vec<(u16, u16)>) {
        out.append(&mut self.copies);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_saved_beginning_is_restored_and_the_oldest_is_replaced() {
        let mut states = SavedStates::new(StateCount { slots: 2, saved: 2 });
        let tokens: Vec<u32> = (0..100).collect();
        states.save(Slot(0), &tokens[..32]);
        states.save(Slot(0), &tokens[..64]);
        assert_eq!(states.longest(&tokens, |_| true), Some((1, 64)));
        assert_eq!(states.longest(&tokens, |length| length < 64), Some((0, 32)));
        assert_eq!(states.longest(&tokens[..64], |_| true), Some((0, 32)), "the last token is computed");
        assert_eq!(states.longest(&tokens[1..], |_| true), None);
        states.restore(0, Slot(1));
        states.save(Slot(1), &tokens[..40]);
        let mut copies = Vec::new();
        states.take_copies(&mut copies);
        assert_eq!(copies, [(0, 2), (0, 3), (2, 1), (1, 3)]);
        assert_eq!(states.longest(&tokens, |_| true), Some((1, 40)));
    }

    #[test]
    fn awaited_states_are_half_at_most_and_not_replaced() {
        let mut states = SavedStates::new(StateCount { slots: 2, saved: 4 });
        let tokens: Vec<u32> = (0..100).collect();
        states.save(Slot(0), &tokens[..32]);
        let mut copies = Vec::new();
        assert_eq!(states.set_aside(), Some(1), "the ranks may copy into the first one later");
        states.take_copies(&mut copies);
        assert_eq!((states.set_aside(), states.set_aside()), (Some(2), None));
        (33..40).for_each(|end| states.save(Slot(0), &tokens[..end]));
        states.take_copies(&mut copies);
        assert!(copies.iter().all(|(_, to)| [2, 5].contains(to)), "{copies:?}");
        states.settle(1, &tokens[..64]);
        states.settle(2, &[]);
        assert_eq!((states.longest(&tokens, |_| true), states.number(1)), (Some((1, 64)), 3));
        assert!(states.set_aside().is_some());
    }

    #[test]
    fn boundary_leaves_the_end_of_a_prompt_out() {
        let states = SavedStates::new(StateCount::of(1));
        assert_eq!([10, 47, 48, 200].map(|length| states.boundary(length)), [None, None, Some(32), Some(160)]);
        assert_eq!(SavedStates::new(StateCount::NONE).boundary(200), None);
    }
}
