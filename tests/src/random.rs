//! Seeded random numbers for tests: the same on every machine and in every version.
use common::digest::fnv1a;

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A generator with a seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A generator with a seed and a name, so that a tensor's weights do not depend on the tensors before it.
    pub fn named(seed: u64, name: &str) -> Self {
        Self::new(Self::new(seed ^ fnv1a(name)).next_u64())
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to `end` - 1; slightly biased, which does not matter in these tests.
    pub fn below(&mut self, end: usize) -> usize {
        assert!(end > 0, "there is no number below 0");
        (self.next_u64() % end as u64) as usize
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Nearly normal with mean 0 and variance 1: the sum of four uniform 16-bit numbers. Never beyond 3.47.
    pub fn normal(&mut self) -> f32 {
        let bits = self.next_u64();
        let sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
        // The sum has mean 2 x 65535 and variance 65536^2 / 3.
        (sum as f32 - 131_070.0) * (3f32.sqrt() / 65_536.0)
    }

    /// `count` numbers like those of `normal`, times `scale`.
    pub fn normals(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count).map(|_| self.normal() * scale).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normals_have_mean_0_and_variance_1() {
        let numbers = Random::new(5).normals(100_000, 1.0);
        let mean = numbers.iter().sum::<f32>() / 1e5;
        let variance = numbers.iter().map(|n| n * n).sum::<f32>() / 1e5;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
    }

    #[test]
    fn seed_always_gives_the_same_sequence() {
        // The first numbers of SplitMix64 for seed 1234567.
        let mut random = Random::new(1_234_567);
        assert_eq!(random.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(random.next_u64(), 3_203_168_211_198_807_973);
    }
}
