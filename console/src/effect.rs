//! What an update wants done outside of the state. Plain values; `run` performs them.
use shared::{
    protocol::message::Generate,
    topology::{Exchange, KvFormat, Layout},
};

/// Something to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// What is on the screen changed.
    Draw,
    /// Make the nodes hold this.
    Assign(Wanted),
    /// Complete a text.
    Generate(Box<Generate>),
    /// Cancel the running generation.
    Cancel,
    /// End with this exit code.
    Quit(i32),
}

/// What an operator wants the nodes to hold; identity, epoch and members are found out while it is assigned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Replicas, stages, ranks.
    pub layout: Layout,
    /// File name of the model.
    pub model: String,
    /// Format of the KV cache.
    pub kv: KvFormat,
    /// Format of the partial sums on the wire.
    pub exchange: Exchange,
    /// Longest sequence; `None` = what the model was trained for.
    pub context_length: Option<u32>,
    /// Sequences at the same time.
    pub slots: u16,
}
