//! `GET /cluster`: this node's view of all nodes, for the web page and for programs. The names of values are those of
//! `console status --json`; each report has its age.
use std::{sync::Arc, time::Instant};

use axum::{Json, extract::State};
use serde_json::{Map, Value, json};
use telemetry::{Warning, window::Culprits};
use topology::{Exclusion, Exclusions, Topology};

use super::{
    Gateway,
    cluster::{KnownNode, LatestReport, ServedModel},
    trace::milliseconds,
};

/// Values of a report for operators alone, or shown in another form.
const HIDDEN: [&str; 4] = ["warnings", "collectives", "supervised", "exclusions"];

/// The nodes, the models that they serve, and the stragglers and slow hops. Members that are not heads are watched only
/// while someone asks, so the first answers may lack their reports.
pub(super) async fn get(State(gateway): State<Arc<Gateway>>) -> Json<Value> {
    let culprits = gateway.cluster.culprits();
    let nodes = gateway.cluster.known_nodes();
    let mut exclusions = Exclusions::default();
    for seen in nodes.iter().filter_map(|node| node.seen.as_ref()) {
        exclusions.merge(&seen.report.exclusions);
    }
    let now = Instant::now();
    let nodes: Vec<Value> = nodes.iter().map(|node| object(node, &exclusions, now)).collect();
    let models: Vec<Value> = gateway.cluster.models().iter().map(model).collect();
    let (_, mut answer) = gateway.standing(None).answer(&gateway.identity.name, gateway.admission.occupancy());
    answer["version"] = env!("CARGO_PKG_VERSION").into();
    answer["models"] = models.into();
    answer["nodes"] = nodes.into();
    answer["stragglers"] = culprits.iter().flat_map(|(topology, found)| stragglers(topology, found)).collect();
    answer["slow_hops"] = culprits.iter().flat_map(|(topology, found)| slow_hops(topology, found)).collect();
    Json(answer)
}

/// A model and the topology that was found first.
fn model(served: &ServedModel) -> Value {
    let topology = &served.topology;
    json!({
        "id": topology.model, "layout": topology.layout.to_string(), "context": topology.context_length,
        "slots": served.slots(), "serving": served.is_serving(),
    })
}

/// A node, with its latest report if there is one.
fn object(node: &KnownNode, exclusions: &Exclusions, now: Instant) -> Value {
    let KnownNode { address, name, seen, away } = node;
    let since = |then: &Instant| milliseconds(now.saturating_duration_since(*then)).round() as u64;
    let entry = match name {
        Some(name) => exclusions.of(name, address),
        None => exclusions.at(address),
    };
    let mut object = seen.as_ref().map_or_else(Map::new, |LatestReport { report, at }| {
        let health = &report.health;
        let mut object = report.object();
        HIDDEN.iter().for_each(|name| drop(object.remove(*name)));
        let labels: Vec<String> = health.warnings().iter().map(Warning::short).collect();
        object.extend([
            ("age_ms".to_owned(), since(at).into()),
            ("next".to_owned(), report.fault.as_ref().map(|fault| fault.next()).into()),
            ("labels".to_owned(), labels.into()),
            // The rest of it describes the machine to its operator.
            (
                "health".to_owned(),
                json!({"temperature": health.temperature, "clock": health.clock, "memory": health.memory}),
            ),
        ]);
        object
    });
    object.extend([
        ("address".to_owned(), address.as_str().into()),
        ("name".to_owned(), name.as_deref().into()),
        ("exclusion".to_owned(), entry.map(exclusion).into()),
        // Unknown until it has answered or failed to.
        ("reachable".to_owned(), (away.is_some() || seen.is_some()).then_some(away.is_none()).into()),
        ("away_ms".to_owned(), away.as_ref().map(since).into()),
    ]);
    object.into()
}

/// Why a node is kept out, and by whom.
fn exclusion(entry: &Exclusion) -> Value {
    json!({"cordon": entry.is_cordon, "reason": entry.reason, "by": entry.by})
}

/// The nodes that delay their peers, each with the warning of its machine that explains it.
fn stragglers(topology: &Topology, found: &Culprits) -> Vec<Value> {
    let nodes = found.nodes.iter().map(|(member, cause)| {
        json!({"node": member_name(topology, *member), "cause": cause.as_ref().map(ToString::to_string)})
    });
    nodes.collect()
}

/// The hops that take too long, by the names of sender and receiver.
fn slow_hops(topology: &Topology, found: &Culprits) -> Vec<Value> {
    let hops = found
        .hops
        .iter()
        .map(|(from, to)| json!({"from": member_name(topology, *from), "to": member_name(topology, *to)}));
    hops.collect()
}

fn member_name(topology: &Topology, member: usize) -> Option<&str> {
    topology.members.get(member).map(|member| member.name.as_str())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use common::units::Celsius;
    use telemetry::{Health, NodeReport};

    use super::*;

    #[test]
    fn lost_node_keeps_its_figures_and_shows_their_age() {
        let health = Health { temperature: Some(Celsius(61.5)), ..Health::default() };
        let report = Arc::new(NodeReport { health, tokens: 7, ..assignment::fixtures::idle_report("pi2") });
        let begin = Instant::now();
        let now = begin + Duration::from_secs(9);
        let node = KnownNode {
            address: "pi2:9999".into(),
            name: Some("pi2".into()),
            seen: Some(LatestReport { report, at: begin }),
            away: Some(begin + Duration::from_secs(1)),
        };
        let shown = object(&node, &Exclusions::default(), now);
        assert_eq!(
            (&shown["reachable"], &shown["age_ms"], &shown["away_ms"]),
            (&json!(false), &json!(9000), &json!(8000))
        );
        assert_eq!((&shown["state"], &shown["tokens"]), (&json!("idle"), &json!(7)));
        assert_eq!(shown["health"]["temperature"], 61.5);
        let unknown = KnownNode { name: None, seen: None, away: None, ..node };
        let shown = object(&unknown, &Exclusions::default(), now);
        assert_eq!((&shown["reachable"], shown.get("state")), (&Value::Null, None));
    }

    #[test]
    fn cordoned_node_is_shown_with_its_reason() {
        let mut exclusions = Exclusions::default();
        exclusions.say("pi2", "pi2:9999", Some("hot"), "me@here");
        let node = KnownNode { address: "pi2:9999".into(), name: None, seen: None, away: None };
        let shown = object(&node, &exclusions, Instant::now());
        assert_eq!(shown["exclusion"], json!({"cordon": false, "reason": "hot", "by": "me@here"}));
    }
}
