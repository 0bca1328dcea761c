//! The driver of a replay: advances the time, renders frames and passes keys to the viewer's own copy of the state.
//! There is no cluster behind it, so effects on one are refused with a notice.
use std::time::Duration;

use common::calendar::time_of_day;
use crossterm::event::EventStream;
use tokio::{
    select,
    time::{Instant, MissedTickBehavior, interval},
};

use super::Signals;
use crate::{
    keymap::{Key, ReplayAction},
    recording::{observer::Observer, player::Player},
    state::{
        Panel, State,
        preferences::{Preferences, ReplayStatus},
    },
    terminal::{TerminalError, TerminalScreen, input::next_input},
    update::effect::{Effect, FileEffect},
    update::event::Event,
    update::update,
    view,
};

/// Interval between two frames while playing.
const FRAME: Duration = Duration::from_millis(66);
/// Events played in one batch; keys are handled between batches.
const EVENTS_AT_ONCE: usize = 4000;
/// Speeds that + and - step through.
const SPEEDS: [f64; 10] = [0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0];

/// Initial settings of a replay.
#[derive(Clone, Debug)]
pub struct Start {
    /// Screen preferences.
    pub desk: Preferences,
    /// Start time; `None` = the first event.
    pub at: Option<Duration>,
    /// Playback speed: session seconds per second.
    pub speed: f64,
}

/// Plays a recording until it quits; returns the exit code.
///
/// # Errors
/// The terminal cannot be used. The terminal is restored in every case.
pub async fn replay(player: Player, start: Start) -> Result<i32, TerminalError> {
    let mut signals = Signals::listen()?;
    let mut screen = TerminalScreen::enter()?;
    screen.take_mouse(start.desk.takes_mouse);
    let mut stage = Replayer::new(player, start);
    let mut keys = EventStream::new();
    let mut ticks = interval(FRAME);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let event = select! {
            signal = signals.next() => return Ok(signal.exit_code()),
            key = next_input(&mut keys) => key,
            event = stage.observer.news() => Some(event),
            _ = ticks.tick() => None,
        };
        if let Some(event) = event
            && let Some(code) = stage.handle(event, &mut screen)
        {
            return Ok(code);
        }
        stage.go_on();
        screen.check()?;
        if stage.is_changed && screen.is_ready() {
            let shown = stage.shown();
            let theme = view::theme_of(&shown);
            let extent = screen.draw(|frame| view::draw(&shown, &theme, frame))?;
            stage.viewer.screen.extent = extent;
            stage.is_changed = false;
        }
    }
}

/// The replay without the terminal.
struct Replayer {
    player: Player,
    /// The viewer's own view of the state.
    viewer: State,
    observer: Observer,
    is_own_view: bool,
    is_paused: bool,
    is_seeking: bool,
    is_changed: bool,
    speed: f64,
    at: Duration,
    moved: Instant,
}

impl Replayer {
    fn new(player: Player, start: Start) -> Self {
        let mut viewer = player.state().clone();
        viewer.preferences = start.desk;
        viewer.readonly = true;
        let at = start.at.unwrap_or(player.at()).clamp(player.span().0, player.span().1);
        let observer = Observer::new(&viewer);
        let (is_own_view, is_paused, is_seeking, is_changed) = (false, false, true, true);
        let (speed, moved) = (start.speed, Instant::now());
        Self { player, viewer, observer, is_own_view, is_paused, is_seeking, is_changed, speed, at, moved }
    }

    /// Advances the time and plays up to it.
    fn go_on(&mut self) {
        let passed = self.moved.elapsed();
        self.moved = Instant::now();
        let (first, end) = self.player.span();
        if !self.is_paused && !self.is_seeking {
            self.at = (self.at + passed.mul_f64(self.speed)).min(end);
            self.is_paused = self.at == end;
            self.is_changed = true;
        }
        if self.player.at() != self.at || self.is_seeking {
            self.player.seek(self.at);
            self.is_seeking = !self.player.work(EVENTS_AT_ONCE);
            self.at = self.at.clamp(first, self.player.span().1);
            self.is_changed = true;
        }
    }

    /// The state to render.
    fn shown(&self) -> State {
        let mut shown = self.player.state().shown().clone();
        if self.is_own_view {
            shown.look_as(&self.viewer);
            shown.operations.dialog = None;
        } else {
            shown.screen.notice.clone_from(&self.viewer.screen.notice);
        }
        let (first, end) = self.player.span();
        let seconds = self.player.header().started_unix_ms / 1000 + self.at.as_secs();
        shown.preferences = Preferences {
            recording: None,
            replay: Some(ReplayStatus {
                clock: time_of_day(seconds),
                at: self.at.saturating_sub(first),
                length: end.saturating_sub(first),
                speed: self.speed,
                is_paused: self.is_paused,
                is_seeking: self.is_seeking,
                is_own_view: self.is_own_view,
            }),
            ..self.viewer.preferences.clone()
        };
        if let Some(error) = self.player.broken()
            && shown.screen.notice.is_none()
        {
            shown.screen.notice = Some(crate::state::clean::clean_line(&error.to_string()));
        }
        shown.readonly = true;
        shown
    }

    /// Handles a key, a mouse action or a file result; returns the exit code at the end.
    fn handle(&mut self, event: Event, screen: &mut TerminalScreen) -> Option<i32> {
        self.is_changed = true;
        if let Event::Key(key) = event
            && self.steers(key)
        {
            return None;
        }
        if !self.is_own_view && matches!(event, Event::Key(_) | Event::Mouse(_) | Event::Paste(_)) {
            let extent = self.viewer.screen.extent;
            self.viewer = self.shown();
            (self.viewer.screen.extent, self.is_own_view) = (extent, true);
        } else if self.is_own_view {
            self.viewer = self.shown();
        }
        // No prompt can be sent: keys navigate and scroll even if the recorded session was typing.
        if self.viewer.screen.focus.panel == Panel::Prompt {
            self.viewer.screen.focus.panel = Panel::Text;
        }
        let before = self.viewer.clone();
        let effects = update(&mut self.viewer, event);
        if effects.iter().any(Effect::acts) {
            self.viewer = before;
            self.viewer.screen.notice = Some("this is a recording: nothing can be done in it".to_owned());
            return None;
        }
        for effect in effects {
            match effect {
                Effect::Quit(code) => return Some(code),
                Effect::TakeMouse(takes) => screen.take_mouse(takes),
                Effect::Replay(action) => self.steer(action),
                Effect::Copy(text) => screen.copy(&text),
                Effect::File(effect @ FileEffect::Export { .. }) => {
                    self.observer.perform(effect, &self.viewer, screen.size().unwrap_or((80, 24)));
                }
                // Effects on the cluster were refused above, and a replay is not recorded.
                Effect::File(FileEffect::Record(_) | FileEffect::StopRecording | FileEffect::Conversations(_))
                | Effect::Draw
                | Effect::Tour(_)
                | Effect::Alert(_)
                | Effect::Plan(_)
                | Effect::Models(_)
                | Effect::Log { .. }
                | Effect::Assign { .. }
                | Effect::Generate { .. }
                | Effect::Operate(_)
                | Effect::Cancel => {}
            }
        }
        self.viewer.frozen = None;
        None
    }

    /// Handles keys of the replay itself. Returns whether `key` was one.
    fn steers(&mut self, key: Key) -> bool {
        let viewer = &self.viewer;
        let is_busy = self.is_own_view
            && (viewer.preferences.is_commanding
                || viewer.screen.focus.is_typing()
                || viewer.screen.help.is_some()
                || viewer.screen.form.is_some());
        if is_busy {
            return false;
        }
        let Some(action) = viewer.preferences.keys.replay_action(key) else { return false };
        self.steer(action);
        true
    }

    /// Changes the playback.
    fn steer(&mut self, action: ReplayAction) {
        let (first, end) = self.player.span();
        let place = SPEEDS.iter().position(|speed| *speed >= self.speed).unwrap_or(SPEEDS.len() - 1);
        match action {
            ReplayAction::Pause => {
                self.is_paused = !self.is_paused;
                if self.at == end && !self.is_paused {
                    self.jump(first);
                }
            }
            ReplayAction::Back => self.jump(self.at.saturating_sub(Duration::from_secs(10))),
            ReplayAction::Forward => self.jump(self.at + Duration::from_secs(10)),
            ReplayAction::MinuteBack => self.jump(self.at.saturating_sub(Duration::from_secs(60))),
            ReplayAction::MinuteForward => self.jump(self.at + Duration::from_secs(60)),
            ReplayAction::Start => self.jump(first),
            ReplayAction::End => self.jump(end),
            ReplayAction::Faster => self.speed = SPEEDS[(place + 1).min(SPEEDS.len() - 1)],
            ReplayAction::Slower => self.speed = SPEEDS[place.saturating_sub(1)],
            ReplayAction::RecordedView => self.is_own_view = false,
        }
    }

    fn jump(&mut self, to: Duration) {
        let (first, end) = self.player.span();
        (self.at, self.is_seeking) = (to.clamp(first, end), true);
    }
}
