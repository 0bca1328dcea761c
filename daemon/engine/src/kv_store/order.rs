//! What the head has the ranks read, and what they answer.
use serde::{Deserialize, Serialize};

/// Identifies a load inside a replica; increasing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LoadId(pub u64);

/// A head's order about loads to the ranks of its replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoreOrder {
    /// Read the keys and values of these tokens, and the state behind them, into these places.
    Load {
        /// The load.
        load: LoadId,
        /// The tokens from the beginning of the text on: whole blocks.
        tokens: Vec<u32>,
        /// First block to read.
        first_block: u32,
        /// The blocks of the sequence.
        blocks: Vec<u32>,
        /// Its blocks in layers with a window, and the index of the first of them.
        windowed: (u32, Vec<u32>),
        /// Number of the state to read into; `None` in a model without states.
        state: Option<u16>,
    },
    /// Forget a load.
    End {
        /// The load.
        load: LoadId,
    },
    /// Report the status of a load.
    Tell {
        /// The load.
        load: LoadId,
    },
}

/// The blocks of a sequence into which a load reads: those behind the cached ones, which other sequences may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WantedBlocks<'a> {
    pub(super) whole: &'a [u32],
    /// In layers with a window, behind the number of wanted ones before the first of them.
    pub(super) windowed: (usize, &'a [u32]),
}

impl StoreOrder {
    /// The blocks that are read; `None` if the order is no load.
    pub(super) fn wanted(&self) -> Option<WantedBlocks<'_>> {
        let Self::Load { first_block, blocks, windowed: (before, windowed), .. } = self else { return None };
        let (first, before) = (*first_block as usize, *before as usize);
        let cached = first.saturating_sub(before);
        Some(WantedBlocks {
            whole: blocks.get(first..).unwrap_or_default(),
            windowed: (before.saturating_sub(first), windowed.get(cached..).unwrap_or_default()),
        })
    }
}

/// Status of a load on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadStatus {
    /// Blocks that are read, in order.
    pub blocks: u32,
    /// Whether all wanted ones are, and the state behind them.
    pub is_complete: bool,
    /// Whether no more will be.
    pub is_over: bool,
}

impl LoadStatus {
    /// Nothing is read, and nothing will be.
    pub const NOTHING: Self = Self { blocks: 0, is_complete: false, is_over: true };

    /// What both ranks have.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            blocks: self.blocks.min(other.blocks),
            is_complete: self.is_complete && other.is_complete,
            is_over: self.is_over && other.is_over,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_blocks_are_not_read_into() {
        let wanted = |first_block, before| {
            let (load, tokens, blocks) = (LoadId(1), Vec::new(), vec![0, 1, 2, 3]);
            let order =
                StoreOrder::Load { load, tokens, first_block, blocks, windowed: (before, vec![7, 8]), state: None };
            let WantedBlocks { whole, windowed: (skipped, windowed) } = order.wanted().expect("it is a load");
            (whole.to_vec(), skipped, windowed.to_vec())
        };
        assert_eq!(wanted(0, 0), (vec![0, 1, 2, 3], 0, vec![7, 8]));
        assert_eq!(wanted(1, 0), (vec![1, 2, 3], 0, vec![8]));
        assert_eq!(wanted(1, 2), (vec![1, 2, 3], 1, vec![7, 8]));
        assert_eq!(wanted(9, 0), (vec![], 0, vec![]));
        assert_eq!(StoreOrder::End { load: LoadId(1) }.wanted(), None);
    }
}
