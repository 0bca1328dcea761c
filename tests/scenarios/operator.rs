//! An operator's work in the real dashboard, in tmux, against four real daemons; and the terminal as it was however the dashboard ends.
//! Where there is no tmux the tests of `dashboard` and `operate` in an emulated terminal are what is left.
use std::process::Command;

use harness::{
    programs::{Cluster, DEEP, deep_models, demo_models, programs, wait_until},
    slowing::Slowed,
    tmux::Tmux,
};
use nix::sys::signal::Signal;

/// Nodes bring their topology back by themselves, and take out nobody by themselves.
const SETTINGS: &str =
    "recover = true\nsilent_ms = 30000\nstall_ms = 60000\nexclude_after_ms = 0\nexclude_slow_ms = 0\n";

fn dashboard(cluster: &Cluster, more: &[&str], columns: u16, rows: u16) -> Tmux {
    let mut command = Command::new(programs().join("console"));
    command.args(["--nodes", &cluster.nodes()]).args(more);
    command.env_remove("BRAMBLE_LOG_DIR").env_remove("BRAMBLE_NODES").env_remove("BRAMBLE_KEY_FILE");
    Tmux::run(&command, columns, rows)
}

/// The node of the first row of the page of all ranks.
fn first_rank(screen: &str) -> String {
    let rows = screen.lines().skip_while(|line| !line.trim_start().starts_with("node "));
    let first = rows.skip(1).find(|line| line.contains('%')).unwrap_or_default();
    first.trim_start_matches([' ', '▸']).split(' ').next().unwrap_or_default().to_owned()
}

/// A short answer on the page Generate, from its first to its last token.
fn generates(screen: &mut Tmux, text: &str) {
    // Alt-4, where an escape and a letter in one read are meant.
    screen.keys("\x1b4");
    screen.wait_for(" Prompt ");
    if !screen.screen().contains("━━ Prompt") {
        screen.keys("i");
        screen.wait_for("━━ Prompt");
    }
    screen.keys(text);
    screen.wait_for(&format!("> {text}"));
    screen.keys("\r");
    wait_until("the answer is there", || {
        let picture = screen.screen();
        picture.contains("as long as asked for") && !picture.contains(&format!("> {text}"))
    });
}

fn pids(cluster: &Cluster, which: &[usize]) -> Vec<i32> {
    which.iter().map(|index| cluster.pid(*index).as_raw()).collect()
}

#[test]
fn an_operator_finds_the_slow_rank_takes_it_out_restarts_all_and_sees_a_killed_node_come_back() {
    if !Tmux::is_installed() {
        return eprintln!("no tmux here: not run");
    }
    let models = deep_models();
    let mut cluster = Cluster::supervised(4, models.path(), SETTINGS);
    let model = ["--model", DEEP, "--context", "8192", "--max-tokens", "8000", "--temperature", "0"];
    let mut screen = dashboard(&cluster, &model, 110, 36);
    screen.wait_for("4 of 4");
    screen.wait_for("Ready. i to type a prompt");
    // Start, generate.
    screen.keys("i");
    screen.wait_for("type a prompt, Enter generates");
    screen.keys("ROMEO:\r");
    screen.wait_for("decoding");
    // The slowed rank is first on the page Sync. Four ranks on two cores fill short stops with the work of others: half of the time is stopped.
    // A busy machine delays any rank now and then: ten pictures in a row.
    let slowed = Slowed::begin(cluster.pid(1), (5, 10));
    screen.keys("\x1b3");
    screen.wait_for("Ranks, the latest first");
    let (mut pictures, mut last) = (0, String::new());
    wait_until("pi2 is the first of the ranks in ten pictures in a row", || {
        let picture = screen.screen();
        if picture != last {
            pictures = if first_rank(&picture) == "pi2" { pictures + 1 } else { 0 };
            last = picture;
        }
        pictures == 10
    });
    screen.wait_for("pi2 holds the others up");
    screen.keys("<");
    screen.wait_for("s ago; 0 shows now");
    screen.keys("0");
    // Out with it: the first of the ranks is selected and asked about, as long as it is the slowed one.
    wait_until("the first of the ranks is asked about, and it is pi2", || {
        screen.keys("gx");
        screen.wait_for("━━ Take pi");
        let is_it = screen.screen().contains("Take pi2 out");
        if !is_it {
            screen.keys("\x1b");
            wait_until("the question is gone", || !screen.screen().contains("━━ Take pi"));
        }
        is_it
    });
    screen.wait_for("tp3 is loaded on the rest");
    drop(slowed);
    screen.keys("slow\r");
    screen.wait_for("A aborts it");
    // What runs would be waited for: it is cancelled.
    screen.keys("\x1b");
    screen.wait_for("pi2 is out; tp3 serves");
    // All others are restarted by themselves.
    let before = pids(&cluster, &[0, 2, 3]);
    screen.keys("R");
    screen.wait_for("One after the other, each of pi1, pi3, pi4");
    screen.keys("\r");
    screen.wait_for("all 3 nodes are restarted");
    assert!(before.iter().zip(pids(&cluster, &[0, 2, 3])).all(|(before, now)| *before != now));
    // A killed node is missed, and when it is back so is the topology.
    screen.keys("1");
    cluster.signal(2, Signal::SIGKILL);
    cluster.wait(2);
    screen.wait_for("broken: pi3");
    cluster.start(2);
    wait_until("it serves again", || cluster.status(0)["state"] == "ready");
    wait_until("and is seen to", || !screen.screen().contains("broken") && screen.screen().contains("3 of 3"));
    assert_eq!(cluster.status(0)["topology"]["layout"], "tp3");
    screen.keys("q");
    assert_eq!(screen.ended(), 0);
    screen.assert_restored();
}

#[test]
fn a_rolling_restart_goes_on_without_its_dashboard_and_another_pauses_and_resumes_it() {
    if !Tmux::is_installed() {
        return eprintln!("no tmux here: not run");
    }
    let cluster = Cluster::supervised(4, &demo_models(), SETTINGS);
    let model = ["--model", "bard-q8_0.gguf", "--max-tokens", "8", "--seed", "3"];
    let mut screen = dashboard(&cluster, &model, 80, 24);
    screen.wait_for("4 of 4");
    screen.wait_for("Ready. i to type a prompt");
    let before = pids(&cluster, &[0, 1, 2, 3]);
    screen.keys("R");
    screen.wait_for("Rolling restart");
    screen.keys("\r");
    screen.wait_for("restart: ");
    screen.keys("q");
    assert_eq!(screen.ended(), 0);
    screen.assert_restored();
    // This one was never told of it.
    let mut screen = dashboard(&cluster, &[], 80, 24);
    screen.wait_for("restart: ");
    screen.keys("R");
    screen.wait_for("asked for by");
    screen.keys("p");
    screen.wait_for("paused: ");
    screen.keys("R");
    screen.wait_for("Paused: ");
    screen.keys("r");
    screen.wait_for("all 4 nodes are restarted");
    assert!(before.iter().zip(pids(&cluster, &[0, 1, 2, 3])).all(|(before, now)| *before != now));
    wait_until("all serve", || cluster.status(0)["state"] == "ready");
    generates(&mut screen, "ROMEO:");
    screen.keys("\x1b1");
    screen.wait_for("4 of 4");
    screen.keys("q");
    assert_eq!(screen.ended(), 0);
    screen.assert_restored();
}

#[test]
fn the_terminal_is_as_it_was_after_quitting_signals_and_a_panic_and_a_terminal_that_goes_away_ends_the_dashboard() {
    if !Tmux::is_installed() {
        return eprintln!("no tmux here: not run");
    }
    let cluster = Cluster::of(1);
    let open = || {
        let screen = dashboard(&cluster, &["--readonly"], 80, 24);
        screen.wait_for("only looking");
        screen.wait_for("pi1");
        screen
    };
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGHUP, 129), (Signal::SIGINT, 130)] {
        let screen = open();
        screen.signal(signal);
        assert_eq!(screen.ended(), code, "{signal}");
        screen.assert_restored();
    }
    let mut screen = open();
    screen.keys("x");
    screen.wait_for("without --readonly");
    screen.keys("q");
    assert_eq!(screen.ended(), 0);
    screen.assert_restored();
    open().hang_up();
    let screen = Tmux::run(&Command::new(env!("CARGO_BIN_EXE_panicking")), 80, 24);
    assert_ne!(screen.ended(), 0);
    screen.assert_restored();
    wait_until("the message is readable", || screen.screen().contains("this panic is part of a test"));
}
