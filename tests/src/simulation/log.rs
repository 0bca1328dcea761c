//! Reads the log of the daemons of a history, in which no prompt may be.
use std::{
    cell::RefCell,
    fmt::{Debug, Write},
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

use crate::simulation::world::gateway::SECRET;

thread_local! {
    static LEAK: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The line with the first prompt that was logged on this thread since the last call.
pub(super) fn leak() -> Option<String> {
    LEAK.take()
}

/// Runs something and reads what it logs.
pub(super) fn read<T>(run: impl FnOnce() -> T) -> T {
    tracing::subscriber::with_default(LogReader, run)
}

/// Reads every line that a daemon writes with its default settings.
struct LogReader;

/// The text of one line.
struct LogLine(String);

impl Visit for LogLine {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string does not fail.
        let _ = write!(self.0, "{field}={value:?} ");
    }
}

impl Subscriber for LogReader {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = LogLine(String::new());
        event.record(&mut line);
        if line.0.contains(SECRET) {
            LEAK.with_borrow_mut(|leak| {
                leak.get_or_insert(line.0);
            });
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
