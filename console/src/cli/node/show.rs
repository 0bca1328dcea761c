//! `console node show`: all details of one node, with its problems and their remedies.
use clap::Args;
use common::fault::Fault;
use serde_json::{Value, json};
use telemetry::NodeReport;
use topology::Exclusion;

use crate::cli::{
    Failure,
    shared::{
        find_node::find,
        options::Nodes,
        output,
        watch::{Look, Seen, look_at},
    },
    status::object,
};

/// Options of `console node show`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Show {
    /// Name or address of the node
    #[arg(value_name = "NODE")]
    node: String,
    #[command(flatten)]
    pub(super) nodes: Nodes,
    #[command(flatten)]
    pub(super) look: Look,
}

/// Runs the command.
pub(super) async fn run(options: Show) -> Result<u8, Failure> {
    look_at(&options.nodes.nodes, &options.look, async |cluster| {
        let node = &cluster.nodes[find(cluster, &options.node)?];
        let entry = cluster.exclusion(node);
        let answer = node.answer.as_ref().map(|(_, report)| report.clone()).map_err(Clone::clone);
        match &answer {
            Ok(report) => {
                let mut object = object(&node.address, &answer);
                object["unread"] = json!(report.health.unread());
                object["out"] = json!(entry);
                object["place"] = place(report);
                let kv = report.kv.map(|kv| json!({"held": kv.held, "kept": kv.kept, "total": kv.total}));
                object["kv_blocks"] = json!(kv);
                object["next"] = json!(report.fault.as_ref().map(Fault::next));
                Ok(Seen { lines: lines(&node.address, report, entry), object, code: 0 })
            }
            Err(fault) => Err(fault.clone().into()),
        }
    })
    .await
}

/// The place of a node in its topology as an object; null without one.
fn place(report: &NodeReport) -> Value {
    let Some((topology, _, index)) = &report.topology else { return Value::Null };
    let (place, member) = (topology.place(*index), &topology.members[index.index()]);
    json!({"replica": place.replica, "stage": place.stage, "rank": place.rank.0, "head": place.is_head(),
        "layers": [member.layers.start, member.layers.end], "threads": member.threads, "spin": member.spin})
}

fn lines(address: &str, report: &NodeReport, out: Option<&Exclusion>) -> Vec<String> {
    let mut rows: Vec<(&str, String)> = vec![
        ("node", format!("{} at {address}", report.name)),
        ("state", report.state.name().into()),
        ("release", format!("{}, kernels {}", report.build, report.kernels)),
        (
            "restarts",
            if report.supervised { "by its supervisor" } else { "not supervised: stop and start it by hand" }.into(),
        ),
        ("epoch", report.epoch.to_string()),
    ];
    if let Some(load) = report.load {
        rows.push(("loading", format!("{} of {}", load.done, load.total)));
    }
    if let Some((topology, _, member)) = &report.topology {
        let place = topology.place(*member);
        let member = &topology.members[member.index()];
        let layers = format!("layers {}-{}", member.layers.start, member.layers.end.saturating_sub(1));
        let head = if place.is_head() { ", head" } else { "" };
        let place = format!("replica {}, stage {}, rank {}{head}", place.replica, place.stage, place.rank);
        rows.push(("topology", format!("{} with {}: {place}, {layers}", topology.layout, topology.model)));
        rows.push(("threads", format!("{}{}", member.threads, if member.spin { ", spinning" } else { "" })));
    }
    rows.push(("shard", report.shard.to_string()));
    rows.push(("resident", report.memory_resident.to_string()));
    if let Some(kv) = report.kv {
        rows.push(("kv blocks", format!("{} in use, {} cached, of {}", kv.held, kv.kept, kv.total)));
    }
    rows.push(("requests", format!("{} now, {} tokens since the node started", report.requests, report.tokens)));
    if let Some(entry) = out {
        rows.push((entry.word(), format!("{} ({})", entry.reason.as_deref().unwrap_or_default(), entry.by)));
    }
    if let Some(fault) = &report.fault {
        rows.push(("fault", format!("{fault}; {}", fault.next())));
    }
    let rows = rows.into_iter().map(|(name, text)| format!("{name:<12} {text}"));
    let mut lines: Vec<String> = rows.chain(report.readings()).map(|line| output::clean(&line)).collect();
    let findings = report.health.findings();
    lines.push(String::new());
    if findings.is_empty() {
        lines.push("no findings".into());
    }
    lines.extend(findings.iter().flat_map(|finding| finding.lines()).map(|line| output::clean(&line)));
    let unread = report.health.unread();
    if !unread.is_empty() {
        lines.push(format!("not readable on this machine: {}", unread.join(", ")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use common::units::{Bytes, Celsius};
    use telemetry::{Health, NodeState, health::MemoryUse};
    use topology::Exclusions;

    use super::*;
    use crate::{client::fake_node::idle_report, fixtures::running};

    #[test]
    fn node_is_shown_with_findings_and_remedies() {
        let health = Health { temperature: Some(Celsius(84.0)), ..Health::default() };
        let report = NodeReport { health, ..idle_report("pi1") };
        let text = lines("10.0.0.1:9999", &report, None).join("\n");
        for part in ["pi1 at 10.0.0.1:9999", "idle", "84.0", "fix: "] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn cordoned_node_is_not_called_excluded() {
        let mut exclusions = Exclusions::default();
        exclusions.cordon("pi1", "10.0.0.1:9999", "fan", "me@here");
        let text = lines("10.0.0.1:9999", &idle_report("pi1"), exclusions.at("10.0.0.1:9999")).join("\n");
        assert!(text.contains("cordoned     fan (me@here)") && !text.contains("excluded"), "{text}");
        exclusions.say("pi1", "10.0.0.1:9999", Some("dead"), "me@here");
        let text = lines("10.0.0.1:9999", &idle_report("pi1"), exclusions.at("10.0.0.1:9999")).join("\n");
        assert!(text.contains("excluded     dead (me@here)") && !text.contains("cordoned"), "{text}");
    }

    #[test]
    fn limit_of_the_settings_is_shown_below_the_memory() {
        let memory = MemoryUse { total: Bytes(8 << 30), available: Bytes(7 << 30), ..MemoryUse::default() };
        let health = Health { memory: Some(memory), page: Some(Bytes(16 << 10)), ..Health::default() };
        let report = NodeReport { health, memory_max: Some(Bytes(3 << 30)), ..idle_report("pi1") };
        let shown = lines("10.0.0.1:9999", &report, None);
        let place = shown.iter().position(|line| line.starts_with("memory ")).expect("its memory is shown");
        assert_eq!(shown[place + 1], "shard limit  3.0 GiB (memory_max_mib)");
        assert_eq!(report.object()["memory_max"], 3_u64 << 30);
    }

    #[test]
    fn object_has_the_place_that_is_shown() {
        assert_eq!(place(&idle_report("pi1")), Value::Null);
        let place = place(&running(1, NodeState::Ready, false));
        assert_eq!((&place["stage"], &place["rank"], &place["head"]), (&json!(0), &json!(1), &json!(false)), "{place}");
        assert_eq!(place["layers"].as_array().map(Vec::len), Some(2), "{place}");
    }
}
