//! The dashboard's driver: waits for an event, updates, performs the effects, draws if something changed.
//! Decides nothing; the only place of the dashboard that knows tokio and the time.
use std::{
    future::{pending, poll_fn},
    io,
    pin::Pin,
    time::Duration,
};

use crossterm::event::{
    Event as TerminalEvent, EventStream, KeyCode as TerminalCode, KeyEvent, KeyEventKind, KeyModifiers,
};
use futures_core::Stream;
use shared::protocol::message::Generate;
use tokio::{
    select,
    signal::unix::{self, SignalKind},
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout},
};

use crate::{
    effect::{Effect, Wanted},
    event::{ClientEvent, Event, GenerateEvent, Signal},
    keymap::{Key, KeyCode},
    state::{GenerateDefaults, State},
    terminal::{Screen, TerminalError},
    update::update,
    view::{self, theme::Theme},
};

/// Events from nodes that wait for the dashboard; a client waits when there are more.
const CLIENT_EVENTS_MAX: usize = 1024;
/// Time between ticks.
const TICK: Duration = Duration::from_millis(250);
/// Shortest time between two frames.
const FRAME: Duration = Duration::from_millis(33);
/// Longest wait for the end of a generation that was cancelled by quitting.
const CANCEL_WAIT: Duration = Duration::from_secs(1);

/// What a dashboard is started with.
#[derive(Clone, Debug)]
pub struct DashboardOptions {
    /// Addresses of the nodes, in the order replica, stage, rank.
    pub nodes: Vec<String>,
    /// What to assign as soon as all nodes are connected; `None` = look only.
    pub wanted: Option<Wanted>,
    /// What stands in the prompt box at first.
    pub prompt: String,
    /// What each generation asks for.
    pub defaults: GenerateDefaults,
}

/// The nodes as the dashboard commands them. Commands return at once; what comes of them arrives as events.
pub trait Nodes {
    /// Makes the nodes at these places of the list hold this, in this order.
    fn assign(&self, wanted: Wanted, members: Vec<usize>);
    /// Completes a text on the head.
    fn generate(&self, head: usize, generate: Generate);
    /// Cancels the running generation.
    fn cancel(&self);
    /// Restarts these nodes one after the other.
    fn restart(&self, which: Vec<usize>);
    /// Ends a restart before its next node.
    fn stop_restart(&self);
    /// Takes a node out, with a reason, or in again.
    fn exclude(&self, node: usize, reason: Option<String>);
}

/// Runs the dashboard until it is quit; returns the exit code. `connect` starts the client that sends to the channel.
///
/// # Errors
/// The terminal cannot be used. It is as before in every case.
pub async fn dashboard<N: Nodes>(
    options: DashboardOptions,
    connect: impl FnOnce(Vec<String>, mpsc::Sender<ClientEvent>) -> N,
) -> Result<i32, TerminalError> {
    // Before the terminal is taken: a signal in between must not leave it raw.
    let signals = Signals::listen()?;
    let screen = Screen::enter()?;
    let (sender, events) = mpsc::channel(CLIENT_EVENTS_MAX);
    let mut driver = Driver {
        state: State::new(&options.nodes, options.wanted, &options.prompt, options.defaults),
        nodes: connect(options.nodes, sender),
        theme: Theme::from_environment(),
        events,
        started: Instant::now(),
        frame_due: None,
        exit: None,
    };
    let code = driver.run(screen, signals).await?;
    driver.wait_for_cancel().await;
    Ok(code)
}

struct Driver<N> {
    state: State,
    nodes: N,
    theme: Theme,
    events: mpsc::Receiver<ClientEvent>,
    started: Instant,
    frame_due: Option<Instant>,
    exit: Option<i32>,
}

impl<N: Nodes> Driver<N> {
    /// The loop. Takes the screen, so that the terminal is back before anything after the loop is awaited.
    async fn run(&mut self, mut screen: Screen, mut signals: Signals) -> Result<i32, TerminalError> {
        let mut keys = EventStream::new();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.frame_due = Some(Instant::now());
        let mut drawn_at = None;
        loop {
            let frame_due = self.frame_due;
            let event = select! {
                signal = signals.next() => Some(Event::Signal(signal)),
                key = next_input(&mut keys) => key,
                event = next_client(&mut self.events) => Some(Event::Client(event)),
                _ = ticks.tick() => None,
                () = sleep_until_some(frame_due) => {
                    let extent = screen.draw(|frame| view::draw(&self.state, &self.theme, frame))?;
                    drawn_at = Some(Instant::now());
                    self.frame_due = None;
                    Some(Event::Drawn(extent))
                }
            };
            screen.check()?;
            self.handle(Event::Tick { now: self.started.elapsed() }, drawn_at);
            if let Some(event) = event {
                self.handle(event, drawn_at);
            }
            if let Some(code) = self.exit {
                return Ok(code);
            }
        }
    }

    fn handle(&mut self, event: Event, drawn_at: Option<Instant>) {
        for effect in update(&mut self.state, event) {
            match effect {
                Effect::Draw => {
                    let due = drawn_at.map_or_else(Instant::now, |at| at + FRAME);
                    self.frame_due.get_or_insert(due);
                }
                Effect::Assign { wanted, members } => self.nodes.assign(wanted, members),
                Effect::Generate { head, generate } => self.nodes.generate(head, *generate),
                Effect::Restart(which) => self.nodes.restart(which),
                Effect::StopRestart => self.nodes.stop_restart(),
                Effect::Exclude { node, reason } => self.nodes.exclude(node, reason),
                Effect::Cancel => self.nodes.cancel(),
                Effect::Quit(code) => self.exit = Some(code),
            }
        }
    }

    /// Gives a cancel that was sent with the end a moment to reach the head.
    async fn wait_for_cancel(&mut self) {
        let ended = async {
            while let Some(event) = self.events.recv().await {
                if matches!(event, ClientEvent::Generate(GenerateEvent::Finished(_) | GenerateEvent::Failed(_))) {
                    break;
                }
            }
        };
        if self.state.request.is_sent() {
            // Without an answer the session closes, and the head cancels for that.
            let _ = timeout(CANCEL_WAIT, ended).await;
        }
    }
}

/// The signals that end a console.
struct Signals {
    hang_up: unix::Signal,
    interrupt: unix::Signal,
    terminate: unix::Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            hang_up: unix::signal(SignalKind::hangup())?,
            interrupt: unix::signal(SignalKind::interrupt())?,
            terminate: unix::signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) -> Signal {
        select! {
            _ = self.hang_up.recv() => Signal::HangUp,
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.terminate.recv() => Signal::Terminate,
        }
    }
}

async fn sleep_until_some(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}

/// The next event of a client; never returns when the client is gone.
async fn next_client(events: &mut mpsc::Receiver<ClientEvent>) -> ClientEvent {
    match events.recv().await {
        Some(event) => event,
        None => pending().await,
    }
}

/// What was typed, pasted or resized; `None` for what means nothing here. A terminal that is gone hangs up.
async fn next_input(keys: &mut EventStream) -> Option<Event> {
    match poll_fn(|context| Pin::new(&mut *keys).poll_next(context)).await {
        Some(Ok(event)) => translate(event),
        Some(Err(_)) | None => Some(Event::Signal(Signal::HangUp)),
    }
}

fn translate(event: TerminalEvent) -> Option<Event> {
    match event {
        TerminalEvent::Key(key) if key.kind != KeyEventKind::Release => translate_key(key).map(Event::Key),
        TerminalEvent::Paste(text) => Some(Event::Paste(text)),
        TerminalEvent::Resize(..) => Some(Event::Resize),
        _ => None,
    }
}

fn translate_key(key: KeyEvent) -> Option<Key> {
    let mut shift = key.modifiers.contains(KeyModifiers::SHIFT);
    let code = match key.code {
        TerminalCode::Char(letter) => {
            shift = false;
            KeyCode::Char(letter)
        }
        TerminalCode::BackTab => {
            shift = true;
            KeyCode::Tab
        }
        TerminalCode::Enter => KeyCode::Enter,
        TerminalCode::Esc => KeyCode::Esc,
        TerminalCode::Tab => KeyCode::Tab,
        TerminalCode::Backspace => KeyCode::Backspace,
        TerminalCode::Delete => KeyCode::Delete,
        TerminalCode::Left => KeyCode::Left,
        TerminalCode::Right => KeyCode::Right,
        TerminalCode::Up => KeyCode::Up,
        TerminalCode::Down => KeyCode::Down,
        TerminalCode::Home => KeyCode::Home,
        TerminalCode::End => KeyCode::End,
        TerminalCode::PageUp => KeyCode::PageUp,
        TerminalCode::PageDown => KeyCode::PageDown,
        TerminalCode::F(number) => KeyCode::Function(number),
        _ => return None,
    };
    let (control, alt) = (key.modifiers.contains(KeyModifiers::CONTROL), key.modifiers.contains(KeyModifiers::ALT));
    Some(Key { code, control, alt, shift })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keymap::{Action, action};
    use crate::state::{Focus, Page, Spot};

    #[test]
    fn keys_of_the_terminal_become_the_keys_of_the_table() {
        let press = |code, modifiers| {
            let event = translate(TerminalEvent::Key(KeyEvent::new(code, modifiers)));
            let Some(Event::Key(key)) = event else { panic!("{code:?} is no key: {event:?}") };
            action(Spot { page: Page::Generate, focus: Focus::Text }, key)
        };
        let (none, shift) = (KeyModifiers::NONE, KeyModifiers::SHIFT);
        assert_eq!(press(TerminalCode::Char('c'), KeyModifiers::CONTROL), Some(Action::Interrupt));
        assert_eq!(press(TerminalCode::Char('?'), shift), Some(Action::Help));
        assert_eq!(press(TerminalCode::Char('G'), shift), Some(Action::Bottom));
        assert_eq!(press(TerminalCode::BackTab, shift), Some(Action::FocusPrevious));
        assert_eq!(press(TerminalCode::Tab, none), Some(Action::FocusNext));
        assert_eq!(press(TerminalCode::Char('c'), none), None);
    }

    #[test]
    fn a_released_key_is_no_press() {
        let key = KeyEvent::new_with_kind(TerminalCode::Enter, KeyModifiers::NONE, KeyEventKind::Release);
        assert_eq!(translate(TerminalEvent::Key(key)), None);
    }
}
