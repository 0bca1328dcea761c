//! The questions of a steward and their answers.
use std::time::Duration;

use common::fault::{Fault, FaultKind};
use planner::replan::Stays;
use protocol::{
    message::{RequestBody, ResponseBody},
    recovery::{Committed, Standing},
};
use topology::Topology;

use super::Steward;

/// Names a question of one steward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Question(pub u64);

/// A question of the steward. [`Steward::hear`] takes one answer to each, unless the steward is idle by then.
#[derive(Clone, Debug, PartialEq)]
pub enum StewardAsk {
    /// Send a request to the node at an address. Each answer must arrive within `within`; the first one that is not
    /// progress of a load counts.
    Node {
        /// Names the answer.
        question: Question,
        /// The node's address.
        address: String,
        /// The request.
        body: RequestBody,
        /// Longest wait for an answer.
        within: Duration,
    },
    /// Check whether the node at an address holds the weights that this topology was committed with.
    Content {
        /// Names the answer.
        question: Question,
        /// The node's address.
        address: String,
        /// The topology.
        topology: Box<Topology>,
    },
    /// Fit the desired topology to the available members, with the sizes in the model's file.
    Plan {
        /// Names the answer.
        question: Question,
        /// The desired topology.
        desired: Topology,
        /// The available members.
        stay: Vec<Stays>,
    },
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// A node's answer; a `Failed` answer, a broken session and a missed deadline are errors.
    Node(Result<ResponseBody, Fault>),
    /// Whether a member holds the weights.
    Content(Result<(), Fault>),
    /// The planned topology.
    Plan(Result<Topology, FaultKind>),
}

impl Steward {
    /// All addresses at which a member may be; with `has_absent`, also the absent members of the desired topology.
    pub(super) fn addresses(&self, base: &Committed, own: &Standing, has_absent: bool) -> Vec<String> {
        let members = &base.topology.members;
        // A member may be back at the address that it had before a vote.
        let desired = base.desired().members.iter();
        let desired = desired.filter(|one| has_absent || members.iter().any(|member| member.name == one.name));
        let mut addresses: Vec<String> = members.iter().chain(desired).map(|member| member.address.clone()).collect();
        addresses.extend(own.heard.iter().map(|(_, address)| address.clone()));
        addresses.extend(self.settings.known.iter().cloned());
        addresses.push(self.settings.own.clone());
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }
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

/// A node's answer does not match the question.
pub(super) fn unexpected() -> Fault {
    Fault::new("steward", FaultKind::Malformed { reason: "an unexpected answer".into() })
}
