//! Simulates clusters under faults and prints histories that violate an invariant: `simulate_cluster --histories 2000
//! [--seed N] [--jobs N]`, `--power-loss 200`, or `--votes` for kills at every message of votes among 3 to 5 members.
//! Prints how often each kind of fault met each state of the cluster.
use std::{
    num::NonZero,
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use harness::simulation::{Coverage, History, run_vote, vote_scripts};
#[cfg(any(debug_assertions, feature = "planted"))]
use {
    common::planted::Planted,
    harness::simulation::planted::{find, of_day},
    std::time::{SystemTime, UNIX_EPOCH},
};

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
    /// Number of threads; all cores without it
    #[arg(long)]
    jobs: Option<usize>,
    /// Print every step of the history with the first seed
    #[arg(long)]
    tell: bool,
    /// Number of failing histories to shrink and to tell
    #[arg(long, default_value_t = 3)]
    shrink: usize,
    /// Plant bugs and find each: `all`, `today` (five, different ones each day), or a name
    #[arg(long)]
    planted: Option<String>,
    /// Most histories to find a planted bug
    #[arg(long, default_value_t = 2000)]
    most: u64,
    /// Fail if a kind of fault and a state of the cluster never met
    #[arg(long)]
    covered: bool,
}

/// Totals of a run.
#[derive(Debug, Default)]
struct Sums {
    count: u64,
    faults: usize,
    whole: usize,
    errors: usize,
    decisions: u32,
    left: usize,
    failed: Vec<u64>,
    slowest: Duration,
    coverage: Coverage,
}

impl Sums {
    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.faults += other.faults;
        self.whole += other.whole;
        self.errors += other.errors;
        self.decisions += other.decisions;
        self.left += other.left;
        self.failed.extend(other.failed);
        self.slowest = self.slowest.max(other.slowest);
        self.coverage.add(&other.coverage);
    }
}

/// A way to draw a history from a seed.
type Draw = fn(u64) -> History;

/// Runs histories until there are no more seeds.
fn work(seeds: &AtomicU64, end: u64, draw: Draw) -> Sums {
    let mut sums = Sums::default();
    loop {
        let seed = seeds.fetch_add(1, Ordering::Relaxed);
        if seed >= end {
            return sums;
        }
        let history = draw(seed);
        let outcome = history.run(false);
        let failed = outcome.violation.iter().map(|_| seed).collect();
        if let Some(what) = &outcome.violation {
            println!("seed {seed}, {}: {what}", history.scene.0);
        }
        sums.add(Sums {
            count: 1,
            faults: history.faults.len(),
            whole: outcome.whole,
            errors: outcome.errors,
            decisions: outcome.decisions,
            left: usize::from(outcome.is_left),
            failed,
            slowest: outcome.recovery,
            coverage: outcome.coverage,
        });
    }
}

fn jobs(arguments: &Arguments) -> usize {
    arguments.jobs.unwrap_or_else(|| thread::available_parallelism().map_or(1, NonZero::get))
}

fn run(arguments: &Arguments, count: u64, draw: Draw) -> Sums {
    let jobs = jobs(arguments);
    let (seeds, end) = (AtomicU64::new(arguments.seed), arguments.seed + count);
    let mut sums = Sums::default();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(|| work(&seeds, end, draw))).collect();
        for worker in workers {
            sums.add(worker.join().expect("a worker does not panic"));
        }
    });
    sums.failed.sort_unstable();
    sums.failed.iter().take(arguments.shrink).for_each(|seed| println!("{}\n", draw(*seed).tell()));
    sums
}

fn report(what: &str, sums: &Sums, began: Instant) {
    println!(
        "{} {what} in {:.0} s: {} violations; {} faults, {} requests complete, {} failed, {} votes decided, slowest \
         recovery {:.1} s, {} left to an operator",
        sums.count,
        began.elapsed().as_secs_f64(),
        sums.failed.len(),
        sums.faults,
        sums.whole,
        sums.errors,
        sums.decisions,
        sums.slowest.as_secs_f64(),
        sums.left
    );
    if !sums.failed.is_empty() {
        println!("failing seeds: {:?}", sums.failed);
    }
}

/// Runs all scripts of votes; returns the number of violations.
fn run_votes(first: u64) -> usize {
    let mut violations = 0;
    for members in 3..=5 {
        let (away, scripts) = vote_scripts(members, members);
        let mut decisions = 0;
        for (index, turns) in scripts.iter().enumerate() {
            let seed = first + index as u64;
            let outcome = run_vote(members, &away, turns, seed, false);
            decisions += outcome.decisions;
            if let Some(what) = outcome.violation {
                violations += 1;
                println!("{members} members, seed {seed}, {turns:?}: {what}");
            }
        }
        println!("{} votes of {members} members with two kills each: {decisions} decisions", scripts.len());
    }
    violations
}

/// The planted bugs of a choice.
#[cfg(any(debug_assertions, feature = "planted"))]
fn chosen(choice: &str) -> Vec<Planted> {
    match choice {
        "all" => Planted::ALL.to_vec(),
        "today" => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            of_day(now.as_secs() / 86_400)
        }
        name => Planted::ALL.into_iter().filter(|bug| format!("{bug:?}") == name).collect(),
    }
}

/// Finds planted bugs; returns the number of those that are not found.
#[cfg(any(debug_assertions, feature = "planted"))]
fn run_planted(arguments: &Arguments, choice: &str) -> usize {
    let bugs = chosen(choice);
    if bugs.is_empty() {
        println!("{choice} is not a planted bug: give all, today or a name from docs/planted-faults.md");
        return 1;
    }
    let (jobs, next, missed) = (jobs(arguments), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(bug) = bugs.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    match find(*bug, arguments.seed, arguments.most) {
                        Some(found) => println!("{bug:?} | {} | {}", found.histories, found.what),
                        None => {
                            missed.fetch_add(1, Ordering::Relaxed);
                            println!("{bug:?} | NOT FOUND in {}", arguments.most);
                        }
                    }
                }
            });
        }
    });
    println!("{} of {} planted bugs found", bugs.len() - missed.load(Ordering::Relaxed) as usize, bugs.len());
    missed.into_inner() as usize
}

/// Builds without them have no planted bugs.
#[cfg(not(any(debug_assertions, feature = "planted")))]
fn run_planted(_: &Arguments, _: &str) -> usize {
    println!("this build has no planted bugs: build it with --features planted");
    1
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.tell {
        println!("{}", History::draw(arguments.seed).run(true).story.join("\n"));
    }
    let mut violations = 0;
    if arguments.histories > 0 {
        let began = Instant::now();
        let sums = run(&arguments, arguments.histories, History::draw);
        println!("{}", sums.coverage);
        report("histories", &sums, began);
        let missing = sums.coverage.missing();
        println!("{} pairs of fault and state did not meet: {:?}", missing.len(), &missing[..missing.len().min(30)]);
        violations += sums.failed.len() + if arguments.covered { missing.len() } else { 0 };
    }
    if arguments.power_loss > 0 {
        let began = Instant::now();
        let sums = run(&arguments, arguments.power_loss, History::draw_power_loss);
        report("losses of power", &sums, began);
        violations += sums.failed.len();
    }
    if let Some(choice) = &arguments.planted {
        violations += run_planted(&arguments, choice);
    }
    if arguments.votes {
        violations += run_votes(arguments.seed);
    }
    if violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
