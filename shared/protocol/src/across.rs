//! Messages between the heads of a prefill and a decode group. The keys and values themselves travel from rank to rank
//! as data frames.
use common::units::Nanoseconds;
use serde::{Deserialize, Serialize};

use super::message::Beat;

/// A message between the heads of two groups.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Across {
    /// Heartbeat of the sender.
    Beat(Beat),
    /// A decode group requests the prefill of a prompt.
    Ask(Box<Ask>),
    /// The requester no longer needs it.
    Cancel {
        /// The transfer.
        transfer: u64,
    },
    /// The prompt is computed and all of its keys and values are sent or queued.
    Done {
        /// The transfer.
        transfer: u64,
        /// Time from the request until its first step.
        queued: Nanoseconds,
        /// Time from its first step to its last.
        compute: Nanoseconds,
    },
    /// The prefill was rejected; the requesting group computes the prompt itself.
    Refused {
        /// The transfer.
        transfer: u64,
    },
}

/// A prompt to compute remotely.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// Chosen by the requesting head, higher than all its previous ones.
    pub transfer: u64,
    /// The tokens whose keys and values are requested.
    pub tokens: Vec<u32>,
    /// Number of leading KV blocks that the requester already has.
    pub first_block: u32,
}
