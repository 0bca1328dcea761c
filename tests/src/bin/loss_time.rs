//! How long a console waits until it hears that a node was lost: `loss_time [REPEATS]`. Four daemons, default liveness,
//! a model of 96 thin layers; kill -9 and SIGSTOP of rank 2 during a generation.
use std::time::Instant;

use harness::programs::{Cluster, deep_models, finish};
use nix::sys::signal::Signal;

/// As shipped, written out because the harness would set them long.
const LIVENESS: &str = "heartbeat_ms = 250\nsilent_ms = 2000\n";

fn main() {
    let repeats: usize = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(5).max(1);
    for (signal, name) in [(Signal::SIGKILL, "kill -9"), (Signal::SIGSTOP, "SIGSTOP")] {
        let mut times: Vec<u128> = (0..repeats).map(|_| lose(signal)).collect();
        times.sort_unstable();
        println!(
            "{name}: error after {} ms (median of {repeats}), {} ms at most",
            times[repeats / 2],
            times[repeats - 1]
        );
    }
}

/// Milliseconds from the signal to the end of the console.
fn lose(signal: Signal) -> u128 {
    let models = deep_models();
    let cluster = Cluster::with(4, models.path(), LIVENESS);
    let child = cluster.start_generation("4000");
    cluster.signal(2, signal);
    let begun = Instant::now();
    let ended = finish(child);
    let time = begun.elapsed().as_millis();
    ended.assert_error(5, "node_lost", &["pi3"]);
    time
}
