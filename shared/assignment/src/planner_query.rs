//! The planner's input and its result, as the dashboard and the client use them. Pure.
use collectives::Choice;
use common::{
    latency::ratio,
    precision::{Exchange, KvFormat},
};
use planner::{
    cost::{ANSWER_TOKENS, Demand, PlanNode, PlanStage},
    holding::PANEL_ROWS,
    search::{Candidate, Goal, Plan, plan},
    simulate::{Link, NodeProfile},
};
use telemetry::{KnownLink, Measured, NodeReport, PACED};
use topology::{Layout, sizes::ModelSizes};

use crate::desired::DesiredTopology;

/// Prompt length in tokens that times are predicted for.
pub const PROMPT: u32 = 512;
/// Maximum planned context in tokens if no topology sets one.
const CONTEXT: u32 = 4096;
/// Assumed latency (half the round trip of a small message) and bandwidth of unmeasured links: 1 Gbit/s Ethernet.
pub const LINK: Link = Link { alpha_ns: 60_000, bits_per_second: 1_000_000_000, packets: Link::ETHERNET };
/// Cores of the machines with built-in profiles.
const PROFILE_CORES: usize = 4;
/// Minimum speed-up with fewer nodes before a layout counts as past the knee; predictions are not more accurate than
/// this.
const KNEE_MIN: f64 = 0.03;

/// A node as input of the planner.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannerNode {
    /// Its index in the caller's list.
    pub place: usize,
    /// Its name.
    pub name: String,
    /// The machine that it runs on.
    pub machine: String,
    /// Cores that it may use; 0 = unknown.
    pub cores: usize,
    /// Its kernel table.
    pub kernels: String,
    /// Bytes available for a shard, at most the limit of its settings.
    pub memory: u64,
    /// Its measurements since its start.
    pub measured: Measured,
}

/// A planner query.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannerQuery {
    /// File name of the model.
    pub model: String,
    /// The nodes.
    pub nodes: Vec<PlannerNode>,
    /// The goal that layouts are ranked by.
    pub goal: Goal,
    /// Maximum sequence length in tokens; `None` = the model's training context, capped at 4096:
    /// an assignment takes more where it fits.
    pub context: Option<u32>,
    /// Maximum number of concurrent sequences.
    pub slots: u16,
    /// Format of the KV cache.
    pub kv: KvFormat,
    /// Format of partial sums.
    pub exchange: Exchange,
    /// All-reduce algorithm, or automatic choice.
    pub choice: Choice,
    /// The latest timestamp in the nodes' reports, in milliseconds since 1970.
    pub now_unix_ms: u64,
}

/// The planner's answer.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannerAnswer {
    /// The query.
    pub ask: PlannerQuery,
    /// Sizes of the model.
    pub sizes: ModelSizes,
    /// Candidates, best first, and the layouts that do not fit.
    pub plan: Plan,
    /// The sequence length that was planned for, in tokens.
    pub context: u32,
}

impl PlannerNode {
    /// Builds a node from its report. With `keeps`, the current shard stays in memory and its bytes are not available.
    pub fn of(place: usize, machine: &str, cores: usize, report: &NodeReport, keeps: bool) -> Self {
        let free = if keeps { report.free_next_to_shard() } else { report.free_for_next_shard() };
        Self {
            place,
            name: report.name.clone(),
            machine: machine.to_owned(),
            cores,
            kernels: report.kernels.clone(),
            memory: free.map_or(0, |free| free.0),
            measured: report.measured.clone(),
        }
    }

    /// Its speed: from its own benchmark of this model, otherwise the built-in profile with the same instruction set.
    pub fn profile(&self, sizes: &ModelSizes, model: &str) -> NodeProfile {
        // A paced node reports its profile in place of its kernels.
        let is_pi4 = self.kernels == "neon" || self.kernels.strip_prefix(PACED).is_some_and(|of| of.starts_with("pi4"));
        let base = if is_pi4 { NodeProfile::pi4() } else { NodeProfile::pi5() };
        let cores = if self.cores == 0 { PROFILE_CORES } else { self.cores } as f64 / PROFILE_CORES as f64;
        let base = NodeProfile {
            macs_per_second: base.macs_per_second * cores,
            attention_macs_per_second: base.attention_macs_per_second * cores,
            // Two cores saturate the memory bandwidth.
            read_bytes_per_second: base.read_bytes_per_second * (2.0 * cores).min(1.0),
            ..base
        };
        match &self.measured.speed {
            // Equal nodes must have equal profiles, so names are not part of them.
            Some((found, _)) if found.model == model => NodeProfile::measured(&base.name, found, sizes, &base),
            _ => base,
        }
    }
}

/// Whether two of these nodes share a machine. Ranks on one machine share its cores, so predictions for separate
/// machines do not apply.
pub fn share_a_machine(nodes: &[PlannerNode]) -> bool {
    nodes.iter().enumerate().any(|(index, node)| nodes[..index].iter().any(|other| other.machine == node.machine))
}

/// Derives each node's link from all measurements. The best value over its peers counts, because a slow peer slows down
/// only the traffic to that peer. `None` if no measurement involves the node.
pub fn links<'a>(nodes: impl Iterator<Item = (&'a str, &'a [KnownLink])> + Clone) -> Vec<Option<Link>> {
    nodes.clone().map(|(name, _)| link_of(name, nodes.clone())).collect()
}

fn link_of<'a>(name: &str, nodes: impl Iterator<Item = (&'a str, &'a [KnownLink])> + Clone) -> Option<Link> {
    let own = nodes.clone().filter(|(receiver, _)| *receiver == name).flat_map(|(_, known)| known);
    let own = own.filter(|link| nodes.clone().any(|(other, _)| other == link.peer));
    let others = nodes.clone().filter(|(receiver, _)| *receiver != name).flat_map(|(_, known)| known);
    let to_others = others.filter(|link| link.peer == name);
    let alpha_ns = own.clone().chain(to_others.clone()).map(|link| link.round_trip.0 / 2).min()?;
    // The slower of its two directions, sending and receiving.
    let received = own.map(|link| link.bits_per_second).max();
    let sent = to_others.map(|link| link.bits_per_second).max();
    let payload = received.into_iter().chain(sent).min()?;
    let wire = payload as f64 * (Link::ETHERNET_PAYLOAD + Link::ETHERNET_BESIDES) / Link::ETHERNET_PAYLOAD;
    Some(Link { alpha_ns, bits_per_second: (wire as u64).max(1), packets: Link::ETHERNET })
}

impl PlannerAnswer {
    /// Runs the planner; slow with many nodes.
    pub fn new(ask: PlannerQuery, sizes: ModelSizes) -> Self {
        let links = links(ask.nodes.iter().map(|node| (node.name.as_str(), node.measured.links.as_slice())));
        let nodes: Vec<PlanNode> = ask
            .nodes
            .iter()
            .zip(links)
            .map(|(node, link): (&PlannerNode, Option<Link>)| PlanNode {
                name: node.name.clone(),
                profile: node.profile(&sizes, &ask.model),
                memory: node.memory,
                panel_rows: PANEL_ROWS,
                link,
            })
            .collect();
        let trained = u32::try_from(sizes.spec.context_length).unwrap_or(u32::MAX);
        let context = ask.context.unwrap_or(CONTEXT).min(trained);
        let demand = Demand {
            context,
            slots: ask.slots,
            kv: ask.kv,
            exchange: ask.exchange,
            choice: ask.choice,
            link: LINK,
            prompt: PROMPT.min(context),
        };
        let plan = plan(&sizes, &nodes, &demand, ask.goal);
        Self { ask, sizes, plan, context }
    }

    /// Looks up a candidate by its row key.
    pub fn candidate(&self, key: &str) -> Option<&Candidate> {
        self.plan.ranked.iter().find(|candidate| candidate.layout.to_string() == key)
    }

    /// Indices of a candidate's nodes in the caller's list, in order of replica, stage and rank.
    pub fn members(&self, candidate: &Candidate) -> Vec<usize> {
        let ranks = candidate.replicas.iter().flatten().flat_map(|stage| &stage.ranks);
        ranks.filter_map(|rank| self.ask.nodes.get(rank.node)).map(|node| node.place).collect()
    }

    /// The topology request for a candidate.
    pub fn wanted(&self, candidate: &Candidate) -> DesiredTopology {
        let weights: Vec<u32> =
            candidate.replicas.iter().flatten().flat_map(|stage| &stage.ranks).map(|rank| rank.weight).collect();
        let is_equal = weights.iter().all(|weight| *weight == weights[0]);
        let first = candidate.replicas.first().map_or(&[][..], Vec::as_slice);
        DesiredTopology {
            layout: candidate.layout,
            weights: if is_equal { Vec::new() } else { weights },
            layers: if first.len() > 1 {
                first.iter().map(|stage: &PlanStage| stage.layers.len() as u32).collect()
            } else {
                Vec::new()
            },
            model: self.ask.model.clone(),
            kv: self.ask.kv,
            exchange: self.ask.exchange,
            collective: self.ask.choice,
            context_length: self.ask.context,
            slots: self.ask.slots,
            unload_after: None,
            draft: None,
        }
    }

    /// A one-line summary of a candidate's prediction.
    pub fn figures(candidate: &Candidate) -> String {
        let (layout, prediction) = (candidate.layout, &candidate.prediction);
        let rate = ratio(1e9, prediction.tpot.0 as f64);
        format!("{layout}: {rate:.1} tokens/s, TTFT {}", prediction.ttft)
    }

    /// Warns if fewer nodes would answer faster than this layout. `None` if nodes share a machine or the layout is not
    /// a candidate.
    pub fn past_knee(&self, layout: Layout) -> Option<String> {
        let asked = self.candidate(&layout.to_string()).filter(|_| !share_a_machine(&self.ask.nodes))?;
        let fewer = self.plan.ranked.iter().filter(|other| {
            other.layout.replicas == layout.replicas && other.layout.node_count() < layout.node_count()
        });
        let best = fewer.min_by_key(|other| other.prediction.answer())?;
        let gain = 1.0 - ratio(best.prediction.answer() as f64, asked.prediction.answer() as f64);
        (gain >= KNEE_MIN).then(|| {
            let (few, many) = (best.layout.node_count(), layout.node_count());
            format!(
                "{many} nodes answer slower than {few} (predicted for a prompt of {} and an answer of {ANSWER_TOKENS} tokens): {}; {}",
                PROMPT.min(self.context),
                Self::figures(asked),
                Self::figures(best)
            )
        })
    }

    /// Describes the link measurements: how many nodes they cover, and the age of the oldest.
    pub fn links_known(&self) -> String {
        let known = self.ask.nodes.iter().map(|node| (node.name.as_str(), node.measured.links.as_slice()));
        links_known(known, self.ask.now_unix_ms)
    }
}

/// As [`PlannerAnswer::links_known`].
pub fn links_known<'a>(nodes: impl Iterator<Item = (&'a str, &'a [KnownLink])> + Clone, now_unix_ms: u64) -> String {
    let found: Vec<Link> = links(nodes.clone()).into_iter().flatten().collect();
    let oldest = nodes
        .clone()
        .flat_map(|(_, known)| known)
        .filter(|link: &&KnownLink| nodes.clone().any(|(name, _)| name == link.peer))
        .map(|link| link.unix_ms)
        .min();
    let alpha = found.iter().map(|link| link.alpha_ns).max();
    let rate = found.iter().map(|link| link.bits_per_second).min();
    let Some(((alpha, rate), oldest)) = alpha.zip(rate).zip(oldest) else {
        return format!(
            "links assumed: {} us, {} Mb/s (run console bench links to measure them)",
            LINK.alpha_ns / 1000,
            LINK.bits_per_second / 1_000_000
        );
    };
    format!(
        "links measured {} s ago, {} of {} nodes; the slowest {} us, {} Mb/s",
        now_unix_ms.saturating_sub(oldest) / 1000,
        found.len(),
        nodes.count(),
        alpha / 1000,
        rate / 1_000_000
    )
}

#[cfg(test)]
mod tests {
    use common::units::{Bytes, Nanoseconds};
    use telemetry::health::MemoryUse;
    use topology::sizes::Quantisation;

    use super::*;
    use crate::fixtures::idle_report;

    fn known(peer: usize, us: u64, megabits: u64) -> KnownLink {
        let bits_per_second = megabits * 1_000_000;
        KnownLink { peer: format!("pi{peer}"), round_trip: Nanoseconds(us * 1000), bits_per_second, unix_ms: 1000 }
    }

    fn ask(count: usize, machine: impl Fn(usize) -> String) -> PlannerQuery {
        PlannerQuery {
            model: "m.gguf".into(),
            nodes: (0..count)
                .map(|place: usize| PlannerNode {
                    place,
                    name: format!("pi{place}"),
                    machine: machine(place),
                    cores: 4,
                    kernels: "neon-dotprod".into(),
                    memory: 8 << 30,
                    measured: Measured::default(),
                })
                .collect(),
            goal: Goal::Balanced,
            context: None,
            slots: 4,
            kv: KvFormat::F16,
            exchange: Exchange::F32,
            choice: Choice::Auto,
            now_unix_ms: 0,
        }
    }

    fn planned(ask: PlannerQuery, model: &str) -> PlannerAnswer {
        PlannerAnswer::new(ask, ModelSizes::known(model, Quantisation::Q4KM).expect("known model"))
    }

    #[test]
    fn node_link_is_the_one_to_its_best_peer() {
        // pi2 has 100 Mb/s and 2 ms; the other nodes must not be rated as slow because of it.
        let of = [
            vec![known(1, 200, 941), known(2, 2000, 94)],
            vec![known(0, 220, 930), known(2, 2000, 94)],
            vec![known(0, 2000, 94), known(1, 2100, 93), known(9, 1, 9)],
        ];
        let names = ["pi0", "pi1", "pi2"];
        let found = links(names.iter().copied().zip(of.iter().map(Vec::as_slice)));
        assert_eq!(
            found
                .iter()
                .map(|link: &Option<Link>| link.map(|link| (link.alpha_ns / 1000, link.bits_per_second / 1_000_000)))
                .collect::<Vec<_>>(),
            [Some((100, 987)), Some((100, 987)), Some((1000, 99))]
        );
        assert_eq!(links(std::iter::once(("pi0", &[][..]))), [None]);
        assert!(
            links_known(names.iter().copied().zip(of.iter().map(Vec::as_slice)), 61_000).contains("60 s ago, 3 of 3")
        );
    }

    #[test]
    fn layout_past_the_knee_of_slow_links_is_warned_about() {
        let mut slow = ask(4, |place| format!("boot {place}"));
        for node in &mut slow.nodes {
            let peers = (0..4).filter(|peer| format!("pi{peer}") != node.name);
            node.measured.links = peers.map(|peer| known(peer, 20_000, 50)).collect();
        }
        let tp4: Layout = "tp4".parse().expect("a layout");
        let far = planned(slow.clone(), "llama-3.2-1b");
        assert!(far.plan.ranked[0].layout.ranks < 4, "{}", far.plan.ranked[0].layout);
        let warning = far.past_knee(tp4).expect("tp4 is past the knee");
        assert!(warning.contains("4 nodes answer slower than 1") && warning.contains("tp4: "), "{warning}");
        let near = planned(ask(4, |place| format!("boot {place}")), "llama-3.1-8b");
        assert_eq!((near.plan.ranked[0].layout, near.past_knee(tp4)), (tp4, None));
        assert_eq!(planned(slow.clone(), "llama-3.2-1b").plan, far.plan, "planning is deterministic");
        slow.nodes.iter_mut().for_each(|node| node.machine = "one".into());
        assert_eq!(planned(slow, "llama-3.2-1b").past_knee(tp4), None, "ranks on one machine share its cores");
    }

    #[test]
    fn planner_uses_no_more_memory_than_a_node_may() {
        let mut report = idle_report("pi0");
        report.health.memory = Some(MemoryUse { available: Bytes(6000), ..MemoryUse::default() });
        (report.shard, report.memory_resident) = (Bytes(1000), Bytes(1200));
        for (most, beside, alone) in [(None, 6000, 7000), (Some(6500), 6000, 6500), (Some(3000), 3000, 3000)] {
            report.memory_max = most.map(Bytes);
            let found = [true, false].map(|keeps| PlannerNode::of(0, "m", 4, &report, keeps).memory);
            assert_eq!(found, [beside, alone], "{most:?}");
        }
    }

    #[test]
    fn nodes_on_one_machine_are_recognised_by_its_name() {
        assert!(!share_a_machine(&ask(3, |place| place.to_string()).nodes));
        assert!(share_a_machine(&ask(3, |place| (place % 2).to_string()).nodes));
    }
}
