//! `console topology`: prints the running topology as a file, checks a file against the nodes, or assigns a file.
pub(crate) mod choose_layout;
pub(crate) mod ensure;
pub(crate) mod hypothetical_cluster;
pub(crate) mod plan;
pub(crate) mod simulate;

use std::path::PathBuf;
use std::{io::Read, path::Path, sync::Arc};

use anyhow::Context;
use clap::Args;
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

use crate::cli::{
    Failure,
    shared::{
        confirm::Consent,
        interrupts::Interrupts,
        options::Nodes,
        output,
        sessions::{assign_and_tell, open},
        target::need::{Need, Reach},
        watch::{Look, Seen, look_at},
    },
    topology::{choose_layout::warn_past_knee, ensure::Reached},
};
use crate::{
    client::{
        assign::{propose, report},
        cluster::Cluster,
        session::Session,
    },
    operator::desired::DesiredTopology,
    operator::topology_file::{FILE_BYTES_MAX, FileError, TopologyFile},
};

/// Options of `console topology assign`.
#[derive(Clone, Debug, Args)]
pub(crate) struct AssignFile {
    #[command(flatten)]
    pub(crate) file: crate::cli::topology::TopologyFileOptions,
    #[command(flatten)]
    pub(crate) consent: Consent,
}

/// Runs the command.
pub(crate) async fn run(options: crate::cli::topology::TopologyCommand) -> Result<u8, Failure> {
    let mut interrupts = Interrupts::listen()?;
    match options {
        crate::cli::topology::TopologyCommand::Show { nodes, look } => show(&nodes.nodes, &look).await,
        crate::cli::topology::TopologyCommand::Check(file) => interrupts.end(check(&file)).await,
        crate::cli::topology::TopologyCommand::Assign(file) => interrupts.end(assign(&file)).await,
        crate::cli::topology::TopologyCommand::TakeOver(options) => {
            interrupts.end(crate::cli::node::run_take_over(&options)).await
        }
    }
}

async fn show(nodes: &[String], options: &Look) -> Result<u8, Failure> {
    look_at(nodes, options, async |cluster| see(cluster)).await
}

fn see(cluster: &Cluster) -> Result<Seen, Failure> {
    let Some((topology, reports)) = cluster.topology() else {
        // An unreachable node may hold a topology, so report the node as unreachable instead of "no topology".
        cluster.usable()?;
        let message = "no topology runs on these nodes".to_owned();
        return Err(Failure::State {
            message,
            next: "start one with console topology assign FILE or console generate --topology tpN",
        });
    };
    let file = TopologyFile::of(topology);
    let epoch = reports.first().map(|report| report.epoch.0);
    let (layout, serving) = (topology.layout.to_string(), cluster.is_serving());
    let object = json!({"layout": layout, "epoch": epoch, "serving": serving, "file": file});
    let mut lines = vec![format!("# {layout} on {} nodes", topology.members.len())];
    lines.extend(output::clean(&file.text()).lines().map(str::to_owned));
    Ok(Seen { lines, object, code: 0 })
}

fn read(path: &Path) -> Result<(Vec<String>, DesiredTopology), Failure> {
    let mut text = String::new();
    let file = std::fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    read.with_context(|| format!("cannot read {}", path.display()))?;
    let parsed = if text.len() as u64 > FILE_BYTES_MAX {
        Err(FileError::Value(format!("the file is longer than {FILE_BYTES_MAX} bytes")))
    } else {
        TopologyFile::parse(&text).and_then(|file| file.wanted())
    };
    parsed.map_err(|error| Failure::Usage {
        message: format!("{}: {error}", path.display()),
        next: "run console topology show for an example of a valid file",
    })
}

async fn check(options: &crate::cli::topology::TopologyFileOptions) -> Result<u8, Failure> {
    let (nodes, wanted) = read(&options.file)?;
    let sessions = open(&nodes).await?;
    let (topology, card) = propose(&sessions, &wanted).await?;
    let mut rows = Vec::with_capacity(sessions.len());
    for (index, session) in sessions.iter().enumerate() {
        rows.push(Row::of(&topology, &card, index, session).await?);
    }
    let forecast = warn_past_knee(&sessions, &wanted).await;
    if options.json {
        let rows: Value = rows.iter().map(Row::object).collect();
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
struct Row {
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

impl Row {
    async fn of(topology: &Topology, card: &ModelCard, index: usize, session: &Arc<Session>) -> Result<Self, Failure> {
        let member = &topology.members[index];
        let place = topology.place(MemberIndex(index as u16));
        let stages = topology.stages(place.replica);
        let weights = &stages[usize::from(place.stage)].1;
        let share = f64::from(member.weight) / weights.iter().map(|weight| f64::from(*weight)).sum::<f64>();
        let plans = cut_stages(&card.sizes.shape, &stages).map_err(anyhow::Error::from)?;
        let plan = plans.get(place.rank.index()).context("a member has no part of the model")?;
        let holding = Holding { sizes: &card.sizes, plan };
        let kv = (topology.kv, topology.kv_block_count());
        let report = report(session).await?;
        Ok(Self {
            node: output::clean(&member.name),
            replica: place.replica,
            stage: place.stage,
            layers: member.layers.clone(),
            share,
            memory: holding.memory(PANEL_ROWS, kv, &Seat::of(topology, &place)),
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
pub(crate) fn memory_object(memory: &RankMemory) -> Value {
    json!({"weights": memory.weights.0, "kv": memory.kv.0, "state": memory.state.0, "working": memory.working.0,
        "total": memory.total().0})
}

async fn assign(options: &AssignFile) -> Result<u8, Failure> {
    options.consent.check()?;
    let AssignFile { file: options, consent } = options;
    let (nodes, wanted) = read(&options.file)?;
    let reached = Reached::dial(&nodes).await?;
    let sessions = reached.usable(nodes.len())?;
    let names: Vec<String> = sessions.iter().map(|session| output::clean(&session.identity.name)).collect();
    let (what, count) = (format!("{} with {}", wanted.layout, output::clean(&wanted.model)), names.len());
    // The warning must precede the confirmation.
    warn_past_knee(sessions, &wanted).await;
    let losses = reached.losses(None);
    let question = match &losses {
        Some((lost, _)) => format!("Assign {what} to {count} nodes? It replaces {lost}."),
        None => format!("Assign {what} to {count} nodes?"),
    };
    let replaces = losses.map(|(_, object)| object);
    let plan =
        json!({"topology": wanted.layout.to_string(), "model": wanted.model, "nodes": names, "replaces": replaces});
    if !consent.obtain(&question, &plan, options.json).await? {
        return Ok(0);
    }
    reached.spread().await;
    let assigned = assign_and_tell(sessions, &wanted).await?;
    let (layout, epoch) = (assigned.topology.layout.to_string(), assigned.epoch.0);
    if options.json {
        output::line(&json!({"topology": layout, "epoch": epoch, "reused": assigned.reused}).to_string());
    } else {
        let how = if assigned.reused { "is already running" } else { "is running" };
        output::line(&format!("{layout} {how}, epoch {epoch}"));
    }
    Ok(0)
}

/// Subcommands of `console topology`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum TopologyCommand {
    /// Print the running topology as a file that `assign` takes
    Show {
        /// The nodes to ask.
        #[command(flatten)]
        nodes: Nodes,
        /// Output format and repetition.
        #[command(flatten)]
        look: Look,
    },
    /// Show the shard of each node of a topology file, without loading anything
    Check(TopologyFileOptions),
    /// Assign a topology file
    Assign(crate::cli::topology::AssignFile),
    /// Let the reachable members continue without the lost ones, even if they are no majority
    TakeOver(crate::cli::node::TakeOver),
}

/// The arguments of a command that reads a topology file.
#[derive(Clone, Debug, Args)]
pub(crate) struct TopologyFileOptions {
    /// Topology file (TOML): the model, and for each stage a [[stage]] with nodes, weights and layers
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl TopologyCommand {
    /// The nodes that the command contacts.
    pub(crate) fn reach(&mut self) -> Reach<'_> {
        match self {
            Self::Show { nodes, .. } => Reach::Nodes(&mut nodes.nodes, Need::Looks),
            Self::Check(_) | Self::Assign(_) => Reach::Otherwise("speaks to the nodes that its file names"),
            Self::TakeOver(options) => Reach::Nodes(&mut options.nodes.nodes, Need::Acts),
        }
    }

    /// Whether to print JSON.
    pub(crate) fn json(&self) -> bool {
        match self {
            Self::Show { look, .. } => look.json,
            Self::Check(file) => file.json,
            Self::Assign(assign) => assign.file.json,
            Self::TakeOver(options) => options.json,
        }
    }
}
