//! Collectives as pure lists of steps for (rank, world, length). The daemon executes them on links; nothing here sends.
use std::ops::Range;

use crate::{ids::Rank, topology::Exchange};

/// Values in a block of the q80 exchange.
pub const EXCHANGE_BLOCK: usize = 32;
/// Bytes of a q80 block: an f16 scale and 32 int8.
pub const Q80_BLOCK_BYTES: usize = 34;

/// One step of a collective, as one rank sees it. Sends and receives only start; a reduction waits for what it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send this rank's part of `values`, rounded to the exchange format.
    Send {
        /// The rank that it goes to.
        to: Rank,
        /// Values of the flattened tensor.
        values: Range<usize>,
    },
    /// Receive the sender's part of `values`.
    Receive {
        /// The rank that it comes from.
        from: Rank,
        /// Values of the flattened tensor.
        values: Range<usize>,
    },
    /// Sum the parts of all ranks over `values` in rank order, each rounded to the exchange format, and round the sum.
    Reduce {
        /// Values of the flattened tensor.
        values: Range<usize>,
    },
}

/// All-reduce by direct exchange: every rank sends its part to every other and sums what it got.
///
/// Peers are visited from the next rank on, so that not all ranks send to rank 0 first. `length` is in values.
pub fn direct(rank: Rank, world: usize, length: usize) -> impl Iterator<Item = Step> + Clone {
    let own = rank.index();
    let peers = (1..world).map(move |distance| Rank(((own + distance) % world) as u16));
    let sends = peers.clone().map(move |to| Step::Send { to, values: 0..length });
    let receives = peers.map(move |from| Step::Receive { from, values: 0..length });
    sends.chain(receives).chain(std::iter::once(Step::Reduce { values: 0..length }))
}

/// Bytes of `values` values in an exchange format, without the frame's header.
pub fn payload_bytes(exchange: Exchange, values: usize) -> usize {
    match exchange {
        Exchange::F32 => values * 4,
        Exchange::Q80 => values.div_ceil(EXCHANGE_BLOCK) * Q80_BLOCK_BYTES,
    }
}

/// What one rank sends in an all-reduce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Payload bytes.
    pub bytes: u64,
    /// Messages.
    pub messages: u64,
}

/// The formula of the direct exchange: N-1 messages of the whole vector.
pub fn direct_cost(exchange: Exchange, world: usize, values: usize) -> Cost {
    let peers = world.saturating_sub(1) as u64;
    Cost { bytes: peers * payload_bytes(exchange, values) as u64, messages: peers }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a schedule for all ranks at once on integers: what one sends is what the other receives.
    #[track_caller]
    fn check(world: usize, length: usize) {
        for rank in 0..world {
            let steps: Vec<Step> = direct(Rank(rank as u16), world, length).collect();
            let mut arrived = vec![1; length];
            let mut sent = Cost::default();
            for step in &steps {
                match step {
                    Step::Send { to, values } => {
                        let mirrored = Step::Receive { from: Rank(rank as u16), values: values.clone() };
                        assert!(direct(*to, world, length).any(|step| step == mirrored), "rank {to} does not wait");
                        sent.bytes += payload_bytes(Exchange::F32, values.len()) as u64;
                        sent.messages += 1;
                    }
                    Step::Receive { values, .. } => arrived[values.clone()].iter_mut().for_each(|count| *count += 1),
                    Step::Reduce { values } => {
                        assert!(arrived[values.clone()].iter().all(|count| *count == world), "a part is missing");
                    }
                }
            }
            assert_eq!(sent, direct_cost(Exchange::F32, world, length));
        }
    }

    #[test]
    fn every_send_has_its_receive_and_every_reduction_all_parts() {
        for world in 1..=8 {
            check(world, 96);
        }
    }
}
