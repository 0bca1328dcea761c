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
