//! What is measured now, a line each on standard error.
use std::{
    fmt::Display,
    io::{IsTerminal, Write, stderr},
};

use shared::telemetry::BenchProgress;

/// Counts the steps of a bench.
#[derive(Debug)]
pub(super) struct Reporter {
    step: u16,
    steps: u16,
    tells: bool,
}

impl Reporter {
    /// Of so many steps; tells of them if `asked` to, or on a terminal.
    pub(super) fn new(steps: usize, asked: bool) -> Self {
        Self { step: 0, steps: u16::try_from(steps).unwrap_or(u16::MAX), tells: asked || stderr().is_terminal() }
    }

    /// A step begins.
    pub(super) fn begin(&mut self, what: impl Display) {
        self.step = self.step.saturating_add(1);
        if self.tells {
            let progress = BenchProgress { step: self.step, steps: self.steps.max(self.step), what: what.to_string() };
            // Nobody there to tell.
            let _ = writeln!(stderr(), "{progress}");
        }
    }
}
