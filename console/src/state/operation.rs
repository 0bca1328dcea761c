//! What an operator does: the question before it, what is typed into it, and what is under way.
use std::time::Duration;

use crate::{
    order::{How, Order, Roll},
    state::{
        State,
        editor::Editor,
        outlook::{outlook, serves_without},
    },
    wanted::Wanted,
};

/// What is asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Question {
    /// Restart these nodes, one by one?
    Restart {
        /// Places in the list of nodes.
        which: Vec<usize>,
    },
    /// What shall become of the rolling restart that is under way, or paused?
    Rolling,
    /// Take this node out, and why?
    Out {
        /// Place in the list of nodes.
        node: usize,
        /// How far.
        how: How,
    },
    /// Take this node in again?
    In {
        /// Place in the list of nodes.
        node: usize,
    },
    /// Make the nodes hold this?
    Assign {
        /// What.
        wanted: Wanted,
        /// Places of the nodes in the list, by rank.
        members: Vec<usize>,
    },
    /// Forget what is being prepared?
    AbortAssignment,
    /// End somebody's request?
    CancelRequest {
        /// Place of its head in the list of nodes.
        node: usize,
        /// Its number there.
        number: u64,
        /// Who sent it, and what, safe to draw.
        who: String,
    },
}

/// A question that takes all keys until it is answered, and what has been typed.
#[derive(Clone, Debug, PartialEq)]
pub struct Dialog {
    /// What is asked.
    pub question: Question,
    /// The reason as typed so far, where one is needed.
    pub reason: Option<Editor>,
    /// The node's name as typed so far, where it has to be typed because the answer cannot be taken back easily.
    pub name: Option<Editor>,
    /// Whether keys go to the name, and not to the reason.
    pub in_name: bool,
}

impl Dialog {
    /// A question that is answered by yes or no.
    pub fn plain(question: Question) -> Self {
        Self { question, reason: None, name: None, in_name: false }
    }

    /// A question about a node to take out: with a reason, and with its name where nothing would be left to serve.
    pub fn out(state: &State, node: usize, how: How) -> Self {
        let name = is_dangerous(state, node, how).then(Editor::default);
        Self { reason: Some(Editor::default()), name, ..Self::plain(Question::Out { node, how }) }
    }

    /// What letters go to.
    pub fn input(&mut self) -> Option<&mut Editor> {
        if self.in_name || self.reason.is_none() { self.name.as_mut() } else { self.reason.as_mut() }
    }

    /// The order that a yes gives; `None` for what is no order, or where a key names it.
    pub fn order(&self) -> Option<Order> {
        let reason = self.reason.as_ref().map_or("", |reason| reason.text().trim()).to_owned();
        match &self.question {
            Question::Restart { which } => Some(Order::Roll(Roll::Begin(which.clone()))),
            Question::Out { node, how } => Some(Order::Out { node: *node, reason, how: *how }),
            Question::In { node } => Some(Order::In { node: *node }),
            Question::AbortAssignment => Some(Order::AbortAssignment),
            Question::CancelRequest { node, number, .. } => Some(Order::CancelRequest { node: *node, number: *number }),
            Question::Rolling | Question::Assign { .. } => None,
        }
    }
}

/// Whether nothing would serve after it: then the node's name is typed first.
pub fn is_dangerous(state: &State, node: usize, how: How) -> bool {
    let is_last = state.usable() == [node];
    let Some(outlook) = outlook(state, node) else { return is_last };
    match how {
        How::Cordon | How::Drain => !serves_without(&outlook),
        How::Exclude => is_last || (outlook.replicas == 0 && outlook.topology.is_err()),
    }
}

/// What is under way by this dashboard's order. The rolling restart is not: the nodes keep that.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// The nodes are told of a rolling restart, or a head of a request.
    Telling,
    /// A node is taken out, or in.
    Change {
        /// Its place in the list of nodes.
        node: usize,
        /// How far it goes out; `None`: in.
        out: Option<How>,
        /// Requests that may finish first.
        requests: u32,
        /// Since when.
        since: Duration,
    },
}
