//! `console status`: what every node says of itself.
use std::sync::Arc;

use serde_json::json;
use shared::{protocol::error::Fault, telemetry::NodeReport};
use tokio::task::JoinSet;

use super::{Failure, options, output};
use crate::client::{assign::report, session::Session, with_port};

/// Asks all nodes at once; exit code 3 if one is away.
pub(super) async fn run(options: &options::Status) -> Result<u8, Failure> {
    let nodes: Arc<Vec<String>> = Arc::new(options.nodes.nodes.iter().map(|node| with_port(node)).collect());
    let mut asked = JoinSet::new();
    for index in 0..nodes.len() {
        let nodes = Arc::clone(&nodes);
        asked.spawn(async move {
            let result = match Session::open(&nodes[index]).await {
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
    let failed = answers.into_iter().find_map(|(_, answer)| answer.err());
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
            "nodes": nodes, "context": topology.context_length, "kv": topology.kv, "exchange": topology.exchange})
    });
    let load = report.load.map(|load| json!({"done": load.done.0, "total": load.total.0}));
    json!({
        "address": address, "name": report.name, "state": report.state.name(), "epoch": report.epoch.0,
        "topology": topology, "fault": report.fault.as_ref().map(ToString::to_string), "load": load,
        "shard_bytes": report.shard.0, "memory_resident": report.memory_resident.0,
        "health": report.health, "supervised": report.supervised, "exclusions": report.exclusions,
        "requests": report.requests, "tokens": report.tokens, "kernels": report.kernels, "build": report.build,
    })
}

/// What it does, with how much of its shard is loaded.
fn state(report: &NodeReport) -> String {
    let state = report.state.name();
    report.load.map_or(state.into(), |load| format!("{state} {}%", 100 * load.done.0 / load.total.0.max(1)))
}

fn print(nodes: &[String], answers: &[(usize, Result<NodeReport, Fault>)]) {
    let width = answers.iter().filter_map(|(_, answer)| answer.as_ref().ok()).map(|report| report.name.chars().count());
    let width = width.max().unwrap_or(0).max(8);
    output::line(&format!(
        "{:<width$}  {:<21}  {:<12}  {:>5}  {:<8}  {:>4}  {:>9}  {:>9}  {:>9}  {:<7}",
        "NODE", "ADDRESS", "STATE", "EPOCH", "TOPOLOGY", "RANK", "SHARD", "RESIDENT", "AVAILABLE", "KERNELS"
    ));
    for (index, answer) in answers {
        let address = &nodes[*index];
        match answer {
            Ok(report) => {
                let place = report.topology.as_ref();
                let layout = place.map_or("-".into(), |(topology, ..)| topology.layout.to_string());
                let rank = place.map_or("-".into(), |(.., rank)| rank.to_string());
                output::line(&format!(
                    "{:<width$}  {address:<21}  {:<12}  {:>5}  {layout:<8}  {rank:>4}  {:>9}  {:>9}  {:>9}  {:<7}",
                    output::clean(&report.name),
                    state(report),
                    report.epoch,
                    report.shard,
                    report.memory_resident,
                    report.health.memory.unwrap_or_default().available,
                    output::clean(&report.kernels)
                ));
                if let Some(fault) = &report.fault {
                    output::line(&format!(
                        "{:<width$}  {}; {}",
                        "",
                        output::clean(&fault.to_string()),
                        fault.kind.next()
                    ));
                }
            }
            Err(fault) => output::line(&format!(
                "{:<width$}  {address:<21}  {}; {}",
                "?",
                output::clean(&fault.kind.to_string()),
                fault.kind.next()
            )),
        }
    }
}
