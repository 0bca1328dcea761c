//! The goals that figures are judged by. `docs/acceptance.md` lists them.
use common::latency::ratio;

/// A limit of a figure, or of its ratio to the prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// Of the figure.
    AtLeast(f64),
    /// Of the figure.
    AtMost(f64),
    /// Of the ratio.
    RatioAtLeast(f64),
    /// Of the ratio.
    RatioAtMost(f64),
}

impl Bound {
    /// Whether the bound holds; `None` without a prediction that it needs.
    pub fn holds(self, value: f64, predicted: Option<f64>) -> Option<bool> {
        let of_predicted = predicted.filter(|predicted| *predicted > 0.0).map(|predicted| ratio(value, predicted));
        match self {
            Self::AtLeast(least) => Some(value >= least),
            Self::AtMost(most) => Some(value <= most),
            Self::RatioAtLeast(least) => of_predicted.map(|ratio| ratio >= least),
            Self::RatioAtMost(most) => of_predicted.map(|ratio| ratio <= most),
        }
    }

    /// `>= 0.9`, or `>= 0.9 x predicted`.
    pub fn words(self) -> String {
        match self {
            Self::AtLeast(least) => format!(">= {least}"),
            Self::AtMost(most) => format!("<= {most}"),
            Self::RatioAtLeast(least) => format!(">= {least} x predicted"),
            Self::RatioAtMost(most) => format!("<= {most} x predicted"),
        }
    }
}

/// Read bandwidth of a machine: what programs reach of the built-in profile's.
pub const READ: Bound = Bound::RatioAtLeast(0.75);
/// Share of the read bandwidth that decode reaches.
pub const DECODE_SHARE: Bound = Bound::AtLeast(0.9);
/// Speeds of a node alone and of a topology.
pub const SPEED: Bound = Bound::RatioAtLeast(0.9);
/// Payload of a link, relative to the rate of the slower interface.
pub const PAYLOAD: Bound = Bound::RatioAtLeast(0.9);
/// Round trip of a small message.
pub const ROUND_TRIP: Bound = Bound::RatioAtMost(2.0);
/// An all-reduce.
pub const ALL_REDUCE: Bound = Bound::RatioAtMost(1.5);
/// Highest temperature in degrees Celsius: from 80 on, the firmware lowers the clock.
pub const CELSIUS: Bound = Bound::AtMost(80.0);
/// Speed at the end of the load, relative to that at its start.
pub const KEPT: Bound = Bound::AtLeast(0.97);
/// Decode, relative to llama.cpp on the same machine.
pub const LLAMA_DECODE: Bound = Bound::AtLeast(1.3);
/// Prefill, relative to llama.cpp on the same machine.
pub const LLAMA_PREFILL: Bound = Bound::AtLeast(1.6);
/// Pause of an answer after a loss, in seconds.
pub const PAUSE: Bound = Bound::AtMost(10.0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_ratios_need_a_prediction() {
        assert_eq!(Bound::AtLeast(2.0).holds(2.0, None), Some(true));
        assert_eq!(Bound::AtMost(2.0).holds(2.1, None), Some(false));
        assert_eq!(SPEED.holds(9.0, Some(10.0)), Some(true));
        assert_eq!(SPEED.holds(8.9, Some(10.0)), Some(false));
        assert_eq!([SPEED.holds(1.0, None), SPEED.holds(1.0, Some(0.0))], [None, None]);
        assert_eq!(ROUND_TRIP.holds(250.0, Some(120.0)), Some(false));
        assert_eq!((SPEED.words().as_str(), PAUSE.words().as_str()), (">= 0.9 x predicted", "<= 10"));
    }
}
