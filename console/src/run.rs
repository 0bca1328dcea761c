//! The dashboard's driver: waits for an event, updates, performs the effects, draws if something changed.
//! Decides nothing; the only place of the dashboard that knows tokio and the time.
mod files;
mod input;
pub mod replay;

use std::{future::pending, io, path::PathBuf, time::Duration};

use crossterm::event::EventStream;
use shared::protocol::message::Generate;
use tokio::{
    select,
    signal::unix::{self, SignalKind},
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout},
};

use self::{files::Files, input::next_input};
use crate::{
    effect::{Effect, Order, Wanted},
    event::{ClientEvent, Event, GenerateEvent, Signal},
    planned::PlanAsk,
    recording::rounded,
    state::{GenerateDefaults, State, desk::Desk},
    terminal::{Screen, TerminalError},
    update::update,
    view,
    wanted::Asked,
};

/// Events from nodes that wait for the dashboard; a client waits when there are more.
const CLIENT_EVENTS_MAX: usize = 1024;
/// Time between ticks.
const TICK: Duration = Duration::from_millis(250);
/// Shortest time between two frames.
const FRAME: Duration = Duration::from_millis(33);
/// Shortest time between a frame and the next one that only shows newer figures of nodes: nobody reads them faster.
const FIGURES_FRAME: Duration = Duration::from_millis(125);
/// Longest wait for the end of a generation that was cancelled by quitting.
const CANCEL_WAIT: Duration = Duration::from_secs(1);

/// What a dashboard is started with.
#[derive(Clone, Debug)]
pub struct DashboardOptions {
    /// Addresses of the nodes, in the order replica, stage, rank.
    pub nodes: Vec<String>,
    /// What is to run as soon as all nodes are connected: assigned where nothing does, asked about where something else does; `None` =
    /// whatever runs.
    pub asked: Option<Asked>,
    /// What stands in the prompt box at first.
    pub prompt: String,
    /// What each generation asks for.
    pub defaults: GenerateDefaults,
    /// How the screen is arranged.
    pub desk: Desk,
    /// The file that the session is written to.
    pub record: Option<PathBuf>,
    /// It only looks: nothing is ever ordered.
    pub readonly: bool,
}

/// The nodes as the dashboard commands them. Commands return at once; what comes of them arrives as events.
pub trait Nodes {
    /// Makes the nodes at these places of the list hold this, in this order.
    fn assign(&self, wanted: Wanted, members: Vec<usize>);
    /// Completes a text on the head.
    fn generate(&self, head: usize, generate: Generate);
    /// Cancels the running generation.
    fn cancel(&self);
    /// Asks the planner.
    fn plan(&self, ask: PlanAsk);
    /// Reads the lines of a node's log after this number.
    fn log(&self, node: usize, after: u64);
    /// Does what an operator ordered.
    fn operate(&self, order: Order);
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
    let asked = options.asked.filter(|_| !options.readonly);
    let wanted = asked.as_ref().map(|asked| asked.wanted(options.nodes.len()));
    let mut state = State::new(&options.nodes, wanted, &options.prompt, options.defaults);
    state.goal = asked.as_ref().map_or_else(Default::default, |asked| asked.goal);
    state.asked = asked;
    state.readonly = options.readonly;
    state.desk = options.desk;
    let started = Instant::now();
    let mut files = Files::new(&state);
    // Before the terminal is taken: a file that cannot be written is told where it can be read.
    let began =
        options.record.map(|file| files.record(Some(file), &state)).transpose().map_err(TerminalError::Recording)?;
    let mut screen = Screen::enter()?;
    screen.take_mouse(state.desk.takes_mouse);
    let (sender, events) = mpsc::channel(CLIENT_EVENTS_MAX);
    state.clock_ms = files.started_unix_ms();
    let nodes = connect(options.nodes, sender);
    let mut driver = Driver { state, nodes, files, events, started, frame_due: None, exit: None };
    if let Some(event) = began {
        drop(update(&mut driver.state, event));
    }
    let code = driver.run(screen, signals).await?;
    driver.files.finish();
    driver.wait_for_cancel().await;
    Ok(code)
}

struct Driver<N> {
    state: State,
    nodes: N,
    files: Files,
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
                event = self.files.news() => Some(event),
                _ = ticks.tick() => None,
                () = frame(frame_due, &screen) => {
                    let theme = view::theme_of(&self.state);
                    let extent = screen.draw(|frame| view::draw(&self.state, &theme, frame))?;
                    drawn_at = Some(Instant::now());
                    self.frame_due = None;
                    Some(Event::Drawn(extent))
                }
            };
            screen.check()?;
            // Whole microseconds, so that a recording has the times that were.
            let now = rounded(self.started.elapsed());
            self.files.happens(&self.state, now, event.as_ref());
            self.handle(Event::Tick { now }, drawn_at, &mut screen);
            if let Some(event) = event {
                self.handle(event, drawn_at, &mut screen);
            }
            if let Some(code) = self.exit {
                return Ok(code);
            }
        }
    }

    fn handle(&mut self, event: Event, drawn_at: Option<Instant>, screen: &mut Screen) {
        let is_figures = matches!(event, Event::Tick { .. } | Event::Client(ClientEvent::Report { .. }));
        let pause = if is_figures { FIGURES_FRAME } else { FRAME };
        for effect in update(&mut self.state, event) {
            match effect {
                Effect::Draw => {
                    let due = drawn_at.map_or_else(Instant::now, |at| at + pause);
                    self.frame_due = Some(self.frame_due.map_or(due, |before| before.min(due)));
                }
                Effect::Assign { wanted, members } => self.nodes.assign(wanted, members),
                Effect::Generate { head, generate } => self.nodes.generate(head, *generate),
                Effect::Plan(ask) => self.nodes.plan(*ask),
                Effect::Log { node, after } => self.nodes.log(node, after),
                Effect::Operate(order) => self.nodes.operate(order),
                Effect::Cancel => self.nodes.cancel(),
                Effect::Quit(code) => self.exit = Some(code),
                Effect::TakeMouse(takes) => screen.take_mouse(takes),
                Effect::Record(file) => self.files.begin(file.map(PathBuf::from), &self.state),
                Effect::StopRecording => self.files.end(),
                Effect::Export { format, file } => {
                    let size = screen.size().unwrap_or((80, 24));
                    self.files.export(&self.state, size, format, file.map(PathBuf::from));
                }
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

/// The moment to draw: something changed, the last frame is long enough ago, and the terminal has taken all of it. On a slow
/// terminal frames are left out, none waits.
async fn frame(due: Option<Instant>, screen: &Screen) {
    match due {
        Some(due) => sleep_until(due).await,
        None => pending().await,
    }
    screen.ready().await;
}

/// The next event of a client; never returns when the client is gone.
async fn next_client(events: &mut mpsc::Receiver<ClientEvent>) -> ClientEvent {
    match events.recv().await {
        Some(event) => event,
        None => pending().await,
    }
}
