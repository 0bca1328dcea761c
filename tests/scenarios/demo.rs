//! `console demo`: generates one text without a terminal, opens the dashboard with one, and leaves no process behind.
use std::process::Command;

use harness::{
    programs::{console, finish, programs, spawn_console, wait_until},
    terminal::Terminal,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::json_output::assert_described;

/// brambled processes whose parent is `pid`, or that a demo with this folder started.
fn daemons_of(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc is there").flatten() {
        let Some(child) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // pid (comm) state ppid …
        let Some((name, rest)) = stat.rsplit_once(')') else { continue };
        let parent = rest.split_whitespace().nth(1).and_then(|parent| parent.parse::<u32>().ok());
        if parent == Some(pid) && name.ends_with("brambled") {
            found.push(child);
        }
    }
    found
}

fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

#[test]
fn demo_without_a_terminal_prints_text_and_profile() {
    let ended = console(&["demo"]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    for part in
        ["4 nodes", "tp4", "ROMEO:", "prefill", "decode", "pi4", "compute", "waiting", "wire", "formula", "tokens/s"]
    {
        assert!(ended.out.contains(part), "{part:?} is not in {}", ended.out);
    }
}

#[test]
fn once_takes_prompt_length_nodes_and_layout() {
    let run = ["demo", "--json", "--nodes", "3", "--max-tokens", "5", "--prompt", "JULIET:", "--seed", "1"];
    let object = console(&run).completion();
    assert_described("console demo", &object);
    assert_eq!(object["token_ids"].as_array().map(Vec::len), Some(5));
    assert_eq!((object["topology"].as_str(), object["ranks"].as_array().map(Vec::len)), (Some("tp3"), Some(3)));
    let pipeline = console(&["demo", "--json", "--topology", "pp2-tp2", "--max-tokens", "5"]).completion();
    assert_eq!((pipeline["topology"].as_str(), pipeline["ranks"].as_array().map(Vec::len)), (Some("pp2-tp2"), Some(4)));
    let missing = console(&["demo", "--model", "nowhere.gguf", "--json"]);
    assert_eq!(missing.code, Some(1));
    assert!(missing.err.contains("nowhere.gguf"));
}

#[test]
fn no_daemon_outlives_a_killed_demo() {
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let child = spawn_console(&["demo", "--max-tokens", "400"]);
        let mut daemons = Vec::new();
        wait_until("four daemons run", || {
            daemons = daemons_of(child.id());
            daemons.len() == 4
        });
        kill(Pid::from_raw(child.id().cast_signed()), signal).expect("the console is running");
        finish(child);
        wait_until("none is left", || !daemons.iter().any(|pid| is_running(*pid)));
    }
}

#[test]
fn demo_with_a_terminal_opens_the_dashboard_and_quit_ends_all() {
    let mut command = Command::new(programs().join("console"));
    command.args(["demo", "--temperature", "0", "--max-tokens", "16"]).env_remove("BRAMBLE_LOG_DIR");
    let mut terminal = Terminal::run(command, 80, 24);
    terminal.wait_for("Ready. Type a prompt");
    let daemons = daemons_of(terminal.pid().as_raw().cast_unsigned());
    assert_eq!(daemons.len(), 4);
    terminal.keys("\r");
    terminal.wait_for("max tokens reached");
    terminal.keys("\x03");
    assert_eq!(terminal.ended(), Some(130));
    terminal.assert_restored();
    wait_until("none is left", || !daemons.iter().any(|pid| is_running(*pid)));
}

#[test]
fn tour_shows_every_step_with_real_processes_and_leaves_none() {
    let child = spawn_console(&["demo", "--tour", "--json"]);
    let mut daemons = Vec::new();
    wait_until("four daemons run", || {
        daemons = daemons_of(child.id());
        daemons.len() == 4
    });
    let ended = finish(child);
    let told = ended.json();
    assert_described("console demo --tour", &told);
    assert_eq!((ended.code, &told["ok"]), (Some(0), &true.into()), "{} {}", ended.out, ended.err);
    let seen = |step: usize| told["steps"][step]["seen"].as_str().unwrap_or_default().to_owned();
    assert_eq!(told["steps"].as_array().map(Vec::len), Some(7));
    for (step, part) in [
        (0, "52.6"),
        (1, "tp4"),
        (3, "THROTTLED"),
        (4, "pi2 is the straggler"),
        (5, "pi4"),
        (6, "the text is the same"),
    ] {
        assert!(seen(step).contains(part), "step {}: {}", step + 1, seen(step));
    }
    wait_until("none is left", || !daemons.iter().any(|pid| is_running(*pid)));
}

#[test]
fn tour_in_the_dashboard_waits_for_every_key_and_leaves_none() {
    let mut command = Command::new(programs().join("console"));
    command.args(["demo", "--tour", "--max-tokens", "16"]).env_remove("BRAMBLE_LOG_DIR");
    let mut terminal = Terminal::run(command, 120, 40);
    terminal.wait_for("step 1 of 8");
    terminal.wait_for("ready");
    let daemons = daemons_of(terminal.pid().as_raw().cast_unsigned());
    assert_eq!(daemons.len(), 4);
    terminal.keys("\r");
    for (step, page, effect) in [
        ("step 2 of 8", "2", "tp4"),
        ("step 3 of 8", "4", "Prompt"),
        ("step 4 of 8", "1", "THROTTLED"),
        ("step 5 of 8", "3", "straggler: pi2"),
        ("step 6 of 8", "6", "connection lost"),
        ("step 7 of 8", "1", "ready"),
    ] {
        terminal.wait_for(step);
        terminal.keys(page);
        if page == "4" {
            terminal.wait_for("type a prompt");
            terminal.keys("ROMEO:\r");
        }
        terminal.wait_for("Enter continues");
        terminal.wait_for(effect);
        // Keys of pages are text in the prompt box: Tab leaves it.
        terminal.keys(if page == "4" { "\t\r" } else { "\r" });
    }
    terminal.wait_for("step 8 of 8");
    terminal.keys("\r");
    terminal.wait_for("the tour is over");
    terminal.keys("q");
    assert_eq!(terminal.ended(), Some(0));
    terminal.assert_restored();
    wait_until("none is left", || !daemons.iter().any(|pid| is_running(*pid)));
}
