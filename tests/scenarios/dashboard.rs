//! The real dashboard in a real terminal against real daemons.
use std::process::Command;

use harness::{
    deep_models::deep_models,
    programs::{Cluster, DEEP, programs, wait_until},
    terminal::Terminal,
};
use nix::sys::signal::Signal;

fn dashboard(cluster: &Cluster, columns: u16, rows: u16) -> Terminal {
    with_model(cluster, &["--model", "bard-q8_0.gguf", "--max-tokens", "400", "--seed", "3"], columns, rows)
}

fn with_model(cluster: &Cluster, model: &[&str], columns: u16, rows: u16) -> Terminal {
    let mut command = Command::new(programs().join("console"));
    command.args(["--nodes", &cluster.nodes()]).args(model).env_remove("BRAMBLE_LOG_DIR");
    Terminal::run(command, columns, rows)
}

#[test]
fn four_nodes_stream_text_show_latencies_and_escape_cancels() {
    let folder = deep_models();
    let cluster = Cluster::with(4, folder.path(), "");
    for (columns, rows) in [(80, 24), (120, 40)] {
        let model = ["--model", DEEP, "--context", "8192", "--max-tokens", "8000", "--temperature", "0"];
        let mut terminal = with_model(&cluster, &model, columns, rows);
        (1..=4).for_each(|node| terminal.wait_for(&format!("pi{node}")));
        terminal.wait_for("Ready. i to type a prompt");
        terminal.keys("iROMEO:\r");
        terminal.wait_for("decoding, ");
        terminal.keys("\x1b7");
        // The latencies of the first layer change: its line takes three different values.
        let mut seen = std::collections::BTreeSet::new();
        wait_until("latencies move", || {
            let screen = terminal.screen();
            seen.extend(screen.lines().find(|line| line.trim_start().starts_with("0 ")).map(str::to_owned));
            seen.len() >= 3
        });
        terminal.keys("4");
        terminal.wait_for("decoding, ");
        terminal.keys("\x1b");
        terminal.wait_for("cancelled");
        wait_until("the head is free", || cluster.status(0)["state"] == "ready");
        terminal.keys("\x1b");
        terminal.wait_for("q quit");
        terminal.keys("q");
        assert_eq!(terminal.ended(), Some(0));
        terminal.assert_restored();
    }
}

#[test]
fn dead_node_is_shown_by_name_and_the_dashboard_keeps_running() {
    let folder = deep_models();
    let mut cluster = Cluster::with(3, folder.path(), "");
    let model = ["--model", DEEP, "--max-tokens", "4000", "--temperature", "0"];
    let mut terminal = with_model(&cluster, &model, 120, 40);
    terminal.wait_for("Ready. i to type a prompt");
    terminal.keys("iROMEO:\r");
    wait_until("tokens arrive", || cluster.status(0)["tokens"].as_u64() > Some(3));
    cluster.signal(1, Signal::SIGKILL);
    cluster.wait(1);
    terminal.wait_for("pi2: lost");
    cluster.start(1);
    terminal.keys("\x1b1");
    terminal.wait_for("3 of 3 connected");
    terminal.keys("r");
    terminal.wait_for("load their parts from");
    terminal.keys("\r");
    terminal.wait_for("epoch 2");
    terminal.signal(Signal::SIGTERM);
    assert_eq!(terminal.ended(), Some(143));
    terminal.assert_restored();
}

#[test]
fn terminal_is_restored_after_signals() {
    let cluster = Cluster::of(1);
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130), (Signal::SIGHUP, 129)] {
        let mut terminal = dashboard(&cluster, 80, 24);
        terminal.wait_for("pi1");
        terminal.signal(signal);
        assert_eq!(terminal.ended(), Some(code), "{signal}");
        terminal.assert_restored();
    }
}

#[test]
fn terminal_is_restored_after_a_panic() {
    let command = Command::new(env!("CARGO_BIN_EXE_panicking"));
    let mut terminal = Terminal::run(command, 80, 24);
    assert_ne!(terminal.ended(), Some(0));
    terminal.assert_restored();
    wait_until("the message is readable", || terminal.screen().contains("this panic is part of a test"));
}
