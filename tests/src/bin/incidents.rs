//! Random incidents on one of two replicas while clients stream: `incidents --sequences 30 [--seed S]`.
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Parser;
use harness::incidents::{change_layout, strike};

/// Takes nodes of one of two replicas out and in, kills and restarts them, and says what streams noticed.
#[derive(Debug, Parser)]
struct Arguments {
    /// Sequences of 5 to 10 actions
    #[arg(long, default_value_t = 30, value_name = "N")]
    sequences: usize,
    /// Change the layout of one replica so often instead, and say how long streams pause
    #[arg(long, value_name = "N")]
    changes: Option<usize>,
    /// The same seed does the same to the same nodes [default: from the clock]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

fn main() {
    let arguments = Arguments::parse();
    if let Some(count) = arguments.changes {
        let mut pauses = change_layout(count, &mut |line| println!("{line}"));
        pauses.sort_unstable();
        let of = |share: usize| pauses[(pauses.len() - 1) * share / 100].as_millis();
        println!("{} changes; pauses of streams in ms: p50 {}, p90 {}, p99 {}", pauses.len(), of(50), of(90), of(99));
        return;
    }
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
    let seed = arguments.seed.unwrap_or_else(|| now().into());
    println!("{} sequences, seed {seed}", arguments.sequences);
    let mut found = strike(arguments.sequences, seed, &mut |line| println!("{line}"));
    found.back.sort_unstable();
    let back = |share: usize| found.back.get(found.back.len() * share / 100).map_or(0.0, |time| time.as_secs_f64());
    println!(
        "{} streams, all with the right text; {} went on elsewhere; longest pause beside the incidents {:.2} s, of all {:.2} s; \
         what was asked for was back after {:.1} s (median), {:.1} s at most",
        found.streams,
        found.resumed,
        found.gap_beside.as_secs_f64(),
        found.gap.as_secs_f64(),
        back(50),
        back(99)
    );
}
