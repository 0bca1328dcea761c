//! Random incidents on one of two replicas while clients stream: `incidents --sequences 30 [--seed S]`.
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Parser, builder::RangedU64ValueParser};
use harness::incidents::{change_layout, strike};

/// Exclude, include, kill and restart nodes of one of two replicas, and report the effect on streams.
#[derive(Debug, Parser)]
struct Arguments {
    /// Sequences of 5 to 10 actions
    #[arg(long, default_value_t = 30, value_name = "N")]
    sequences: usize,
    /// Change the layout of a single replica N times instead, and report how long streams pause
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    changes: Option<usize>,
    /// Seed of the actions and of the nodes that they strike [default: from the clock]
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
    let seed = arguments
        .seed
        .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos()).into());
    println!("{} sequences, seed {seed}", arguments.sequences);
    let mut found = strike(arguments.sequences, seed, &mut |line| println!("{line}"));
    found.back.sort_unstable();
    let back = |share: usize| found.back.get(found.back.len() * share / 100).map_or(0.0, |time| time.as_secs_f64());
    println!(
        "{} streams, all with the expected text; {} resumed; longest pause on the untouched replica {:.2} s, of all {:.2} s; \
         the requested layout was back after {:.1} s (median), {:.1} s (p99)",
        found.streams,
        found.resumed,
        found.gap_beside.as_secs_f64(),
        found.gap.as_secs_f64(),
        back(50),
        back(99)
    );
}
