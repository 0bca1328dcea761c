//! Runs every console command of the RUNBOOK as written. Commands for a node run in packaging/boot-test.sh.
use std::process::{Command, Stdio};

use harness::programs::{Cluster, demo_models, programs, root};

/// The lines of all code blocks of a kind.
fn commands(text: &str, kind: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_inside = false;
    for line in text.lines() {
        match line.strip_prefix("```") {
            Some(info) => is_inside = !is_inside && info == kind,
            None if is_inside => found.push(line.to_owned()),
            None => {}
        }
    }
    found
}

/// The names in the Python dictionaries of kinds of faults in a file.
fn kinds(file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join(file)).expect("the file is there");
    let mut found = Vec::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once("\": ") {
        let name = before.rsplit('"').next().unwrap_or_default();
        let is_weight = after.starts_with(|first: char| first.is_ascii_digit());
        if is_weight && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') {
            found.push(name.to_owned());
        }
        rest = after;
    }
    found
}

#[test]
fn every_injected_fault_has_an_entry() {
    let text = std::fs::read_to_string(root().join("RUNBOOK.md")).expect("the runbook is there");
    let (_, table) = text.split_once("## Faults that are injected on purpose").expect("there is a table");
    let all = [kinds("tests/netns/breakage.py"), kinds("tests/chaos/harm.py")].concat();
    assert!(all.len() > 25, "{all:?}");
    for kind in all {
        let row = table.lines().find(|line| line.contains(&format!("`{kind}`")));
        let entry = row.and_then(|row| row.trim_end_matches(" |").rsplit(" | ").next());
        let is_entry = entry.is_some_and(|entry| entry.contains("](#") || entry.starts_with("nothing to do"));
        assert!(is_entry, "the fault {kind} has no entry in the RUNBOOK: {row:?}");
    }
}

#[test]
fn every_console_command_of_the_runbook_runs_as_written() {
    let text = std::fs::read_to_string(root().join("RUNBOOK.md")).expect("the runbook is there");
    let on_console = commands(&text, "sh on-console");
    let on_node = commands(&text, "sh on-node");
    assert!(on_console.len() >= 8 && on_node.len() >= 5, "{on_console:?} {on_node:?}");
    let fences = text.lines().filter(|line| line.starts_with("```sh")).count();
    let kinds = ["```sh on-console", "```sh on-node"];
    let known = text.lines().filter(|line| kinds.contains(line)).count();
    assert_eq!(fences, known, "a block of commands must state where it runs");

    let cluster = Cluster::supervised(4, &demo_models(), "recover = true\n");
    cluster.generate(4, &["--prompt", "Once upon a time", "--max-tokens", "4"]).completion();
    let home = tempfile::tempdir().expect("create a temporary folder");
    let path = std::env::var("PATH").unwrap_or_default();
    for command in on_console {
        let mut shell = Command::new("sh");
        shell.args(["-c", &command]).env("BRAMBLE_NODES", cluster.nodes()).env_remove("BRAMBLE_LOG_DIR");
        shell.env("XDG_CONFIG_HOME", home.path()).env_remove("BRAMBLE_KEY_FILE");
        // One of the commands creates a key; these nodes have none.
        shell.env("BRAMBLE_INSECURE", "true");
        shell.env("PATH", format!("{}:{path}", programs().display()));
        let output = shell.stdin(Stdio::null()).output().expect("sh runs");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{command}: {out} {err}");
        assert!(!out.trim().is_empty(), "{command} prints nothing");
    }
}
