//! Sample topologies, models and reports for the tests of all crates. Always compiled: a feature for them would build both
//! programs twice, with and without it.
use collectives::Choice;
use common::{
    ids::{Epoch, ModelIdentity},
    precision::{Exchange, KvFormat},
    units::Bytes,
};
use protocol::message::ModelCard;
use telemetry::{Health, NodeReport, NodeState};
use topology::{
    Exclusions, Layout, Member, Topology,
    sizes::{ModelSizes, OlderSizes, Quantisation},
};

use crate::desired::DesiredTopology;

/// Number of nodes.
pub const NODES: u16 = 4;

/// A tensor-parallel topology on all nodes.
pub fn wanted() -> DesiredTopology {
    DesiredTopology {
        layout: Layout::tensor_parallel(NODES),
        weights: Vec::new(),
        layers: Vec::new(),
        model: "bard-q8_0.gguf".to_owned(),
        kv: KvFormat::F16,
        exchange: Exchange::F32,
        collective: Choice::Auto,
        context_length: None,
        slots: 1,
        unload_after: None,
        draft: None,
    }
}

/// Sizes of a small model whose attention heads divide among four ranks.
pub fn sizes() -> ModelSizes {
    let mut sizes = ModelSizes::known("llama-3.2-1b", Quantisation::Q8_0).expect("a known shape");
    sizes.layers.truncate(6);
    sizes.spec.layers.truncate(6);
    sizes
}

/// A model of six equal layers; its output layer costs half as much as one of them.
pub fn card() -> ModelCard {
    let sizes = sizes();
    ModelCard {
        model: "bard-q8_0.gguf".to_owned(),
        identity: ModelIdentity::default(),
        size: Bytes(6500),
        context_length: 512,
        block_count: 6,
        embedding_length: 256,
        head_count: 8,
        layer_bytes: vec![Bytes(1000); 6],
        output_bytes: Bytes(500),
        older: OlderSizes::of(&sizes),
        sizes: Some(Box::new(sizes)),
    }
}

/// The topology of [`wanted`].
pub fn topology() -> Topology {
    Topology {
        layout: Layout::tensor_parallel(NODES),
        members: (0..usize::from(NODES))
            .map(|node| Member {
                name: format!("pi{node}"),
                address: format!("127.0.0.{}:9999", node + 2),
                weight: 1,
                layers: 0..6,
                cores: Vec::new(),
                threads: 1,
                spin: false,
            })
            .collect(),
        model: "bard-q8_0.gguf".to_owned(),
        identity: ModelIdentity::default(),
        content: None,
        unload_after: None,
        draft: None,
        kv: KvFormat::F16,
        exchange: Exchange::F32,
        collective: Choice::Auto,
        context_length: 512,
        slots: 1,
    }
}

/// A report of a node without a shard.
pub fn idle_report(name: &str) -> NodeReport {
    NodeReport {
        name: name.into(),
        instance: 1,
        supervised: true,
        recovers: false,
        unix_ms: 0,
        build: "0".into(),
        kernels: "scalar".into(),
        state: NodeState::Idle,
        epoch: Epoch(0),
        topology: None,
        desired: None,
        fault: None,
        load: None,
        shard: Bytes(0),
        memory_resident: Bytes(1 << 20),
        health: Health::default(),
        requests: 0,
        tokens: 0,
        traces: Vec::new(),
        layers: Vec::new(),
        lateness: Vec::new(),
        hops: Vec::new(),
        collectives: None,
        kv: None,
        exclusions: Exclusions::default(),
        rolling: None,
        measured: Default::default(),
        neighbours: Vec::new(),
        unloaded: None,
        expected: None,
        store: None,
        memory_max: None,
    }
}
