//! Operator commands in progress: the dialog, its input, and the running operation.
use std::time::Duration;

use common::ids::Epoch;
use topology::Topology;

use crate::{
    catalogue::CatalogueFile,
    operator::command::{OperatorCommand, Removal, RollingCommand},
    operator::desired::DesiredTopology,
    operator::model_order::ModelOrder,
    state::{
        State,
        editor::Editor,
        what_if::{outlook, serves_without},
    },
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
        how: Removal,
    },
    /// Include this node again?
    In {
        /// List index of the node.
        node: usize,
    },
    /// Assign this topology?
    Assign {
        /// The topology request.
        wanted: DesiredTopology,
        /// List indices of the nodes, by rank.
        members: Vec<usize>,
    },
    /// Abort the assignment under way?
    AbortAssignment,
    /// Download a file of the catalogue to these nodes?
    Pull {
        /// The model's short name.
        name: &'static str,
        /// The file.
        file: CatalogueFile,
        /// List indices of the nodes.
        nodes: Vec<usize>,
    },
    /// Delete this model on these nodes?
    DeleteModel {
        /// Its file name.
        model: String,
        /// List indices of the nodes.
        nodes: Vec<usize>,
    },
    /// Unload this topology?
    Unload {
        /// Its epoch.
        epoch: Epoch,
        /// The topology.
        topology: Box<Topology>,
    },
    /// Which system prompt?
    SystemPrompt,
    /// Which title for this conversation?
    RenameConversation {
        /// Its id.
        id: String,
    },
    /// Delete this conversation?
    DeleteConversation {
        /// Its id.
        id: String,
        /// Its title.
        title: String,
    },
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
    /// Why the answer was not accepted: belongs to the focused input.
    pub error: Option<String>,
}

impl Dialog {
    /// A yes-or-no question.
    pub fn plain(question: Question) -> Self {
        Self { question, reason: None, name: None, in_name: false, error: None }
    }

    /// A question that is answered with a text, which begins as `text`.
    pub fn text(question: Question, text: &str) -> Self {
        Self { name: Some(Editor::new(text)), in_name: true, ..Self::plain(question) }
    }

    /// A question about removing a node from service: with a reason, and with its name if no node would be left to
    /// serve.
    pub fn out(state: &State, node: usize, how: Removal) -> Self {
        let name = is_dangerous(state, node, how).then(Editor::default);
        Self { reason: Some(Editor::default()), name, ..Self::plain(Question::Out { node, how }) }
    }

    /// The editor that receives letters.
    pub fn input(&mut self) -> Option<&mut Editor> {
        if self.in_name || self.reason.is_none() { self.name.as_mut() } else { self.reason.as_mut() }
    }

    /// The command that a yes issues; `None` if the answer issues none, or if a specific key chooses it.
    pub fn order(&self) -> Option<OperatorCommand> {
        let reason = self.reason.as_ref().map_or("", |reason| reason.text().trim()).to_owned();
        match &self.question {
            Question::Restart { which } => Some(OperatorCommand::Roll(RollingCommand::Begin(which.clone()))),
            Question::Out { node, how } => Some(OperatorCommand::Out { node: *node, reason, how: *how }),
            Question::In { node } => Some(OperatorCommand::In { node: *node }),
            Question::AbortAssignment => Some(OperatorCommand::AbortAssignment),
            Question::CancelRequest { node, number, .. } => {
                Some(OperatorCommand::CancelRequest { node: *node, number: *number })
            }
            Question::Rolling
            | Question::Assign { .. }
            | Question::Pull { .. }
            | Question::DeleteModel { .. }
            | Question::Unload { .. }
            | Question::SystemPrompt
            | Question::RenameConversation { .. }
            | Question::DeleteConversation { .. } => None,
        }
    }
}

impl Question {
    /// The order about model files that a yes issues, if any.
    pub fn model_order(&self) -> Option<ModelOrder> {
        match self {
            Self::Pull { file, nodes, .. } => Some(ModelOrder::Pull { source: file.source, nodes: nodes.clone() }),
            Self::DeleteModel { model, nodes } => {
                Some(ModelOrder::Remove { model: model.clone(), nodes: nodes.clone() })
            }
            Self::Unload { epoch, topology } => Some(ModelOrder::Unload { epoch: *epoch, topology: topology.clone() }),
            Self::Restart { .. }
            | Self::Rolling
            | Self::Out { .. }
            | Self::In { .. }
            | Self::Assign { .. }
            | Self::AbortAssignment
            | Self::SystemPrompt
            | Self::RenameConversation { .. }
            | Self::DeleteConversation { .. }
            | Self::CancelRequest { .. } => None,
        }
    }
}

/// Whether nothing could serve afterwards; if so, the node's name must be typed.
pub fn is_dangerous(state: &State, node: usize, how: Removal) -> bool {
    let is_last = state.cluster.usable() == [node];
    let Some(outlook) = outlook(state, node) else { return is_last };
    match how {
        Removal::Cordon | Removal::Drain => !serves_without(&outlook),
        Removal::Exclude => is_last || (outlook.replicas == 0 && outlook.topology.is_err()),
    }
}

/// The open dialog and the running operator command.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Operations {
    /// The open dialog.
    pub dialog: Option<Dialog>,
    /// The operator command in progress.
    pub running: Option<Operation>,
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
        out: Option<Removal>,
        /// Running requests that may finish first.
        requests: u32,
        /// Start of the operation.
        since: Duration,
    },
}
