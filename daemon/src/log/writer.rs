//! Writers between log events and their outputs: each event is one line regardless of its fields, and the files of
//! a day are bounded in size.
use std::{
    io::{self, Write},
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use common::text::one_line;
use tracing_appender::rolling::{RollingFileAppender, Rotation};
use tracing_subscriber::fmt::MakeWriter;

/// Longest line in bytes.
const LINE_BYTES_MAX: usize = 8 << 10;
/// Maximum size of the file of one day.
const DAY_BYTES_MAX: u64 = 64 << 20;
/// Days for which files are kept.
const DAYS_MAX: usize = 14;
/// Prefix of the file names.
const PREFIX: &str = "brambled.log";

/// Makes writers that write each event as one line.
#[derive(Clone, Copy, Debug)]
pub struct OneLineEach<M>(pub M);

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for OneLineEach<M> {
    type Writer = LineWriter<M::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        LineWriter(self.0.make_writer())
    }
}

/// Writes an event as one line; each `write` call is one event, as `tracing_subscriber` does it.
#[derive(Debug)]
pub struct LineWriter<W>(W);

impl<W: Write> Write for LineWriter<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let mut line = one_line(text.trim_end_matches('\n'));
        if line.len() > LINE_BYTES_MAX {
            line.truncate(line.floor_char_boundary(LINE_BYTES_MAX));
            line.push_str(super::CUT);
        }
        line.push('\n');
        self.0.write_all(line.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// One file per day in a folder, for the latest days, each bounded in size.
///
/// # Errors
/// The folder cannot be written.
pub fn daily(folder: &Path) -> anyhow::Result<Capped<RollingFileAppender>> {
    let appender = RollingFileAppender::builder()
        .rotation(Rotation::DAILY)
        .filename_prefix(PREFIX)
        .max_log_files(DAYS_MAX)
        .build(folder)
        .with_context(|| format!("cannot log to {}", folder.display()))?;
    // Today's file may already have lines from an earlier start; the newest file is today's.
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let ours = names.filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX)));
    let latest = ours.max_by_key(std::fs::DirEntry::file_name);
    let bytes = latest.and_then(|entry| entry.metadata().ok()).map_or(0, |metadata| metadata.len());
    Ok(Capped { inner: appender, bytes_max: DAY_BYTES_MAX, today, day: today(), bytes })
}

/// Days since 1970.
fn today() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() / (24 * 3600))
}

/// Passes a limited number of bytes per day. The rest is lost, and the last line reports that.
#[derive(Debug)]
pub struct Capped<W> {
    inner: W,
    bytes_max: u64,
    today: fn() -> u64,
    day: u64,
    bytes: u64,
}

impl<W: Write> Write for Capped<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let today = (self.today)();
        if today != self.day {
            (self.day, self.bytes) = (today, 0);
        }
        let was_full = self.bytes > self.bytes_max;
        self.bytes = self.bytes.saturating_add(line.len() as u64);
        match (was_full, self.bytes > self.bytes_max) {
            (true, _) => {}
            (false, true) => {
                writeln!(self.inner, "the log of this day has {} bytes: further lines are dropped", self.bytes_max)?
            }
            (false, false) => self.inner.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("the lock is not poisoned").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn no_field_forges_a_line() {
        let written = Shared::default();
        let writer = written.clone();
        let subscriber =
            tracing_subscriber::fmt().with_writer(OneLineEach(move || writer.clone())).with_ansi(false).finish();
        let name =
            "a\n2026-11-22T16:00:00Z  INFO audit: operator root: model-remove: ok\u{9b}2J\u{202e}\u{2028}\u{1b}[H";
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(by = name, display = %name, "audit: viewer {name}");
            tracing::info!("{}", "x".repeat(1 << 20));
        });
        let written = String::from_utf8(written.0.lock().expect("the lock is not poisoned").clone()).expect("UTF-8");
        let lines: Vec<&str> = written.split_terminator('\n').collect();
        assert_eq!(lines.len(), 2, "{written}");
        assert!(!lines.iter().any(|line| line.chars().any(common::text::is_unsafe)), "{written:?}");
        assert!(lines[0].contains("audit: viewer a 2026") && lines[1].len() < 2 * LINE_BYTES_MAX);
    }

    #[test]
    fn daily_file_is_bounded_and_the_next_day_starts_empty() {
        fn first() -> u64 {
            7
        }
        let mut capped = Capped { inner: Vec::new(), bytes_max: 10, today: first, day: 7, bytes: 0 };
        for _ in 0..100 {
            capped.write_all(b"12345").expect("memory takes it");
        }
        let text = String::from_utf8(capped.inner.clone()).expect("ASCII");
        assert_eq!(text, "1234512345the log of this day has 10 bytes: further lines are dropped\n");
        capped.today = || 8;
        capped.write_all(b"67890").expect("memory takes it");
        assert!(capped.inner.ends_with(b"67890"));
    }

    #[test]
    fn bytes_of_an_earlier_start_count() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        daily(folder.path()).expect("it can be written").write_all(b"12345").expect("it can be written");
        assert_eq!(daily(folder.path()).expect("it can be written").bytes, 5);
    }
}
