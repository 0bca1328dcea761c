//! Speed of a rank whose experts stay on the disk behind a cache in memory. Pure.
use common::latency::ratio;

/// A rank alone that decodes one sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertsOnDisk {
    /// Experts that are in memory at a time.
    pub slots: usize,
    /// Experts of all layers.
    pub count: usize,
    /// Experts that a token uses in all layers.
    pub used: f64,
    /// Seconds that reading an expert takes.
    pub read_seconds: f64,
    /// Seconds of a token if all its experts are in memory.
    pub token_seconds: f64,
}

impl ExpertsOnDisk {
    /// Share of the experts used that are in memory, 0 to 1, if all are equally likely and independent of the token
    /// before. Routers prefer some experts, which then stay in memory: the true share is rather higher.
    pub fn hit_rate(&self) -> f64 {
        ratio(self.slots as f64, self.count as f64).min(1.0)
    }

    /// Tokens per second. Reading and computing take turns.
    pub fn tokens_per_second(&self) -> f64 {
        ratio(1.0, self.token_seconds + self.used * (1.0 - self.hit_rate()) * self.read_seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_is_bound_by_the_disk_until_all_experts_fit() {
        // 48 layers of 128 experts, of which a token uses 8 each; 1.6 MB each at 800 MB/s, half of them in memory.
        let half = ExpertsOnDisk { slots: 3072, count: 6144, used: 384.0, read_seconds: 0.002, token_seconds: 0.116 };
        assert!((half.tokens_per_second() - 2.0).abs() < 1e-9, "{}", half.tokens_per_second());
        let all = ExpertsOnDisk { slots: 6144, ..half };
        assert!((all.tokens_per_second() - 1.0 / 0.116).abs() < 1e-9);
        let none = ExpertsOnDisk { count: 0, token_seconds: 0.0, ..half };
        assert!(none.tokens_per_second().is_finite(), "no division by zero");
    }
}
