//! `console status`: the state of every node.
use common::{fault::Fault, ids::Epoch, units::Megahertz};
use serde_json::{Value, json};
use telemetry::{NodeReport, NodeState, Warning};
use topology::Exclusions;

use crate::cli::{
    Failure,
    shared::{
        options, output,
        watch::{Seen, look_at},
    },
};
use crate::client::cluster::{Cluster, ClusterNode};

/// Asks all nodes at once. Exit code 3 if a node that is not excluded does not answer.
pub(super) async fn run(options: &options::Status) -> Result<u8, Failure> {
    look_at(&options.nodes.nodes, &options.look, async |cluster| Ok(see(cluster))).await
}

/// All nodes with their answers.
pub(super) fn see(cluster: &Cluster) -> Seen {
    let answer = |node: &ClusterNode| {
        (node.address.clone(), node.answer.as_ref().map(|(_, report)| report.clone()).map_err(Clone::clone))
    };
    let answers: Vec<Answer> = cluster.nodes.iter().map(answer).collect();
    let nodes: Value = answers.iter().map(|(address, answer)| object(address, answer)).collect();
    // An excluded node does not count as missing.
    let missed = cluster.nodes.iter().filter(|node| cluster.exclusion(node).is_none());
    let failed = missed.filter_map(|node| node.answer.as_ref().err()).next();
    let code = failed.map_or(0, |fault| Failure::from(fault.clone()).code());
    let cordoned: Vec<&str> =
        cluster.nodes.iter().filter(|node| cluster.is_cordoned(node)).map(|node| cluster.name(node)).collect();
    Seen { lines: lines(&answers, &cluster.exclusions, &cordoned), object: json!({"nodes": nodes}), code }
}

/// A node's address, and its report or the reason why there is none.
type Answer = (String, Result<NodeReport, Fault>);

/// A node as a JSON object.
pub(super) fn object(address: &str, answer: &Result<NodeReport, Fault>) -> Value {
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
            "nodes": nodes, "context": topology.context_length, "kv": topology.kv, "exchange": topology.exchange,
            "collective": topology.collective})
    });
    let load = report.load.map(|load| json!({"done": load.done.0, "total": load.total.0}));
    json!({
        "address": address, "name": report.name, "state": report.state.name(), "epoch": report.epoch.0,
        "topology": topology, "desired": report.desired.as_ref().map(|desired| desired.layout.to_string()),
        "fault": report.fault.as_ref().map(ToString::to_string), "load": load,
        "shard_bytes": report.shard.0, "memory_resident": report.memory_resident.0,
        "health": report.health, "warnings": report.health.warnings().iter().map(ToString::to_string).collect::<Vec<_>>(),
        "findings": report.health.findings(),
        "collectives": report.collectives, "supervised": report.supervised, "exclusions": report.exclusions,
        "requests": report.requests, "tokens": report.tokens, "kernels": report.kernels, "paced": report.is_paced(), "build": report.build,
    })
}

/// The epoch that the other nodes serve without this node, if it still holds an earlier epoch that failed when they
/// left it.
fn left(report: &NodeReport, answers: &[Answer]) -> Option<Epoch> {
    let serves = |other: &&NodeReport| matches!(other.state, NodeState::Ready | NodeState::Serving);
    let reports = answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
    let latest = reports.filter(serves).max_by_key(|other| other.epoch)?;
    let (topology, ..) = latest.topology.as_ref()?;
    let is_member = topology.members.iter().any(|member| member.name == report.name);
    (report.fault.is_some() && latest.epoch > report.epoch && !is_member).then_some(latest.epoch)
}

/// The state of a node, with the percentage of its shard that is loaded.
fn state(report: &NodeReport, has_left: bool) -> String {
    let state = if has_left { "left" } else { report.state.name() };
    report.load.map_or(state.into(), |load| format!("{state} {}%", 100 * load.done.0 / load.total.0.max(1)))
}

fn lines(answers: &[Answer], exclusions: &Exclusions, cordoned: &[&str]) -> Vec<String> {
    let reports = || answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
    let width = reports().map(|report| report.name.chars().count()).max().unwrap_or(0).max(8);
    let mut lines = vec![format!(
        "{:<width$}  {:<21}  {:<12}  {:>5}  {:<8}  {:>4}  {:>9}  {:>9}  {:>9}  {:>5}  {:>7}  HEALTH",
        "NODE", "ADDRESS", "STATE", "EPOCH", "TOPOLOGY", "RANK", "SHARD", "RESIDENT", "FREE", "TEMP", "GHZ"
    )];
    for (address, answer) in answers {
        match answer {
            Ok(report) => {
                let left = left(report, answers);
                let row = row(report, left.is_some());
                lines.push(format!("{:<width$}  {address:<21}  {row}", output::clean(&report.name)));
                let below = |text: &str| format!("{:<width$}  {}", "", output::clean(text));
                if report.is_paced() {
                    lines.push(below(&format!("{}: computes nothing, its output is meaningless", report.kernels)));
                }
                if let Some(entry) = exclusions.of(&report.name, address) {
                    let how = if cordoned.contains(&report.name.as_str()) { "cordoned" } else { "excluded" };
                    let (why, by) = (entry.reason.as_deref().unwrap_or_default(), &entry.by);
                    lines.push(below(&format!("{how}: {why} ({by})")));
                }
                let fault = report.fault.as_ref().map(|fault| match left {
                    Some(epoch) => below(&format!("the other nodes serve epoch {epoch} without it; no action needed")),
                    None => below(&format!("{fault}; {}", fault.kind.next())),
                });
                lines.extend(fault);
            }
            Err(fault) => {
                let entry = exclusions.at(address);
                let out = entry.map(|entry| format!("excluded: {}; ", entry.reason.as_deref().unwrap_or_default()));
                let why = format!("{}{}; {}", out.unwrap_or_default(), fault.kind, fault.kind.next());
                lines.push(format!("{:<width$}  {address:<21}  {}", "?", output::clean(&why)));
            }
        }
    }
    lines.extend(lacking(reports()).map(|line| output::clean(&line)));
    lines
}

/// Reports the desired topology and its missing nodes, if another topology serves until they are back. A node that left
/// may still report an earlier epoch.
fn lacking<'a>(reports: impl Iterator<Item = &'a NodeReport>) -> Option<String> {
    let serves = |report: &&NodeReport| matches!(report.state, NodeState::Ready | NodeState::Serving);
    let report = reports.filter(serves).max_by_key(|report| report.epoch)?;
    let (topology, ..) = report.topology.as_ref()?;
    let desired = report.desired.as_ref()?;
    let is_member = |name: &str| topology.members.iter().any(|member| member.name == name);
    let names = desired.members.iter().map(|member| member.name.as_str()).filter(|name| !is_member(name));
    let names: Vec<&str> = names.collect();
    let (asked, now, names) = (desired.layout, topology.layout, names.join(", "));
    let missing = if names.is_empty() { String::new() } else { format!("; missing: {names}") };
    Some(format!("{now} serves until {asked} can be restored{missing}"))
}

/// The columns after name and address.
fn row(report: &NodeReport, has_left: bool) -> String {
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
        state(report, has_left),
        report.epoch,
        report.shard,
        report.memory_resident,
    )
}

#[cfg(test)]
mod tests {
    use common::{
        fault::{FaultKind, Loss},
        ids::MemberIndex,
    };
    use topology::Topology;

    use super::*;
    use crate::fixtures::{name, running, topology};

    #[test]
    fn missing_nodes_are_those_of_the_latest_epoch() {
        let mut rest = topology();
        rest.members.truncate(3);
        let of = |node: usize, epoch: u64, held: &Topology, desired: bool| NodeReport {
            epoch: Epoch(epoch),
            topology: Some((held.clone(), held.hash(), MemberIndex(node as u16))),
            desired: desired.then(|| Box::new(topology())),
            ..running(node, NodeState::Serving, false)
        };
        let mut earlier = topology();
        earlier.members.truncate(1);
        let told = |reports: &[NodeReport]| lacking(reports.iter());
        let line = told(&[of(3, 7, &earlier, true), of(0, 8, &rest, true)]).expect("a node is missing");
        assert!(line.ends_with(&format!("; missing: {}", name(3))), "{line}");
        let complete = told(&[of(0, 8, &topology(), true)]).expect("it is not the desired layout");
        assert!(complete.ends_with("can be restored"), "{complete}");
        assert_eq!(told(&[of(3, 7, &earlier, true), of(0, 8, &topology(), false)]), None);
    }

    #[test]
    fn node_left_behind_by_its_peers_is_not_a_fault() {
        let faulted = |epoch: u64, name: &str| {
            let fault = Some(Fault::new("pi0", FaultKind::NodeLost { how: Loss::Left }));
            let report = running(3, NodeState::Faulted, false);
            Ok(NodeReport { fault, epoch: Epoch(epoch), name: name.into(), ..report })
        };
        let serving = running(0, NodeState::Serving, false);
        let serving = || Ok(NodeReport { epoch: Epoch(8), ..serving.clone() });
        let shown = |answers: &[Answer]| lines(answers, &Exclusions::default(), &[]).join("\n");
        let answers = |own| [("a:9999".to_owned(), serving()), ("b:9999".to_owned(), own)];
        let text = shown(&answers(faulted(7, "pi9")));
        assert!(text.contains("left") && text.contains("epoch 8 without it") && !text.contains("pi0: lost"), "{text}");
        for own in [faulted(8, "pi9"), faulted(7, "pi3")] {
            let text = shown(&answers(own));
            assert!(text.contains("faulted") && text.contains("pi0: lost"), "{text}");
        }
    }
}
