//! The cells of the measurement matrix: which layout, how long a prompt, how long an answer, how many at once. An experiment changes
//! either the ranks of a layer or the replicas, never both; prefill alone and steady decode are cells of their own. Pure.
use serde::{Deserialize, Serialize};
use shared::topology::Layout;

/// What an experiment changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Experiment {
    /// The ranks that share a layer, in one replica of one stage.
    Tp,
    /// The replicas, each with as many ranks as the others.
    Replicas,
    /// Layouts as they were named, one against the other.
    Layouts,
}

/// What a cell measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Prompts, with an answer of one token.
    Prefill,
    /// Answers, all of a cell at once.
    Decode,
}

/// One cell.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cell {
    /// What its experiment changes.
    pub experiment: Experiment,
    /// `dpR-ppS-tpN`.
    pub layout: String,
    /// What it measures.
    pub phase: Phase,
    /// Tokens of a prompt.
    pub input: u32,
    /// Tokens of an answer.
    pub output: u32,
    /// Requests at the same time.
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
    /// Its layout.
    pub fn layout(&self) -> Option<Layout> {
        self.layout.parse().ok()
    }
}

/// What a matrix is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Ranks that share a layer.
    pub tp: Vec<u16>,
    /// Replicas of `replica_ranks` ranks.
    pub replicas: Vec<u16>,
    /// Ranks of a replica of that experiment.
    pub replica_ranks: u16,
    /// Layouts of their own.
    pub layouts: Vec<Layout>,
    /// Tokens of prompts.
    pub inputs: Vec<u32>,
    /// Tokens of answers; 1 = prefill alone.
    pub outputs: Vec<u32>,
    /// Requests at the same time.
    pub concurrencies: Vec<u16>,
}

impl Plan {
    /// All cells, those of a layout together: it is assigned once.
    pub fn cells(&self) -> Vec<Cell> {
        let tp = self.tp.iter().map(|ranks| (Experiment::Tp, Layout::tensor_parallel(*ranks)));
        let replica = |replicas: &u16| Layout { replicas: *replicas, stages: 1, ranks: self.replica_ranks };
        let replicas = self.replicas.iter().map(|replicas| (Experiment::Replicas, replica(replicas)));
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

    /// Nodes that the largest layout needs.
    pub fn node_count(&self) -> usize {
        let layouts = self.layouts.iter().map(|layout| layout.node_count());
        let tp = self.tp.iter().map(|ranks| usize::from(*ranks));
        let replicas = self.replicas.iter().map(|replicas| usize::from(*replicas) * usize::from(self.replica_ranks));
        layouts.chain(tp).chain(replicas).max().unwrap_or(0)
    }
}

/// Powers of two up to so many nodes, and that number itself.
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
    fn an_experiment_changes_ranks_or_replicas_and_never_both() {
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
            let layout = cell.layout().expect("it was written by us");
            match cell.experiment {
                Experiment::Tp => assert_eq!((layout.replicas, layout.stages), (1, 1), "{cell}"),
                Experiment::Replicas => assert_eq!((layout.ranks, layout.stages), (2, 1), "{cell}"),
                Experiment::Layouts => panic!("{cell} was not asked for"),
            }
            assert_eq!(cell.phase == Phase::Prefill, cell.output == 1, "{cell}");
        }
        let mut sorted = cells.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), cells.len());
        // A layout is assigned once an experiment.
        let switches = cells.windows(2).filter(|two| two[0].layout != two[1].layout).count();
        assert_eq!(switches, 4);
    }

    #[test]
    fn degrees_are_powers_of_two_and_all_nodes() {
        assert_eq!((degrees(1), degrees(4), degrees(6)), (vec![1], vec![1, 2, 4], vec![1, 2, 4, 6]));
    }
}
