//! Deviation of times from the nominal time: none, random, or as recorded in a real run.
use std::sync::Arc;

/// 1 in fixed point: extra times are multiples of 1/65536 of the nominal time.
const ONE: u64 = 1 << 16;

/// Source of extra time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Noise {
    /// No extra time.
    None,
    /// Exponentially distributed extra time with this mean, in millionths of the nominal time.
    Random {
        /// Millionths.
        mean_ppm: u32,
    },
    /// Extra times in 1/65536 of the nominal time, in the order recorded in a real run. Each node starts at a different
    /// place and jumps to another one at the end, which preserves the correlation of successive times.
    Recorded(Arc<[u32]>),
}

impl Noise {
    /// Fewest times from which the noise can be estimated.
    pub const RECORDED_MIN: usize = 64;

    /// Extra times beyond the median, from times of equal work in the order recorded; `None` if there are too few or
    /// all are zero.
    pub fn recorded(times: &[u64]) -> Option<Self> {
        let mut sorted = times.to_vec();
        sorted.sort_unstable();
        let median = *sorted.get(times.len() / 2).filter(|median| **median > 0 && times.len() >= Self::RECORDED_MIN)?;
        Some(Self::Recorded(
            times
                .iter()
                .map(|time| {
                    let part = u128::from(time.saturating_sub(median)) * u128::from(ONE) / u128::from(median);
                    u32::try_from(part).unwrap_or(u32::MAX)
                })
                .collect(),
        ))
    }
}

/// The extra times of one node.
#[derive(Clone, Debug)]
pub struct Jitter {
    noise: Noise,
    state: u64,
    place: usize,
    left: usize,
}

impl Jitter {
    /// Consecutive recorded times that are used before the next random jump.
    const RUN: usize = 64;

    /// The noise of a node; other seeds or nodes give other times.
    pub fn new(noise: Noise, seed: u64, node: usize) -> Self {
        let state = seed ^ (node as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self { noise, state, place: 0, left: 0 }
    }

    /// The nominal time plus the next extra time.
    pub fn stretch(&mut self, usual: u64) -> u64 {
        let part = match &self.noise {
            Noise::None => return usual,
            Noise::Random { mean_ppm } => {
                let mean = u64::from(*mean_ppm) * ONE / 1_000_000;
                (mean * exponential(random(&mut self.state))) / ONE
            }
            Noise::Recorded(samples) if samples.is_empty() => return usual,
            Noise::Recorded(samples) => {
                if self.left == 0 {
                    self.place = (random(&mut self.state) % samples.len() as u64) as usize;
                    self.left = Self::RUN;
                }
                self.left -= 1;
                self.place = (self.place + 1) % samples.len();
                u64::from(samples[self.place])
            }
        };
        usual + usual.saturating_mul(part) / ONE
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// -ln of a uniform number in fixed point, within a tenth: whole halvings, interpolated linearly.
fn exponential(bits: u64) -> u64 {
    const LN_2: u64 = 45_426;
    let halvings = u64::from(bits.leading_zeros().min(40));
    let rest = (bits << (halvings + 1)) >> 48;
    halvings * LN_2 + (ONE - rest) * LN_2 / ONE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(noise: &Noise, seed: u64, node: usize) -> Vec<u64> {
        let mut jitter = Jitter::new(noise.clone(), seed, node);
        (0..20_000).map(|_| jitter.stretch(1_000_000) - 1_000_000).collect()
    }

    #[test]
    fn random_noise_has_its_mean_and_tail_and_is_reproducible() {
        let noise = Noise::Random { mean_ppm: 10_000 };
        let one = drawn(&noise, 1, 0);
        let mean = one.iter().sum::<u64>() as f64 / one.len() as f64;
        assert!((9_000.0..11_000.0).contains(&mean), "{mean}");
        let beyond = one.iter().filter(|extra| **extra > 30_000).count() as f64 / one.len() as f64;
        assert!((0.04..0.06).contains(&beyond), "e^-3 is 0.05, {beyond} came");
        assert_eq!(one, drawn(&noise, 1, 0));
        assert!(one != drawn(&noise, 2, 0) && one != drawn(&noise, 1, 1));
        assert_eq!(Jitter::new(Noise::None, 1, 0).stretch(77), 77);
    }

    #[test]
    fn recorded_times_keep_their_order() {
        let samples: Arc<[u32]> = (0..1000).map(|sample| sample * 65).collect();
        let extra = drawn(&Noise::Recorded(samples), 7, 0);
        let in_order = extra.windows(2).filter(|pair| pair[1] > pair[0] && pair[1] - pair[0] < 1100).count();
        assert!(in_order > extra.len() * 9 / 10, "{in_order} of {}", extra.len());
        assert_eq!(Jitter::new(Noise::Recorded(Arc::new([])), 1, 0).stretch(5), 5);
        let times: Vec<u64> = (0..100).map(|time| if time == 50 { 3000 } else { 1000 }).collect();
        let Some(Noise::Recorded(found)) = Noise::recorded(&times) else { panic!("a hundred are enough") };
        assert_eq!((found[50], found[49]), (2 << 16, 0));
        assert_eq!((Noise::recorded(&times[..63]), Noise::recorded(&[0; 100])), (None, None));
    }
}
