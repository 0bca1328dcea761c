//! Whether a model of the catalogue fits some nodes, and how fast the planner expects it to be there. Pure.
use planner::search::Goal;
use serde::{Deserialize, Serialize};
use telemetry::Measured;
use topology::{
    Layout,
    sizes::{ModelSizes, Quantisation},
};

use super::planner_query::{PlannerAnswer, PlannerNode, PlannerQuery, share_a_machine};
use crate::catalogue::{CatalogueEntry, CatalogueFile};
use assignment::desired::TopologyRequest;

/// Concurrent sequences that the prediction assumes: one user.
const SLOTS: u16 = 1;

/// How a model would run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Fit {
    /// In this layout, which the planner ranks first.
    As {
        /// The layout.
        layout: Layout,
        /// Predicted tokens per second of one answer; `None` where nodes share a machine.
        tokens_per_second: Option<f64>,
        /// Bytes of memory on the node that holds most.
        bytes: u64,
    },
    /// No layout fits into the nodes' memory.
    TooLarge,
    /// The planner has no shape of the model, or there are no nodes.
    Unknown,
}

impl Fit {
    /// `tp4, about 9 tok/s, 2.1 GiB a node`.
    pub fn text(&self) -> String {
        match self {
            Self::As { layout, tokens_per_second, bytes } => {
                let rate = tokens_per_second.map_or_else(String::new, |rate| format!("about {} tok/s, ", rough(rate)));
                format!("{layout}, {rate}{:.1} GiB a node", *bytes as f64 / (1_u64 << 30) as f64)
            }
            Self::TooLarge => "too large".to_owned(),
            Self::Unknown => "–".to_owned(),
        }
    }
}

/// A prediction with no more digits than it deserves.
fn rough(rate: f64) -> String {
    if rate < 9.95 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

/// Plans a file of the catalogue on these nodes. Slow with many nodes.
pub fn fit(entry: &CatalogueEntry, file: &CatalogueFile, nodes: &[PlannerNode], goal: Goal) -> Fit {
    let mix: Result<Quantisation, String> = file.mix().parse();
    let sizes = entry.shape.zip(mix.ok()).and_then(|(shape, mix)| ModelSizes::known(shape, mix).ok());
    let Some(sizes) = sizes.filter(|_| !nodes.is_empty()) else { return Fit::Unknown };
    let wanted = TopologyRequest { goal, ..TopologyRequest::open(file.file_name(), SLOTS) }.wanted(nodes.len());
    let query = PlannerQuery {
        model: file.file_name().to_owned(),
        nodes: nodes.to_vec(),
        goal,
        context: None,
        slots: SLOTS,
        kv: wanted.kv,
        exchange: wanted.exchange,
        choice: wanted.collective,
        now_unix_ms: 0,
    };
    let shares = share_a_machine(nodes);
    let answer = PlannerAnswer::new(query, sizes);
    match answer.plan.ranked.first() {
        Some(best) => Fit::As {
            layout: best.layout,
            tokens_per_second: (!shares && best.prediction.tpot.0 > 0).then(|| 1e9 / best.prediction.tpot.0 as f64),
            bytes: best.memory_max().0,
        },
        None => Fit::TooLarge,
    }
}

/// `count` Raspberry Pi 5 with `memory` free bytes each.
pub fn hypothetical(count: usize, memory: u64) -> Vec<PlannerNode> {
    let nodes = (0..count).map(|place| {
        let name = format!("pi5-{}", place + 1);
        let (machine, kernels) = (name.clone(), "neon-dotprod".to_owned());
        PlannerNode { place, name, machine, cores: 4, kernels, memory, measured: Measured::default() }
    });
    nodes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{Resolved, resolve};

    fn on(name: &str, count: usize, gib: u64) -> Fit {
        let Resolved::One(entry, file) = resolve(name) else { panic!("{name} is in the catalogue") };
        fit(entry, file, &hypothetical(count, gib << 30), Goal::Balanced)
    }

    #[test]
    fn fit_names_layout_speed_and_memory() {
        let text = on("llama-3.2-1b", 2, 3).text();
        assert!(text.starts_with("tp2, about 2") && text.ends_with(" GiB a node"), "{text}");
        assert_eq!(on("llama-3.3-70b", 2, 3), Fit::TooLarge);
        assert_eq!(on("lfm2-8b-a1b", 2, 7), Fit::Unknown, "the planner has no shape of it");
        assert_eq!(on("llama-3.2-1b", 0, 3), Fit::Unknown);
        assert_eq!([Fit::TooLarge.text(), Fit::Unknown.text()], ["too large", "–"]);
    }

    #[test]
    fn nodes_on_one_machine_get_no_speed() {
        let mut nodes = hypothetical(2, 3 << 30);
        nodes[1].machine = nodes[0].machine.clone();
        let Resolved::One(entry, file) = resolve("llama-3.2-1b") else { panic!("it is in the catalogue") };
        let Fit::As { tokens_per_second, .. } = fit(entry, file, &nodes, Goal::Balanced) else { panic!("it fits") };
        assert_eq!(tokens_per_second, None);
    }
}
