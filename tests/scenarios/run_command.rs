//! `console run`, and `console generate` without a model: names that are only a part of a file's name.
use std::process::Command;

use harness::{
    programs::{Cluster, DATA_HOME, Ended, programs},
    terminal::Terminal,
};

fn on(cluster: &Cluster, arguments: &[&str]) -> Ended {
    let nodes = cluster.nodes();
    let more = ["--nodes", &nodes, "--json", "--temperature", "0", "--max-tokens", "8"];
    cluster.console(&[arguments, &more[..]].concat())
}

#[test]
fn part_of_a_model_name_is_enough_and_generate_needs_none() {
    let cluster = Cluster::of(2);
    let only = on(&cluster, &["generate", "--prompt", "ROMEO:"]);
    assert_eq!(only.code, Some(0), "the only model is used: {} {}", only.out, only.err);
    assert!(only.err.contains("model bard-q8_0.gguf"), "{}", only.err);

    let answered = on(&cluster, &["run", "bard", "ROMEO:"]);
    assert_eq!(answered.code, Some(0), "{} {}", answered.out, answered.err);
    assert!(answered.json()["text"].as_str().is_some_and(|text| !text.is_empty()), "{}", answered.out);
    assert_eq!(answered.json()["epoch"], only.json()["epoch"], "the topology that serves the model is used");

    let missing = on(&cluster, &["run", "bart", "ROMEO:"]);
    missing.assert_error(4, "model_missing", &["bart"]);
    assert!(missing.err.contains("did you mean bard-q8_0.gguf?"), "{}", missing.err);
}

#[test]
fn chat_edits_lines_recalls_them_and_stores_the_conversation() {
    let cluster = Cluster::of(1);
    let home = tempfile::tempdir().expect("a temporary folder");
    let chat = || {
        let mut command = Command::new(programs().join("console"));
        command.args(["run", "bard", "--nodes", &cluster.nodes(), "--temperature", "0", "--max-tokens", "8", "--yes"]);
        command.env(DATA_HOME, home.path());
        Terminal::run(command, 100, 40)
    };
    let mut terminal = chat();
    terminal.wait_for("> ");
    // The left arrow moves within the line.
    terminal.keys("/fo\x1b[Do\r");
    terminal.wait_for("unknown command /foo");
    terminal.keys("ROMEO:\r");
    // Ctrl-D ends the chat at a prompt; before that, the terminal itself would read it.
    terminal.wait_for("max tokens reached\n>");
    terminal.keys("\x04");
    assert_eq!(terminal.ended(), Some(0));
    terminal.assert_restored();

    let mut again = chat();
    again.wait_for("> ");
    again.keys("\x1b[A");
    again.wait_for("> ROMEO:");
    again.keys("\x03");
    again.wait_for("Ctrl-D or /bye quits\n>");
    again.keys("/list\r");
    again.wait_for("1 turn   ROMEO:");
    again.keys("/bye\r");
    assert_eq!(again.ended(), Some(0));
}
