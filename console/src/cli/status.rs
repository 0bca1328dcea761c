//! `console status`: what every node says of itself.
use std::sync::Arc;

use serde_json::json;
use shared::{
    protocol::error::Fault,
    telemetry::{NodeReport, Warning},
    topology::Exclusions,
    units::Megahertz,
};
use tokio::task::JoinSet;

use super::{Failure, options, output};
use crate::client::{assign::report, session, with_port};

/// Asks all nodes at once; exit code 3 if one is away that is not out.
pub(super) async fn run(options: &options::Status) -> Result<u8, Failure> {
    let nodes: Arc<Vec<String>> = Arc::new(options.nodes.nodes.iter().map(|node| with_port(node)).collect());
    let mut asked = JoinSet::new();
    for index in 0..nodes.len() {
        let nodes = Arc::clone(&nodes);
        asked.spawn(async move {
            let result = match session::open(&nodes[index]).await {
                Ok(session) => report(&session).await,
                Err(fault) => Err(fault),
            };
            (index, result)
        });
    }
    let mut answers: Vec<(usize, Result<NodeReport, Fault>)> = asked.join_all().await;
    answers.sort_by_key(|(index, _)| *index);
    if options.json {
        let list: Vec<_> = answers.iter().map(|(index, answer)| object(&nodes[*index], answer)).collect();
        output::line(&json!({"nodes": list}).to_string());
    } else {
        print(&nodes, &answers);
    }
    // A node that is out is not missed.
    let exclusions = merged(&answers);
    let is_missed = |(index, answer): (usize, Result<NodeReport, Fault>)| {
        answer.err().filter(|_| exclusions.at(&nodes[index]).is_none())
    };
    let failed = answers.into_iter().find_map(is_missed);
    Ok(failed.map_or(0, |fault| Failure::from(fault).code()))
}

fn object(address: &str, answer: &Result<NodeReport, Fault>) -> serde_json::Value {
    let report = match answer {
        Ok(report) => report,
        Err(fault) => {
            let failure = Failure::from(fault.clone()).json();
            return json!({"address": address, "error": failure["error"]});
        }
    };
    let topology = report.topology.as_ref().map(|(topology, hash, rank)| {
        let nodes: Vec<&str> = topology.members.iter().map(|member| member.name.as_str()).collect();
        json!({"layout": topology.layout.to_string(), "hash": hash.to_string(), "rank": rank.0, "model": topology.model,
            "nodes": nodes, "context": topology.context_length, "kv": topology.kv, "exchange": topology.exchange, "collective": topology.collective})
    });
    let load = report.load.map(|load| json!({"done": load.done.0, "total": load.total.0}));
    json!({
        "address": address, "name": report.name, "state": report.state.name(), "epoch": report.epoch.0,
        "topology": topology, "fault": report.fault.as_ref().map(ToString::to_string), "load": load,
        "shard_bytes": report.shard.0, "memory_resident": report.memory_resident.0,
        "health": report.health, "warnings": report.health.warnings().iter().map(ToString::to_string).collect::<Vec<_>>(),
        "findings": report.health.findings(),
        "collectives": report.collectives, "supervised": report.supervised, "exclusions": report.exclusions,
        "requests": report.requests, "tokens": report.tokens, "kernels": report.kernels, "build": report.build,
    })
}

/// What it does, with how much of its shard is loaded.
fn state(report: &NodeReport) -> String {
    let state = report.state.name();
    report.load.map_or(state.into(), |load| format!("{state} {}%", 100 * load.done.0 / load.total.0.max(1)))
}

fn print(nodes: &[String], answers: &[(usize, Result<NodeReport, Fault>)]) {
    let reports = || answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
    let width = reports().map(|report| report.name.chars().count()).max().unwrap_or(0).max(8);
    let exclusions = merged(answers);
    output::line(&format!(
        "{:<width$}  {:<21}  {:<12}  {:>5}  {:<8}  {:>4}  {:>9}  {:>9}  {:>9}  {:>5}  {:>7}  HEALTH",
        "NODE", "ADDRESS", "STATE", "EPOCH", "TOPOLOGY", "RANK", "SHARD", "RESIDENT", "FREE", "TEMP", "GHZ"
    ));
    for (index, answer) in answers {
        let address = &nodes[*index];
        match answer {
            Ok(report) => {
                output::line(&format!("{:<width$}  {address:<21}  {}", output::clean(&report.name), row(report)));
                let below = |text: &str| output::line(&format!("{:<width$}  {}", "", output::clean(text)));
                if let Some(entry) = exclusions.of(&report.name, address) {
                    below(&format!("is out: {} ({})", entry.reason.as_deref().unwrap_or_default(), entry.by));
                }
                if let Some(fault) = &report.fault {
                    below(&format!("{fault}; {}", fault.kind.next()));
                }
            }
            Err(fault) => {
                let entry = exclusions.at(address);
                let out = entry.map(|entry| format!("is out: {}; ", entry.reason.as_deref().unwrap_or_default()));
                let why = format!("{}{}; {}", out.unwrap_or_default(), fault.kind, fault.kind.next());
                output::line(&format!("{:<width$}  {address:<21}  {}", "?", output::clean(&why)));
            }
        }
    }
}

/// What all nodes together know of nodes that are out.
fn merged(answers: &[(usize, Result<NodeReport, Fault>)]) -> Exclusions {
    let mut exclusions = Exclusions::default();
    for report in answers.iter().filter_map(|(_, answer)| answer.as_ref().ok()) {
        exclusions.merge(&report.exclusions);
    }
    exclusions
}

/// What stands behind name and address.
fn row(report: &NodeReport) -> String {
    let place = report.topology.as_ref();
    let layout = place.map_or("-".into(), |(topology, ..)| topology.layout.to_string());
    let rank = place.map_or("-".into(), |(.., rank)| rank.to_string());
    let health = &report.health;
    let free = health.memory.map_or("-".into(), |memory| memory.available.to_string());
    let temperature = health.temperature.map_or("-".into(), |celsius| format!("{:.1}", celsius.0));
    let gigahertz = |clock: Megahertz| f64::from(clock.0) / 1e3;
    let clock = health.clock.as_ref();
    let clock =
        clock.map_or("-".into(), |clock| format!("{:.1}/{:.1}", gigahertz(clock.current), gigahertz(clock.limit)));
    let words: Vec<String> = health.warnings().iter().map(Warning::short).collect();
    let words = if words.is_empty() { "ok".into() } else { words.join(", ") };
    format!(
        "{:<12}  {:>5}  {layout:<8}  {rank:>4}  {:>9}  {:>9}  {free:>9}  {temperature:>5}  {clock:>7}  {words}",
        state(report),
        report.epoch,
        report.shard,
        report.memory_resident,
    )
}
