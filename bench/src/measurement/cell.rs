//! The cells of the measurement matrix: layout, prompt length, output length and concurrency. An experiment varies
//! either the tensor-parallel ranks or the replicas, never both. Prefill and steady decode are separate cells. Pure.
use serde::{Deserialize, Serialize};
use topology::Layout;

/// The quantity that an experiment varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Experiment {
    /// Tensor-parallel ranks, with one replica and one stage.
    Tp,
    /// Replicas, each with the same number of ranks.
    Replicas,
    /// The given layouts, compared with each other.
    Layouts,
}

/// The phase that a cell measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Prefill: prompts with one output token.
    Prefill,
    /// Decode, with all requests of a cell in flight.
    Decode,
}

/// A cell.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cell {
    /// Its experiment.
    pub experiment: Experiment,
    /// `dpR-ppS-tpN`.
    pub layout: String,
    /// The phase that it measures.
    pub phase: Phase,
    /// Prompt length in tokens.
    pub input: u32,
    /// Output length in tokens.
    pub output: u32,
    /// Concurrent requests.
    pub concurrency: u16,
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let phase = match self.phase {
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
        };
        write!(f, "{} {phase} in {} out {} x{}", self.layout, self.input, self.output, self.concurrency)
    }
}

impl Cell {
    /// Its parsed layout; `None` if the text is not valid.
    pub fn layout(&self) -> Option<Layout> {
        self.layout.parse().ok()
    }
}

/// The dimensions of a matrix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Tensor-parallel ranks of the first experiment.
    pub tp: Vec<u16>,
    /// Replicas of the second experiment, each of `replica_ranks` ranks.
    pub replicas: Vec<u16>,
    /// Ranks of each replica in the second experiment.
    pub replica_ranks: u16,
    /// Layouts of the third experiment.
    pub layouts: Vec<Layout>,
    /// Prompt lengths in tokens.
    pub inputs: Vec<u32>,
    /// Output lengths in tokens; 1 = prefill only.
    pub outputs: Vec<u32>,
    /// Concurrent requests.
    pub concurrencies: Vec<u16>,
}

impl Plan {
    /// All cells. Those of a layout are consecutive, so that it is assigned once.
    pub fn cells(&self) -> Vec<Cell> {
        let tp = self.tp.iter().map(|ranks| (Experiment::Tp, Layout::tensor_parallel(*ranks)));
        let replicas = self.replicas.iter();
        let replicas = replicas.map(|count| (Experiment::Replicas, Layout::alike(*count, 1, self.replica_ranks)));
        let layouts = self.layouts.iter().map(|layout| (Experiment::Layouts, *layout));
        let mut cells = Vec::new();
        for (experiment, layout) in tp.chain(replicas).chain(layouts) {
            for output in &self.outputs {
                let phase = if *output == 1 { Phase::Prefill } else { Phase::Decode };
                for input in &self.inputs {
                    for concurrency in &self.concurrencies {
                        let (layout, input, output) = (layout.to_string(), *input, *output);
                        cells.push(Cell { experiment, layout, phase, input, output, concurrency: *concurrency });
                    }
                }
            }
        }
        cells
    }

    /// Number of nodes of the largest layout.
    pub fn node_count(&self) -> usize {
        let layouts = self.layouts.iter().map(|layout| layout.node_count());
        let tp = self.tp.iter().map(|ranks| usize::from(*ranks));
        let replicas = self.replicas.iter().map(|replicas| usize::from(*replicas) * usize::from(self.replica_ranks));
        layouts.chain(tp).chain(replicas).max().unwrap_or(0)
    }
}

/// Powers of two below `nodes`, then `nodes` itself.
pub fn degrees(nodes: usize) -> Vec<u16> {
    let most = u16::try_from(nodes).unwrap_or(u16::MAX);
    let mut degrees: Vec<u16> = (0..16).map(|power| 1 << power).take_while(|degree| *degree < most).collect();
    degrees.push(most);
    degrees
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experiment_varies_ranks_or_replicas_but_not_both() {
        let plan = Plan {
            tp: vec![1, 2, 4],
            replicas: vec![1, 2],
            replica_ranks: 2,
            layouts: Vec::new(),
            inputs: vec![256, 1024],
            outputs: vec![1, 128],
            concurrencies: vec![1, 4],
        };
        let cells = plan.cells();
        assert_eq!((cells.len(), plan.node_count()), ((3 + 2) * 2 * 2 * 2, 4));
        for cell in &cells {
            let layout = cell.layout().expect("the plan creates valid layouts");
            match cell.experiment {
                Experiment::Tp => assert_eq!((layout.replicas, layout.stages), (1, 1), "{cell}"),
                Experiment::Replicas => assert_eq!((layout.ranks, layout.stages), (2, 1), "{cell}"),
                Experiment::Layouts => panic!("{cell} is not in the plan"),
            }
            assert_eq!(cell.phase == Phase::Prefill, cell.output == 1, "{cell}");
        }
        let mut sorted = cells.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), cells.len());
        // A layout is assigned once per experiment.
        let switches = cells.windows(2).filter(|two| two[0].layout != two[1].layout).count();
        assert_eq!(switches, 4);
    }

    #[test]
    fn degrees_are_powers_of_two_and_all_nodes() {
        assert_eq!((degrees(1), degrees(4), degrees(6)), (vec![1], vec![1, 2, 4], vec![1, 2, 4, 6]));
    }
}
