//! Tests with shell scripts as children that hang or die.
use std::{
    fs,
    sync::mpsc::{Receiver, channel, sync_channel},
};

use common::sampling::SamplingParameters;
use tempfile::TempDir;

use super::*;
use crate::text::prepare::tests::model;

const PATIENCE: Duration = Duration::from_secs(60);

/// A service whose children run a shell script.
struct Tested {
    service: TextService,
    orders: Receiver<EngineOrder>,
    told: Receiver<EngineEvent>,
}

fn tested(script: &str) -> Tested {
    let (engine, orders) = sync_channel(1);
    let (sender, told) = channel();
    let sink: Sink = Arc::new(move |event| drop(sender.send(event)));
    let program = Program(["sh", "-c", script].map(Into::into).to_vec());
    let service = TextService::start("pi1".into(), model(), &program, engine, sink).expect("threads");
    Tested { service, orders, told }
}

fn request(prompt: impl Into<Prompt>) -> Generate {
    Generate::new(prompt, 1, SamplingParameters::default(), Vec::new())
}

fn chat() -> Arc<Generate> {
    let messages = r#"[{"role": "user", "content": "x"}]"#.into();
    Arc::new(request(Prompt::Chat(Box::new(Chat { messages, ..Chat::default() }))))
}

fn with_schema(schema: &str) -> Arc<Generate> {
    Arc::new(Generate { grammar: Some(Grammar::JsonSchema(schema.into())), ..request("a") })
}

/// Waits until `count` children have written a line to a file.
#[track_caller]
fn wait_for_children(folder: &TempDir, count: usize) {
    let deadline = Instant::now() + PATIENCE;
    while fs::read_to_string(folder.path().join("started")).unwrap_or_default().lines().count() < count {
        assert!(Instant::now() < deadline, "{count} children start");
        thread::yield_now();
    }
}

#[test]
fn hanging_child_delays_no_other_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let started = folder.path().join("started");
    let Tested { service, orders, .. } = tested(&format!("echo x >> {}; exec sleep 600", started.display()));
    service.submit(RequestKey(1), chat());
    service.submit(RequestKey(2), with_schema("{}"));
    wait_for_children(&folder, 2);
    service.submit(RequestKey(3), Arc::new(request("But soft!")));
    let order = orders.recv_timeout(PATIENCE);
    let is_it = matches!(&order, Ok(EngineOrder::Begin(RequestKey(3), prepared)) if !prepared.prompt.is_empty());
    assert!(is_it, "{order:?}");
    // Cancelling does not wait for preparation either; a prepared request must be ended by the engine.
    assert_eq!((1..=3).map(|key| service.withdraw(RequestKey(key))).collect::<Vec<_>>(), [true, true, false]);
    // The next conversation does not wait for a cancelled one.
    service.submit(RequestKey(4), chat());
    wait_for_children(&folder, 3);
}

#[test]
fn dead_child_fails_its_request_with_the_cause() {
    for (script, words) in [
        ("echo 'memory allocation of 99 bytes failed' >&2; kill -ABRT $$", "ran out of memory: at most 32 MiB"),
        ("echo \"thread 'text' has overflowed its stack\" >&2; kill -ABRT $$", "ran out of stack"),
        ("kill -XCPU $$", "took more than 2 s of processor time"),
        ("kill -KILL $$", "memory is short"),
        ("exit 3", "exit status: 3"),
    ] {
        let Tested { service, told, .. } = tested(script);
        service.submit(RequestKey(7), chat());
        let refused = told.recv_timeout(PATIENCE);
        let Ok(EngineEvent::Request(RequestKey(7), RequestEvent::Refused(fault))) = &refused else {
            panic!("{refused:?} of {script}");
        };
        let FaultKind::ParameterInvalid { reason } = &fault.kind else {
            panic!("{refused:?} of {script}");
        };
        assert!(reason.starts_with("the chat template of m ") && reason.contains(words), "{reason}");
    }
}
