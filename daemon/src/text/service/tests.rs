//! Tests with shell scripts as children that hang, die or refuse.
use std::{
    fs,
    sync::mpsc::{Receiver, channel, sync_channel},
};

use common::sampling::SamplingParameters;
use tempfile::TempDir;

use super::*;
use crate::text::{
    check_template,
    frame::{self, Outcome},
    prepare::tests::model,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// A service whose children run a shell script.
struct Tested {
    service: TextService,
    orders: Receiver<EngineOrder>,
    told: Receiver<EngineEvent>,
}

/// A shell script in the place of the program.
fn shell(script: &str) -> Program {
    Program(["sh", "-c", script].map(Into::into).to_vec())
}

fn tested(script: &str) -> Tested {
    let (engine, orders) = sync_channel(1);
    let (sender, told) = channel();
    let sink: Sink = Arc::new(move |event| drop(sender.send(event)));
    let service = TextService::start("pi1".into(), model(), &shell(script), engine, sink).expect("threads");
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

#[test]
fn child_that_does_not_read_fails_its_request() {
    for (script, words) in [
        ("exec sleep 600", "took longer than"),
        // Its socket closes, but it lives, and so does its standard error.
        ("exec 0<&-; exec sleep 600", "does not respond"),
    ] {
        let (sender, receiver) = channel();
        thread::spawn(move || {
            let mut worker = Worker::new(shell(script), &model(), Budget::SMALL);
            // More than the buffer of a socket holds.
            let _ = sender.send(worker.encode(&"x".repeat(8 << 20), false, false));
        });
        let outcome = receiver.recv_timeout(PATIENCE);
        let Ok(Err(Unprepared::Refused(FaultKind::ParameterInvalid { reason }))) = &outcome else {
            panic!("{outcome:?} of {script}");
        };
        assert!(reason.contains(words), "{reason}");
    }
}

#[test]
fn only_a_verdict_marks_a_template_as_broken() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("refusal");
    let mut refusal = Vec::new();
    let kind = FaultKind::ParameterInvalid { reason: "the model's chat template cannot be used: line 7".into() };
    frame::write(&mut refusal, &Outcome::Refused(kind)).expect("memory can be written");
    fs::write(&path, refusal).expect("the folder can be written");
    let refusing = format!("cat {} >&0; exec sleep 600", path.display());
    for (script, verdict) in [
        (refusing.as_str(), Some("used: line 7")),
        ("echo 'memory allocation of 99 bytes failed' >&2; kill -ABRT $$", Some("ran out of memory")),
        ("echo \"thread 'text' has overflowed its stack\" >&2; kill -ABRT $$", Some("ran out of stack")),
        ("kill -XCPU $$", Some("took more than 2 s of processor time")),
        ("kill -KILL $$", None),
        ("echo 'brambled: Resource temporarily unavailable (os error 11)' >&2; exit 1", None),
    ] {
        let mut text = model();
        check_template(&shell(script), &mut text);
        let error = text.template.err().map(|error| error.to_string());
        match verdict {
            Some(words) => assert!(error.as_ref().is_some_and(|error| error.contains(words)), "{error:?} of {script}"),
            None => assert_eq!(error, None, "{script}"),
        }
    }
}
