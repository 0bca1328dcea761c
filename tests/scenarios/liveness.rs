//! What the watchers of an engine see of a rank without peers: work and progress, from which they detect a hang.
use std::{
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use common::sampling::SamplingParameters;
use daemon::kv_store::KvFolder;
use engine::{
    self, RequestKey,
    kv_store::port::Disk,
    port::{EngineEvent, EngineOrder, RequestEvent},
};
use gguf::GgufFile;
use harness::{
    engines::{Replica, begin},
    families,
    greedy::{ids, request},
    programs::wait_until,
    tiny_model::{Architecture, TinyModel},
};
use protocol::message::Generate;

const TOKENS: u32 = 6;
/// Longest wait for the engine.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn lone_rank_is_busy_with_work_and_every_step_is_progress() {
    let bytes = TinyModel::new(Architecture::Llama).bytes();
    let file = Arc::new(GgufFile::from_bytes(vec![bytes]).expect("the model is valid"));
    for threads in [1, 2] {
        // Without speculative tokens, each token is a step.
        let replica = Replica { slots: 1, threads, is_plain: true, ..Replica::of(1) };
        let setup = replica.setups(&file).remove(0);
        let watched = Arc::clone(&setup.abort);
        let abort = &*watched;
        let mut preparer = replica.preparer(&file);
        // Prevents any token from ending the answer.
        let logit_bias = [0, 1, 2].map(|id| (id, -1e9)).to_vec();
        let sampling = SamplingParameters { logit_bias, ..SamplingParameters::default() };
        let generate = Generate::new("abc".to_owned(), TOKENS, sampling, Vec::new());
        let answers = preparer.answers();
        let order = begin(&mut preparer, &answers, RequestKey(1), &generate).expect("the request is valid");
        thread::scope(|scope| {
            // Dropped in a panic, so that the engine ends.
            let (orders, of_head) = mpsc::channel();
            let (sender, events) = mpsc::channel();
            scope.spawn(move || {
                engine::run(setup, &of_head, &|event: EngineEvent| {
                    // The engine's thread is here, and its watchers see what they would see if it hung.
                    let seen = (abort.is_busy(), abort.is_waiting(), abort.progress());
                    // After a failed assertion, nothing receives it.
                    let _ = sender.send((event, seen));
                });
            });
            orders.send(order).expect("the engine holds the receiver");
            let mut steps = Vec::new();
            loop {
                let (event, seen) = events.recv_timeout(PATIENCE).expect("the engine runs");
                match event {
                    EngineEvent::Request(_, RequestEvent::Token(_)) => {
                        let (is_busy, is_waiting, progress) = seen;
                        assert!(is_busy && !is_waiting, "busy: {is_busy}, waiting: {is_waiting}");
                        steps.push(progress);
                    }
                    EngineEvent::Request(_, RequestEvent::Finished(_)) => break,
                    _ => {}
                }
            }
            assert_eq!(steps.len(), TOKENS as usize);
            assert!(steps.is_sorted_by(|one, next| one < next), "{threads} threads: {steps:?}");
            // Without work, no progress is expected.
            let end = Instant::now() + PATIENCE;
            while abort.is_busy() {
                assert!(Instant::now() < end, "an idle engine is not busy");
                thread::yield_now();
            }
            orders.send(EngineOrder::Stop).expect("the engine holds the receiver");
        });
    }
}

/// The next event of a request.
fn next_event(events: &mpsc::Receiver<EngineEvent>) -> RequestEvent {
    loop {
        if let EngineEvent::Request(_, event) = events.recv_timeout(PATIENCE).expect("the engine runs") {
            return event;
        }
    }
}

/// What a disk finds, which does not arrive before a message at the gate.
fn gated(disk: Disk, gate: mpsc::Receiver<()>) -> Disk {
    let (sender, found) = mpsc::sync_channel(1);
    let real = disk.found;
    thread::spawn(move || {
        // The test may have failed, and the engine may have ended.
        if gate.recv().is_ok() {
            for found in real {
                if sender.send(found).is_err() {
                    return;
                }
            }
        }
    });
    Disk { found, ..disk }
}

#[test]
fn wait_of_a_lone_rank_for_its_disk_is_progress() {
    /// Half of the time after which the head computes what it does not get.
    const WAITED: Duration = Duration::from_secs(5);
    let (_, file) = families::files(&["qwen3-"]).remove(0);
    let replica = Replica { slots: 1, blocks: 80, context_length: 500, ..Replica::of(1) };
    let folders = [Arc::new(KvFolder::in_memory(1 << 30))];
    let generate = request(ids(1, 150), 2);
    replica.answers_stored(&file, &[vec![generate.clone()]], &folders);
    wait_until("four blocks are stored", || folders[0].usage().1 == 4);
    let (gate, opened) = mpsc::channel();
    let mut setup = replica.setups(&file).remove(0);
    setup.store = Some((gated(replica.disks(&file, &folders).remove(0), opened), Replica::space()));
    let abort = Arc::clone(&setup.abort);
    let mut preparer = replica.preparer(&file);
    let answers = preparer.answers();
    let order = begin(&mut preparer, &answers, RequestKey(1), &generate).expect("the request is valid");
    thread::scope(|scope| {
        // Dropped in a panic, so that the engine ends.
        let (orders, of_head) = mpsc::channel();
        let (sender, events) = mpsc::channel();
        scope.spawn(move || engine::run(setup, &of_head, &|event: EngineEvent| drop(sender.send(event))));
        orders.send(order).expect("the engine holds the receiver");
        while !matches!(next_event(&events), RequestEvent::Dispatched) {}
        let (before, end) = (abort.progress(), Instant::now() + WAITED);
        while abort.progress() < before + 3 {
            assert!(abort.is_busy() && !abort.is_waiting() && Instant::now() < end, "the wait looks like a stall");
            thread::yield_now();
        }
        gate.send(()).expect("the disk holds the receiver");
        let finished = loop {
            if let RequestEvent::Finished(finished) = next_event(&events) {
                break finished;
            }
        };
        assert_eq!(finished.times.stored_tokens, 128, "nothing was computed meanwhile");
        orders.send(EngineOrder::Stop).expect("the engine holds the receiver");
    });
}
