//! Collectives between the ranks of a stage: schedules executed on links, with time accounting. Independent of the
//! contents of layers; runs on the engine's thread, never awaits.
pub mod abort;
mod bench;
pub mod clocks;
mod execute;
pub mod group;
pub mod hand_over;
pub mod hops;
mod kv_links;
pub mod link;
mod pauses;
mod peer;
mod program;
pub mod sync_log;
mod tag;
#[cfg(test)]
mod tests;
pub mod timing;
pub mod toll;
mod tune;
mod words;

use common::ids::{LayerIndex, Rank};
use protocol::frame::FrameError;
use telemetry::SyncKind;

pub use abort::{Abort, WorkCounter};
pub use group::{Group, Settings};
pub use kv_links::{KvLinks, Taken};
pub use link::{Links, Seat};
pub use peer::{Calls, Socket};
pub use sync_log::SyncLog;
pub use tag::FrameTag;
pub use timing::{SlowestRank, StepTiming};
pub use toll::{Toll, Waits};

/// Why a collective failed. Its links are unusable afterwards.
#[derive(Debug, thiserror::Error)]
pub enum CollectiveError {
    /// The peer closed or reset the link.
    #[error("rank {0} closed its link")]
    Closed(Rank),
    /// The wait was aborted by a watcher, after a lost heartbeat or a stop.
    #[error("the wait was aborted")]
    Aborted,
    /// The peer sent an invalid frame.
    #[error("rank {rank} sent an invalid frame: {error}")]
    Frame {
        /// The peer.
        rank: Rank,
        /// The problem.
        error: FrameError,
    },
    /// The peer is at another point of the schedule than this rank.
    #[error("rank {rank} is out of step: it sent {got}, expected {expected}")]
    OutOfStep {
        /// The peer.
        rank: Rank,
        /// Description of the received frame.
        got: String,
        /// Description of the expected frame.
        expected: String,
    },
    /// A system call failed.
    #[error("link of rank {rank}: {error}")]
    System {
        /// The peer.
        rank: Rank,
        /// The error.
        error: nix::errno::Errno,
    },
}

impl CollectiveError {
    /// The rank whose link is unusable: it counts as lost, whether it closed the link, sent damaged bytes or is out of
    /// step.
    pub fn lost(&self) -> Option<Rank> {
        match self {
            Self::Closed(rank) | Self::Frame { rank, .. } | Self::OutOfStep { rank, .. } => Some(*rank),
            Self::Aborted | Self::System { .. } => None,
        }
    }
}

/// The collective operations that the model needs.
pub trait Collective {
    /// `hidden += sum over ranks of partial`, the same bytes on every rank. Both are `[token, embedding_length]`.
    ///
    /// # Errors
    /// A peer is lost or out of step, or the wait was aborted.
    fn all_reduce(
        &mut self,
        layer: LayerIndex,
        kind: SyncKind,
        partial: &[f32],
        hidden: &mut [f32],
    ) -> Result<(), CollectiveError>;
}
