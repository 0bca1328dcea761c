//! The other groups, as the head of a group has them.
use crate::transfer::{Order, Partners, asking::Asking, computing::Computing};

/// State of a head with regard to the other groups.
#[derive(Debug)]
pub struct Elsewhere {
    pub(crate) asking: Asking,
    pub(crate) computing: Computing,
    /// A prompt is computed by a prefill group if it has at least this many tokens without the last one.
    pub(crate) least: usize,
    /// `End` orders that the ranks have not received yet.
    pub(crate) ending: Vec<Order>,
}

impl Elsewhere {
    /// Creates the state for the groups present at the start; `asks` is set on the head of a decode group.
    pub fn new(partners: &Partners, asks: bool) -> Self {
        let asking = Asking::new(if asks { &partners.replicas } else { &[] });
        Self { asking, computing: Computing::default(), least: partners.least, ending: Vec::new() }
    }

    /// Whether transfers are in progress that need attention without a step.
    pub fn is_busy(&self) -> bool {
        self.asking.is_busy() || !self.ending.is_empty()
    }

    /// Whether a prompt is to be computed by a prefill group. The last token is always computed here, for its logits.
    pub fn takes(&self, tokens: usize) -> bool {
        tokens > self.least && self.asking.has_groups()
    }
}
