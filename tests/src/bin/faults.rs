//! Random faults in a row on a small cluster: nodes are killed and stopped, connections reset and held back while they generate. Ends with
//! a panic at the first hang, wrong token or error without a code: `faults --count 200 [--topology tp3] [--seed S]`.
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Parser;
use harness::faults::strike_all;
use shared::topology::Layout;

/// Strikes a cluster with random faults and says how its requests ended.
#[derive(Debug, Parser)]
struct Arguments {
    /// Faults
    #[arg(long, default_value_t = 200, value_name = "N")]
    count: usize,
    /// Of the cluster, one daemon a node
    #[arg(long, default_value = "tp3")]
    topology: Layout,
    /// The same seed strikes the same nodes after the same times [default: from the clock]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

fn main() {
    let arguments = Arguments::parse();
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
    let seed = arguments.seed.unwrap_or_else(|| now().into());
    println!("{} faults on {}, seed {seed}", arguments.count, arguments.topology);
    let endings = strike_all(arguments.topology, arguments.count, seed, &mut |line| println!("{line}"));
    println!("{endings}");
    println!(
        "no hang, no wrong token; {} of {} requests ended with all their tokens",
        endings.right(),
        arguments.count
    );
}
