//! Collectives between the ranks of a stage: schedules executed on links, with the time of each accounted.
//! Knows nothing of layers' contents; runs on the engine's thread, never awaits.
pub mod abort;
pub mod accounting;
mod across;
pub mod clocks;
mod execute;
pub mod group;
pub mod hand_over;
pub mod hops;
pub mod link;
mod peer;
mod program;
pub mod ring;
#[cfg(test)]
mod sealed_tests;
#[cfg(test)]
mod tests;
mod timing;
pub mod toll;
mod tune;
mod words;

use shared::{
    ids::{LayerIndex, Rank},
    protocol::frame::FrameError,
    telemetry::SyncKind,
};

pub use abort::Abort;
pub use accounting::Accounting;
pub use across::{AcrossLinks, Taken};
pub use group::{Group, Settings};
pub use link::{Links, Mark, Seat};
pub use peer::{Calls, Socket};
pub use ring::SyncRing;
pub use toll::{Toll, Waits};

/// Why a collective did not finish. The links are of no use after it.
#[derive(Debug, thiserror::Error)]
pub enum CollectiveError {
    /// The peer closed or reset the link.
    #[error("rank {0} closed its link")]
    Closed(Rank),
    /// Somebody else ended the wait: a lost heartbeat, a stop.
    #[error("the wait was ended from outside")]
    Aborted,
    /// The peer sent a header that cannot be.
    #[error("rank {rank} sent a broken frame: {error}")]
    Frame {
        /// The peer.
        rank: Rank,
        /// What is wrong with it.
        error: FrameError,
    },
    /// The peer is at another place than this rank.
    #[error("rank {rank} sent {got}, expected was {expected}")]
    OutOfStep {
        /// The peer.
        rank: Rank,
        /// What its frame says.
        got: String,
        /// What this rank waits for.
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
    /// The rank whose link is of no use any more: it is lost, whether its bytes stopped, came damaged or are those of another place.
    pub fn lost(&self) -> Option<Rank> {
        match self {
            Self::Closed(rank) | Self::Frame { rank, .. } | Self::OutOfStep { rank, .. } => Some(*rank),
            Self::Aborted | Self::System { .. } => None,
        }
    }
}

/// What the model needs from the other ranks of its stage.
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
