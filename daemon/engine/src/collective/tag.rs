//! The place of a message in the schedule.
use std::fmt;

use protocol::frame::{FrameKind, FramePlace};

/// Header fields that identify a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameTag {
    /// Kind of the payload.
    pub kind: FrameKind,
    /// The step.
    pub step: u64,
    /// Number of the collective (or round) within the step.
    pub sequence: u32,
    /// Position within an all-reduce.
    pub place: FramePlace,
}

impl fmt::Display for FrameTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FramePlace { algorithm, round } = self.place;
        write!(f, "{:?} {}.{}, algorithm {algorithm} message {round}", self.kind, self.step, self.sequence)
    }
}

impl FrameTag {
    /// The tag of a frame outside of an all-reduce.
    pub fn new(kind: FrameKind, step: u64, sequence: u32) -> Self {
        Self { kind, step, sequence, place: FramePlace::default() }
    }
}
