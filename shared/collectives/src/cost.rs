//! Bytes and messages that a rank sends in an all-reduce, by formula. Payloads only: each message also has a frame
//! header.
use common::{ids::Rank, precision::Exchange};

use super::{
    Algorithm, EXCHANGE_BLOCK, Q80_BLOCK_BYTES,
    doubling::Shape,
    slice,
    two_level::{group, group_count},
};

/// Bytes of `[tokens, columns]` values in an exchange format, without the frame's header.
pub fn payload_bytes(exchange: Exchange, tokens: usize, columns: usize) -> usize {
    tokens
        * match exchange {
            Exchange::F32 => columns * 4,
            Exchange::F16 => columns * 2,
            Exchange::Q80 => columns.div_ceil(EXCHANGE_BLOCK) * Q80_BLOCK_BYTES,
        }
}

/// Traffic that one rank sends in an all-reduce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Payload bytes.
    pub bytes: u64,
    /// Messages.
    pub messages: u64,
}

/// Traffic that `rank` of `world` sends in one all-reduce of `[tokens, columns]`: closed formulas, P is the bytes of a
/// slice.
///
/// direct (N-1) P(all) | rs-ag P(all) + (N-2) P(own) | ring 2 P(all) - P(own) - P(next) | star P(all), rank 0 (N-1)
/// P(all) | doubling log2(N) P(all), one more for both ranks of a folded pair | two-level (s+g-2) P(all).
pub fn cost(algorithm: Algorithm, exchange: Exchange, rank: Rank, world: usize, tokens: usize, columns: usize) -> Cost {
    if world <= 1 || columns == 0 {
        return Cost::default();
    }
    let own = rank.index();
    let bytes = |columns: usize| payload_bytes(exchange, tokens, columns) as u64;
    let whole = |messages: usize| Cost { bytes: messages as u64 * bytes(columns), messages: messages as u64 };
    let part = |rank: usize| slice(rank % world, world, columns).len();
    // Number of non-empty slices: all, or one per block.
    let slices = world.min(columns.div_ceil(EXCHANGE_BLOCK)) as u64;
    let has = |rank: usize| u64::from(part(rank) > 0);
    let others = world as u64 - 1;
    match algorithm {
        Algorithm::Direct => whole(world - 1),
        Algorithm::ReduceScatter => Cost {
            bytes: bytes(columns) - bytes(part(own)) + others * bytes(part(own)),
            messages: slices - has(own) + others * has(own),
        },
        Algorithm::Star => whole(if own == 0 { world - 1 } else { 1 }),
        Algorithm::Ring => Cost {
            bytes: 2 * bytes(columns) - bytes(part(own)) - bytes(part(own + 1)),
            messages: 2 * slices - has(own) - has(own + 1),
        },
        Algorithm::Doubling => {
            let Shape { rounds, pairs } = Shape::of(world);
            match own < 2 * pairs {
                true if own.is_multiple_of(2) => whole(rounds + 1),
                true => whole(1),
                false => whole(rounds),
            }
        }
        Algorithm::TwoLevel => whole(two_level_messages(own, world)),
    }
}

fn two_level_messages(own: usize, world: usize) -> usize {
    let groups = (0..group_count(world)).map(|index| group(index, world));
    let mine = groups.clone().find(|group| group.contains(&own)).expect("the groups hold all ranks");
    let place = own - mine.start;
    mine.len() - 1
        + groups
            .filter(|other| *other != mine)
            .map(|other| other.len().saturating_sub(place).div_ceil(mine.len()))
            .sum::<usize>()
}
