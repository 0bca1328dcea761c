//! Answers with a draft model on a simulated replica: for each number of proposals, the time of the steps that it takes
//! and the tokens that they are expected to yield.
use common::{latency::ratio, units::Nanoseconds};

use super::{
    jitter::Noise,
    network::{Network, Observer},
    replica::{Replica, SimulateError, Step},
};

/// Most proposals that are tried.
const PROPOSED_MAX: u32 = 12;

/// The best number of proposals, and its times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drafted {
    /// Proposals before each step; 0 if none pay.
    pub proposed: u32,
    /// Tokens that a step is expected to yield.
    pub tokens_per_step: f64,
    /// Time of a step of the target model with one row, and of a draft step.
    pub steps: [Nanoseconds; 2],
    /// Mean time of each token.
    pub tpot: Nanoseconds,
}

impl Drafted {
    /// Tokens per second relative to those without a draft model.
    pub fn gain(&self) -> f64 {
        ratio(self.steps[0].0 as f64, self.tpot.0 as f64)
    }
}

/// The end of a step at the head.
#[derive(Default)]
struct Ends(u64);

impl Observer for Ends {
    fn mark(&mut self, _node: usize, _mark: u32, at: u64) {
        self.0 = at;
    }
}

/// Time of a step on an idle replica.
fn time_of(replica: &Replica<'_>, step: Step) -> Result<u64, SimulateError> {
    let mut network = Network::new(&replica.speeds(), &Noise::None, 0);
    let mut actions = vec![Vec::new(); replica.ranks()];
    replica.step(step, &mut actions)?;
    replica.land(0, &mut actions[0]);
    let mut ends = Ends::default();
    network.run(&actions, &mut ends).map_err(SimulateError::Stuck)?;
    Ok(ends.0)
}

/// An answer at a context with a draft model of which a share of the tokens is accepted, on the same nodes.
///
/// # Errors
/// Inconsistent schedules.
pub fn drafted(
    target: &Replica<'_>,
    draft: &Replica<'_>,
    context: u32,
    agreement: f64,
) -> Result<Drafted, SimulateError> {
    let agreement = agreement.clamp(0.0, 1.0);
    let rows = |rows: u32| Step { tokens: rows, wants_logits: rows, ..Step::decode(1, context) };
    let of_draft = time_of(draft, rows(1))?;
    let alone = time_of(target, rows(1))?;
    let steps = [Nanoseconds(alone), Nanoseconds(of_draft)];
    let mut best = Drafted { proposed: 0, tokens_per_step: 1.0, steps, tpot: Nanoseconds(alone) };
    let (mut expected, mut all_accepted) = (1.0, 1.0);
    for proposed in 1..=PROPOSED_MAX {
        all_accepted *= agreement;
        expected += all_accepted;
        let time = time_of(target, rows(1 + proposed))? + u64::from(proposed) * of_draft;
        let tpot = Nanoseconds((time as f64 / expected) as u64);
        if tpot < best.tpot {
            best = Drafted { proposed, tokens_per_step: expected, steps, tpot };
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use topology::sizes::{ModelSizes, Quantisation};

    use super::*;
    use crate::simulate::{Link, NodeProfile, Setup};

    const LINK: Link = Link { alpha_ns: 60_000, bits_per_second: 1_000_000_000, packets: Link::ETHERNET };

    #[test]
    fn good_draft_of_a_tenth_pays_on_4_and_8_nodes() {
        let sizes = |name: &str| ModelSizes::known(name, Quantisation::Q4_0).expect("it is known");
        let (large, small) = (sizes("llama-3.1-8b"), sizes("llama-3.2-1b"));
        for ranks in [4, 8] {
            let setup = |sizes: &ModelSizes| Setup::equal(&NodeProfile::pi5(), ranks, sizes.spec.block_count(), LINK);
            let (of_large, of_small) = (setup(&large), setup(&small));
            let target = Replica::new(&large, &of_large).expect("it can be cut");
            let draft = Replica::new(&small, &of_small).expect("it can be cut");
            let gain = |agreement: f64| drafted(&target, &draft, 512, agreement).expect("it can run");
            let found = gain(0.7);
            println!("{ranks} nodes: {found:?}, {:.2} times as fast", found.gain());
            assert!(gain(0.7).gain() > gain(0.5).gain() && gain(0.7).gain() > 1.2);
            assert_eq!((gain(0.0).proposed, gain(0.0).gain()), (0, 1.0));
        }
    }
}
