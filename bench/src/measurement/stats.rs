//! Exact quantiles, medians and spreads, because a histogram with buckets of 7 % would hide the differences to compare.
//! Pure.
use common::latency::ratio;
use serde::{Deserialize, Serialize};

/// Three quantiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// 95 % of the values do not exceed it.
    pub p95: f64,
    /// 99 % of the values do not exceed it.
    pub p99: f64,
}

impl Percentiles {
    /// The percentiles of values in any order; 0 without values.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |share| quantile(&values, share).unwrap_or(0.0);
        Self { p50: at(0.5), p95: at(0.95), p99: at(0.99) }
    }
}

/// The smallest of the sorted values that a share `quantile` (0 to 1) of them does not exceed (nearest rank).
pub fn quantile(sorted: &[f64], quantile: f64) -> Option<f64> {
    let rank = (sorted.len() as f64 * quantile).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied()
}

/// The median of values in any order: the mean of the two middle values if their number is even.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.get(sorted.len().checked_sub(1)? / 2)?, sorted.get(sorted.len() / 2)?);
    Some((low + high) / 2.0)
}

/// Relative spread of repeats: (highest - lowest) / median.
pub fn spread(values: &[f64]) -> f64 {
    let (low, high) =
        values.iter().fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(*value), high.max(*value)));
    if values.len() < 2 { 0.0 } else { ratio(high - low, median(values).unwrap_or(0.0)) }
}

/// The mean of values in any order without the outer fifths, which is robust against outliers.
pub fn middle_mean(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let outer = sorted.len() / 5;
    let middle = sorted.get(outer..sorted.len() - outer).filter(|middle| !middle.is_empty())?;
    Some(middle.iter().sum::<f64>() / middle.len() as f64)
}

/// Robust standard deviation: the median absolute deviation, scaled to match normal values; 0 without values.
pub fn deviation(values: &[f64]) -> f64 {
    let middle = median(values).unwrap_or(0.0);
    let away: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    1.4826 * median(&away).unwrap_or(0.0)
}

/// Random numbers from a seed (SplitMix64, Steele et al. 2014), so that a load can be repeated on any machine.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts with a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A uniform value above 0 and at most 1.
    pub fn share(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occurred() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(Percentiles::of(values), Percentiles { p50: 50.0, p95: 95.0, p99: 99.0 });
        assert_eq!(Percentiles::of(vec![3.0, 1.0]), Percentiles { p50: 1.0, p95: 3.0, p99: 3.0 });
        assert_eq!(Percentiles::of(Vec::new()), Percentiles::default());
        assert_eq!((quantile(&[1.0, 2.0], 0.0), quantile(&[], 0.5)), (Some(1.0), None));
    }

    #[test]
    fn medians_spreads_and_deviations_of_few_values() {
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0]), median(&[])), (Some(2.0), Some(2.5), None));
        assert_eq!((spread(&[10.0, 11.0, 9.5]), spread(&[7.0]), spread(&[0.0, 0.0])), (0.15, 0.0, 0.0));
        assert_eq!((middle_mean(&[2.0, 900.0, 4.0, 3.0, -7.0]), middle_mean(&[])), (Some(3.0), None));
        assert!((deviation(&[9.0, 10.0, 11.0, 10.0, 500.0]) - 1.4826).abs() < 1e-9 && deviation(&[]) == 0.0);
    }

    #[test]
    fn random_values_are_uniform_and_repeat_with_the_seed() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..10_000).map(|_| random.share()).collect::<Vec<_>>()
        };
        let shares = draw(7);
        assert!(shares.iter().all(|share| *share > 0.0 && *share <= 1.0));
        let mean = shares.iter().sum::<f64>() / 1e4;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
        assert!(shares == draw(7) && shares != draw(8));
    }
}
