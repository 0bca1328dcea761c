//! Progress of a benchmark: one line per step on standard error.
use std::{
    fmt::Display,
    io::{IsTerminal, Write, stderr},
};

use telemetry::BenchProgress;

/// Counts the steps of a benchmark.
#[derive(Debug)]
pub(super) struct Reporter {
    step: u16,
    steps: u16,
    tells: bool,
}

impl Reporter {
    /// A counter of `steps`; prints if `asked` to, or on a terminal.
    pub(super) fn new(steps: usize, asked: bool) -> Self {
        Self { step: 0, steps: u16::try_from(steps).unwrap_or(u16::MAX), tells: asked || stderr().is_terminal() }
    }

    /// Begins a step.
    pub(super) fn begin(&mut self, what: impl Display) {
        self.step = self.step.saturating_add(1);
        if self.tells {
            let progress = BenchProgress { step: self.step, steps: self.steps.max(self.step), what: what.to_string() };
            // Standard error may be closed.
            let _ = writeln!(stderr(), "{progress}");
        }
    }
}
