//! Operator commands in progress: the dialog, its input, and the running operation.
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

/// The question of a dialog.
#[derive(Clone, Debug, PartialEq)]
pub enum Question {
    /// Restart these nodes, one by one?
    Restart {
        /// List indices of the nodes.
        which: Vec<usize>,
    },
    /// How to continue with the rolling restart that is running or paused?
    Rolling,
    /// Exclude, cordon or drain this node, and why?
    Out {
        /// List index of the node.
        node: usize,
        /// How far the node is removed from service.
        how: How,
    },
    /// Include this node again?
    In {
        /// List index of the node.
        node: usize,
    },
    /// Assign this topology?
    Assign {
        /// The topology request.
        wanted: Wanted,
        /// List indices of the nodes, by rank.
        members: Vec<usize>,
    },
    /// Abort the assignment under way?
    AbortAssignment,
    /// Cancel this request?
    CancelRequest {
        /// List index of its head.
        node: usize,
        /// Its number on that head.
        number: u64,
        /// A description of the request and its client, sanitised for display.
        who: String,
    },
}

/// A question that takes all keys until it is answered, with the text typed so far.
#[derive(Clone, Debug, PartialEq)]
pub struct Dialog {
    /// The question.
    pub question: Question,
    /// The reason typed so far, if one is needed.
    pub reason: Option<Editor>,
    /// The node's name typed so far, if it is required because the operation is not easily undone.
    pub name: Option<Editor>,
    /// Whether keys edit the name rather than the reason.
    pub in_name: bool,
}

impl Dialog {
    /// A yes-or-no question.
    pub fn plain(question: Question) -> Self {
        Self { question, reason: None, name: None, in_name: false }
    }

    /// A question about removing a node from service: with a reason, and with its name if no node would be left to
    /// serve.
    pub fn out(state: &State, node: usize, how: How) -> Self {
        let name = is_dangerous(state, node, how).then(Editor::default);
        Self { reason: Some(Editor::default()), name, ..Self::plain(Question::Out { node, how }) }
    }

    /// The editor that receives letters.
    pub fn input(&mut self) -> Option<&mut Editor> {
        if self.in_name || self.reason.is_none() { self.name.as_mut() } else { self.reason.as_mut() }
    }

    /// The command that a yes issues; `None` if the answer issues none, or if a specific key chooses it.
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

/// Whether nothing could serve afterwards; if so, the node's name must be typed.
pub fn is_dangerous(state: &State, node: usize, how: How) -> bool {
    let is_last = state.usable() == [node];
    let Some(outlook) = outlook(state, node) else { return is_last };
    match how {
        How::Cordon | How::Drain => !serves_without(&outlook),
        How::Exclude => is_last || (outlook.replicas == 0 && outlook.topology.is_err()),
    }
}

/// The operation that this dashboard has issued. Not the rolling restart, whose state the nodes keep.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Sending a rolling-restart command to the nodes, or a cancellation to a head.
    Telling,
    /// Changing the exclusion of a node.
    Change {
        /// List index of the node.
        node: usize,
        /// How far the node is removed; `None` = included again.
        out: Option<How>,
        /// Running requests that may finish first.
        requests: u32,
        /// Start of the operation.
        since: Duration,
    },
}
