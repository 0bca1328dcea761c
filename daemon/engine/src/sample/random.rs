//! Random numbers that depend only on (seed, position, token id): the same on every rank, for any split of the
//! vocabulary.

/// Gumbel noise for the tokens of one position (Gumbel-max: the argmax of logit + noise is a sample from the softmax).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Noise {
    base: u64,
}

impl Noise {
    pub(super) fn new(seed: u64, position: u32) -> Self {
        Self { base: mix(mix(seed) ^ u64::from(position).wrapping_mul(0x9e37_79b9_7f4a_7c15)) }
    }

    /// The noise of a token.
    pub(super) fn of(self, id: u32) -> f64 {
        gumbel(self.hash(id))
    }

    /// Whether the noise of a token may be above `needed`; false only if it certainly is not. Needs no logarithm.
    ///
    /// noise > n means uniform > exp(-exp(-n)) >= 1 - exp(-n): the hash lies in the topmost exp(-n) of its range.
    pub(super) fn may_exceed(self, id: u32, needed: f64) -> bool {
        if needed < 1.0 {
            return true;
        }
        let whole = (needed as usize).min(TOP_SHARE.len() - 1);
        u64::MAX - self.hash(id) <= TOP_SHARE[whole]
    }

    fn hash(self, id: u32) -> u64 {
        mix(self.base ^ u64::from(id).wrapping_add(1).wrapping_mul(0xd1b5_4a32_d192_ed03))
    }
}

/// Gumbel noise from 64 random bits.
fn gumbel(bits: u64) -> f64 {
    // 52 bits and a half fit into an f64: never 0 and never 1, where the noise would be infinite.
    let uniform = ((bits >> 12) as f64 + 0.5) / (1_u64 << 52) as f64;
    -(-uniform.ln()).ln()
}

/// exp(-n) of the range of u64, rounded up and widened by the 12 bits that `gumbel` drops.
const TOP_SHARE: [u64; 38] = top_shares();

const fn top_shares() -> [u64; 38] {
    let mut shares = [u64::MAX; 38];
    let mut share = 1.0_f64;
    let mut n = 1;
    while n < shares.len() {
        share /= std::f64::consts::E;
        shares[n] = (share * 1.000_001 * u64::MAX as f64) as u64 + 8192;
        n += 1;
    }
    shares
}

/// The finaliser of splitmix64 (Steele, Lea and Flood 2014).
fn mix(mut value: u64) -> u64 {
    value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipping_never_loses_noise_above_threshold() {
        let mut above = 0;
        for position in 0..200 {
            let noise = Noise::new(7, position);
            for id in 0..5000 {
                let value = noise.of(id);
                for needed in [0.5, 1.0, 2.5, 5.0, 7.9, 9.0, 12.0] {
                    above += u32::from(value > needed);
                    assert!(value <= needed || noise.may_exceed(id, needed), "{value} is above {needed}");
                }
            }
        }
        assert!(above > 1000);
    }

    #[test]
    fn ends_of_range_give_finite_noise() {
        assert!(gumbel(0).is_finite() && gumbel(u64::MAX).is_finite());
        assert!(gumbel(0) < -3.5 && gumbel(u64::MAX) > 36.0);
    }

    #[test]
    fn noise_has_the_mean_and_variance_of_gumbel() {
        let values: Vec<f64> = (0..200_000).map(|id| Noise::new(1, 2).of(id)).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
        assert!((mean - 0.5772).abs() < 0.01, "{mean}");
        assert!((variance - 1.6449).abs() < 0.02, "{variance}");
    }
}
