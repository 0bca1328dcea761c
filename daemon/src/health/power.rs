//! Power of a Raspberry Pi 5, from its PMIC through the firmware (`vcgencmd pmic_read_adc`). The PMIC measures the rails
//! that it makes, not the input: losses of its converters and devices on USB and PCIe are not included.
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use common::units::Milliwatts;

use super::{firmware::Mailbox, root::Root};

/// Models with such a PMIC.
const MODELS: [&str; 3] = ["Raspberry Pi 5", "Raspberry Pi Compute Module 5", "Raspberry Pi 500"];
/// Interval between two readings: one takes the firmware some milliseconds.
const INTERVAL: Duration = Duration::from_secs(3);
/// The answer of the firmware in a folder of fixtures.
const FIXTURE: &str = "pmic_read_adc";

/// The PMIC, and its last reading.
#[derive(Debug)]
pub(super) struct Pmic {
    source: PmicSource,
    last: Option<(Instant, Option<Milliwatts>)>,
}

#[derive(Debug)]
enum PmicSource {
    Mailbox(Mailbox),
    /// The text of a fixture.
    Text(String),
    /// Not available: another machine, no permission, or no answer.
    Nowhere,
}

impl Pmic {
    /// Detects the source on a machine of this model.
    pub(super) fn find(root: &Root, model: Option<&str>) -> Self {
        let has_pmic = model.is_some_and(|model| MODELS.iter().any(|with| model.starts_with(with)));
        let source = if !has_pmic {
            PmicSource::Nowhere
        } else if root.is_machine() {
            let mailbox = Mailbox::open(|mailbox| mailbox.ask("pmic_read_adc").as_deref().and_then(power).is_some());
            mailbox.map_or(PmicSource::Nowhere, PmicSource::Mailbox)
        } else {
            root.text(FIXTURE).map_or(PmicSource::Nowhere, PmicSource::Text)
        };
        Self { source, last: None }
    }

    /// The power, at most [`INTERVAL`] old.
    pub(super) fn read(&mut self, now: Instant) -> Option<Milliwatts> {
        if let Some((_, power)) = self.last.filter(|(at, _)| now.saturating_duration_since(*at) < INTERVAL) {
            return power;
        }
        let power = match &self.source {
            PmicSource::Mailbox(mailbox) => mailbox.ask("pmic_read_adc").as_deref().and_then(power),
            PmicSource::Text(text) => power(text),
            PmicSource::Nowhere => None,
        };
        self.last = Some((now, power));
        power
    }
}

/// The sum of current times voltage of all rails that have both: `VDD_CORE_A current(7)=0.85970000A`, `VDD_CORE_V
/// volt(15)=0.72047800V`.
fn power(answer: &str) -> Option<Milliwatts> {
    let (mut amperes, mut volts) = (BTreeMap::new(), BTreeMap::new());
    for (name, value) in answer.lines().filter_map(reading) {
        if let Some(rail) = name.strip_suffix("_A") {
            amperes.insert(rail.to_owned(), value);
        } else if let Some(rail) = name.strip_suffix("_V") {
            volts.insert(rail.to_owned(), value);
        }
    }
    let watts: Vec<f64> = amperes.iter().filter_map(|(rail, ampere)| Some(ampere * volts.get(rail)?)).collect();
    let sum: f64 = watts.iter().sum();
    // The supply of a Raspberry Pi 5 gives at most 27 W: 100 W and more, or less than nothing, is no reading.
    (!watts.is_empty() && (0.0..100.0).contains(&sum)).then(|| Milliwatts((sum * 1e3).round() as u32))
}

/// The name and the number of a line.
fn reading(line: &str) -> Option<(&str, f64)> {
    let (name, rest) = line.trim().split_once(' ')?;
    let (_, value) = rest.split_once('=')?;
    let value: f64 = value.trim_end_matches(['A', 'V']).parse().ok()?;
    value.is_finite().then_some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rails_with_current_and_voltage_count() {
        let answer = " VDD_CORE_A current(7)=2.00000000A\n VDD_CORE_V volt(15)=0.75000000V\n \
            EXT5V_V volt(24)=5.10000000V\n HDMI_A current(22)=0.01A\n";
        assert_eq!(power(answer), Some(Milliwatts(1500)));
        for odd in ["", "error=1 error_msg=\"Command not registered\"", "A_A current(0)=nanA\nA_V volt(1)=1V", "A_A x"]
        {
            assert_eq!(power(odd), None, "{odd}");
        }
    }
}
