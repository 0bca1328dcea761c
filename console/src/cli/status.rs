//! `console status`: the state of every node.
use common::{
    fault::{Fault, FaultClass, FaultKind},
    ids::Epoch,
    units::Megahertz,
};
use serde_json::{Value, json};
use telemetry::{NodeReport, NodeState, Warning};
use topology::{Exclusions, Layout};

use crate::cli::{
    Failure,
    shared::{
        options, output,
        paint::{self, Shade},
        table::{TableCell, TableColumn, room, table},
        watch::{Seen, look_at},
    },
};
use crate::{
    client::cluster::{Cluster, ClusterNode},
    operator::groups::{groups, share_members},
    view::format::wrap_words,
};

/// The space for the lines, and whether they are coloured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paper {
    room: usize,
    colours: bool,
}

impl Paper {
    /// Whole lines without colour, for files.
    pub(super) const PLAIN: Self = Self { room: usize::MAX, colours: false };

    /// The terminal, if standard output is one.
    fn of_output() -> Self {
        Self { room: room(), colours: paint::is_on() }
    }
}

/// Asks all nodes at once. Exit code 3 if a node that is not excluded does not answer.
pub(super) async fn run(options: &options::Status) -> Result<u8, Failure> {
    look_at(&options.nodes.nodes, &options.look, async |cluster| Ok(see(cluster, Paper::of_output()))).await
}

/// All nodes with their answers.
pub(super) fn see(cluster: &Cluster, paper: Paper) -> Seen {
    let answer = |node: &ClusterNode| NodeAnswer {
        address: node.address.clone(),
        name: cluster.name(node).to_owned(),
        report: node.answer.as_ref().map(|(_, report)| report.clone()).map_err(Clone::clone),
    };
    let answers: Vec<NodeAnswer> = cluster.nodes.iter().map(answer).collect();
    let nodes = cluster.nodes.iter().zip(&answers).map(|(node, answer)| {
        let mut object = object(&answer.address, &answer.report);
        if answer.report.is_err() {
            object["node"] = json!(answer.name);
        }
        object["out"] = json!(cluster.exclusion(node));
        object
    });
    let nodes: Value = nodes.collect();
    let restoring: Value = reduced(reports(&answers)).iter().map(ReducedTopology::object).collect();
    let failed = cluster.silent().find_map(|node| node.answer.as_ref().err());
    let code = failed.map_or(0, |fault| Failure::from(fault.clone()).code());
    let cordoned: Vec<&str> =
        cluster.nodes.iter().filter(|node| cluster.is_cordoned(node)).map(|node| cluster.name(node)).collect();
    let lines = lines(&answers, &cluster.exclusions, &cordoned, paper);
    Seen { lines, object: json!({"nodes": nodes, "restoring": restoring}), code }
}

/// A node's address and name, and its report or the reason why there is none.
struct NodeAnswer {
    address: String,
    name: String,
    report: Result<NodeReport, Fault>,
}

/// The reports of the nodes that answered.
fn reports(answers: &[NodeAnswer]) -> impl Iterator<Item = &NodeReport> + Clone {
    answers.iter().filter_map(|answer| answer.report.as_ref().ok())
}

/// A node as a JSON object.
pub(super) fn object(address: &str, answer: &Result<NodeReport, Fault>) -> Value {
    match answer {
        Ok(report) => {
            let mut object = report.object();
            object.insert("address".to_owned(), address.into());
            Value::Object(object)
        }
        Err(fault) => {
            let failure = Failure::from(fault.clone()).json();
            json!({"address": address, "error": failure["error"]})
        }
    }
}

/// Whether a node takes part in a topology that serves.
fn serves(report: &NodeReport) -> bool {
    matches!(report.state, NodeState::Ready | NodeState::Serving)
}

/// The epoch that the other members of this node's topology serve without it, if it still holds an earlier epoch that
/// failed when they left it. Nodes that run another model do not replace its topology.
fn left(report: &NodeReport, answers: &[NodeAnswer]) -> Option<Epoch> {
    let (held, ..) = report.topology.as_ref().filter(|_| report.fault.is_some())?;
    let later = reports(answers).filter(|other| serves(other) && other.epoch > report.epoch);
    let without = later.filter(|other| {
        let Some((topology, ..)) = &other.topology else { return false };
        share_members(held, topology) && !topology.members.iter().any(|member| member.name == report.name)
    });
    without.map(|other| other.epoch).max()
}

/// The state of a node in a word or two, with the percentage of its shard that is loaded.
fn state(report: &NodeReport, has_left: bool, out: Option<&'static str>) -> (String, Option<Shade>) {
    let name = report.state.name();
    if let Some(load) = report.load {
        return (format!("{name} {}%", 100 * load.done.0 / load.total.0.max(1)), None);
    }
    match (&report.fault, out) {
        (_, Some(out)) => (out.into(), Some(Shade::Warning)),
        _ if has_left => ("left".into(), None),
        (Some(Fault { node, kind: FaultKind::NodeLost { .. } }), _) if *node != report.name => {
            (output::clean(&format!("waits for {node}")), Some(Shade::Bad))
        }
        (Some(_), _) => (name.into(), Some(Shade::Bad)),
        (None, _) if matches!(report.state, NodeState::Ready | NodeState::Serving) => (name.into(), Some(Shade::Good)),
        (None, _) => (name.into(), None),
    }
}

const COLUMNS: [TableColumn; 12] = [
    TableColumn { title: "NODE", least: 8, is_number: false, drops: 0 },
    TableColumn { title: "ADDRESS", least: 21, is_number: false, drops: 4 },
    TableColumn { title: "STATE", least: 12, is_number: false, drops: 0 },
    TableColumn { title: "EPOCH", least: 5, is_number: true, drops: 7 },
    TableColumn { title: "TOPOLOGY", least: 8, is_number: false, drops: 1 },
    TableColumn { title: "RANK", least: 4, is_number: true, drops: 2 },
    TableColumn { title: "SHARD", least: 9, is_number: true, drops: 6 },
    TableColumn { title: "RESIDENT", least: 9, is_number: true, drops: 8 },
    TableColumn { title: "FREE", least: 9, is_number: true, drops: 3 },
    TableColumn { title: "TEMP", least: 5, is_number: true, drops: 2 },
    TableColumn { title: "GHZ", least: 7, is_number: true, drops: 5 },
    TableColumn { title: "HEALTH", least: 12, is_number: false, drops: 0 },
];

fn lines(answers: &[NodeAnswer], exclusions: &Exclusions, cordoned: &[&str], paper: Paper) -> Vec<String> {
    let (mut rows, mut notes) = (Vec::with_capacity(answers.len()), Vec::with_capacity(answers.len()));
    for answer in answers {
        let entry = match &answer.report {
            Ok(report) => exclusions.of(&report.name, &answer.address),
            Err(_) => exclusions.at(&answer.address),
        };
        let out = entry.map(|entry| {
            // The topology of a silent node may be unknown.
            if cordoned.contains(&answer.name.as_str()) { "cordoned" } else { entry.word() }
        });
        let mut below = Vec::new();
        if let Ok(report) = &answer.report
            && report.is_paced()
        {
            below.push(format!("{}: computes nothing, its output is meaningless", report.kernels));
        }
        if let (Some(entry), Some(out)) = (entry, out) {
            below.push(format!("{out}: {} (by {})", entry.reason.as_deref().unwrap_or_default(), entry.by));
        }
        let left = answer.report.as_ref().ok().and_then(|report| left(report, answers));
        match (&answer.report, left) {
            (Ok(_), Some(epoch)) => {
                below.push(format!("the other nodes serve epoch {epoch} without it; no action needed"));
            }
            (Ok(report), None) => {
                below.extend(report.fault.as_ref().map(|fault| format!("{fault}; {}", fault.next())));
            }
            (Err(fault), _) => below.push(format!("{}; {}", fault.kind, fault.next())),
        }
        rows.push(match &answer.report {
            Ok(report) => row(answer, report, left.is_some(), out),
            Err(fault) => silent(answer, fault, out),
        });
        notes.push(below);
    }
    let mut table = table(&COLUMNS, &rows, paper.room, paper.colours).into_iter();
    let mut lines: Vec<String> = table.next().into_iter().collect();
    for (row, below) in table.zip(notes) {
        lines.push(row);
        lines.extend(below.iter().flat_map(|note| indented(&output::clean(note), paper.room)));
    }
    lines.extend(reduced(reports(answers)).iter().map(|reduced| output::clean(&reduced.line())));
    lines
}

/// A note below a row, broken into lines that fit.
fn indented(note: &str, room: usize) -> Vec<String> {
    const INDENT: usize = 10;
    if room == usize::MAX {
        return vec![format!("{:INDENT$}{note}", "")];
    }
    let parts = wrap_words(note, room.saturating_sub(INDENT));
    parts.into_iter().map(|part| format!("{:INDENT$}{}", "", note[part].trim_end())).collect()
}

/// A topology that serves until the desired one can be restored.
#[derive(Debug)]
struct ReducedTopology {
    now: Layout,
    desired: Layout,
    /// Names of the desired members that it lacks.
    missing: Vec<String>,
}

impl ReducedTopology {
    fn line(&self) -> String {
        let Self { now, desired, missing } = self;
        let missing = if missing.is_empty() { String::new() } else { format!("; missing: {}", missing.join(", ")) };
        format!("{now} serves until {desired} can be restored{missing}")
    }

    fn object(&self) -> Value {
        let Self { now, desired, missing } = self;
        json!({"topology": now.to_string(), "desired": desired.to_string(), "missing": missing})
    }
}

/// The topologies of all groups that serve until the desired ones can be restored. A node that left may still report an
/// earlier one.
fn reduced<'a>(reports: impl Iterator<Item = &'a NodeReport> + Clone) -> Vec<ReducedTopology> {
    let groups = groups(reports.filter(|report| serves(report))).into_iter();
    let reduced = groups.filter_map(|group| {
        let desired = group.desired()?;
        let missing = desired.members.iter().filter(|member| !group.has(&member.name));
        let missing = missing.map(|member| member.name.clone()).collect();
        Some(ReducedTopology { now: group.topology.layout, desired: desired.layout, missing })
    });
    reduced.collect()
}

fn row(answer: &NodeAnswer, report: &NodeReport, has_left: bool, out: Option<&'static str>) -> Vec<TableCell> {
    let place = report.topology.as_ref();
    let health = &report.health;
    let gigahertz = |clock: Megahertz| f64::from(clock.0) / 1e3;
    let clock = health.clock.as_ref();
    let clock = clock.map(|clock| format!("{:.1}/{:.1}", gigahertz(clock.current), gigahertz(clock.limit)));
    let warnings = health.warnings();
    let words: Vec<String> = warnings.iter().map(Warning::short).collect();
    let worst = warnings.iter().map(Warning::severity).max();
    let or_dash = |text: Option<String>| (text.unwrap_or_else(|| "-".into()), None);
    vec![
        (output::clean(&report.name), None),
        (answer.address.clone(), None),
        state(report, has_left, out),
        (report.epoch.to_string(), None),
        or_dash(place.map(|(topology, ..)| topology.layout.to_string())),
        or_dash(place.map(|(.., rank)| rank.to_string())),
        (report.shard.to_string(), None),
        (report.memory_resident.to_string(), None),
        or_dash(free(report)),
        or_dash(health.temperature.map(|celsius| format!("{:.1}", celsius.0))),
        or_dash(clock),
        (if words.is_empty() { "ok".into() } else { words.join(", ") }, worst.map(Shade::from)),
    ]
}

/// The memory that a shard may take next to the current one: the limit of the settings, or all that is available.
fn free(report: &NodeReport) -> Option<String> {
    let (available, free) = (report.health.memory?.available, report.free_next_to_shard()?);
    Some(if free < available { format!("max {free}") } else { free.to_string() })
}

/// The row of a node that does not answer.
fn silent(answer: &NodeAnswer, fault: &Fault, out: Option<&'static str>) -> Vec<TableCell> {
    let state = match fault.kind.class() {
        FaultClass::Unreachable => "unreachable",
        FaultClass::Refused => "refused",
        FaultClass::Failed | FaultClass::Lost => "no answer",
    };
    let state = out.map_or((state, Shade::Bad), |out| (out, Shade::Warning));
    let name = if answer.name == answer.address { "?" } else { &answer.name };
    let mut cells = vec![(output::clean(name), None), (answer.address.clone(), None), (state.0.into(), Some(state.1))];
    cells.resize(COLUMNS.len(), ("-".to_owned(), None));
    cells
}

#[cfg(test)]
mod tests {
    use common::{
        fault::{FaultKind, Loss},
        ids::MemberIndex,
        units::Bytes,
    };
    use topology::Topology;

    use super::*;
    use crate::client::fake_node::{FakeNode, Script};
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
        let told = |reports: &[NodeReport]| -> Vec<String> {
            reduced(reports.iter()).iter().map(ReducedTopology::line).collect()
        };
        let lines = told(&[of(3, 7, &earlier, true), of(0, 8, &rest, true)]);
        assert!(matches!(&lines[..], [line] if line.ends_with(&format!("; missing: {}", name(3)))), "{lines:?}");
        let lines = told(&[of(0, 8, &topology(), true)]);
        assert!(matches!(&lines[..], [line] if line.ends_with("can be restored")), "{lines:?}");
        assert_eq!(told(&[of(3, 7, &earlier, true), of(0, 8, &topology(), false)]), [""; 0]);
        // A group with another model, on other nodes.
        let mut other = topology();
        other.model = "other.gguf".into();
        other.members.drain(..2);
        let mut first = topology();
        first.members.truncate(2);
        assert_eq!(told(&[of(0, 8, &first, true), of(2, 7, &other, true)]).len(), 2);
    }

    /// Reports of nodes at `pi0:9999` and so on.
    fn answer(node: usize, report: Result<NodeReport, Fault>) -> NodeAnswer {
        let name = report.as_ref().map_or_else(|_| name(node), |report| report.name.clone());
        NodeAnswer { address: format!("pi{node}:9999"), name, report }
    }

    fn shown(answers: &[NodeAnswer], room: usize) -> Vec<String> {
        lines(answers, &Exclusions::default(), &[], Paper { room, colours: false })
    }

    #[tokio::test]
    async fn objects_have_names_and_exclusions_of_silent_nodes() {
        let node = FakeNode::start("pi1", Script::default()).await;
        let away = "127.0.0.1:1";
        let mut cluster = Cluster::dial(&[node.address.clone(), away.into()]).await;
        let object = see(&cluster, Paper::PLAIN).object;
        assert_eq!((&object["nodes"][1]["node"], &object["nodes"][1]["out"]), (&json!(away), &Value::Null));
        assert_eq!((&object["nodes"][0]["out"], &object["restoring"]), (&Value::Null, &json!([])));
        cluster.exclusions.say("pi2", away, Some("dead"), "me@here");
        let silent = see(&cluster, Paper::PLAIN).object["nodes"][1].take();
        assert_eq!((&silent["node"], &silent["out"]["reason"]), (&json!("pi2"), &json!("dead")));
    }

    #[tokio::test]
    async fn silent_nodes_count_unless_they_are_excluded() {
        let node = FakeNode::start("pi1", Script::default()).await;
        let away = "127.0.0.1:1";
        let mut cluster = Cluster::dial(&[node.address.clone(), away.into()]).await;
        assert_eq!(see(&cluster, Paper::PLAIN).code, 3);
        cluster.exclusions.cordon("pi2", away, "fan", "me@here");
        let seen = see(&cluster, Paper::PLAIN);
        assert_eq!(seen.code, 3, "a cordoned node may still serve");
        assert!(seen.lines.iter().any(|line| line.contains("cordoned: fan")), "{:?}", seen.lines);
        cluster.exclusions.say("pi2", away, Some("dead"), "me@here");
        assert_eq!(see(&cluster, Paper::PLAIN).code, 0);
    }

    #[test]
    fn node_left_behind_by_its_peers_is_not_a_fault() {
        let faulted = |epoch: u64, name: &str| {
            let fault = Some(Fault::new("pi0", FaultKind::NodeLost { how: Loss::Left }));
            let report = running(3, NodeState::Faulted, false);
            NodeReport { fault, epoch: Epoch(epoch), name: name.into(), ..report }
        };
        let serving = running(0, NodeState::Serving, false);
        let serving = || answer(0, Ok(NodeReport { epoch: Epoch(8), ..serving.clone() }));
        let text = shown(&[serving(), answer(1, Ok(faulted(7, "pi9")))], usize::MAX).join("\n");
        assert!(text.contains("left") && text.contains("epoch 8 without it") && !text.contains("pi0: lost"), "{text}");
        for own in [faulted(8, "pi9"), faulted(7, "pi3")] {
            let text = shown(&[serving(), answer(1, Ok(own))], usize::MAX).join("\n");
            assert!(text.contains("waits for pi0") && text.contains("pi0: lost"), "{text}");
        }
    }

    #[test]
    fn model_on_other_nodes_does_not_make_a_broken_node_a_left_one() {
        let mut own = topology();
        own.members.drain(..2);
        let mut other = topology();
        (other.model, other.members) = ("other.gguf".into(), other.members[..2].to_vec());
        let fault = Some(Fault::new("pi2", FaultKind::NodeLost { how: Loss::Reset }));
        let broken = NodeReport {
            fault,
            epoch: Epoch(7),
            topology: Some((own.clone(), own.hash(), MemberIndex(1))),
            ..running(3, NodeState::Faulted, false)
        };
        let serving = NodeReport {
            epoch: Epoch(9),
            topology: Some((other.clone(), other.hash(), MemberIndex(0))),
            ..running(0, NodeState::Serving, false)
        };
        let text = shown(&[answer(0, Ok(serving)), answer(3, Ok(broken))], usize::MAX).join("\n");
        assert!(text.contains("waits for pi2") && !text.contains("no action needed"), "{text}");
    }

    #[test]
    fn limit_below_the_available_memory_is_shown_as_free() {
        let limits = [None, Some(5), Some(1)].map(|gib: Option<u64>| gib.map(|gib| Bytes(gib << 30)));
        let found = limits.map(|memory_max| free(&NodeReport { memory_max, ..running(0, NodeState::Ready, false) }));
        assert_eq!(found.map(Option::unwrap_or_default), ["3.0 GiB", "3.0 GiB", "max 1.0 GiB"]);
    }

    #[test]
    fn rows_fit_the_terminal_and_unreachable_node_keeps_its_name() {
        let reason = "Connection refused (os error 111)".to_owned();
        let away = Fault::new("127.0.0.4:9999", FaultKind::Unreachable { address: "127.0.0.4:9999".into(), reason });
        let answers: Vec<NodeAnswer> = (0..3)
            .map(|node| answer(node, Ok(running(node, NodeState::Ready, true))))
            .chain([answer(3, Err(away))])
            .collect();
        let whole = shown(&answers, usize::MAX);
        assert!(whole[0].contains("RESIDENT") && whole[4].starts_with(&name(3)), "{whole:#?}");
        assert!(whole[4].contains("unreachable") && whole[5].contains("cannot be reached"), "{whole:#?}");
        for room in [60, 80, 100, 120, 160] {
            let text = shown(&answers, room);
            assert!(text.iter().all(|line| crate::view::format::width(line) <= room), "{room}: {text:#?}");
            for title in ["NODE", "STATE", "HEALTH"] {
                assert!(text[0].contains(title), "{room}: {text:#?}");
            }
        }
        assert!(shown(&answers, 80)[0].contains("TOPOLOGY") && shown(&answers, 120)[0].contains("ADDRESS"));
    }
}
