//! The dashboard's driver: waits for an event, updates the state, performs the effects and renders a frame if something
//! changed. Makes no decisions; the only module of the dashboard that uses tokio and the clock.
mod alerter;
pub mod replay;

use std::{future::pending, io, path::PathBuf, time::Duration};

use crossterm::event::EventStream;
use telemetry::NodeState;
use tokio::{
    select,
    signal::unix::{self, SignalKind},
    sync::{mpsc, watch},
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout},
};

use self::alerter::Alerter;
use crate::{
    client::{NodeClient, conversations::keeper::KeeperOrder},
    operator::desired::TopologyRequest,
    recording::{observer::Observer, rounded},
    state::{
        GenerateDefaults, State,
        node::NodeStatus,
        preferences::Preferences,
        tour::{Scene, Tour},
    },
    terminal::{TerminalError, TerminalScreen, input::next_input},
    update::{
        effect::{Effect, FileEffect},
        event::{ClientEvent, Event, GenerateEvent, Signal},
        update,
    },
    view,
};

/// Maximum number of queued client events; the client blocks while the queue is full.
const CLIENT_EVENTS_MAX: usize = 1024;
/// Interval between ticks.
const TICK: Duration = Duration::from_millis(250);
/// Minimum interval between two frames.
const FRAME: Duration = Duration::from_millis(33);
/// Minimum interval before a frame that only updates node figures: nodes report no more often.
const FIGURES_FRAME: Duration = Duration::from_millis(250);
/// The same while no node computes: then only temperatures and loads change, and drawing is most of the dashboard's cost.
const QUIET_FRAME: Duration = Duration::from_millis(500);
/// Maximum wait for the end of a generation that quitting cancelled.
const CANCEL_WAIT: Duration = Duration::from_secs(1);

/// Options of the dashboard.
#[derive(Clone, Debug)]
pub struct DashboardOptions {
    /// Addresses of the nodes, in order of replica, stage and rank.
    pub nodes: Vec<String>,
    /// The topology to run once all nodes are connected: assigned if no topology runs, confirmed by the operator if
    /// another one does; `None` = use any running topology.
    pub asked: Option<TopologyRequest>,
    /// Initial text of the prompt box.
    pub prompt: String,
    /// Default parameters of generations.
    pub defaults: GenerateDefaults,
    /// Screen preferences.
    pub desk: Preferences,
    /// File to record the session to.
    pub record: Option<PathBuf>,
    /// Read-only: no operator command is ever issued.
    pub readonly: bool,
    /// Receives the scenes of the guided tour, which starts with the dashboard if this is present.
    pub tour: Option<TourStage>,
}

/// Where the scenes of the guided tour are sent: only the latest one matters.
pub type TourStage = watch::Sender<Scene>;

/// Runs the dashboard until it quits; returns the exit code. `connect` starts the client, which sends its events to the
/// channel.
///
/// # Errors
/// The terminal cannot be used. The terminal is restored in every case.
pub async fn dashboard<N: NodeClient>(
    options: DashboardOptions,
    connect: impl FnOnce(Vec<String>, mpsc::Sender<ClientEvent>) -> N,
) -> Result<i32, TerminalError> {
    // Before entering the terminal: a signal in between must not leave it in raw mode.
    let signals = Signals::listen()?;
    let asked = options.asked.filter(|_| !options.readonly);
    let wanted = asked.as_ref().map(|asked| asked.wanted(options.nodes.len()));
    let mut state = State::new(&options.nodes, wanted, &options.prompt, options.defaults);
    state.plan.goal = asked.as_ref().map_or_else(Default::default, |asked| asked.goal);
    state.plan.requested = asked;
    state.readonly = options.readonly;
    state.preferences = options.desk;
    state.screen.tour = options.tour.is_some().then(Tour::default);
    let started = Instant::now();
    let mut observer = Observer::new(&state);
    // Before entering the terminal, so that the error for an unwritable file stays readable.
    let began =
        options.record.map(|file| observer.record(Some(file), &state)).transpose().map_err(TerminalError::Recording)?;
    let mut screen = TerminalScreen::enter()?;
    screen.take_mouse(state.preferences.takes_mouse);
    let (sender, events) = mpsc::channel(CLIENT_EVENTS_MAX);
    state.clock_ms = observer.started_unix_ms();
    let nodes = connect(options.nodes, sender);
    let alerter = Alerter::start(state.preferences.alerts.clone());
    let mut driver =
        Driver { state, nodes, observer, events, started, frame_due: None, exit: None, stage: options.tour, alerter };
    if let Some(event) = began {
        drop(update(&mut driver.state, event));
    }
    driver.observer.perform(FileEffect::Conversations(KeeperOrder::Read), &driver.state, (0, 0));
    let code = driver.run(screen, signals).await?;
    driver.observer.finish();
    driver.wait_for_cancel().await;
    Ok(code)
}

struct Driver<N> {
    state: State,
    nodes: N,
    observer: Observer,
    events: mpsc::Receiver<ClientEvent>,
    started: Instant,
    frame_due: Option<Instant>,
    exit: Option<i32>,
    stage: Option<TourStage>,
    alerter: Alerter,
}

impl<N: NodeClient> Driver<N> {
    /// The event loop. Owns the screen, so that the terminal is restored before anything after the loop is awaited.
    async fn run(&mut self, mut screen: TerminalScreen, mut signals: Signals) -> Result<i32, TerminalError> {
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
                event = self.observer.news() => Some(event),
                event = self.alerter.news() => Some(event),
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
            // Whole microseconds, the resolution of recorded times.
            let now = rounded(self.started.elapsed());
            self.observer.observe(&self.state, now, event.as_ref());
            self.handle(Event::Tick { now }, drawn_at, &mut screen);
            if let Some(event) = event {
                self.handle(event, drawn_at, &mut screen);
            }
            if let Some(code) = self.exit {
                return Ok(code);
            }
        }
    }

    fn handle(&mut self, event: Event, drawn_at: Option<Instant>, screen: &mut TerminalScreen) {
        let is_figures = matches!(event, Event::Tick { .. } | Event::Client(ClientEvent::Report { .. }));
        let serving = NodeStatus::Reports(NodeState::Serving);
        let is_busy = self.state.cluster.nodes.iter().any(|node| node.status(self.state.now) == serving);
        let pause = match (is_figures, is_busy) {
            (false, _) => FRAME,
            (true, true) => FIGURES_FRAME,
            (true, false) => QUIET_FRAME,
        };
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
                Effect::Models(order) => self.nodes.models(order),
                // No recording is played here: `update` refuses these.
                Effect::Replay(_) => {}
                Effect::Alert(alert) => screen.send(&self.alerter.give(alert)),
                Effect::Tour(scene) => {
                    if let Some(stage) = &self.stage {
                        stage.send_replace(scene);
                    }
                }
                Effect::Copy(text) => screen.copy(&text),
                Effect::File(effect) => {
                    self.observer.perform(effect, &self.state, screen.size().unwrap_or((80, 24)));
                }
            }
        }
    }

    /// Waits briefly for a cancel sent while quitting to reach the head.
    async fn wait_for_cancel(&mut self) {
        let ended = async {
            while let Some(event) = self.events.recv().await {
                if matches!(event, ClientEvent::Generate(GenerateEvent::Finished(_) | GenerateEvent::Failed(_))) {
                    break;
                }
            }
        };
        if self.state.generation.request.is_sent() {
            // Without an answer the session closes, and the head cancels the request because of that.
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

/// Resolves when a frame is due: something changed, the last frame is old enough, and the terminal has accepted all of
/// it. On a slow terminal frames are skipped, not queued.
async fn frame(due: Option<Instant>, screen: &TerminalScreen) {
    match due {
        Some(due) => sleep_until(due).await,
        None => pending().await,
    }
    screen.ready().await;
}

/// The next client event; never resolves once the client is gone.
async fn next_client(events: &mut mpsc::Receiver<ClientEvent>) -> ClientEvent {
    match events.recv().await {
        Some(event) => event,
        None => pending().await,
    }
}
