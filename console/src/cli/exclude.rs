//! `console exclude` and `console include`: take a node out with a reason, or in again; what runs is assigned anew.
use serde_json::json;

use super::{Failure, interrupts::Interrupts, options, output};
use crate::client::{
    cluster::Cluster,
    event::{AssignEvent, OperateEvent},
    exclude::{Outcome, exclude},
    with_port,
};

/// Runs `console exclude`.
pub(super) async fn run_exclude(options: options::Exclude) -> Result<u8, Failure> {
    let reason = options.reason.clone();
    let question = format!(
        "Exclude {}? Running requests may finish within 20 s, then the rest serves without it.",
        options.change.node
    );
    change(options.change, Some(&reason), false, &question).await
}

/// Runs `console include`.
pub(super) async fn run_include(options: options::Include) -> Result<u8, Failure> {
    let question = format!(
        "Include {} again? Running requests may finish within 20 s, then all serve with it.",
        options.change.node
    );
    change(options.change, None, false, &question).await
}

/// Runs `console node uncordon`.
pub(super) async fn run_uncordon(options: options::Include) -> Result<u8, Failure> {
    let question = format!("Let requests begin again on {} and its replica?", options.change.node);
    change(options.change, None, true, &question).await
}

async fn change(
    options: options::Change,
    reason: Option<&str>,
    only_cordon: bool,
    question: &str,
) -> Result<u8, Failure> {
    options.consent.check()?;
    let addresses: Vec<String> = options.nodes.nodes.iter().map(|node| with_port(node)).collect();
    let mut interrupts = Interrupts::listen()?;
    let dialled = async { Ok::<_, Failure>(Cluster::dial(&addresses).await.with_known(&options.node).await) };
    let cluster = interrupts.end(dialled).await?;
    let node = find(&cluster, &options.node)?;
    if only_cordon && !cluster.is_cordoned(&cluster.nodes[node]) {
        let message = format!("{} is not cordoned", output::clean(cluster.name(&cluster.nodes[node])));
        return Err(Failure::State {
            message,
            next: "console status shows it; console include takes in a node that is out",
        });
    }
    let plan = json!({"node": cluster.name(&cluster.nodes[node]), "out": reason.is_some(), "reason": reason});
    if !interrupts.end(options.consent.obtain(question, &plan, options.json)).await? {
        return Ok(0);
    }
    let Outcome { node, assigned } = interrupts.end(exclude(cluster, node, reason, &|event| progress(&event))).await?;
    let now = assigned.as_ref().map(|done| done.topology.layout.to_string());
    if options.json {
        let epoch = assigned.as_ref().map(|done| done.epoch.0);
        let object = json!({"node": node, "out": reason.is_some(), "reason": reason, "topology": now, "epoch": epoch});
        output::line(&object.to_string());
    } else {
        let state = if reason.is_some() { "out" } else { "in" };
        let serves = now.map_or("no topology had to change".to_owned(), |now| format!("{now} serves"));
        output::line(&format!("{} is {state}; {serves}", output::clean(&node)));
    }
    Ok(0)
}

/// A node by its name or its address.
pub(super) fn find(cluster: &Cluster, who: &str) -> Result<usize, Failure> {
    cluster.find(who).ok_or_else(|| {
        let names: Vec<String> = cluster.nodes.iter().map(|node| output::clean(cluster.name(node))).collect();
        let message = format!("no node {} among {}", output::clean(who), names.join(", "));
        Failure::Usage { message, next: "name one of them, or add its address to --nodes" }
    })
}

/// Tells on standard error what goes on.
pub(super) fn progress(event: &OperateEvent) {
    match event {
        OperateEvent::Told { node, out } => {
            let state = if *out { "out" } else { "in" };
            output::note(&format!("the nodes are told that {} is {state}", output::clean(node)));
        }
        OperateEvent::NotKept(fault) => output::note(&format!(
            "{} cannot store the list of excluded nodes: {}",
            output::clean(&fault.node),
            output::clean(&fault.kind.to_string())
        )),
        OperateEvent::WaitsForRequests { count } => output::note(&format!("{count} requests may finish first")),
        OperateEvent::Assign(AssignEvent::Committing) => output::note("the nodes open their links"),
        OperateEvent::Assign(event) => event.pause().iter().for_each(|pause| output::note(&output::clean(pause))),
        _ => {}
    }
}
