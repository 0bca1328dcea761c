//! The observer of a session: the only door between the dashboard's driver and files. It sees every event, records the
//! session, and writes exports. Disk access happens on another thread, and results arrive as events. Existing files are
//! never overwritten.
use std::{
    fs::OpenOptions,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use common::calendar::compact;
use tokio::sync::mpsc;

use crate::{
    client::conversations::{
        folder,
        keeper::{Keeper, KeeperOrder},
    },
    recording::{FORMAT, Header, RecordingError, opening, writer::Recorder},
    state::{State, command::Format},
    update::{
        effect::FileEffect,
        event::{Event, RecordingEvent},
    },
    view::{self, picture},
};

/// Maximum number of unread results; further ones are dropped.
const NEWS_MAX: usize = 16;

/// Observes one session.
pub(crate) struct Observer {
    header: Header,
    recorder: Option<Recorder>,
    /// `None` without a home folder.
    keeper: Option<Keeper>,
    sender: mpsc::Sender<Event>,
    news: mpsc::Receiver<Event>,
}

impl Observer {
    pub(crate) fn new(state: &State) -> Self {
        let (sender, news) = mpsc::channel(NEWS_MAX);
        let header = Header {
            bramble_recording: FORMAT,
            build: env!("CARGO_PKG_VERSION").to_owned(),
            started_unix_ms: unix_time().as_millis() as u64,
            nodes: state.cluster.nodes.iter().map(|node| node.address.clone()).collect(),
            wanted: state.plan.desired.clone(),
            asked: state.plan.requested.clone(),
            prompt: state.screen.editor.text().to_owned(),
            defaults: state.generation.defaults.clone(),
            keys: state.preferences.keys.changed(),
        };
        let told = sender.clone();
        let keeper = folder().map(|folder| {
            // As for all news: if this many are unread, one more would not be read either.
            Keeper::start(folder, move |news| drop(told.try_send(Event::Conversations(news))))
        });
        Self { header, recorder: None, keeper, sender, news }
    }

    /// Start time of this dashboard, in milliseconds since 1970.
    pub(crate) fn started_unix_ms(&self) -> u64 {
        self.header.started_unix_ms
    }

    /// The next result of a recording or export.
    pub(crate) async fn news(&mut self) -> Event {
        // Never closed: a sender is kept in this struct.
        self.news.recv().await.expect("this struct keeps a sender")
    }

    /// Adds an event and its time to the recording, if there is one.
    pub(crate) fn observe(&mut self, state: &State, now: Duration, event: Option<&Event>) {
        let Some(recorder) = &mut self.recorder else { return };
        if let Some(reason) = recorder.failure() {
            self.recorder = None;
            return self.tell(Event::Recording(RecordingEvent::Failed { reason }));
        }
        // Most frames have the same extent as the previous one.
        let is_as_before = matches!(event, Some(Event::Drawn(extent)) if *extent == state.shown().screen.extent);
        recorder.record(now, event.filter(|_| !is_as_before));
    }

    /// Starts a recording; returns the event that announces it.
    pub(crate) fn record(&mut self, file: Option<PathBuf>, state: &State) -> Result<Event, RecordingError> {
        let file = file.unwrap_or_else(|| named("session", "jsonl"));
        let mut recorder = Recorder::create(&file, &self.header)?;
        for event in opening(state) {
            recorder.record(state.now, Some(&event));
        }
        self.recorder = Some(recorder);
        Ok(Event::Recording(RecordingEvent::Began { file: file.display().to_string() }))
    }

    /// Performs an effect on files; the outcome arrives as an event. `size` is that of the screen in cells.
    pub(crate) fn perform(&mut self, effect: FileEffect, state: &State, size: (u16, u16)) {
        match effect {
            FileEffect::Record(file) => self.begin(file.map(PathBuf::from), state),
            FileEffect::StopRecording => self.end(),
            FileEffect::Conversations(order) => self.order(order),
            FileEffect::Export { format, file } => self.export(state, size, format, file.map(PathBuf::from)),
        }
    }

    /// Passes an order on to the thread that stores conversations.
    fn order(&self, order: KeeperOrder) {
        let Some(keeper) = &self.keeper else { return };
        if !keeper.order(order) {
            self.tell(Event::Said("the disk is too slow: the conversation is not stored".to_owned()));
        }
    }

    /// Starts a recording; the outcome arrives as an event.
    fn begin(&mut self, file: Option<PathBuf>, state: &State) {
        let event = self.record(file, state);
        self.tell(event.unwrap_or_else(|error| Event::Recording(RecordingEvent::Failed { reason: error.to_string() })));
    }

    /// Ends the recording; the outcome arrives as an event.
    fn end(&mut self) {
        let Some(recorder) = self.recorder.take() else { return };
        let sender = self.sender.clone();
        tokio::task::spawn_blocking(move || {
            // At the end of the program there is no receiver.
            let _ = sender.blocking_send(Event::Recording(ended(recorder)));
        });
    }

    /// Stores the last conversation and ends the recording when the dashboard quits. Both wait for the disk only
    /// briefly; errors go to standard error, because the terminal is already restored.
    pub(crate) fn finish(&mut self) {
        let stored = self.keeper.take().map_or(Ok(()), Keeper::finish);
        let recorded = match self.recorder.take().map(ended) {
            Some(RecordingEvent::Failed { reason }) => Err(reason),
            _ => Ok(()),
        };
        for reason in [stored, recorded].into_iter().filter_map(Result::err) {
            // If the terminal is gone, there is no place for a report.
            let _ = writeln!(io::stderr(), "console: {reason}");
        }
    }

    /// Writes the page's data or the screen to a file.
    fn export(&self, state: &State, size: (u16, u16), format: Format, file: Option<PathBuf>) {
        let page = state.shown().screen.focus.page.title().to_lowercase();
        let file = file.unwrap_or_else(|| named(&page, format.suffix()));
        let content = match content(state, size, format) {
            Ok(content) => content,
            Err(reason) => return self.tell(Event::Said(reason)),
        };
        let sender = self.sender.clone();
        tokio::task::spawn_blocking(move || {
            let said = match create(&file, &content) {
                Ok(()) => format!("written to {}", file.display()),
                Err(reason) if reason.kind() == io::ErrorKind::AlreadyExists => {
                    format!("{} exists already; name another file", file.display())
                }
                Err(reason) => format!("{} cannot be written: {reason}", file.display()),
            };
            let _ = sender.blocking_send(Event::Said(said));
        });
    }

    fn tell(&self, event: Event) {
        // If this many results are unread, one more message would not be read either.
        let _ = self.sender.try_send(event);
    }
}

/// The content of a file in this format.
fn content(state: &State, size: (u16, u16), format: Format) -> Result<String, String> {
    let theme = view::theme_of(state);
    match format {
        Format::Text => Ok(picture::text(&view::paint(state, &theme, size))),
        Format::Svg => {
            let is_light = state.shown().preferences.theme == crate::state::preferences::ThemeName::Light;
            Ok(picture::svg(&view::paint(state, &theme, size), is_light))
        }
        Format::Csv | Format::Json | Format::Markdown => super::export::data(state.shown(), format),
    }
}

fn ended(recorder: Recorder) -> RecordingEvent {
    let (file, (events, lost)) = (recorder.path().display().to_string(), recorder.counts());
    match recorder.finish() {
        Ok(()) => RecordingEvent::Ended { file, events, lost },
        Err(reason) => RecordingEvent::Failed { reason },
    }
}

/// A file in the current folder, named by content and time.
fn named(what: &str, suffix: &str) -> PathBuf {
    PathBuf::from(format!("bramble-{what}-{}.{suffix}", compact(unix_time().as_secs())))
}

/// Creates a file that only its owner reads: it may contain prompts and answers.
fn create(file: &Path, content: &str) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?.write_all(content.as_bytes())
}

/// Time since 1970.
fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn export_is_for_its_owner_only() {
        let folder = tempfile::tempdir().expect("create a temporary folder");
        let file = folder.path().join("chat.md");
        create(&file, "a prompt").expect("the folder can be written");
        let mode = std::fs::metadata(&file).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(create(&file, "another").is_err(), "existing files are kept");
    }
}
