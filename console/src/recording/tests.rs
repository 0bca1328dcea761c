//! Tests of writing and reading recordings, and of invalid ones.
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use common::{
    fault::{Fault, FaultKind},
    ids::{MemberIndex, TopologyHash},
    units::{Bytes, Celsius, Nanoseconds},
};
use telemetry::NodeState;
use tempfile::TempDir;
use topology::Topology;

use super::{
    FORMAT, Header, LINE_BYTES_MAX, RecordingError,
    line::Encoder,
    player::{CHECKPOINTS_MAX, Player},
    reader::Reader,
    writer::Recorder,
};
use crate::{
    fixtures::{LAYERS, NODES, Story, address, defaults, idle, running, wanted},
    keymap::{Key, KeyCode},
    state::{State, lateness::ranks},
    update::event::{ClientEvent, Event},
};

fn header() -> Header {
    Header {
        bramble_recording: FORMAT,
        build: "0.1.0".to_owned(),
        started_unix_ms: 1_700_000_000_000,
        nodes: (0..NODES).map(address).collect(),
        wanted: Some(wanted()),
        asked: None,
        prompt: "ROMEO:".to_owned(),
        defaults: defaults(),
        keys: String::new(),
    }
}

fn file(folder: &TempDir) -> PathBuf {
    folder.path().join("session.jsonl")
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder for files of tests")
}

/// Records the events and returns the state after each of them.
fn record(path: &Path, events: &[(u64, Event)]) -> Vec<State> {
    // Without the writer thread, which drops events if they arrive faster than the disk can write.
    let (mut encoder, mut bytes) = (Encoder::new(NODES), serde_json::to_vec(&header()).expect("a header"));
    bytes.push(b'\n');
    let mut story =
        Story { state: State::new(&header().nodes, Some(wanted()), "ROMEO:", defaults()), effects: Vec::new() };
    story.state.clock_ms = header().started_unix_ms;
    let mut states = Vec::new();
    for (milliseconds, event) in events {
        story.at(*milliseconds).on(event.clone());
        bytes.extend(encoder.line(Duration::from_millis(*milliseconds), Some(event)).expect("a line"));
        states.push(story.state.clone());
    }
    fs::write(path, bytes).expect("the folder can be written");
    states
}

/// A session in which nodes connect, serve, change and disconnect, and an operator types.
fn session() -> Vec<(u64, Event)> {
    let mut events = Vec::new();
    let mut at = 10;
    let mut say = |step: u64, event| {
        at += step;
        events.push((at, event));
    };
    let report = |node, report| Event::Client(ClientEvent::Report { node, report: Box::new(report) });
    let connected = |node: usize| {
        let mut story = Story::begin();
        story.connected(node);
        let identity = protocol::handshake::Identity {
            name: format!("pi{node}"),
            build: "0.1.0".to_owned(),
            numeric: 1,
            machine: "one".to_owned(),
            cores: Vec::new(),
        };
        Event::Client(ClientEvent::Connected { node, identity })
    };
    for node in 0..NODES {
        say(1, connected(node));
        say(2, report(node, idle(node)));
    }
    say(5, Event::Key(Key::plain(KeyCode::Esc)));
    for round in 0..200u32 {
        for node in 0..NODES {
            let mut next = running(node, NodeState::Serving, round % 3 == 0);
            next.health.temperature = (round % 7 != 0).then_some(Celsius(50.0 + round as f32 / 10.0));
            next.unix_ms = u64::from(round) * 250;
            next.memory_max = (round > 100).then_some(Bytes(3 << 30));
            if round > 150 {
                next.topology = None;
                next.state = NodeState::Idle;
            }
            say(60, report(node, next));
        }
        if round % 10 == 0 {
            say(1, Event::Key(Key::plain(KeyCode::Char('2'))));
        }
    }
    let fault = Fault::new("pi1", FaultKind::SessionLost { reason: "reset".to_owned() });
    say(3, Event::Client(ClientEvent::Disconnected { node: 1, fault }));
    say(300, connected(1));
    say(10, report(1, idle(1)));
    say(2000, Event::Resize);
    events
}

#[test]
fn replay_reproduces_every_state_in_any_order() {
    let folder = folder();
    let events = session();
    let states = record(&file(&folder), &events);
    let mut player = Player::open(&file(&folder)).expect("a recording");
    assert_eq!(player.span(), (Duration::from_millis(events[0].0), Duration::from_millis(events[events.len() - 1].0)));
    let places: Vec<usize> =
        (0..events.len()).chain((0..events.len()).rev().step_by(37)).chain([400, 7, 800, 0]).collect();
    for place in places {
        player.seek(Duration::from_millis(events[place].0));
        while !player.work(50) {}
        assert!(player.state() == &states[place], "event {place} is played otherwise than it was");
    }
    assert!(player.broken().is_none() && player.lost() == 0);
}

/// Removes the arrival times of ranks, at any depth. Returns the number of removed fields.
fn forget_arrivals(value: &mut serde_json::Value) -> usize {
    match value {
        serde_json::Value::Array(list) => list.iter_mut().map(forget_arrivals).sum(),
        serde_json::Value::Object(object) if object.contains_key("heard") => {
            ["heard", "first", "way"].iter().filter(|key| object.remove(**key).is_some()).count()
        }
        serde_json::Value::Object(object) => object.values_mut().map(forget_arrivals).sum(),
        _ => 0,
    }
}

#[test]
fn recordings_without_arrival_times_can_be_played() {
    let folder = folder();
    let states = record(&file(&folder), &session());
    let text = fs::read_to_string(file(&folder)).expect("it was written");
    let mut gone = 0;
    let mut lines = text.lines().map(|line| {
        let mut value = serde_json::from_str(line).expect("JSON");
        gone += forget_arrivals(&mut value);
        format!("{value}\n")
    });
    fs::write(file(&folder), lines.by_ref().collect::<String>()).expect("the folder can be written");
    drop(lines);
    assert!(gone > 100, "only {gone} fields were there");
    let mut player = Player::open(&file(&folder)).expect("a recording");
    player.seek(player.span().1);
    while !player.work(50) {}
    assert!(player.broken().is_none(), "{:?}", player.broken());
    let late = |state: &State| ranks(state).iter().map(|row| (row.member, row.late)).collect::<Vec<_>>();
    assert_eq!(late(player.state()), late(&states[states.len() - 1]));
    assert!(ranks(player.state()).iter().all(|row| row.arrival == [Nanoseconds(0); 2]));
}

#[test]
fn deltas_are_a_fraction_of_full_reports() {
    let folder = folder();
    let events: Vec<_> = session();
    record(&file(&folder), &events);
    let whole: usize = events.iter().map(|(_, event)| serde_json::to_vec(event).map_or(0, |json| json.len())).sum();
    let written = fs::metadata(file(&folder)).expect("it is there").len() as usize;
    assert!(written * 3 < whole, "{written} of {whole} bytes");
    assert!(running(0, NodeState::Serving, true).layers.len() == 2 * LAYERS as usize);
}

#[test]
fn checkpoint_count_is_bounded_for_long_recordings() {
    let folder = folder();
    let events: Vec<_> = (0..3000).map(|second| (second * 10_000, Event::Resize)).collect();
    record(&file(&folder), &events);
    let mut player = Player::open(&file(&folder)).expect("a recording");
    player.seek(Duration::MAX);
    while !player.work(100) {}
    assert!((CHECKPOINTS_MAX / 2..=CHECKPOINTS_MAX).contains(&player.checkpoints()), "{}", player.checkpoints());
    assert_eq!(player.at(), Duration::from_secs(29_990));
}

#[test]
fn report_after_a_gap_is_complete_and_the_gap_is_counted() {
    let folder = folder();
    let mut recorder = Recorder::create(&file(&folder), &header()).expect("a new file");
    let report = |node, report| Event::Client(ClientEvent::Report { node, report: Box::new(report) });
    recorder.record(Duration::from_millis(1), Some(&report(0, idle(0))));
    recorder.lose();
    recorder.record(Duration::from_millis(2), Some(&report(0, running(0, NodeState::Ready, false))));
    recorder.record(Duration::from_millis(3), None);
    assert_eq!(recorder.counts(), (2, 1));
    recorder.finish().expect("the disk takes it");
    let (mut reader, _) = Reader::open(&file(&folder)).expect("a recording");
    let mut moments = Vec::new();
    while let Some(moment) = reader.read().expect("good lines") {
        moments.push(moment);
    }
    assert_eq!(moments[1].event, Some(report(0, running(0, NodeState::Ready, false))));
    assert_eq!((moments.len(), moments[2].event.is_none(), reader.lost()), (3, true, 1));
}

#[test]
fn existing_file_is_not_overwritten() {
    let folder = folder();
    fs::write(file(&folder), "mine").expect("the folder can be written");
    assert!(matches!(Recorder::create(&file(&folder), &header()), Err(RecordingError::Exists(_))));
    assert_eq!(fs::read(file(&folder)).expect("it is there"), b"mine");
}

/// A writer that accepts this many bytes and then fails as if the disk were full.
struct Disk(usize);

impl std::io::Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self.0.checked_sub(bytes.len()) {
            Some(room) => self.0 = room,
            None => return Err(std::io::ErrorKind::StorageFull.into()),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn full_disk_ends_only_the_recording_with_a_reason() {
    let mut recorder = Recorder::on(Path::new("there"), Disk(40_000), &header()).expect("room for the first line");
    for (at, event) in session().into_iter().cycle().take(100_000) {
        recorder.record(Duration::from_millis(at), Some(&event));
        if recorder.failure().is_some() {
            break;
        }
    }
    let reason = recorder.finish().expect_err("it is full");
    assert!(reason.starts_with("there: no storage space; recording stopped"), "{reason}");
}

#[track_caller]
fn check_broken(text: &str, words: &str) {
    let folder = folder();
    let header = serde_json::to_string(&header()).expect("a header");
    fs::write(file(&folder), text.replace("HEADER", &header)).expect("the folder can be written");
    let found = match Player::open(&file(&folder)) {
        Err(error) => error.to_string(),
        Ok(mut player) => {
            player.seek(Duration::MAX);
            while !player.work(100) {}
            player.broken().map(ToString::to_string).unwrap_or_default()
        }
    };
    assert!(found.contains(words), "{found:?} does not contain {words:?}");
}

/// Of version 0.2.0; the fuzz target `recording` begins with it.
#[test]
fn stored_recording_is_played_to_its_end() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/recordings/demo.jsonl");
    let mut player = Player::open(&file).expect("it is a recording");
    player.seek(Duration::MAX);
    while !player.work(100) {}
    assert_eq!(player.broken().map(ToString::to_string), None);
    assert!(player.state().shown().cluster.topology().is_some(), "a topology runs");
}

#[test]
fn broken_recording_is_reported_with_file_and_line() {
    check_broken("", "no complete line");
    check_broken("hello\n", "is not a recording");
    check_broken("{}\n", "no bramble_recording");
    check_broken("{\"bramble_recording\":99}\n", "unsupported format 99, expected 1");
    check_broken("HEADER\n{\"us\":1}\nrubbish\n", "line 3: expected value");
    check_broken("HEADER\n{\"us\":5}\n{\"us\":4}\n", "line 3: the time decreases");
    check_broken("HEADER\n{\"us\":5,\"node\":4,\"report\":{}}\n", "line 2: node 4 is out of range");
    check_broken("HEADER\n{\"us\":5,\"node\":1,\"report\":{}}\n", "line 2: the first report of node 1 has no name");
    check_broken("HEADER\n{\"us\":5,\"node\":1}\n", "line 2: expected either an event, or a node and its report");
    check_broken("HEADER\n{\"us\":5,\"what\":1}\n", "line 2: unknown field");
    let long = format!("HEADER\n{}\n", "x".repeat(LINE_BYTES_MAX as usize));
    check_broken(&long, "line 2: the line is longer than");
    let restart = "{\"us\":5,\"event\":{\"Client\":{\"Operate\":{\"Restart\":{\"node\":9,\"step\":\"Draining\"}}}}}";
    check_broken(&format!("HEADER\n{restart}\n"), "line 2: node 9 is out of range");
    let files = "{\"us\":5,\"event\":{\"Client\":{\"Models\":{\"node\":9,\"answer\":{\"Ok\":[]}}}}}";
    check_broken(&format!("HEADER\n{files}\n"), "line 2: node 9 is out of range");
}

#[test]
fn report_of_a_node_outside_its_topology_is_refused() {
    let report = running(0, NodeState::Ready, false);
    assert_eq!(report.check(), Ok(()));
    let with = |change: fn(&mut (Topology, TopologyHash, MemberIndex))| {
        let mut report = report.clone();
        change(report.topology.as_mut().expect("a running node has one"));
        report.check().expect_err("it is refused")
    };
    let beyond = with(|(topology, _, member)| *member = MemberIndex(topology.members.len() as u16));
    assert!(beyond.contains("of a topology of"), "{beyond}");
    let without_ranks = with(|(topology, ..)| topology.layout.ranks = 0);
    assert!(without_ranks.contains("the number of ranks"), "{without_ranks}");
}

#[test]
fn truncated_last_line_is_ignored() {
    let folder = folder();
    let states = record(&file(&folder), &session());
    let bytes = fs::read(file(&folder)).expect("it is there");
    fs::write(file(&folder), &bytes[..bytes.len() - 4]).expect("it can be written");
    let mut player = Player::open(&file(&folder)).expect("a recording");
    player.seek(Duration::MAX);
    while !player.work(100) {}
    assert!(player.broken().is_none());
    assert!(player.state() == &states[states.len() - 2]);
}

#[test]
fn player_never_panics_on_a_damaged_recording() {
    let folder = folder();
    let events: Vec<_> = session().into_iter().take(60).collect();
    record(&file(&folder), &events);
    let bytes = fs::read(file(&folder)).expect("it is there");
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for round in 0..400 {
        let mut damaged = bytes.clone();
        for _ in 0..3 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let place = (random >> 20) as usize % damaged.len();
            match round % 3 {
                0 => damaged[place] = (random >> 50) as u8,
                1 => damaged.truncate(place.max(1)),
                _ => damaged[place] = b'0' + ((random >> 50) % 10) as u8,
            }
        }
        fs::write(file(&folder), &damaged).expect("it can be written");
        if let Ok(mut player) = Player::open(&file(&folder)) {
            player.seek(Duration::MAX);
            while !player.work(100) {}
            player.seek(Duration::ZERO);
            while !player.work(100) {}
        }
    }
}
