//! The KV cache of a rank: blocks of positions, for layers that attend to everything and for layers with a window.
use common::limits::KV_BLOCK_LENGTH;
use models::{LayerSpec, Mixer};

use crate::layout::STEP_TOKENS_MAX;

/// KV blocks that every rank has for each of its layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvBlocks {
    /// In a layer that attends to all positions.
    pub whole: usize,
    /// In a layer with a window.
    pub windowed: usize,
    /// Those of `windowed` that are for the tokens of a step: sequences reserve the others.
    pub step: usize,
}

/// Sequences that are longer than the window and run at the same time.
const WINDOWS: usize = 4;

impl KvBlocks {
    /// The blocks for sequences of at most `context` positions in `slots` slots, in a model whose longest window is
    /// `window`: enough for one sequence of full length or several shorter ones. What fell out of a window is freed, so
    /// that layers with one need the windows of a few long sequences (or more short ones) and a step; with several slots
    /// one window more, for a beginning that their prompts share.
    pub fn of(context: u32, slots: u16, window: Option<usize>) -> Self {
        let slots = usize::from(slots.max(1));
        let whole = (context as usize).div_ceil(KV_BLOCK_LENGTH) + slots - 1;
        let Some(window) = window else { return Self { whole, windowed: 0, step: 0 } };
        let step = STEP_TOKENS_MAX / KV_BLOCK_LENGTH + slots;
        let windows = slots.min(WINDOWS) + usize::from(slots > 1);
        // A sequence never holds more of them than of the others.
        let windowed = whole.min(windows * window_blocks(window) + step);
        Self { whole, windowed, step }
    }

    /// Blocks of layers with a window that all sequences together may reserve; `None`: any number, because there are as
    /// many as of the others.
    pub fn reservable(&self) -> Option<usize> {
        (self.windowed < self.whole).then(|| self.windowed.saturating_sub(self.step))
    }

    /// As many blocks in every layer.
    pub const fn alike(count: usize) -> Self {
        Self { whole: count, windowed: count, step: 0 }
    }

    /// The blocks in such a layer.
    pub fn in_layer(&self, layer: &LayerSpec) -> usize {
        match &layer.mixer {
            Mixer::Attention(attention) if attention.keys_of.is_some() => 0,
            Mixer::Attention(attention) if attention.forgets() => self.windowed,
            mixer => mixer.kv_heads().map_or(0, |_| self.whole),
        }
    }
}

/// Most blocks with positions that a token sees through a window.
pub fn window_blocks(window: usize) -> usize {
    (window - 1).div_ceil(KV_BLOCK_LENGTH) + 1
}

/// Number of the first block that a token at this position sees through a window.
pub fn first_block(position: usize, window: usize) -> usize {
    (position + 1).saturating_sub(window) / KV_BLOCK_LENGTH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_need_a_part_of_the_blocks_at_long_contexts() {
        assert_eq!(KvBlocks::of(32_768, 1, None), KvBlocks { whole: 1024, windowed: 0, step: 0 });
        assert_eq!(KvBlocks::of(32_768, 1, Some(1024)), KvBlocks { whole: 1024, windowed: 38, step: 5 });
        assert_eq!(KvBlocks::of(32_768, 4, Some(1024)), KvBlocks { whole: 1027, windowed: 173, step: 8 });
        assert_eq!(KvBlocks::of(32_768, 16, Some(1024)), KvBlocks { whole: 1039, windowed: 185, step: 20 });
        assert_eq!(KvBlocks::of(512, 4, Some(1024)), KvBlocks { whole: 19, windowed: 19, step: 8 });
        assert_eq!(KvBlocks::of(512, 4, Some(1024)).reservable(), None);
        assert_eq!(KvBlocks::of(32_768, 16, Some(1024)).reservable(), Some(165));
    }

    #[test]
    fn a_window_begins_with_the_block_of_its_oldest_position() {
        assert_eq!([0, 127, 128, 158, 159, 160].map(|position| first_block(position, 128)), [0, 0, 0, 0, 1, 1]);
        assert_eq!([0, 31, 32].map(|position| first_block(position, 1)), [0, 0, 1]);
    }
}
