//! Measures how fast a lost node is detected: `loss_time [--topology tp4] [--repeats 5] [--ranks 0,1]`. Sends kill -9
//! and SIGSTOP to each rank at a random moment of a request and times three events: the console ends with an error,
//! every other node reports the loss, and the next request after the node's return ends. Uses the default liveness
//! settings and a model of 96 thin layers.
use std::{
    process::ExitCode,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use clap::Parser;
use harness::{
    faults::{Rig, error_code},
    programs::finish,
    random::Random,
};
use nix::sys::signal::Signal;
use topology::Layout;

/// The shipped defaults, written out because the harness would otherwise set long timeouts.
const LIVENESS: &str = "heartbeat_ms = 250\nsilent_ms = 2000\n";
/// Deadline for all nodes to detect the loss.
const WANTED: Duration = Duration::from_secs(3);
/// Limit of every wait.
const PATIENCE: Duration = Duration::from_secs(60);

/// Kill and stop ranks during requests and time the recovery.
#[derive(Debug, Parser)]
struct Arguments {
    /// Topology of the cluster, with one daemon per node
    #[arg(long, default_value = "tp4")]
    topology: Layout,
    /// Losses of each rank by each signal
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    /// Ranks to lose, counted across the stages [default: all]
    #[arg(long, value_name = "R,..", value_delimiter = ',')]
    ranks: Vec<usize>,
    /// Seed of the moments [default: from the clock]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

/// Milliseconds since the signal; `again` counts from the node's return.
struct Times {
    console: u128,
    nodes: u128,
    again: u128,
    code: String,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let seed = arguments
        .seed
        .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos()).into());
    let mut random = Random::new(seed);
    let mut rig = Rig::new(arguments.topology, LIVENESS);
    let all: Vec<usize> = (0..rig.node_count()).collect();
    let ranks = if arguments.ranks.is_empty() { &all } else { &arguments.ranks };
    if let Some(rank) = ranks.iter().find(|rank| **rank >= all.len()) {
        eprintln!("{} has no rank {rank}; the last is {}", arguments.topology, all.len() - 1);
        return ExitCode::from(2);
    }
    println!(
        "{}, {} losses of each rank by each signal, seed {seed}; median and maximum in ms",
        arguments.topology, arguments.repeats
    );
    println!("{:<18} {:>15} {:>15} {:>15}  errors", "", "console's error", "all nodes", "next request");
    let mut is_in_time = true;
    for rank in ranks {
        for (signal, name) in [(Signal::SIGKILL, "kill -9"), (Signal::SIGSTOP, "SIGSTOP")] {
            let found: Vec<Times> =
                (0..arguments.repeats).map(|_| lose(&mut rig, *rank, signal, &mut random)).collect();
            let (console, slowest) = summary(&found, |times| times.console);
            let (nodes, latest) = summary(&found, |times| times.nodes);
            let (again, _) = summary(&found, |times| times.again);
            let mut codes: Vec<&str> = found.iter().map(|times| times.code.as_str()).collect();
            codes.sort_unstable();
            codes.dedup();
            let late = slowest.max(latest) > WANTED.as_millis();
            is_in_time &= !late;
            let verdict = if late { "  LATE" } else { "" };
            println!("rank {rank} {name:<11} {console:>15} {nodes:>15} {again:>15}  {}{verdict}", codes.join(", "));
        }
    }
    ExitCode::from(u8::from(!is_in_time))
}

/// Median and maximum as text, and the maximum.
fn summary(found: &[Times], of: impl Fn(&Times) -> u128) -> (String, u128) {
    let mut times: Vec<u128> = found.iter().map(of).collect();
    times.sort_unstable();
    let most = times.last().copied().unwrap_or(0);
    (format!("{} {most}", times[times.len() / 2]), most)
}

/// Loses a rank at a random moment of a request and brings it back.
///
/// # Panics
/// If a node does not detect the loss or the next request fails.
fn lose(rig: &mut Rig, rank: usize, signal: Signal, random: &mut Random) -> Times {
    let (_, refused) = rig.works(0, "2");
    assert_eq!(refused, 0, "the topology must serve before the loss");
    let child = rig.start(0, "4000", true);
    // Prefill takes part of this range, so some losses fall into a prefill.
    std::thread::sleep(Duration::from_millis(60 + random.below(800) as u64));
    rig.cluster.signal(rank, signal);
    let begun = Instant::now();
    let waiting = std::thread::spawn(move || (finish(child), begun.elapsed()));
    let others = (0..rig.node_count()).filter(|index| *index != rank);
    others.for_each(|index| assert!(knows(rig, index, begun), "pi{} does not detect the loss", index + 1));
    let nodes = begun.elapsed().as_millis();
    let (ended, console) = waiting.join().expect("the waiting thread must not panic");
    let code = error_code(&ended);
    if signal == Signal::SIGKILL {
        rig.cluster.wait(rank);
    }
    rig.mend();
    if signal == Signal::SIGSTOP && rig.node_count() > 1 {
        assert!(
            knows(rig, rank, Instant::now()),
            "pi{} does not notice that the others continued without it",
            rank + 1
        );
    }
    let back = Instant::now();
    rig.works(0, "2");
    Times { console: console.as_millis(), nodes, again: back.elapsed().as_millis(), code }
}

/// Waits until a node reports the fault that broke its topology.
fn knows(rig: &Rig, index: usize, begun: Instant) -> bool {
    while begun.elapsed() < PATIENCE {
        if rig.state(index).is_some_and(|(state, fault)| state == "faulted" && !fault.is_empty()) {
            return true;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    false
}
