//! What `console topology assign --dry-run` shows: the shard and the memory of each node.
use std::sync::Arc;

use anyhow::Context;
use common::{
    fault::{Fault, FaultKind},
    ids::MemberIndex,
    units::Bytes,
};
use planner::{
    holding::{Holding, PANEL_ROWS},
    memory,
    working::{RankMemory, Seat},
};
use serde_json::{Value, json};
use topology::{Topology, cut_stages, sizes::ModelSizes};

use crate::{
    cli::{Failure, shared::output},
    client::{
        assign::{propose, report},
        session::Session,
    },
    operator::desired::DesiredTopology,
};

/// What an assignment would load on each node.
#[derive(Debug)]
pub(super) struct Preview {
    rows: Vec<ShardRow>,
}

impl Preview {
    /// Asks the nodes, in the order replica, stage, rank, without loading anything.
    ///
    /// # Errors
    /// A node does not answer or has no such model, or the topology is impossible.
    pub(super) async fn of(sessions: &[Arc<Session>], wanted: &DesiredTopology) -> Result<Self, Failure> {
        let (topology, card) = propose(sessions, wanted).await?;
        let sizes = card.sizes().map_err(|kind| Fault::new(&sessions[0].identity.name, kind))?;
        let mut rows = Vec::with_capacity(sessions.len());
        for (index, session) in sessions.iter().enumerate() {
            rows.push(ShardRow::of(&topology, &sizes, index, session).await?);
        }
        Ok(Self { rows })
    }

    /// The members as a JSON list.
    pub(super) fn members(&self) -> Value {
        self.rows.iter().map(ShardRow::object).collect()
    }

    /// Prints the members as a table.
    pub(super) fn print(&self) {
        output::line(&format!(
            "{:<12} {:>7} {:>5} {:>9} {:>6} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
            "node", "replica", "stage", "layers", "share", "weights", "KV", "state", "working", "total", "free"
        ));
        self.rows.iter().for_each(|row| output::line(&row.line()));
    }

    /// Checks that every node has enough memory.
    ///
    /// # Errors
    /// The first node that has too little.
    pub(super) fn check_memory(&self) -> Result<(), Fault> {
        let short = self.rows.iter().find(|row| row.is_short());
        short.map_or(Ok(()), |row| {
            let kind = FaultKind::MemoryShort { needed: row.memory.total(), available: row.free };
            Err(Fault::new(&row.node, kind))
        })
    }
}

/// The shard of one member.
#[derive(Clone, Debug)]
struct ShardRow {
    node: String,
    replica: u16,
    stage: u16,
    layers: std::ops::Range<u32>,
    share: f64,
    /// Predicted memory use.
    memory: RankMemory,
    /// Memory available for the shard; 0 if unknown.
    free: Bytes,
}

impl ShardRow {
    async fn of(
        topology: &Topology,
        sizes: &ModelSizes,
        index: usize,
        session: &Arc<Session>,
    ) -> Result<Self, Failure> {
        let member = &topology.members[index];
        let place = topology.place(MemberIndex(index as u16));
        let stages = topology.stages(place.replica);
        let weights = &stages[usize::from(place.stage)].1;
        let share = f64::from(member.weight) / weights.iter().map(|weight| f64::from(*weight)).sum::<f64>();
        let plans = cut_stages(&sizes.spec, &stages).map_err(anyhow::Error::from)?;
        let plan = plans.get(place.rank.index()).context("a member has no part of the model")?;
        let holding = Holding { sizes, plan };
        let blocks = topology.kv_blocks(sizes.spec.window());
        let of_draft = memory::of_draft(topology, MemberIndex(index as u16));
        let report = report(session).await?;
        Ok(Self {
            node: output::clean(&member.name),
            replica: place.replica,
            stage: place.stage,
            layers: member.layers.clone(),
            share,
            memory: holding.memory(PANEL_ROWS, topology.kv, blocks, &Seat::of(topology, &place)).and(of_draft),
            free: report.free_for_next_shard().unwrap_or_default(),
        })
    }

    fn is_short(&self) -> bool {
        self.free.0 > 0 && self.memory.total() > self.free
    }

    fn line(&self) -> String {
        let layers = format!("{}-{}", self.layers.start, self.layers.end - 1);
        let free = if self.free.0 > 0 { self.free.to_string() } else { "unknown".into() };
        let RankMemory { weights, kv, state, working } = self.memory;
        let parts = [weights, kv, state, working, self.memory.total()].map(|part| format!(" {:>10}", part.to_string()));
        let parts = parts.concat();
        format!(
            "{:<12} {:>7} {:>5} {layers:>9} {:>5.0}%{parts} {free:>10}",
            self.node,
            self.replica,
            self.stage,
            100.0 * self.share
        )
    }

    fn object(&self) -> Value {
        json!({"node": self.node, "replica": self.replica, "stage": self.stage, "layers": [self.layers.start, self.layers.end],
            "share": self.share, "weight_bytes": self.memory.weights.0, "memory": memory_object(&self.memory),
            "free_bytes": self.free.0})
    }
}

/// A rank's memory by use, in bytes.
pub(super) fn memory_object(memory: &RankMemory) -> Value {
    json!({"weights": memory.weights.0, "kv": memory.kv.0, "state": memory.state.0, "working": memory.working.0,
        "total": memory.total().0})
}
