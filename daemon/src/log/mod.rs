//! The latest lines of this process's log, kept in memory for consoles. Bounded in lines and in bytes; the oldest lines
//! are dropped. One lock, held only while a line is stored or lines are copied.
mod writer;

use std::{
    collections::VecDeque,
    fmt::{self, Write},
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use common::text::is_unsafe;
use protocol::inspect::{
    LOG_ANSWER_LINES_MAX, LOG_BYTES_MAX, LOG_LINE_BYTES_MAX, LOG_LINES_MAX, LogLevel, LogLine, LogLines,
};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context};

pub use writer::{OneLineEach, daily};

/// Target of lines that are kept in memory for consoles and never written: events of every request.
pub const IN_MEMORY: &str = "in_memory";
/// Suffix of a truncated line.
const CUT: &str = " [cut]";

/// The log of this process.
static OWN: Ring = Ring(Mutex::new(Lines { lines: VecDeque::new(), bytes: 0, latest: 0 }));

/// The log of this process.
pub fn ring() -> &'static Ring {
    &OWN
}

/// Selects lines for standard error and files: all except those with target [`IN_MEMORY`].
pub fn is_for_disk(metadata: &Metadata<'_>) -> bool {
    metadata.target() != IN_MEMORY
}

/// Whether `stream` is connected to the journal, which adds the time. systemd sets `JOURNAL_STREAM` to the device and
/// inode of that socket; a process whose standard error was redirected inherits the variable as well.
pub fn is_journal(variable: Option<&str>, stream: &Path) -> bool {
    let own = fs::metadata(stream).map(|metadata| (metadata.dev(), metadata.ino()));
    let named = variable.and_then(|value| value.split_once(':'));
    let named = named.and_then(|(device, inode)| Some((device.parse().ok()?, inode.parse().ok()?)));
    named.is_some_and(|named| own.is_ok_and(|own| own == named))
}

/// The latest lines of a log.
#[derive(Debug, Default)]
pub struct Ring(Mutex<Lines>);

#[derive(Debug, Default)]
struct Lines {
    lines: VecDeque<LogLine>,
    bytes: usize,
    /// Number of the latest line.
    latest: u64,
}

impl Ring {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        // The contents are intact even if a thread panicked while it held the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a line; drops the oldest ones beyond the bounds.
    pub fn push(&self, unix_ms: u64, level: LogLevel, mut text: String) {
        if text.len() > LOG_LINE_BYTES_MAX {
            text.truncate(text.floor_char_boundary(LOG_LINE_BYTES_MAX - CUT.len()));
            text.push_str(CUT);
        }
        let mut kept = self.lines();
        kept.latest += 1;
        kept.bytes += text.len();
        let number = kept.latest;
        kept.lines.push_back(LogLine { number, unix_ms, level, text });
        while kept.lines.len() > LOG_LINES_MAX || kept.bytes > LOG_BYTES_MAX {
            let Some(oldest) = kept.lines.pop_front() else { break };
            kept.bytes -= oldest.text.len();
        }
    }

    /// Lines after the given number with at least the severity `level`, at most [`LOG_ANSWER_LINES_MAX`].
    pub fn read(&self, after: u64, level: LogLevel) -> LogLines {
        let kept = self.lines();
        let oldest = kept.lines.front().map_or(kept.latest + 1, |line| line.number);
        // A number from an earlier run of the daemon is too large: start from the beginning.
        let after = if after > kept.latest { 0 } else { after };
        let missed = oldest.saturating_sub(after + 1);
        let mut found = LogLines { missed, next: kept.latest, ..LogLines::default() };
        let later = kept.lines.iter().skip_while(|line| line.number <= after);
        for line in later.filter(|line| line.level >= level) {
            if found.lines.len() == LOG_ANSWER_LINES_MAX {
                found.next = found.lines.last().map_or(after, |last| last.number);
                found.more = true;
                break;
            }
            found.lines.push(line.clone());
        }
        found
    }
}

/// A layer that stores every event that passes the filter in [`ring`].
#[derive(Clone, Copy, Debug)]
pub struct RecentLog;

impl<S: Subscriber> Layer<S> for RecentLog {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Text::default();
        event.record(&mut line);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64);
        OWN.push(now, level(*event.metadata().level()), line.0 + &line.1);
    }
}

fn level(level: Level) -> LogLevel {
    match level {
        Level::ERROR => LogLevel::Error,
        Level::WARN => LogLevel::Warn,
        Level::INFO => LogLevel::Info,
        Level::DEBUG => LogLevel::Debug,
        Level::TRACE => LogLevel::Trace,
    }
}

/// Message and fields of an event, on one line, each limited to the stored length.
#[derive(Default)]
struct Text(String, String);

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let is_message = field.name() == "message";
        let text = if is_message { &mut self.0 } else { &mut self.1 };
        // Text beyond the limit is dropped, because it would be truncated anyway.
        let _ = match is_message {
            true => write!(OneLine(text), "{value:?}"),
            false => write!(OneLine(text), " {}={value:?}", field.name()),
        };
    }
}

/// A writer that accepts text up to the longest line, without control characters.
struct OneLine<'a>(&'a mut String);

impl Write for OneLine<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            if self.0.len() > LOG_LINE_BYTES_MAX {
                return Err(fmt::Error);
            }
            self.0.push(if is_unsafe(letter) { ' ' } else { letter });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn lines_are_read_by_level_from_the_reader_position() {
        let ring = Ring::default();
        assert_eq!(ring.read(0, LogLevel::Trace), LogLines::default());
        ring.push(1, LogLevel::Info, "a".into());
        ring.push(2, LogLevel::Warn, "b".into());
        let found = ring.read(0, LogLevel::Warn);
        assert_eq!((found.lines.len(), found.lines[0].number, found.next, found.missed), (1, 2, 2, 0));
        assert_eq!(ring.read(found.next, LogLevel::Trace).lines, []);
        ring.push(3, LogLevel::Info, "c".into());
        assert_eq!(ring.read(2, LogLevel::Info).lines[0].text, "c");
        assert_eq!(
            ring.read(99, LogLevel::Info).lines.len(),
            3,
            "another start of the daemon counts from the \
         beginning"
        );
    }

    #[test]
    fn lines_bytes_and_answers_are_bounded_and_losses_counted() {
        let ring = Ring::default();
        (0..LOG_LINES_MAX as u64 + 10).for_each(|time| ring.push(time, LogLevel::Info, "x".into()));
        let first = ring.read(0, LogLevel::Info);
        assert_eq!((first.lines.len(), first.missed, first.more), (LOG_ANSWER_LINES_MAX, 10, true));
        let (mut after, mut count) = (first.next, first.lines.len());
        while count < LOG_LINES_MAX {
            let found = ring.read(after, LogLevel::Info);
            assert_eq!(found.missed, 0);
            (after, count) = (found.next, count + found.lines.len());
        }
        assert_eq!(ring.read(after, LogLevel::Info).lines, []);
        (0..1000).for_each(|time| ring.push(time, LogLevel::Info, "\u{fc}".repeat(4000)));
        let kept = ring.lines();
        assert!(kept.bytes <= LOG_BYTES_MAX && kept.lines.len() < 1000, "{} lines", kept.lines.len());
        let longest = &kept.lines.back().expect("a line").text;
        assert!(longest.len() <= LOG_LINE_BYTES_MAX && longest.ends_with(CUT));
    }

    #[test]
    fn only_the_stream_that_systemd_names_is_the_journal() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let [own, other] = ["own", "other"].map(|name| folder.path().join(name));
        fs::write(&own, "").and_then(|()| fs::write(&other, "")).expect("the folder can be written");
        let metadata = fs::metadata(&own).expect("it is there");
        let variable = format!("{}:{}", metadata.dev(), metadata.ino());
        assert!(is_journal(Some(&variable), &own));
        // Standard error was redirected, but the variable is still set.
        assert!(!is_journal(Some(&variable), &other));
        assert!(!is_journal(None, &own) && !is_journal(Some("8"), &own) && !is_journal(Some("x:y"), &own));
        assert!(!is_journal(Some(&variable), &folder.path().join("gone")));
    }

    #[test]
    fn event_is_one_line_followed_by_its_fields() {
        let subscriber = tracing_subscriber::registry().with(RecentLog);
        let before = ring().read(0, LogLevel::Trace).next;
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(name = "pi1", count = 3, "two\nlines {}", 7);
        });
        let found = ring().read(before, LogLevel::Warn);
        let line = found.lines.iter().find(|line| line.text.contains("two")).expect("the line is kept");
        assert_eq!((line.text.as_str(), line.level), ("two lines 7 name=pi1 count=3", LogLevel::Warn));
        assert!(line.unix_ms > 1_600_000_000_000);
    }
}
