//! A machine's health on its way from the files of /proc and /sys to the operator.
use std::process::Command;

use harness::{
    programs::{Cluster, demo_models, programs, root, wait_until},
    terminal::Terminal,
};

fn fixture(name: &str) -> String {
    root().join("daemon/src/health/fixtures").join(name).to_string_lossy().into_owned()
}

#[test]
fn a_throttled_pi_shows_as_throttled_in_status_log_and_dashboard() {
    let mut cluster = Cluster::of(3);
    for (index, name) in ["pi4", "pi4-throttled", "pi5"].into_iter().enumerate() {
        cluster.signal(index, nix::sys::signal::Signal::SIGTERM);
        assert_eq!(cluster.wait(index), Some(0));
        cluster.start_with_arguments(index, &["--health-root", &fixture(name)]);
    }
    let health = cluster.status(1)["health"].clone();
    assert_eq!((health["firmware"].as_u64(), health["clock"]["current"].as_u64()), (Some(0x5_0005), Some(600)));
    let nodes = cluster.nodes();
    let table = cluster.console(&["status", "--nodes", &nodes]).out;
    let line = |name: &str| table.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    assert!(line("pi1").contains("52.6  1.8/1.8  ok"), "{table}");
    assert!(line("pi2").contains("84.2  0.6/1.8  UNDERVOLT, THROTTLED, HOT, low memory, 100 Mb/s"), "{table}");
    assert!(line("pi3").contains("61.3  2.4/2.4  ok"), "{table}");
    let log = cluster.log(1);
    for part in ["under-voltage now", "throttled by the firmware now", "100 Mbit/s", "throttle bits 0x50005"] {
        assert!(log.contains(part), "{part}: {log}");
    }
    let mut command = Command::new(programs().join("console"));
    command.args(["--nodes", &nodes, "--model", "bard-q8_0.gguf"]);
    let mut terminal = Terminal::run(command, 80, 24);
    terminal.wait_for("UNDERVOLT +4");
    terminal.wait_for("0.6/1.8");
    terminal.keys("\x1b");
    terminal.wait_for("q quit");
    terminal.keys("q");
    assert_eq!(terminal.ended(), Some(0));
}

#[test]
fn what_changes_is_logged_once_and_reported_within_seconds() {
    let mut cluster = Cluster::with(1, &demo_models(), "");
    let copy = cluster.state(0).with_extension("health");
    let copied = Command::new("cp").args(["-r", &fixture("pi4")]).arg(&copy).status().expect("cp runs");
    assert!(copied.success());
    cluster.signal(0, nix::sys::signal::Signal::SIGTERM);
    cluster.wait(0);
    cluster.start_with_arguments(0, &["--health-root", &copy.to_string_lossy()]);
    assert_eq!(cluster.status(0)["health"]["firmware"], 0);
    let write = |path: &str, text: &str| std::fs::write(copy.join(path), text).expect("the copy can be written");
    write("sys/devices/platform/soc/soc:firmware/get_throttled", "10001\n");
    write("sys/devices/system/cpu/cpufreq/policy0/scaling_governor", "powersave\n");
    wait_until("it reports the bits", || cluster.status(0)["health"]["firmware"] == 0x1_0001);
    wait_until("it logs them", || cluster.log(0).contains("under-voltage now"));
    let log = cluster.log(0);
    assert_eq!(log.matches("under-voltage now").count(), 1, "{log}");
    assert_eq!(log.matches("governor ondemand -> powersave").count(), 1, "{log}");
    let warnings = cluster.status(0)["warnings"].to_string();
    assert!(warnings.contains("under-voltage now") && warnings.contains("choose performance"), "{warnings}");
}

#[test]
fn a_reading_that_hangs_holds_up_neither_the_beginning_nor_the_end_of_a_daemon() {
    let mut cluster = Cluster::with(1, &demo_models(), "");
    let copy = cluster.state(0).with_extension("health");
    let copied = Command::new("cp").args(["-r", &fixture("pi4")]).arg(&copy).status().expect("cp runs");
    assert!(copied.success());
    // Whoever opens a pipe that nobody writes to waits.
    let temperature = copy.join("sys/class/thermal/thermal_zone0/temp");
    std::fs::remove_file(&temperature).expect("the copy can be changed");
    assert!(Command::new("mkfifo").arg(&temperature).status().expect("mkfifo runs").success());
    cluster.signal(0, nix::sys::signal::Signal::SIGTERM);
    assert_eq!(cluster.wait(0), Some(0));
    cluster.start_with_arguments(0, &["--health-root", &copy.to_string_lossy()]);
    let status = cluster.status(0);
    assert!(status["state"].is_string() && status["health"]["memory"].is_null(), "{status}");
    assert!(cluster.log(0).contains("health cannot be read within"), "{}", cluster.log(0));
    // The reading goes on once the pipe says something; there is only ever one that waits.
    std::fs::write(&temperature, "44000\n").expect("the pipe has its reader");
    wait_until("it reports the reading", || cluster.status(0)["health"]["temperature"] == 44.0);
    cluster.signal(0, nix::sys::signal::Signal::SIGTERM);
    assert_eq!(cluster.wait(0), Some(0));
}
