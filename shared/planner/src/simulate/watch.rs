//! Very many tokens of a simulated replica, and the stragglers that the rule names in them.
use common::units::Nanoseconds;
use telemetry::{LatenessSums, SyncRecord, WINDOW_STEPS, straggler};

use super::{
    network::{Network, Observer},
    replica::{Replica, SimulateError},
    run::{Request, token},
};

/// The stragglers that the rule named.
#[derive(Clone, Debug, PartialEq)]
pub struct Watched {
    /// Number of windows that named each rank.
    pub named: Vec<u64>,
    /// Number of windows.
    pub windows: u64,
    /// The highest share of its peers' time that any rank cost in a window.
    pub latest_share: f64,
    /// Mean time per token.
    pub tpot: Nanoseconds,
}

struct Sums(LatenessSums);

impl Observer for Sums {
    fn sync(&mut self, node: usize, record: &SyncRecord) {
        self.0.add(node, record);
    }
}

/// Decodes `request.tokens` tokens at the context of `request.prompt` and applies the rule after each window.
///
/// # Errors
/// Inconsistent schedules.
pub fn watch(replica: &Replica<'_>, request: &Request) -> Result<Watched, SimulateError> {
    let actions = token(replica, request.prompt)?;
    let mut network = Network::new(&replica.speeds(), &request.noise, request.seed);
    let mut sums = Sums(LatenessSums::new(0, replica.ranks()));
    let mut watched = Watched { named: vec![0; replica.ranks()], windows: 0, latest_share: 0.0, tpot: Nanoseconds(0) };
    for token in 1..=request.tokens {
        network.run(&actions, &mut sums).map_err(SimulateError::Stuck)?;
        if token % WINDOW_STEPS != 0 {
            continue;
        }
        let shares = sums.0.shares();
        watched.latest_share = shares.iter().copied().fold(watched.latest_share, f64::max);
        watched.windows += 1;
        if let Some(rank) = straggler(&shares) {
            watched.named[rank] += 1;
        }
        sums.0.clear();
    }
    watched.tpot = Nanoseconds(network.clock(0) / u64::from(request.tokens.max(1)));
    Ok(watched)
}
