//! The questions of a steward and their answers.
use std::time::Duration;

use shared::{
    protocol::{
        error::{Fault, FaultKind},
        message::{RequestBody, ResponseBody},
    },
    topology::{Topology, replan::Stays},
};

use super::unexpected;

/// Names a question of one steward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Question(pub u64);

/// Something to find out. Each is answered once, by [`Steward::hear`], unless the steward is at rest before.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// Ask the node at an address. Each of its answers must come within this; the first that is no progress of a load counts.
    Node {
        /// Names the answer.
        question: Question,
        /// Where.
        address: String,
        /// What.
        body: RequestBody,
        /// Longest wait for an answer.
        within: Duration,
    },
    /// Ask the node at an address whether it holds the weights that this topology was committed with.
    Content {
        /// Names the answer.
        question: Question,
        /// Where.
        address: String,
        /// The topology.
        topology: Box<Topology>,
    },
    /// Fit the desired topology to the available members, with the sizes in the model's file.
    Plan {
        /// Names the answer.
        question: Question,
        /// What an operator asked for.
        desired: Topology,
        /// The available members.
        stay: Vec<Stays>,
    },
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// What a node answered; a `Failed` answer, a broken session and a missed deadline are errors.
    Node(Result<ResponseBody, Fault>),
    /// Whether a member holds the weights.
    Content(Result<(), Fault>),
    /// What was planned.
    Plan(Result<Topology, FaultKind>),
}

impl Reply {
    /// A node's answer.
    pub(super) fn of_node(self) -> Result<ResponseBody, Fault> {
        match self {
            Self::Node(result) => result,
            Self::Content(_) | Self::Plan(_) => Err(unexpected()),
        }
    }
}
