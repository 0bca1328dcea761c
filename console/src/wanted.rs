//! The topology that an operator asks for: what commands, dashboard and client speak of.
use shared::{
    schedule::Choice,
    topology::{Exchange, KvFormat, Layout, Topology},
};

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
    /// How all-reduces go.
    pub collective: Choice,
    /// Longest sequence; `None` = what the model was trained for.
    pub context_length: Option<u32>,
    /// Sequences at the same time.
    pub slots: u16,
}

impl Wanted {
    /// What a topology held, on so many ranks.
    pub fn again(topology: &Topology, ranks: usize) -> Self {
        Self {
            layout: Layout::tensor_parallel(u16::try_from(ranks).unwrap_or(u16::MAX)),
            model: topology.model.clone(),
            kv: topology.kv,
            exchange: topology.exchange,
            collective: topology.collective,
            context_length: Some(topology.context_length),
            slots: topology.slots,
        }
    }
}
