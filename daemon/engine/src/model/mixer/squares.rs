//! The norm of a state space that spans the ranks of a stage. The output matrix is linear, so that the sum over ranks can
//! be divided by the root mean square afterwards: ranks exchange their sums of squares in the same all-reduce, in rows
//! behind those of the tokens. Each rank writes its sums to places of its own as small integers, which no format of the
//! exchange rounds, and the others zeros, so that every rank computes the same divisor.
use models::SQUARES_BLOCK;

/// Bits of a sum that a value carries.
const BITS: usize = 7;
/// Values that carry a sum.
const PIECES: usize = 32_usize.div_ceil(BITS);
/// The largest value of a block: blocks with one scale for all values then have the scale 1.
const LARGEST: f32 = 127.0;

/// Where the sums of a step are in the rows behind the tokens.
#[derive(Clone, Copy, Debug)]
pub struct SquaresPlace {
    /// Ranks of the stage.
    pub ranks: usize,
    /// Elements of a row.
    pub embedding: usize,
}

impl SquaresPlace {
    /// The first value of a block.
    fn of(&self, token: usize, rank: usize) -> usize {
        let (block, per_row) = (token * self.ranks + rank, self.embedding / SQUARES_BLOCK);
        block / per_row * self.embedding + block % per_row * SQUARES_BLOCK
    }

    /// Writes the sum of each token of this rank into rows of zeros.
    pub fn write(&self, rank: usize, squares: &[f32], rows: &mut [f32]) {
        for (token, sum) in squares.iter().enumerate() {
            let block = &mut rows[self.of(token, rank)..][..SQUARES_BLOCK];
            block[0] = LARGEST;
            for (piece, value) in block[1..=PIECES].iter_mut().enumerate() {
                *value = (sum.to_bits() >> (piece * BITS) & 127) as f32;
            }
        }
    }

    /// The sum of all ranks for a token, in the order of the ranks.
    fn read(&self, token: usize, rows: &[f32]) -> f32 {
        let sums = (0..self.ranks).map(|rank| {
            let pieces = rows[self.of(token, rank)..][1..=PIECES].iter().enumerate();
            // As large as they were written; a broken value does not matter more here than in a sum.
            f32::from_bits(pieces.fold(0, |bits, (piece, value)| bits | (*value as u32 & 127) << (piece * BITS)))
        });
        sums.sum()
    }

    /// Adds the sums over ranks `[token, embedding]`, which the rows of squares follow, to `hidden`, divided by the root
    /// mean square of `count` values.
    pub fn add_normed(&self, summed: &[f32], count: usize, epsilon: f32, hidden: &mut [f32]) {
        let (sums, squares) = summed.split_at(hidden.len());
        let tokens = hidden.chunks_exact_mut(self.embedding).zip(sums.chunks_exact(self.embedding));
        for (token, (hidden, sum)) in tokens.enumerate() {
            let scale = 1.0 / (self.read(token, squares) / count as f32 + epsilon).sqrt();
            hidden.iter_mut().zip(sum).for_each(|(hidden, sum)| *hidden += scale * sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_all_ranks_arrive_exactly() {
        let place = SquaresPlace { ranks: 3, embedding: 80 };
        let sums: [[f32; 3]; 4] =
            [[1e-30, 2.5, 3e20], [0.0, 7.0, 0.1], [f32::NAN, 1.0, 1.0], [1.0, f32::INFINITY, 0.0]];
        let mut rows = vec![0.0; 6 * 80];
        for rank in 0..3 {
            place.write(rank, &sums.map(|of_token| of_token[rank]), &mut rows);
        }
        assert!(rows.iter().all(|value| (0.0..=127.0).contains(value) && value.fract() == 0.0));
        for (token, sums) in sums.iter().enumerate() {
            assert_eq!(place.read(token, &rows).to_bits(), sums.iter().sum::<f32>().to_bits());
        }
    }
}
