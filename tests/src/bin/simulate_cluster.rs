//! Simulates clusters under faults and prints the first history that violates an invariant: `simulate_cluster
//! --histories 2000 [--seed N]`, `--power-loss 200`, or `--votes` for kills at every message of votes among 3 to 5
//! members.
use std::{process::ExitCode, time::Duration};

use clap::Parser;
use harness::simulation::{History, run_vote, vote_scripts};

/// Simulate clusters under faults and report violated invariants.
#[derive(Debug, Parser)]
struct Arguments {
    /// Histories with at least 20 faults and 50 requests each
    #[arg(long, default_value_t = 0)]
    histories: u64,
    /// Histories in which all machines lose power
    #[arg(long, default_value_t = 0)]
    power_loss: u64,
    /// Kill the proposer and voters at each message of two votes
    #[arg(long)]
    votes: bool,
    /// First seed
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print every step of the history with the first seed
    #[arg(long)]
    tell: bool,
}

/// Totals of a run.
#[derive(Debug, Default)]
struct Sums {
    count: u64,
    faults: usize,
    whole: usize,
    errors: usize,
    decisions: u32,
    violations: u64,
    slowest: Duration,
}

fn run(histories: impl Iterator<Item = History>, is_told: bool) -> Sums {
    let mut sums = Sums::default();
    for history in histories {
        let outcome = history.run(is_told);
        if is_told {
            println!("{}", outcome.story.join("\n"));
        }
        sums.count += 1;
        sums.faults += history.faults.len();
        sums.whole += outcome.whole;
        sums.errors += outcome.errors;
        sums.decisions += outcome.decisions;
        sums.slowest = sums.slowest.max(outcome.recovery);
        if outcome.violation.is_some() {
            sums.violations += 1;
            if sums.violations <= 3 {
                println!("{}\n", history.tell());
            }
        }
    }
    sums
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let seeds = |count: u64| arguments.seed..arguments.seed + count;
    let mut violations = 0;
    for (what, sums) in [
        ("histories", run(seeds(arguments.histories).map(History::draw), arguments.tell)),
        ("losses of power", run(seeds(arguments.power_loss).map(History::draw_power_loss), arguments.tell)),
    ] {
        if sums.count > 0 {
            println!(
                "{} {what}: {} violations; {} faults, {} requests complete, {} failed, {} votes decided, slowest recovery {:.1} s",
                sums.count,
                sums.violations,
                sums.faults,
                sums.whole,
                sums.errors,
                sums.decisions,
                sums.slowest.as_secs_f64()
            );
        }
        violations += sums.violations;
    }
    if arguments.votes {
        for members in 3..=5 {
            let (away, scripts) = vote_scripts(members, members);
            let mut decisions = 0;
            for (index, turns) in scripts.iter().enumerate() {
                let seed = arguments.seed + index as u64;
                let outcome = run_vote(members, &away, turns, seed, false);
                decisions += outcome.decisions;
                if let Some(what) = outcome.violation {
                    violations += 1;
                    println!("{members} members, seed {seed}, {turns:?}: {what}");
                }
            }
            println!("{} votes of {members} members with two kills each: {decisions} decisions", scripts.len());
        }
    }
    if violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
