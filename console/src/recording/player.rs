//! The state at any time of a recording. The player keeps evenly spaced copies of the state, up to a maximum
//! number, so that seeking back replays only part of the recording and memory stays bounded.
use std::{path::Path, time::Duration};

use super::{
    Header, Moment, RecordingError,
    reader::{Mark, Reader},
};
use crate::keymap::Keymap;
use crate::{state::State, update::event::Event, update::update};

/// Largest number of checkpoints.
pub const CHECKPOINTS_MAX: usize = 48;
/// Initial time between two checkpoints; doubled whenever there are too many.
const SPACING: Duration = Duration::from_secs(15);

/// A copy of the complete state at one time.
#[derive(Clone, Debug)]
struct Checkpoint {
    mark: Mark,
    state: State,
    next: Option<Moment>,
}

/// A recording, and the state at one time of it.
#[derive(Debug)]
pub struct Player {
    reader: Reader,
    header: Header,
    state: State,
    /// The next moment, read but not yet applied.
    next: Option<Moment>,
    target: Duration,
    first: Duration,
    end: Duration,
    checkpoints: Vec<Checkpoint>,
    spacing: Duration,
    broken: Option<RecordingError>,
}

impl Player {
    /// Opens a recording at its start.
    ///
    /// # Errors
    /// The file cannot be read, or is not a recording.
    pub fn open(path: &Path) -> Result<Self, RecordingError> {
        let (mut reader, header) = Reader::open(path)?;
        let mut state = State::new(&header.nodes, header.wanted.clone(), &header.prompt, header.defaults.clone());
        state.plan.goal = header.asked.as_ref().map_or_else(Default::default, |asked| asked.goal);
        state.plan.requested = header.asked.clone();
        state.clock_ms = header.started_unix_ms;
        state.preferences.keys = Keymap::read(&header.keys).map_err(|error| {
            let reason = format!("invalid key bindings: {error}");
            RecordingError::NoRecording { path: path.into(), reason }
        })?;
        let end = reader.last_time()?;
        let next = reader.read()?;
        let first = next.as_ref().map_or(Duration::ZERO, |moment| moment.at);
        let end = end.unwrap_or(first).max(first);
        let (checkpoints, spacing) = (Vec::new(), SPACING);
        let mut player =
            Self { reader, header, state, next, target: first, first, end, checkpoints, spacing, broken: None };
        player.keep();
        Ok(player)
    }

    /// The header of the recording.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The state at the time reached so far.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The target time of the last seek.
    pub fn at(&self) -> Duration {
        self.target
    }

    /// The times of the first and of the last event.
    pub fn span(&self) -> (Duration, Duration) {
        (self.first, self.end)
    }

    /// Why the recording ends before its last line, if it does.
    pub fn broken(&self) -> Option<&RecordingError> {
        self.broken.as_ref()
    }

    /// Number of events that the writer dropped in the part read so far.
    pub fn lost(&self) -> u64 {
        self.reader.lost()
    }

    /// Number of checkpoints.
    pub fn checkpoints(&self) -> usize {
        self.checkpoints.len()
    }

    /// Sets the target time; [`Self::work`] moves there.
    pub fn seek(&mut self, to: Duration) {
        self.target = to.clamp(self.first, self.end.max(self.first));
        // Go to the nearest checkpoint before the target; forward only if that skips events.
        let place = self.checkpoints.partition_point(|checkpoint| checkpoint.state.now <= self.target);
        let nearest = self.checkpoints[..place].last().or(self.checkpoints.first());
        let Some(checkpoint) = nearest else { return };
        if self.state.now > self.target || checkpoint.state.now > self.state.now {
            let checkpoint = checkpoint.clone();
            if let Err(error) = self.reader.return_to(&checkpoint.mark) {
                return self.end_here(error);
            }
            (self.state, self.next) = (checkpoint.state, checkpoint.next);
        }
    }

    /// Plays up to `events_max` events towards the target time. Returns whether it is reached.
    pub fn work(&mut self, events_max: usize) -> bool {
        for _ in 0..events_max {
            let Some(moment) = self.next.take_if(|moment| moment.at <= self.target) else {
                self.tick(self.target);
                return true;
            };
            self.tick(moment.at);
            if let Some(event) = moment.event {
                // The recorded session has already executed the effects.
                drop(update(&mut self.state, event));
            }
            match self.reader.read() {
                Ok(next) => self.next = next,
                Err(error) => self.end_here(error),
            }
            self.keep();
        }
        false
    }

    fn tick(&mut self, now: Duration) {
        drop(update(&mut self.state, Event::Tick { now }));
    }

    /// Ends the recording here, because the rest cannot be played.
    fn end_here(&mut self, error: RecordingError) {
        self.next = None;
        self.end = self.state.now.max(self.first);
        self.target = self.target.min(self.end);
        self.broken = Some(error);
    }

    /// Adds a checkpoint if the last one is far enough back.
    fn keep(&mut self) {
        let now = self.state.now;
        if self.checkpoints.last().is_some_and(|last| now < last.state.now + self.spacing) {
            return;
        }
        if self.checkpoints.len() == CHECKPOINTS_MAX {
            self.spacing *= 2;
            let mut place = 0;
            self.checkpoints.retain(|_| {
                place += 1;
                place % 2 == 1
            });
            return self.keep();
        }
        let (mark, state, next) = (self.reader.mark(), self.state.clone(), self.next.clone());
        self.checkpoints.push(Checkpoint { mark, state, next });
    }
}
