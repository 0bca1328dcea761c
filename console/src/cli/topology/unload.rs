//! `console topology unload`: ends a topology, so that its nodes are free for another model.
use std::sync::Arc;

use assignment::unload::unload;
use clap::Args;
use protocol::{models::is_named, recovery::Committed};
use serde_json::json;

use crate::{
    cli::{
        Failure,
        node::dial,
        shared::{confirm::Consent, options::Nodes, output},
    },
    client::{cluster::ClusterNode, session::Session},
};

/// Options of `console topology unload`.
#[derive(Clone, Debug, Args)]
pub(crate) struct UnloadTopology {
    /// Model to unload, if several are loaded
    #[arg(value_name = "MODEL")]
    model: Option<String>,
    #[command(flatten)]
    pub(super) nodes: Nodes,
    /// Cancel running requests instead of refusing, and do without heads that do not answer
    #[arg(long)]
    now: bool,
    #[command(flatten)]
    consent: Consent,
    #[arg(from_global)]
    json: bool,
}

/// Runs `console topology unload`.
pub(super) async fn run(options: &UnloadTopology) -> Result<u8, Failure> {
    options.consent.check()?;
    let cluster = dial(&options.nodes, None).await;
    let mut held = cluster.topologies();
    held.retain(|(topology, _)| options.model.as_ref().is_none_or(|asked| is_named(asked, &topology.model)));
    let names: Vec<&str> = held.iter().map(|(topology, _)| topology.model.as_str()).collect();
    let (topology, reports) = match held.as_slice() {
        [one] => one,
        [] => {
            let message = match &options.model {
                Some(model) => format!("no node has {} loaded", output::clean(model)),
                None => "no topology is loaded on these nodes".to_owned(),
            };
            return Err(Failure::State { message, next: "console status shows the loaded models" });
        }
        _ => {
            let message = format!("several topologies are loaded: {}", output::clean(&names.join(", ")));
            return Err(Failure::Usage { message, next: "name the model: console topology unload MODEL" });
        }
    };
    let nodes: Vec<String> = topology.members.iter().map(|member| output::clean(&member.name)).collect();
    let what = format!("{} with {}", topology.layout, output::clean(&topology.model));
    let requests: u32 = reports.iter().map(|report| report.requests).sum();
    let plan = json!({"topology": topology.layout.to_string(), "model": topology.model, "nodes": nodes,
        "requests": requests});
    let question = format!("Unload {what} from {} ({requests} running requests)?", nodes.join(", "));
    if !options.consent.obtain(&question, &plan, options.json).await? {
        return Ok(0);
    }
    let sessions: Vec<Arc<Session>> =
        cluster.nodes.iter().filter_map(|node: &ClusterNode| node.session().ok()).collect();
    let epoch = reports.iter().map(|report| report.epoch).max().unwrap_or_default();
    let committed = Committed::new(epoch, (*topology).clone());
    for fault in unload(&sessions, &committed, !options.now).await? {
        output::note(&output::clean(&format!("{fault}; it unloads the topology when it sees another member")));
    }
    if options.json {
        output::line(&json!({"unloaded": topology.model, "nodes": nodes}).to_string());
    } else {
        output::line(&format!("{what} is unloaded from {}", nodes.join(", ")));
    }
    Ok(0)
}
