//! Nodes that die, hang, drain and return while a request runs.
use harness::{
    deep_models::deep_models,
    faults::strike_all,
    programs::{Cluster, DEEP, Ended, finish, wait_until},
};
use nix::sys::signal::Signal;
use topology::Layout;

/// Starts a long generation on all nodes, runs `disturbance` during it, and returns how it ended.
fn disturb(cluster: &mut Cluster, max_tokens: &str, disturbance: impl FnOnce(&mut Cluster)) -> Ended {
    let child = cluster.start_generation(max_tokens);
    disturbance(cluster);
    finish(child)
}

fn generates_again(cluster: &Cluster) {
    let count = cluster.addresses.len();
    let run = &["--model", DEEP, "--prompt", "ab", "--max-tokens", "4", "--temperature", "0"];
    assert_eq!(cluster.generate(count, run).completion()["finish_reason"], "length");
}

#[test]
fn killed_rank_fails_the_request_by_name_and_can_restart() {
    let models = deep_models();
    let mut cluster = Cluster::with(4, models.path(), "");
    let ended = disturb(&mut cluster, "4000", |cluster| {
        cluster.signal(2, Signal::SIGKILL);
        assert_eq!(cluster.wait(2), None);
    });
    ended.assert_error(5, "node_lost", &["pi3"]);
    for index in [0, 1, 3] {
        wait_until("the survivors report the fault", || cluster.status(index)["state"] == "faulted");
        let fault = cluster.status(index)["fault"].clone();
        assert!(fault.as_str().is_some_and(|fault| fault.contains("pi3")), "pi{}: {fault}", index + 1);
    }
    let before = cluster.status(0)["epoch"].as_u64();
    cluster.start(2);
    let back = cluster.status(2);
    assert_eq!(
        (back["state"].as_str(), back["epoch"].as_u64()),
        (Some("idle"), before),
        "a restarted node must keep its epoch"
    );
    generates_again(&cluster);
    assert!(cluster.status(0)["epoch"].as_u64() > before);
}

#[test]
fn requests_go_to_the_replica_that_serves() {
    let models = deep_models();
    let mut cluster = Cluster::with(2, models.path(), "");
    let run = ["--model", DEEP, "--prompt", "ab", "--max-tokens", "4", "--temperature", "0", "--topology", "dp2-tp1"];
    let expected = cluster.generate(2, &run).completion()["token_ids"].clone();
    let epoch = cluster.status(1)["epoch"].clone();
    cluster.signal(0, Signal::SIGKILL);
    cluster.wait(0);
    assert_eq!(cluster.generate(2, &run).completion()["token_ids"], expected, "the first replica's node is off");
    cluster.start(0);
    assert_eq!(cluster.status(0)["state"], "idle");
    assert_eq!(cluster.generate(2, &run).completion()["token_ids"], expected, "the first replica's node is idle");
    assert_eq!(cluster.status(1)["epoch"], epoch, "the replica that serves must stay");
}

#[test]
fn killed_head_ends_the_request_as_lost() {
    let models = deep_models();
    let mut cluster = Cluster::with(2, models.path(), "");
    let ended = disturb(&mut cluster, "4000", |cluster| {
        cluster.signal(0, Signal::SIGKILL);
        assert_eq!(cluster.wait(0), None);
    });
    ended.assert_error(5, "session_lost", &["pi1"]);
    cluster.start(0);
    generates_again(&cluster);
}

#[test]
fn stopped_rank_is_silent_and_lost_by_name() {
    let models = deep_models();
    let mut cluster = Cluster::with(3, models.path(), "heartbeat_ms = 50\nsilent_ms = 1500\n");
    let ended = disturb(&mut cluster, "4000", |cluster| cluster.signal(1, Signal::SIGSTOP));
    ended.assert_error(5, "node_lost", &["pi2", "heartbeat"]);
    cluster.signal(1, Signal::SIGCONT);
    wait_until("it notices that the others continued without it", || cluster.status(1)["state"] == "faulted");
    generates_again(&cluster);
}

#[test]
fn draining_head_finishes_its_request_and_exits_with_0() {
    let models = deep_models();
    let mut cluster = Cluster::with(2, models.path(), "");
    let ended = disturb(&mut cluster, "60", |cluster| {
        cluster.signal(0, Signal::SIGTERM);
        wait_until("it drains", || cluster.log(0).contains("-> draining"));
    });
    assert_eq!(ended.completion()["finish_reason"], "length");
    assert_eq!(cluster.wait(0), Some(0));
    cluster.start(0);
    generates_again(&cluster);
}

#[test]
fn draining_rank_waits_for_the_heads_request_and_exits_with_0() {
    let models = deep_models();
    let mut cluster = Cluster::with(2, models.path(), "");
    let ended = disturb(&mut cluster, "60", |cluster| cluster.signal(1, Signal::SIGTERM));
    assert_eq!(ended.completion()["finish_reason"], "length");
    assert_eq!(cluster.wait(1), Some(0));
    wait_until("the head has noticed", || {
        cluster.status(0)["fault"].as_str().is_some_and(|fault| fault.contains("pi2"))
    });
    cluster.start(1);
    generates_again(&cluster);
}

#[test]
fn nodes_that_are_stopped_together_all_exit_with_0() {
    let models = deep_models();
    let mut cluster = Cluster::with(3, models.path(), "");
    generates_again(&cluster);
    (0..3).for_each(|index| cluster.signal(index, Signal::SIGTERM));
    (0..3).for_each(|index| assert_eq!(cluster.wait(index), Some(0), "pi{}", index + 1));
    // A node left behind in a broken topology exits with 0 as well.
    (0..3).for_each(|index| cluster.start(index));
    generates_again(&cluster);
    cluster.signal(0, Signal::SIGKILL);
    cluster.wait(0);
    wait_until("it noticed", || cluster.status(1)["state"] == "faulted");
    cluster.signal(1, Signal::SIGTERM);
    assert_eq!(cluster.wait(1), Some(0));
}

#[test]
fn drain_timeout_fails_the_request_by_name_and_exits_with_0() {
    let models = deep_models();
    let mut cluster = Cluster::with(2, models.path(), "drain_ms = 1\n");
    let ended = disturb(&mut cluster, "4000", |cluster| cluster.signal(0, Signal::SIGTERM));
    ended.assert_error(5, "drain_ended", &["pi1"]);
    assert_eq!(cluster.wait(0), Some(0));
}

#[test]
fn ten_random_faults_leave_no_hang_and_no_wrong_token() {
    let seed = 3;
    println!("seed {seed}");
    let endings = strike_all(Layout::tensor_parallel(3), false, 10, seed, &mut |line| println!("{line}"));
    println!("{endings}");
    // A request that was struck may end with all its tokens: the console continues it.
    assert!(endings.struck > 0, "some of the faults must strike a request");
}
