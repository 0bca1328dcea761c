//! All-reduces in virtual time: the schedules that the daemons execute, as actions of nodes, and the choice of the
//! fastest algorithm.
use collectives::{Algorithm, Choice, Combine, Step, payload_bytes, schedule};
use common::limits::FRAME_HEADER_BYTES;
use common::{ids::Rank, precision::Exchange};

use super::{
    Noise,
    network::{Action, Network, NodeSpeed, Stuck},
    profile::{Machine, NodeProfile},
};

/// A tensor to sum, and its format on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tensor {
    /// Tokens of the step.
    pub tokens: u32,
    /// Columns: the embedding's length.
    pub columns: usize,
    /// Format on the wire.
    pub exchange: Exchange,
}

impl Tensor {
    fn message(self, columns: usize) -> u64 {
        (FRAME_HEADER_BYTES + payload_bytes(self.exchange, self.tokens as usize, columns)) as u64
    }
}

/// The actions of `rank` of `world`, whose nodes are numbered from `first`. A part is rounded once for all its
/// receivers.
pub fn actions(
    algorithm: Algorithm,
    rank: usize,
    world: usize,
    first: usize,
    tensor: Tensor,
    profile: &NodeProfile,
) -> Vec<Action> {
    let ns = |columns: usize| profile.exchange_ns(columns * tensor.tokens as usize);
    let mut actions = Vec::new();
    let mut rounded = None;
    let mut stores: Option<(u64, u64)> = None;
    for step in schedule(algorithm, Rank(rank as u16), world, tensor.columns) {
        let store = match &step {
            Step::Receive { from, how: Combine::Store, columns } => Some((from.0 << first, ns(columns.len()))),
            _ => None,
        };
        // Consecutive stores are read in order of arrival.
        match (stores, store) {
            (Some((from, work_ns)), Some((more, more_ns))) if from & more == 0 => {
                stores = Some((from | more, work_ns.max(more_ns)));
                continue;
            }
            (before, next) => {
                actions.extend(before.map(|(from, work_ns)| store_all(from, work_ns)));
                stores = next;
            }
        }
        match step {
            Step::Send { to, columns, what } => {
                let part = Some((what, columns.clone()));
                let work_ns = if rounded == part { 0 } else { ns(columns.len()) };
                let to = (first + to.index()) as u16;
                actions.push(Action::Send { to, bytes: tensor.message(columns.len()), work_ns });
                rounded = part;
            }
            Step::Receive { from, how: Combine::Sum, columns } => {
                rounded = None;
                let work_ns = ns(columns.len());
                actions.push(Action::Receive { from: from.0 << first, work_ns, is_sum: true });
            }
            Step::Receive { .. } => {}
            Step::Finish { columns } => {
                actions.push(Action::Compute(ns(columns.len())));
                rounded = Some((collectives::Sent::Result, columns));
            }
        }
    }
    actions.extend(stores.map(|(from, work_ns)| store_all(from, work_ns)));
    actions
}

fn store_all(from: u64, work_ns: u64) -> Action {
    Action::Receive { from, work_ns, is_sum: false }
}

/// Nanoseconds of an all-reduce that all ranks enter at the same time.
///
/// # Errors
/// The schedule is inconsistent: a rank waits for a message that no rank sends.
pub fn time(algorithm: Algorithm, machines: &[Machine], tensor: Tensor) -> Result<u64, Stuck> {
    let speeds: Vec<NodeSpeed> = machines.iter().map(Machine::speed).collect();
    let world = machines.len();
    let ranks: Vec<Vec<Action>> = machines
        .iter()
        .enumerate()
        .map(|(rank, machine)| actions(algorithm, rank, world, 0, tensor, &machine.profile))
        .collect();
    let mut network = Network::new(&speeds, &Noise::None, 0);
    network.run(&ranks, &mut ())?;
    Ok(network.latest())
}

/// The algorithm of a stage for a tensor: the requested one, or the fastest of those that `auto` tries.
///
/// # Errors
/// A schedule is inconsistent.
pub fn choose(choice: Choice, machines: &[Machine], tensor: Tensor) -> Result<Algorithm, Stuck> {
    let Choice::Auto = choice else {
        let Choice::Forced(algorithm) = choice else { return Ok(Algorithm::Direct) };
        return Ok(algorithm);
    };
    let mut best = (u64::MAX, Algorithm::Direct);
    for algorithm in Algorithm::candidates() {
        let time = time(algorithm, machines, tensor)?;
        if time < best.0 {
            best = (time, algorithm);
        }
    }
    Ok(best.1)
}

#[cfg(test)]
mod tests {
    use super::{super::Link, *};

    const LINK: Link = Link { alpha_ns: 60_000, bits_per_second: 1_000_000_000, packets: None };

    fn machines(profile: NodeProfile, count: usize) -> Vec<Machine> {
        vec![Machine { profile, link: LINK }; count]
    }

    /// A node whose core costs nothing, as the formulas assume.
    fn ideal() -> NodeProfile {
        NodeProfile { exchange_values_per_second: f64::INFINITY, message_ns: [0, 0], ..NodeProfile::pi5() }
    }

    /// Nanoseconds by the formula, including the header of each message; m is the whole vector, a = 60 us, B = 1 Gb/s.
    fn formula(algorithm: Algorithm, world: usize, tensor: Tensor) -> f64 {
        let n = world as f64;
        let (a, wire) = (60_000.0, |bytes: f64| (bytes + FRAME_HEADER_BYTES as f64) * 8.0);
        let m = payload_bytes(tensor.exchange, tensor.tokens as usize, tensor.columns) as f64;
        match algorithm {
            Algorithm::Star => 2.0 * a + 2.0 * (n - 1.0) * wire(m),
            Algorithm::Direct => a + (n - 1.0) * wire(m),
            Algorithm::ReduceScatter => 2.0 * a + 2.0 * (n - 1.0) * wire(m / n),
            Algorithm::Ring => 2.0 * (n - 1.0) * (a + wire(m / n)),
            Algorithm::Doubling => n.log2() * (a + wire(m)),
            Algorithm::TwoLevel => {
                let groups = (world as f64).sqrt().floor();
                // With groups of different sizes the larger one determines the time.
                2.0 * a + ((n / groups).ceil() + groups - 2.0) * wire(m)
            }
        }
    }

    #[test]
    fn every_algorithm_matches_its_formula_within_5_percent() {
        for (columns, exchange, tokens) in [
            (2048, Exchange::Q80, 1),
            (4096, Exchange::Q80, 1),
            (4096, Exchange::F32, 1),
            (8192, Exchange::Q80, 1),
            (4096, Exchange::Q80, 128),
        ] {
            let tensor = Tensor { tokens, columns, exchange };
            for (world, algorithm) in [2, 4, 8, 16].into_iter().flat_map(|n| Algorithm::ALL.map(|each| (n, each))) {
                // Two or three ranks form one group: the direct exchange.
                let of = if algorithm == Algorithm::TwoLevel && world < 4 { Algorithm::Direct } else { algorithm };
                let expected = formula(of, world, tensor);
                let found = time(algorithm, &machines(ideal(), world), tensor).expect("it fits together") as f64;
                assert!((found / expected - 1.0).abs() < 0.05, "{algorithm} {world} {tensor:?}: {found} {expected}");
            }
        }
    }

    #[test]
    fn every_algorithm_ends_for_every_number_of_ranks() {
        let tensor = Tensor { tokens: 3, columns: 96, exchange: Exchange::F16 };
        for (world, algorithm) in (1..=13).flat_map(|n| Algorithm::ALL.map(|each| (n, each))) {
            time(algorithm, &machines(NodeProfile::pi4(), world), tensor).expect("it fits together");
        }
        for action in actions(Algorithm::TwoLevel, 2, 5, 10, tensor, &ideal()) {
            match action {
                Action::Send { to, .. } => assert!((10..15).contains(&to)),
                Action::Receive { from, .. } => assert_eq!(from & !(0b11111 << 10), 0),
                _ => {}
            }
        }
    }

    #[test]
    fn auto_picks_direct_for_a_token_and_reduce_scatter_for_prompts() {
        let chosen = |world, tokens| {
            let tensor = Tensor { tokens, columns: 4096, exchange: Exchange::Q80 };
            choose(Choice::Auto, &machines(NodeProfile::pi5(), world), tensor).expect("it fits together")
        };
        assert_eq!((chosen(2, 1), chosen(4, 128), chosen(8, 128)), {
            (Algorithm::Direct, Algorithm::ReduceScatter, Algorithm::ReduceScatter)
        });
        let forced = choose(
            Choice::Forced(Algorithm::Ring),
            &machines(NodeProfile::pi5(), 1),
            Tensor { tokens: 1, columns: 32, exchange: Exchange::F32 },
        );
        assert_eq!(forced, Ok(Algorithm::Ring));
    }
}
