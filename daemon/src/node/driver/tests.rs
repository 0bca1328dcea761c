//! The driver with a disk that stalls, with an engine that ends late or dies, and with a client that does not read. A
//! state folder's file is replaced by way of `NAME.new`: where that is a FIFO, the write waits for a reader.
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    thread,
    time::Duration,
};

use common::{
    fault::{Fault, FaultKind},
    ids::{Epoch, MemberIndex, RequestId},
};
use kernels::Kernels;
use protocol::{
    BUILD, NUMERIC_VERSION,
    handshake::Identity,
    message::{Prepare, Previous, Request, RequestBody, ResponseBody},
    recovery::{RecoveryAnswer, RecoveryAsk},
};
use telemetry::LoadProgress;
use tempfile::TempDir;
use tokio::{
    sync::mpsc::{Receiver, Sender},
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};
use topology::{Exclusions, Rolling, rolling::Phase};

use super::{outbox::RESPONSES_MAX, running::RunningEngine, *};
use crate::{
    config::DaemonArguments,
    node::{
        effect::{AssignmentEffect, DiskEffect},
        tests::topology,
    },
};

const PATIENCE: Duration = Duration::from_secs(20);
const SESSION: SessionId = SessionId(1);
/// Interval of reports.
const INTERVAL_MS: u32 = 50;

/// A driver with one session.
struct Rig {
    folder: TempDir,
    inputs: Sender<Input>,
    answers: Receiver<Queued>,
    driver: JoinHandle<i32>,
}

/// A driver of an idle node whose state and models are in this folder.
fn driver(folder: &Path) -> (Driver, Inputs) {
    let config = Config::load(DaemonArguments::default()).expect("defaults are settings");
    let config = Config { name: "pi1".into(), state: folder.into(), models: vec![folder.into()], ..config };
    let (state, persisted) = StateFolder::open(&config.state).expect("the folder is there");
    let identity = Identity {
        name: config.name.clone(),
        build: BUILD.into(),
        numeric: NUMERIC_VERSION,
        machine: String::new(),
        cores: Vec::new(),
    };
    let (config, kernels) = (Arc::new(config), Kernels::choose(None).expect("there is one"));
    let init = DriverInit {
        config,
        identity,
        kernels,
        state,
        persisted,
        heartbeats: Handle::current(),
        variant: Variant::default(),
    };
    Driver::new(init).expect("a thread can be started")
}

impl Rig {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let (driver, Inputs { sender: inputs, receiver }) = driver(folder.path());
        let (outbox, answers) =
            Outbox::new(SessionClient { role: None, name: "test".into() }, &ResponseBudget::default());
        inputs.try_send(Input::SessionOpened(SESSION, outbox)).expect("the queue is empty");
        Self { folder, inputs, answers, driver: tokio::spawn(driver.run(receiver)) }
    }

    async fn ask(&self, id: u64, body: RequestBody) {
        let request = Request { id: RequestId(id), body };
        let event = Event::Request { session: SESSION, by: "test".into(), request };
        self.inputs.send(Input::Event(event)).await.expect("the driver runs");
    }

    /// The next answer that is no report of the subscription.
    async fn answer(&mut self) -> (u64, ResponseBody) {
        loop {
            let queued = timeout(PATIENCE, self.answers.recv()).await.expect("an answer in time");
            let response = queued.expect("the session is open").response;
            if !matches!(response.body, ResponseBody::Report(_)) {
                return (response.id.0, response.body);
            }
        }
    }

    /// Makes the next write of a file wait.
    fn stall(&self, name: &str) -> PathBuf {
        let path = self.folder.path().join(format!("{name}.new"));
        let made = Command::new("mkfifo").arg(&path).status().expect("mkfifo can be run");
        assert!(made.success());
        path
    }
}

/// Ends the wait for a FIFO, in which nothing can be synced: that write fails.
fn release(fifo: &Path) {
    // The write that follows finds no FIFO.
    let other = fifo.with_extension("fifo");
    fs::rename(fifo, &other).expect("the folder can be written");
    thread::spawn(move || fs::read(other).expect("a FIFO can be read"));
}

fn exclusion() -> RequestBody {
    let mut list = Exclusions::default();
    list.say("pi2", "pi2:9999", Some("fan"), "me");
    RequestBody::Exclude(list)
}

fn rolling(revision: u64) -> RequestBody {
    let (targets, phase, by) = (vec![("pi1".into(), "pi1:9999".into())], Phase::Paused("x".into()), "me".into());
    let rolling = Rolling { targets, done: 0, before: None, phase, drain_ms: 5, by, revision };
    RequestBody::Recovery(Box::new(RecoveryAsk::Rolling(rolling)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_disk_delays_only_answers_that_need_it() {
    let mut rig = Rig::start();
    let fifo = rig.stall("exclusions.toml");
    rig.ask(1, exclusion()).await;
    rig.ask(2, rolling(1)).await;
    rig.ask(3, RequestBody::Watch { interval_ms: INTERVAL_MS }).await;
    // Reports are sent by ticks, as the notifications of the watchdog are.
    let mut reports = 0;
    let end = Instant::now() + PATIENCE;
    while reports < 5 {
        let queued = timeout_at(end, rig.answers.recv()).await.expect("a stalled disk delays no report");
        let response = queued.expect("the session is open").response;
        assert!(matches!(response.body, ResponseBody::Report(_)), "answered before it was written: {response:?}");
        reports += 1;
    }
    rig.ask(4, RequestBody::Records).await;
    assert!(matches!(rig.answer().await, (4, ResponseBody::Records(_))), "a session is served");
    assert!(!rig.folder.path().join("restart.toml").exists(), "writes keep their order");
    release(&fifo);
    let (id, body) = rig.answer().await;
    let ResponseBody::Failed(fault) = body else { panic!("{body:?}") };
    assert!(id == 1 && matches!(fault.kind, FaultKind::StateUnwritable { .. }), "{fault}");
    let (id, body) = rig.answer().await;
    assert!(matches!((id, &body), (2, ResponseBody::Recovery(RecoveryAnswer::Learned))), "{id}: {body:?}");
    assert!(rig.folder.path().join("restart.toml").exists());
    rig.ask(5, exclusion()).await;
    assert!(matches!(rig.answer().await, (5, ResponseBody::Excluded)), "the disk works again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_request_is_not_answered_before_the_first_is_written() {
    let mut rig = Rig::start();
    let fifo = rig.stall("exclusions.toml");
    rig.ask(1, exclusion()).await;
    rig.ask(2, rolling(1)).await;
    // It changes nothing, but what it repeats is not on the disk yet.
    rig.ask(3, rolling(1)).await;
    rig.ask(4, RequestBody::Records).await;
    assert!(matches!(rig.answer().await, (4, _)));
    release(&fifo);
    for id in 1..=3 {
        assert_eq!(rig.answer().await.0, id);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn daemon_ends_after_its_last_write() {
    let mut rig = Rig::start();
    let fifo = rig.stall("exclusions.toml");
    rig.ask(1, exclusion()).await;
    rig.ask(2, rolling(1)).await;
    rig.ask(3, RequestBody::Records).await;
    assert!(matches!(rig.answer().await, (3, _)));
    rig.inputs.send(Input::Event(Event::Terminate { now: Duration::ZERO })).await.expect("the driver runs");
    release(&fifo);
    assert_eq!((rig.answer().await.0, rig.answer().await.0), (1, 2));
    assert_eq!(timeout(PATIENCE, rig.driver).await.expect("it ends").expect("no panic"), 0);
    assert!(rig.folder.path().join("restart.toml").exists());
}

#[tokio::test]
async fn full_queue_refuses_requests_and_a_stall_is_named() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let (state, _) = StateFolder::open(folder.path()).expect("the folder is there");
    let (mut disk, _results) = Disk::start("pi1".into(), state).expect("a thread can be started");
    let mut sessions = OpenSessions::new("pi1".into());
    let fifo = folder.path().join("epoch.toml.new");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo can be run").success());
    let mut persists = (1..1000).map(|epoch| DiskEffect::Persist(Epoch(epoch), common::ids::TopologyHash(1)));
    let refused = persists.find_map(|persist| disk.perform(persist, &mut sessions));
    let Some(Event::Persisted(epoch, _, Err(fault))) = refused else { panic!("{refused:?}") };
    assert!(epoch.0 < 200 && matches!(fault.kind, FaultKind::StateUnwritable { .. }), "{epoch}: {fault}");
    assert_eq!(disk.trouble(std::time::Instant::now()), None, "it is slow, not stalled");
    let trouble = disk.trouble(std::time::Instant::now() + PATIENCE).expect("20 s later");
    assert!(trouble.contains(&folder.path().display().to_string()), "{trouble}");
    release(&fifo);
}

#[tokio::test]
async fn load_waits_for_the_end_of_a_stopped_engine() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let (mut driver, Inputs { sender, mut receiver }) = driver(folder.path());
    let engine = thread::spawn(move || {
        // Its last step: much longer than the load of a model that is not there.
        thread::sleep(Duration::from_millis(300));
        let _ = sender.blocking_send(Input::Event(Event::Tick { now: Duration::ZERO }));
    });
    driver.engine.host(RunningEngine::of_thread(Epoch(4), engine), false);
    driver.perform(Effect::Engine(EngineEffect::Stop(Epoch(4))));
    let (topology, member) = (topology(1), MemberIndex(0));
    let (seen, epoch, previous) = (Epoch(4), Epoch(5), Previous::Leaves);
    let prepare = Prepare { seen, epoch, topology, member, desired: None, previous };
    driver.perform(Effect::Assignment(AssignmentEffect::Load(Box::new(prepare))));
    let first = timeout(PATIENCE, receiver.recv()).await.expect("the engine ends");
    assert!(matches!(first, Some(Input::Event(Event::Tick { .. }))), "the load began too early: {first:?}");
    let second = timeout(PATIENCE, receiver.recv()).await.expect("the load begins");
    assert!(matches!(second, Some(Input::Loaded(_))), "{second:?}");
}

#[test]
fn death_of_an_engine_is_reported_once() {
    let mut host = EngineHost::new("pi1".into());
    host.host(RunningEngine::of_thread(Epoch(4), thread::spawn(|| {})), false);
    let end = std::time::Instant::now() + PATIENCE;
    let death = loop {
        if let Some(event) = host.death() {
            break event;
        }
        assert!(std::time::Instant::now() < end, "the thread ends");
        thread::yield_now();
    };
    assert!(matches!(death, Event::Engine(Epoch(4), ReplicaEvent::Broken { rank: None, .. })), "{death:?}");
    // It stays hosted until the node has another assignment.
    let state = host.running().expect("it is hosted").engine();
    assert!(host.death().is_none());
    // Its thread could not clear its state.
    state.set_busy(true);
    assert!(host.tick(Duration::ZERO), "an engine that has died is not stalled");
}

#[test]
fn slow_reader_finds_the_reason_in_the_last_place() {
    let mut sessions = OpenSessions::new("pi1".into());
    let (outbox, mut queue) =
        Outbox::new(SessionClient { role: None, name: "test".into() }, &ResponseBudget::default());
    sessions.open(SESSION, outbox);
    for id in 1..RESPONSES_MAX as u64 {
        sessions.respond(SESSION, RequestId(id), ResponseBody::Committed);
    }
    assert!(sessions.take_slow().is_empty());
    sessions.respond(SESSION, RequestId(0), ResponseBody::Committed);
    assert_eq!(sessions.take_slow(), [SESSION]);
    for id in 1..RESPONSES_MAX as u64 {
        let response = queue.try_recv().expect("it was queued").response;
        assert_eq!((response.id, response.body), (RequestId(id), ResponseBody::Committed));
    }
    let last = queue.try_recv().expect("the last place is taken").response;
    let fault = Fault::new("pi1", FaultKind::SlowReader);
    assert_eq!((last.id, last.body), (RequestId(0), ResponseBody::Failed(fault)));
    assert!(queue.try_recv().is_err());
}

#[tokio::test]
async fn progress_of_an_abandoned_load_is_not_that_of_the_next_one() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let (mut driver, _inputs) = driver(folder.path());
    // Recovery prepares a topology again in its own epoch.
    for _ in 0..2 {
        let (topology, epoch, member) = (topology(1), Epoch(5), MemberIndex(0));
        let prepare = Prepare { seen: epoch, epoch, topology, member, desired: None, previous: Previous::Leaves };
        driver.perform(Effect::Assignment(AssignmentEffect::Discard(epoch)));
        driver.perform(Effect::Assignment(AssignmentEffect::Load(Box::new(prepare))));
    }
    let passed = [1, 2, 3].map(|attempt| {
        let event = driver.assignments.progress(AttemptProgress { attempt, progress: LoadProgress::default() });
        matches!(event, Some(Event::LoadProgress(Epoch(5), _)))
    });
    assert_eq!(passed, [false, true, false]);
}

#[tokio::test]
async fn reload_passes_new_settings_on() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let (mut driver, _inputs) = driver(folder.path());
    let current = driver.settings();
    let config = Config::clone(&current.borrow());
    let (models, drain) = (vec![folder.path().join("models")], Duration::from_secs(7));
    driver.reloaded(Config { models: models.clone(), drain, ..config });
    let passed = Arc::clone(&current.borrow());
    assert_eq!((&passed.models, passed.drain), (&models, drain));
    assert_eq!(driver.context.config.models, models, "the same for the driver");
    // The steward and the end of the gateway need them when the driver is gone, too.
    drop(driver);
    assert_eq!(current.borrow().models, models);
}
