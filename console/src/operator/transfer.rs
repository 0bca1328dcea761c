//! The progress of a model file on its way to nodes, as text with rate and remaining time. Pure: time arrives as durations
//! since a common start.
use std::time::Duration;

use common::units::Bytes;
use protocol::models::Step;

/// A rate is shown after this time.
const RATE_AFTER: Duration = Duration::from_secs(1);

/// What a node reports about the files that it receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferReport {
    /// What it does.
    pub step: Step,
    /// Bytes that have arrived, or were read.
    pub done: Bytes,
    /// All bytes, if known.
    pub total: Option<Bytes>,
    /// Whether the total is an estimate: only some of the files have a known size.
    pub is_estimate: bool,
}

impl TransferReport {
    /// A report whose total, if there is one, is exact.
    pub fn exact(step: Step, done: Bytes, total: Option<Bytes>) -> Self {
        Self { step, done, total, is_estimate: false }
    }
}

/// The progress of one node.
#[derive(Clone, Debug, PartialEq)]
pub struct Lane {
    /// The node's name, safe to print.
    pub name: String,
    step: Option<Step>,
    done: Bytes,
    total: Option<Bytes>,
    is_estimate: bool,
    /// When the step began, and the bytes that were there then.
    begun: (Duration, Bytes),
    /// The tenth that [`Self::line`] returned last.
    tenth: Option<(Step, u64)>,
}

/// What a node does in a step.
fn word(step: Step) -> &'static str {
    match step {
        Step::Downloading => "downloading",
        Step::Copying => "copying",
        Step::Waiting => "waiting for the source to hash",
        Step::Hashing => "verifying",
    }
}

impl Lane {
    /// A node that has not reported yet.
    pub fn new(name: String) -> Self {
        let begun = (Duration::ZERO, Bytes(0));
        Self { name, step: None, done: Bytes(0), total: None, is_estimate: false, begun, tenth: None }
    }

    /// Takes a report.
    pub fn tell(&mut self, now: Duration, report: TransferReport) {
        let TransferReport { step, done, total, is_estimate } = report;
        if self.step.replace(step) != Some(step) {
            self.begun = (now, done);
        }
        (self.done, self.total, self.is_estimate) = (done, total, is_estimate);
    }

    /// The word in front of figures that follow from an estimated total.
    fn about(&self) -> &'static str {
        if self.is_estimate { "about " } else { "" }
    }

    /// The line to print without a terminal, unless the last one said the same.
    pub fn line(&mut self, model: &str) -> Option<String> {
        let step = self.step?;
        // If the total is unknown, report every 64 MiB.
        let tenth = self.total.map_or(self.done.0 >> 26, |total| self.done.0.saturating_mul(10) / total.0.max(1));
        if self.tenth.replace((step, tenth)) == Some((step, tenth)) {
            return None;
        }
        let of = self.total.map(|total| format!(" of {}{total}", self.about())).unwrap_or_default();
        Some(format!("{}: {} {model}, {}{of}", self.name, word(step), self.done))
    }

    /// Bytes per second since the step began.
    fn rate(&self, now: Duration) -> f64 {
        let (begun, from) = self.begun;
        self.done.0.saturating_sub(from.0) as f64 / now.saturating_sub(begun).as_secs_f64().max(1e-3)
    }

    fn left(&self) -> u64 {
        self.total.map_or(0, |total| total.0.saturating_sub(self.done.0))
    }
}

/// The nodes in the step of the one that is furthest behind.
fn active(lanes: &[Lane]) -> Option<(Step, &Lane, Vec<&Lane>)> {
    let behind = lanes.iter().filter(|lane| lane.step.is_some() && lane.left() > 0);
    let slowest = behind.max_by_key(|lane| lane.left()).or_else(|| lanes.iter().find(|lane| lane.step.is_some()))?;
    let step = slowest.step?;
    Some((step, slowest, lanes.iter().filter(|lane| lane.step == Some(step)).collect()))
}

/// The share of the bytes of the current step that have arrived, 0 to 1, if the size is known.
pub fn share(lanes: &[Lane]) -> Option<f64> {
    let (.., lanes) = active(lanes)?;
    let total: u64 = lanes.iter().map(|lane| lane.total.map(|total| total.0)).sum::<Option<u64>>()?;
    Some((lanes.iter().map(|lane| lane.done.0).sum::<u64>() as f64 / total.max(1) as f64).min(1.0))
}

/// `copying M to pi2, pi3  10 %  42 MB/s, 3 s left`; empty before the first report.
pub fn picture(model: &str, lanes: &[Lane], now: Duration) -> String {
    let Some((step, slowest, active)) = active(lanes) else { return String::new() };
    let names: Vec<&str> = active.iter().map(|lane| lane.name.as_str()).collect();
    let towards = if step == Step::Hashing { "on" } else { "to" };
    let mut text = format!("{} {model} {towards} {}", word(step), names.join(", "));
    match share(lanes) {
        Some(share) => text.push_str(&format!("  {}{} %", slowest.about(), (share * 100.0) as u64)),
        None => text.push_str(&format!("  {}", Bytes(active.iter().map(|lane| lane.done.0).sum()))),
    }
    let rate: f64 = active.iter().map(|lane| lane.rate(now)).sum();
    if now.saturating_sub(slowest.begun.0) >= RATE_AFTER && rate > 0.0 {
        text.push_str(&format!("  {:.0} MB/s", rate / 1e6));
        let seconds = slowest.left() as f64 / slowest.rate(now).max(1.0);
        if slowest.total.is_some() && slowest.left() > 0 {
            text.push_str(&format!(", {} left", duration(seconds)));
        }
    }
    text
}

/// Seconds below two minutes, else minutes, rounded up.
pub fn duration(seconds: f64) -> String {
    if seconds < 120.0 { format!("{:.0} s", seconds.ceil()) } else { format!("{:.0} min", (seconds / 60.0).ceil()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(name: &str, step: Step, done: u64) -> Lane {
        let mut lane = Lane::new(name.into());
        let total = Some(Bytes(400_000_000));
        lane.tell(Duration::ZERO, TransferReport::exact(step, Bytes(0), total));
        lane.tell(Duration::ZERO, TransferReport::exact(step, Bytes(done), total));
        lane
    }

    #[test]
    fn line_has_percentage_rate_and_time_left() {
        let now = Duration::from_secs(2);
        let one = [lane("pi1", Step::Copying, 80_000_000)];
        assert_eq!(picture("m.gguf", &one, now), "copying m.gguf to pi1  20 %  40 MB/s, 8 s left");
        assert_eq!(picture("m.gguf", &one, Duration::ZERO), "copying m.gguf to pi1  20 %", "no rate at the start");
        let two = [one[0].clone(), lane("pi2", Step::Copying, 40_000_000)];
        assert_eq!(picture("m.gguf", &two, now), "copying m.gguf to pi1, pi2  15 %  60 MB/s, 18 s left");
        let verifying = [lane("pi1", Step::Hashing, 400_000_000)];
        assert!(picture("m.gguf", &verifying, now).starts_with("verifying m.gguf on pi1  100 %"));
        assert_eq!([1.0, 119.0, 121.0].map(duration), ["1 s", "119 s", "3 min"]);
        assert_eq!(share(&one), Some(0.2));
        assert_eq!((picture("m", &[Lane::new("pi1".into())], now).as_str(), share(&[])), ("", None));
    }

    #[test]
    fn figures_of_an_estimated_total_are_marked() {
        let mut one = lane("pi1", Step::Downloading, 100_000_000);
        let report = TransferReport::exact(Step::Downloading, Bytes(100_000_000), Some(Bytes(800_000_000)));
        one.tell(Duration::ZERO, TransferReport { is_estimate: true, ..report });
        assert!(one.line("big").is_some_and(|line| line.contains(" of about ")), "{one:?}");
        assert_eq!(picture("big", std::slice::from_ref(&one), Duration::ZERO), "downloading big to pi1  about 12 %");
        one.tell(Duration::ZERO, report);
        assert_eq!(picture("big", &[one], Duration::ZERO), "downloading big to pi1  12 %");
    }

    #[test]
    fn lines_without_a_terminal_come_per_tenth() {
        let mut lane = lane("pi1", Step::Copying, 0);
        let mut said = Vec::new();
        for percent in 0..=100 {
            let (done, total) = (Bytes(percent * 4_000_000), Some(Bytes(400_000_000)));
            lane.tell(Duration::ZERO, TransferReport::exact(Step::Copying, done, total));
            said.extend(lane.line("m.gguf"));
        }
        assert_eq!(said.len(), 11);
        assert!(said[1].starts_with("pi1: copying m.gguf, ") && said[1].contains(" of "), "{said:?}");
    }
}
