//! What the heads of a prefill and a decode group say to each other. The keys and values themselves go from rank to rank as data frames.
use serde::{Deserialize, Serialize};

use super::message::Beat;
use crate::units::Nanoseconds;

/// A message between the heads of two groups.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Across {
    /// The sender lives.
    Beat(Beat),
    /// A decode group wants a prompt computed.
    Ask(Box<Ask>),
    /// It wants it no more.
    Cancel {
        /// The transfer.
        transfer: u64,
    },
    /// The prompt is computed and all of it is on its way.
    Done {
        /// The transfer.
        transfer: u64,
        /// From the ask until its first step.
        queued: Nanoseconds,
        /// From its first step to its last.
        compute: Nanoseconds,
    },
    /// It is not computed: the group that asked does it itself.
    Refused {
        /// The transfer.
        transfer: u64,
    },
}

/// A prompt to be computed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// Chosen by the head that asks, higher than all before.
    pub transfer: u64,
    /// The tokens whose keys and values are wanted.
    pub tokens: Vec<u32>,
    /// KV blocks at the beginning that the group has already.
    pub first_block: u32,
}
