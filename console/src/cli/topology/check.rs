//! `console topology check`: the shard and the memory of each node of a topology file.
use std::sync::Arc;

use anyhow::Context;
use common::{
    fault::{Fault, FaultKind},
    ids::MemberIndex,
    units::Bytes,
};
use planner::{
    holding::{Holding, PANEL_ROWS},
    working::{RankMemory, Seat},
};
use protocol::message::ModelCard;
use serde_json::{Value, json};
use topology::{Topology, cut_stages};

use super::{
    choose_layout::warn_past_knee,
    file::{TopologyFileOptions, read},
};
use crate::{
    cli::{
        Failure,
        shared::{output, sessions::open},
    },
    client::{
        assign::{propose, report},
        session::Session,
    },
};

/// Runs `console topology check`.
pub(super) async fn run(options: &TopologyFileOptions) -> Result<u8, Failure> {
    let (nodes, wanted) = read(&options.file)?;
    let sessions = open(&nodes).await?;
    let (topology, card) = propose(&sessions, &wanted).await?;
    let mut rows = Vec::with_capacity(sessions.len());
    for (index, session) in sessions.iter().enumerate() {
        rows.push(ShardRow::of(&topology, &card, index, session).await?);
    }
    let forecast = warn_past_knee(&sessions, &wanted).await;
    if options.json {
        let rows: Value = rows.iter().map(ShardRow::object).collect();
        output::line(
            &json!({"layout": topology.layout.to_string(), "model": topology.model, "members": rows,
                "warning": forecast.as_ref().and_then(|one| one.warning.as_ref()), "links": forecast.as_ref().map(|one| &one.links)})
            .to_string(),
        );
    } else {
        output::line(&format!(
            "{} of {} (dry run, nothing is loaded)",
            topology.layout,
            output::clean(&topology.model)
        ));
        output::line(&format!(
            "{:<12} {:>7} {:>5} {:>9} {:>6} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
            "node", "replica", "stage", "layers", "share", "weights", "KV", "state", "working", "total", "free"
        ));
        rows.iter().for_each(|row| output::line(&row.line()));
    }
    let short = rows.iter().find(|row| row.is_short());
    short.map_or(Ok(0), |row| {
        let kind = FaultKind::MemoryShort { needed: row.memory.total(), available: row.free };
        Err(Fault::new(&row.node, kind).into())
    })
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
    async fn of(topology: &Topology, card: &ModelCard, index: usize, session: &Arc<Session>) -> Result<Self, Failure> {
        let member = &topology.members[index];
        let place = topology.place(MemberIndex(index as u16));
        let stages = topology.stages(place.replica);
        let weights = &stages[usize::from(place.stage)].1;
        let share = f64::from(member.weight) / weights.iter().map(|weight| f64::from(*weight)).sum::<f64>();
        let plans = cut_stages(&card.sizes.shape, &stages).map_err(anyhow::Error::from)?;
        let plan = plans.get(place.rank.index()).context("a member has no part of the model")?;
        let holding = Holding { sizes: &card.sizes, plan };
        let blocks = topology.kv_block_count();
        let report = report(session).await?;
        Ok(Self {
            node: output::clean(&member.name),
            replica: place.replica,
            stage: place.stage,
            layers: member.layers.clone(),
            share,
            memory: holding.memory(PANEL_ROWS, topology.kv, blocks, &Seat::of(topology, &place)),
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
