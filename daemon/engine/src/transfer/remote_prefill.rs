//! The other groups, as the head of a group has them.
use crate::transfer::{Partners, TransferOrder, requested::RequestedPrefills, served::ServedPrefills};

/// Remote prefills of a head: those that it requests from other groups, and those that it computes for them. The
/// default is off and does nothing.
#[derive(Debug)]
pub struct RemotePrefill {
    is_on: bool,
    pub(crate) requested: RequestedPrefills,
    pub(crate) served: ServedPrefills,
    /// A prompt is computed by a prefill group if it has at least this many tokens without the last one.
    pub(crate) least: usize,
    /// `End` orders that the ranks have not received yet.
    pub(crate) ending: Vec<TransferOrder>,
}

impl Default for RemotePrefill {
    fn default() -> Self {
        let (requested, served) = (RequestedPrefills::new(&[]), ServedPrefills::default());
        Self { is_on: false, requested, served, least: usize::MAX, ending: Vec::new() }
    }
}

impl RemotePrefill {
    /// Creates the state for the groups present at the start; `asks` is set on the head of a decode group.
    pub fn new(partners: &Partners, asks: bool) -> Self {
        let requested = RequestedPrefills::new(if asks { &partners.replicas } else { &[] });
        Self { is_on: true, requested, least: partners.least, ..Self::default() }
    }

    /// Whether the topology's groups have roles.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether transfers are in progress that need attention without a step.
    pub fn is_busy(&self) -> bool {
        self.requested.is_busy() || !self.ending.is_empty()
    }

    /// Whether a prompt is to be computed by a prefill group. The last token is always computed here, for its logits.
    pub fn takes(&self, tokens: usize) -> bool {
        tokens > self.least && self.requested.has_groups()
    }
}
