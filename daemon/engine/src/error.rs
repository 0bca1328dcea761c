//! Why an engine stops.
use protocol::frame::FrameKind;

use crate::{collective::CollectiveError, model::ForwardError, plan::PlanError, sample::SampleError};

/// Why an engine stops.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A peer is lost or out of step.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// The model file cannot be read any more.
    #[error(transparent)]
    Model(ForwardError),
    /// The head's plan does not match this rank's state.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Logits, or a rank's message about them, are invalid.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// Another rank sent a malformed message.
    #[error("a rank sent a malformed {0:?} message")]
    Message(FrameKind),
}

impl From<ForwardError> for EngineError {
    fn from(error: ForwardError) -> Self {
        match error {
            ForwardError::Collective(error) => Self::Collective(error),
            error @ (ForwardError::Embedding(_) | ForwardError::Experts(_)) => Self::Model(error),
        }
    }
}
