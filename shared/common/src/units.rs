//! Quantities with units and their display formats.
use std::fmt;

use serde::{Deserialize, Serialize};

/// A number of bytes; shown with binary prefixes (`3.1 GiB`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let text = if unit == 0 { format!("{} B", self.0) } else { format!("{value:.1} {}", UNITS[unit]) };
        f.pad(&text)
    }
}

/// A length of time in nanoseconds; shown in the unit that fits (`812 us`, `1.20 ms`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Nanoseconds(pub u64);

impl Nanoseconds {
    /// The same time in milliseconds.
    pub fn milliseconds(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl fmt::Display for Nanoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0 as f64;
        let text = if ns < 1e3 {
            format!("{} ns", self.0)
        } else if ns < 1e6 {
            format!("{:.0} us", ns / 1e3)
        } else if ns < 1e9 {
            format!("{:.2} ms", ns / 1e6)
        } else {
            format!("{:.2} s", ns / 1e9)
        };
        f.pad(&text)
    }
}

/// A temperature in degrees Celsius; shown with one decimal (`61.3 °C`).
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct Celsius(pub f32);

impl fmt::Display for Celsius {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:.1} °C", self.0))
    }
}

/// A clock in MHz; shown in GHz from 1000 on (`600 MHz`, `2.40 GHz`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Megahertz(pub u32);

impl fmt::Display for Megahertz {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gigahertz = f64::from(self.0) / 1e3;
        let text = if self.0 < 1000 { format!("{} MHz", self.0) } else { format!("{gigahertz:.2} GHz") };
        f.pad(&text)
    }
}

/// Electrical power in milliwatts; shown in watts (`7.25 W`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Milliwatts(pub u32);

impl fmt::Display for Milliwatts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:.2} W", f64::from(self.0) / 1e3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_read_as_people_write_them() {
        assert_eq!(Bytes(0).to_string(), "0 B");
        assert_eq!(Bytes(1023).to_string(), "1023 B");
        assert_eq!(Bytes(3 << 30).to_string(), "3.0 GiB");
        assert_eq!(Nanoseconds(812_000).to_string(), "812 us");
        assert_eq!(Nanoseconds(1_200_000).to_string(), "1.20 ms");
        assert_eq!(Celsius(61.25).to_string(), "61.2 °C");
        assert_eq!(Milliwatts(7250).to_string(), "7.25 W");
        assert_eq!((Megahertz(600).to_string(), Megahertz(2400).to_string()), ("600 MHz".into(), "2.40 GHz".into()));
    }
}
