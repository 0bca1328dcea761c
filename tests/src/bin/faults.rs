//! Strikes a small cluster with random faults: kills and stops nodes, resets and blocks connections, all while the
//! cluster generates. Panics at the first hang, wrong token or error without a code: `faults --count 200 [--topology
//! tp3] [--hybrid] [--seed S]`.
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Parser;
use harness::faults::strike_all;
use topology::Layout;

/// Strike a cluster with random faults and report how its requests ended.
#[derive(Debug, Parser)]
struct Arguments {
    /// Number of faults
    #[arg(long, default_value_t = 200, value_name = "N")]
    count: usize,
    /// Topology of the cluster, with one daemon per node
    #[arg(long, default_value = "tp3")]
    topology: Layout,
    /// Generate with a model of recurrent layers instead of one of attention
    #[arg(long)]
    hybrid: bool,
    /// Seed of the nodes and the times of the faults [default: from the clock]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

fn main() {
    let arguments = Arguments::parse();
    let seed = arguments
        .seed
        .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos()).into());
    println!("{} faults on {}, seed {seed}", arguments.count, arguments.topology);
    let endings =
        strike_all(arguments.topology, arguments.hybrid, arguments.count, seed, &mut |line| println!("{line}"));
    println!("{endings}");
    println!("no hang, no wrong token; {} of {} requests returned all their tokens", endings.right(), arguments.count);
}
