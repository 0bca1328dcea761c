//! Plans of known models on hypothetical nodes.
use collectives::Choice;
use common::precision::{Exchange, KvFormat};
use topology::sizes::{ModelSizes, Quantisation};

use super::{Goal, Plan, plan};
use crate::{
    cost::{Demand, PlanNode},
    holding::PANEL_ROWS,
    simulate::{Link, NodeProfile},
};

const LINK: Link = Link { alpha_ns: 60_000, bits_per_second: 1_000_000_000, packets: Link::ETHERNET };

fn demand() -> Demand {
    let (kv, exchange, choice) = (KvFormat::F16, Exchange::Q80, Choice::Auto);
    Demand { context: 4096, slots: 4, kv, exchange, choice, link: LINK, prompt: 512 }
}

fn pis(count: usize, gigabytes: u64) -> Vec<PlanNode> {
    (0..count)
        .map(|index| PlanNode {
            name: format!("pi{}", index + 1),
            profile: NodeProfile::pi5(),
            memory: gigabytes << 30,
            link: None,
            panel_rows: PANEL_ROWS,
        })
        .collect()
}

fn planned(model: &str, nodes: &[PlanNode], goal: Goal) -> Plan {
    let sizes = ModelSizes::known(model, Quantisation::Q4_0).expect("it is known");
    plan(&sizes, nodes, &demand(), goal)
}

fn best(plan: &Plan) -> String {
    plan.ranked.first().map_or("-".into(), |candidate| candidate.layout.to_string())
}

#[test]
fn each_goal_has_its_own_best_layout() {
    let nodes = pis(8, 7);
    assert_eq!(best(&planned("llama-3.1-8b", &nodes, Goal::Tpot)), "tp8");
    assert_eq!(best(&planned("llama-3.1-8b", &nodes, Goal::Ttft)), "tp8");
    assert_eq!(best(&planned("llama-3.1-8b", &nodes, Goal::Balanced)), "tp8");
    // A small model gains little from many ranks: replicas give more tokens per second.
    let many = planned("qwen3-0.6b", &nodes, Goal::Throughput);
    assert!(many.ranked[0].layout.replicas > 1, "{}", best(&many));
    let rates: Vec<f64> = many.ranked.iter().map(|candidate| candidate.prediction.throughput).collect();
    assert!(rates.is_sorted_by(|one, two| one >= two), "{rates:?}");
}

#[test]
fn default_goal_stops_at_the_knee_and_adds_replicas() {
    let nodes = pis(8, 7);
    let sizes = ModelSizes::known("qwen3-0.6b", Quantisation::Q4_0).expect("it is known");
    let slow = Link { alpha_ns: 300_000, bits_per_second: 100_000_000, ..LINK };
    let plan = plan(&sizes, &nodes, &Demand { link: slow, ..demand() }, Goal::Balanced);
    let first = &plan.ranked[0];
    assert!(first.layout.replicas >= 2 && first.layout.node_count() <= 8, "{}", first.layout);
    let [names] = &plan.warnings[..] else { panic!("one warning: {:?}", plan.warnings) };
    assert!(names.contains("pi8") && names.contains("slower"), "{names}");
    assert!(planned("llama-3.1-8b", &pis(4, 7), Goal::Balanced).warnings.is_empty());
}

#[test]
fn layout_that_does_not_fit_is_dropped_with_its_figures() {
    let plan = planned("llama-3.1-8b", &pis(2, 4), Goal::Tpot);
    assert_eq!(best(&plan), "tp2");
    let dropped =
        plan.dropped.iter().find(|dropped| dropped.layout.to_string() == "tp1").expect("4.7 GB do not fit 4 GiB");
    let reason = dropped.reason.to_string();
    assert!(reason.contains("GiB"), "{reason}");
    let none = planned("llama-3.3-70b", &pis(4, 7), Goal::Tpot);
    assert!(none.ranked.is_empty() && !none.dropped.is_empty());
}

#[test]
fn slow_and_full_nodes_get_smaller_shares() {
    let mut nodes = pis(3, 7);
    nodes[0].profile.slowness = 2000;
    let plan = planned("llama-3.1-8b", &nodes, Goal::Tpot);
    let ranks = &plan.ranked[0].replicas[0][0].ranks;
    let weight = |node: usize| ranks.iter().find(|rank| rank.node == node).map(|rank| rank.weight);
    assert_eq!((weight(0), weight(1), weight(2)), (Some(100), Some(200), Some(200)));
    assert_ne!(ranks[0].node, 0, "the head is not a slow node");
    let mut nodes = pis(3, 7);
    nodes[2].memory = 900 << 20;
    let plan = planned("llama-3.1-8b", &nodes, Goal::Tpot);
    let three = plan.ranked.iter().find(|candidate| candidate.layout.to_string() == "tp3").expect("it fits");
    let ranks = &three.replicas[0][0].ranks;
    assert!(ranks[2].weight < ranks[0].weight / 2, "{ranks:?}");
    assert!(three.memory[0].iter().zip(ranks).all(|(needed, rank)| needed.total().0 <= nodes[rank.node].memory));
}

#[test]
fn stages_are_balanced_by_output_and_node_speed() {
    let of = |nodes: &[PlanNode]| -> Vec<usize> {
        let plan = planned("llama-3.1-8b", nodes, Goal::Tpot);
        let two = plan.ranked.iter().find(|candidate| candidate.layout.to_string() == "pp2-tp1").expect("it fits");
        two.replicas[0].iter().map(|stage| stage.layers.len()).collect()
    };
    // The output takes as long as three and a half layers.
    assert_eq!(of(&pis(2, 7)), [18, 14]);
    let mut nodes = pis(2, 7);
    nodes[1].profile.slowness = 3000;
    let layers = of(&nodes);
    assert!(layers[0] >= 25, "{layers:?}");
    // The faster node reaches its memory limit first.
    nodes[0].memory = 3 << 30;
    let layers = of(&nodes);
    assert!(layers[0] < 25, "{layers:?}");
}

#[test]
fn layouts_beyond_layers_or_heads_are_dropped_untried() {
    let sizes = ModelSizes::known("qwen2.5-0.5b", Quantisation::Q8_0).expect("it is known");
    let plan = plan(&sizes, &pis(26, 7), &demand(), Goal::Tpot);
    assert!(plan.dropped.iter().all(|dropped| dropped.layout.node_count() <= 26));
    assert!(!plan.ranked.is_empty());
}
