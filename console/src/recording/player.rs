//! The state at any time of a recording. Copies of the state are kept on the way, at most so many and evenly spread, so that
//! going back costs one part of the recording and the memory does not grow with its length.
use std::{path::Path, time::Duration};

use super::{
    Header, Moment, RecordingError,
    reader::{Mark, Reader},
};
use crate::keymap::Keymap;
use crate::{event::Event, state::State, update::update};

/// Most copies of the state that are kept.
pub const CHECKPOINTS_MAX: usize = 48;
/// Time between two copies at first; doubled whenever there are too many.
const SPACING: Duration = Duration::from_secs(15);

/// A copy of everything at a time.
#[derive(Clone, Debug)]
struct Checkpoint {
    mark: Mark,
    state: State,
    next: Option<Moment>,
}

/// A recording and the state at one time of it.
#[derive(Debug)]
pub struct Player {
    reader: Reader,
    header: Header,
    state: State,
    /// What was read and lies ahead.
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
    /// It cannot be read, or is none.
    pub fn open(path: &Path) -> Result<Self, RecordingError> {
        let (mut reader, header) = Reader::open(path)?;
        let mut state = State::new(&header.nodes, header.wanted.clone(), &header.prompt, header.defaults.clone());
        state.goal = header.asked.as_ref().map_or_else(Default::default, |asked| asked.goal);
        state.asked = header.asked.clone();
        state.clock_ms = header.started_unix_ms;
        state.desk.keys = Keymap::read(&header.keys).map_err(|error| {
            let reason = format!("its keys: {error}");
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

    /// What was recorded.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The state at the time that was reached.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The time that was sought.
    pub fn at(&self) -> Duration {
        self.target
    }

    /// The times of the first and of the last event.
    pub fn span(&self) -> (Duration, Duration) {
        (self.first, self.end)
    }

    /// Why it ends earlier than it says.
    pub fn broken(&self) -> Option<&RecordingError> {
        self.broken.as_ref()
    }

    /// Events that the recording itself had to leave out, as far as was read.
    pub fn lost(&self) -> u64 {
        self.reader.lost()
    }

    /// Copies of the state that are kept.
    pub fn checkpoints(&self) -> usize {
        self.checkpoints.len()
    }

    /// Another time is wanted; [`Self::work`] goes there.
    pub fn seek(&mut self, to: Duration) {
        self.target = to.clamp(self.first, self.end.max(self.first));
        // The copy that is nearest before it; forward only where that saves something.
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

    /// Plays on towards the time that is wanted, at most so many events. Returns whether it is reached.
    pub fn work(&mut self, events_max: usize) -> bool {
        for _ in 0..events_max {
            let Some(moment) = self.next.take_if(|moment| moment.at <= self.target) else {
                self.tick(self.target);
                return true;
            };
            self.tick(moment.at);
            if let Some(event) = moment.event {
                // What it wanted done was done then.
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

    /// Nothing behind this can be played.
    fn end_here(&mut self, error: RecordingError) {
        self.next = None;
        self.end = self.state.now.max(self.first);
        self.target = self.target.min(self.end);
        self.broken = Some(error);
    }

    /// Keeps a copy where the last one is long ago.
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
