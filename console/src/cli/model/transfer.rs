//! Progress of model files on their way to nodes: on a terminal one line for all nodes, with rate and remaining time,
//! which is erased at the end; elsewhere a line per node and step, and per 10 %.
use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use common::units::Bytes;
use protocol::models::Step;

use crate::cli::shared::{output, progress};
use crate::view::format::shorten;

/// Least time between two drawings.
const REDRAW: Duration = Duration::from_millis(100);
/// A rate is shown after this time.
const RATE_AFTER: Duration = Duration::from_secs(1);

/// A file on its way to one or several nodes.
#[derive(Debug)]
pub(crate) struct Transfer {
    model: String,
    state: Mutex<Lanes>,
}

#[derive(Debug)]
struct Lanes {
    nodes: Vec<Lane>,
    drawn: Option<Instant>,
}

/// The progress of one node.
#[derive(Clone, Debug)]
struct Lane {
    name: String,
    step: Option<Step>,
    done: Bytes,
    total: Option<Bytes>,
    /// When the step began, and the bytes that were there then.
    begun: (Instant, Bytes),
    /// The tenth that was printed last.
    tenth: Option<(Step, u64)>,
}

impl Transfer {
    /// `model` to nodes with these names.
    pub(crate) fn new(model: &str, nodes: &[&str]) -> Self {
        let nodes = nodes.iter().map(|name| Lane::new(name)).collect();
        Self { model: output::clean(model), state: Mutex::new(Lanes { nodes, drawn: None }) }
    }

    /// Takes a report of the node with this index.
    pub(crate) fn tell(&self, node: usize, step: Step, done: Bytes, total: Option<Bytes>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let Some(lane) = state.nodes.get_mut(node) else { return };
        if lane.step.replace(step) != Some(step) {
            lane.begun = (now, done);
        }
        (lane.done, lane.total) = (done, total);
        if !progress::is_drawn() {
            lane.line(&self.model).iter().for_each(|line| output::note(line));
            return;
        }
        if state.drawn.is_none_or(|drawn| now - drawn >= REDRAW) {
            state.drawn = Some(now);
            let columns = crossterm::terminal::size().map_or(80, |(columns, _)| usize::from(columns));
            let line = picture(&self.model, &state.nodes, now);
            output::note_part(&format!("\r{}\x1b[K", shorten(&line, columns.saturating_sub(1))));
        }
    }
}

impl Drop for Transfer {
    /// Erases the line.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if state.drawn.is_some() {
            progress::clear();
        }
    }
}

fn word(step: Step) -> &'static str {
    match step {
        Step::Downloading => "downloading",
        Step::Copying => "copying",
        Step::Waiting => "waiting for the source to hash",
        Step::Hashing => "verifying",
    }
}

impl Lane {
    fn new(name: &str) -> Self {
        let begun = (Instant::now(), Bytes(0));
        Self { name: output::clean(name), step: None, done: Bytes(0), total: None, begun, tenth: None }
    }

    /// The line to print, unless the last one said the same.
    fn line(&mut self, model: &str) -> Option<String> {
        let step = self.step?;
        // If the total is unknown, report every 64 MiB.
        let tenth = self.total.map_or(self.done.0 >> 26, |total| 10 * self.done.0 / total.0.max(1));
        if self.tenth.replace((step, tenth)) == Some((step, tenth)) {
            return None;
        }
        let of = self.total.map(|total| format!(" of {total}")).unwrap_or_default();
        Some(format!("{}: {} {model}, {}{of}", self.name, word(step), self.done))
    }

    /// Bytes per second since the step began.
    fn rate(&self, now: Instant) -> f64 {
        let (begun, from) = self.begun;
        self.done.0.saturating_sub(from.0) as f64 / (now - begun).as_secs_f64().max(1e-3)
    }

    fn left(&self) -> u64 {
        self.total.map_or(0, |total| total.0.saturating_sub(self.done.0))
    }
}

/// `copying M to pi2, pi3  10 %  42 MB/s, 3 s left`.
fn picture(model: &str, lanes: &[Lane], now: Instant) -> String {
    // The step of the node that is furthest behind.
    let active = lanes.iter().filter(|lane| lane.step.is_some() && lane.left() > 0);
    let Some(slowest) = active.max_by_key(|lane| lane.left()).or_else(|| lanes.iter().find(|lane| lane.step.is_some()))
    else {
        return String::new();
    };
    let Some(step) = slowest.step else { return String::new() };
    let lanes: Vec<&Lane> = lanes.iter().filter(|lane| lane.step == Some(step)).collect();
    let names: Vec<&str> = lanes.iter().map(|lane| lane.name.as_str()).collect();
    let towards = if step == Step::Hashing { "on" } else { "to" };
    let mut text = format!("{} {model} {towards} {}", word(step), names.join(", "));
    let done: u64 = lanes.iter().map(|lane| lane.done.0).sum();
    let total: Option<u64> = lanes.iter().map(|lane| lane.total.map(|total| total.0)).sum();
    match total {
        Some(total) => text.push_str(&format!("  {} %", u128::from(done) * 100 / u128::from(total.max(1)))),
        None => text.push_str(&format!("  {}", Bytes(done))),
    }
    let rate: f64 = lanes.iter().map(|lane| lane.rate(now)).sum();
    if now - slowest.begun.0 >= RATE_AFTER && rate > 0.0 {
        text.push_str(&format!("  {:.0} MB/s", rate / 1e6));
        let seconds = slowest.left() as f64 / slowest.rate(now).max(1.0);
        if total.is_some() && slowest.left() > 0 {
            text.push_str(&format!(", {} left", duration(seconds)));
        }
    }
    text
}

/// Seconds below two minutes, else minutes.
fn duration(seconds: f64) -> String {
    if seconds < 120.0 { format!("{:.0} s", seconds.ceil()) } else { format!("{:.0} min", (seconds / 60.0).ceil()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(name: &str, step: Step, done: u64, begun: Instant) -> Lane {
        let total = Some(Bytes(400_000_000));
        Lane { name: name.into(), step: Some(step), done: Bytes(done), total, begun: (begun, Bytes(0)), tenth: None }
    }

    #[test]
    fn line_has_percentage_rate_and_time_left() {
        let begun = Instant::now();
        let now = begun + Duration::from_secs(2);
        let one = [lane("pi1", Step::Copying, 80_000_000, begun)];
        assert_eq!(picture("m.gguf", &one, now), "copying m.gguf to pi1  20 %  40 MB/s, 8 s left");
        assert_eq!(picture("m.gguf", &one, begun), "copying m.gguf to pi1  20 %", "no rate at the start");
        let two = [one[0].clone(), lane("pi2", Step::Copying, 40_000_000, begun)];
        assert_eq!(picture("m.gguf", &two, now), "copying m.gguf to pi1, pi2  15 %  60 MB/s, 18 s left");
        let verifying = [lane("pi1", Step::Hashing, 400_000_000, begun)];
        assert!(picture("m.gguf", &verifying, now).starts_with("verifying m.gguf on pi1  100 %"));
        assert_eq!(duration(121.0), "3 min");
    }

    #[test]
    fn lines_without_a_terminal_come_per_tenth() {
        let mut lane = lane("pi1", Step::Copying, 0, Instant::now());
        let mut said = Vec::new();
        for percent in 0..=100 {
            lane.done = Bytes(percent * 4_000_000);
            said.extend(lane.line("m.gguf"));
        }
        assert_eq!(said.len(), 11);
        assert!(said[1].starts_with("pi1: copying m.gguf, ") && said[1].contains(" of "), "{said:?}");
    }
}
