//! An operator's work in the real dashboard, in tmux, against four real daemons, and the restoration of the terminal
//! however the dashboard ends. Without tmux only the tests of `dashboard` and `operate` in an emulated terminal cover
//! this.
use std::process::Command;

use harness::{
    deep_models::deep_models,
    programs::{Cluster, DEEP, demo_models, programs, wait_until},
    slowing::Slowed,
    tmux::Tmux,
};
use nix::sys::signal::Signal;

/// Nodes restore their topology automatically, and never exclude a node automatically.
const SETTINGS: &str =
    "recover = true\nsilent_ms = 30000\nstall_ms = 60000\nexclude_after_ms = 0\nexclude_slow_ms = 0\n";

fn dashboard(cluster: &Cluster, more: &[&str], columns: u16, rows: u16) -> Tmux {
    let mut command = Command::new(programs().join("console"));
    command.args(["--nodes", &cluster.nodes()]).args(more);
    command.env_remove("BRAMBLE_LOG_DIR").env_remove("BRAMBLE_NODES").env_remove("BRAMBLE_KEY_FILE");
    Tmux::run(&command, columns, rows)
}

/// The node in the first row of the page of all ranks.
fn first_rank(screen: &str) -> String {
    let rows = screen.lines().skip_while(|line| !line.trim_start().starts_with("node "));
    let first = rows.skip(1).find(|line| line.contains('%')).unwrap_or_default();
    first.trim_start_matches([' ', '▸']).split(' ').next().unwrap_or_default().to_owned()
}

/// Generates a short answer on the page Generate and waits for its last token.
fn generates(screen: &mut Tmux, text: &str) {
    // Alt-4, sent as an escape and a letter in one read.
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
        // Some seeds make the model end it before.
        let is_over = picture.contains("max tokens reached") || picture.contains("the model ended it");
        is_over && !picture.contains(&format!("> {text}"))
    });
}

fn pids(cluster: &Cluster, which: &[usize]) -> Vec<i32> {
    which.iter().map(|index| cluster.pid(*index).as_raw()).collect()
}

#[test]
fn operator_excludes_the_straggler_and_restarts_the_rest() {
    if !Tmux::is_installed() {
        return eprintln!("no tmux here: not run");
    }
    let models = deep_models();
    let mut cluster = Cluster::supervised(4, models.path(), SETTINGS);
    let model = ["--model", DEEP, "--context", "8192", "--max-tokens", "8000", "--temperature", "0"];
    let mut screen = dashboard(&cluster, &model, 110, 36);
    screen.wait_for("4 of 4");
    screen.wait_for("Ready. i to type a prompt");
    // Start and generate.
    screen.keys("i");
    screen.wait_for("type a prompt, Enter generates");
    screen.keys("ROMEO:\r");
    screen.wait_for("decoding");
    // The slowed rank is first on the page Sync. Four ranks on two cores fill short stops with the work of others, so
    // the rank is stopped half of the time. A busy machine delays any rank occasionally, so ten consecutive screens are
    // required.
    let slowed = Slowed::begin(cluster.pid(1), 5, 10);
    screen.keys("\x1b3");
    screen.wait_for("Ranks, the latest first");
    let (mut pictures, mut last) = (0, String::new());
    wait_until("pi2 is the first rank in ten consecutive screens", || {
        let picture = screen.screen();
        if picture != last {
            pictures = if first_rank(&picture) == "pi2" { pictures + 1 } else { 0 };
            last = picture;
        }
        pictures == 10
    });
    screen.wait_for("pi2 delays the others");
    screen.keys("<");
    screen.wait_for("s ago; 0 shows now");
    screen.keys("0");
    // Exclude it: the first rank is selected and the dialog opened, provided that it is the slowed one.
    wait_until("the dialog asks about the first rank, and it is pi2", || {
        screen.keys("gx");
        screen.wait_for("━━ Exclude pi");
        let is_it = screen.screen().contains("Exclude pi2");
        if !is_it {
            screen.keys("\x1b");
            wait_until("the dialog is closed", || !screen.screen().contains("━━ Exclude pi"));
        }
        is_it
    });
    screen.wait_for("tp3 loads on the rest");
    drop(slowed);
    screen.keys("slow\r");
    screen.wait_for("A aborts it");
    // A running request would delay the exclusion: cancel it.
    screen.keys("\x1b");
    screen.wait_for("pi2 is out; tp3 serves");
    // Restart all other nodes.
    let before = pids(&cluster, &[0, 2, 3]);
    screen.keys("R");
    screen.wait_for("One after the other, each of pi1, pi3, pi4");
    screen.keys("\r");
    screen.wait_for("all 3 nodes are restarted");
    assert!(before.iter().zip(pids(&cluster, &[0, 2, 3])).all(|(before, now)| *before != now));
    // A killed node is shown as lost, and when it is back the topology is restored.
    screen.keys("1");
    cluster.signal(2, Signal::SIGKILL);
    cluster.wait(2);
    screen.wait_for("broken: pi3");
    cluster.start(2);
    wait_until("it serves again", || cluster.status(0)["state"] == "ready");
    wait_until("the screen shows it", || !screen.screen().contains("broken") && screen.screen().contains("3 of 3"));
    assert_eq!(cluster.status(0)["topology"]["layout"], "tp3");
    screen.keys("q");
    assert_eq!(screen.ended(), 0);
    screen.assert_restored();
}

#[test]
fn rolling_restart_outlives_its_dashboard_and_can_be_resumed() {
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
    // This dashboard did not start the restart.
    let mut screen = dashboard(&cluster, &[], 80, 24);
    screen.wait_for("restart: ");
    screen.keys("R");
    screen.wait_for("started by");
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
fn terminal_is_restored_after_quit_signals_panic_and_hang_up() {
    if !Tmux::is_installed() {
        return eprintln!("no tmux here: not run");
    }
    let cluster = Cluster::of(1);
    let open = || {
        let screen = dashboard(&cluster, &["--readonly"], 80, 24);
        screen.wait_for("read-only");
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
