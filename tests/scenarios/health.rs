//! A machine's health, from the files of /proc and /sys to the operator.
use std::process::Command;

use harness::{
    programs::{Cluster, demo_models, programs, root, wait_until},
    terminal::Terminal,
};

fn fixture(name: &str) -> String {
    root().join("daemon/src/health/fixtures").join(name).to_string_lossy().into_owned()
}

#[test]
fn throttled_pi_is_shown_in_status_log_and_dashboard() {
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
    terminal.keys("q");
    assert_eq!(terminal.ended(), Some(0));
}

#[test]
fn health_changes_are_logged_once_and_reported_within_seconds() {
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
fn hung_health_reading_delays_neither_start_nor_exit() {
    let mut cluster = Cluster::with(1, &demo_models(), "");
    let copy = cluster.state(0).with_extension("health");
    let copied = Command::new("cp").args(["-r", &fixture("pi4")]).arg(&copy).status().expect("cp runs");
    assert!(copied.success());
    // Opening a pipe without a writer blocks.
    let temperature = copy.join("sys/class/thermal/thermal_zone0/temp");
    std::fs::remove_file(&temperature).expect("the copy can be changed");
    assert!(Command::new("mkfifo").arg(&temperature).status().expect("mkfifo runs").success());
    cluster.signal(0, nix::sys::signal::Signal::SIGTERM);
    assert_eq!(cluster.wait(0), Some(0));
    cluster.start_with_arguments(0, &["--health-root", &copy.to_string_lossy()]);
    let status = cluster.status(0);
    assert!(status["state"].is_string() && status["health"]["memory"].is_null(), "{status}");
    assert!(cluster.log(0).contains("cannot read the machine's health within"), "{}", cluster.log(0));
    // The reading continues once the pipe has a writer; at most one reading is ever pending.
    std::fs::write(&temperature, "44000\n").expect("the pipe has its reader");
    wait_until("it reports the reading", || cluster.status(0)["health"]["temperature"] == 44.0);
    cluster.signal(0, nix::sys::signal::Signal::SIGTERM);
    assert_eq!(cluster.wait(0), Some(0));
}

/// Runs `brambled check --json` on a fixture; returns its exit code and the codes of its findings.
fn check(fixture: &str) -> (Option<i32>, Vec<String>) {
    let output = Command::new(programs().join("brambled")).args(["check", "--json", "--root", fixture]).output();
    let output = output.expect("brambled runs");
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it prints an object");
    (output.status.code(), codes(&object["findings"]))
}

fn codes(findings: &serde_json::Value) -> Vec<String> {
    let findings = findings.as_array().expect("findings");
    assert!(findings.iter().all(|finding| finding["fix"].as_str().is_some_and(|fix| !fix.is_empty())));
    findings.iter().map(|finding| finding["code"].as_str().expect("a code").to_owned()).collect()
}

#[test]
fn check_doctor_and_status_find_the_same() {
    let cases = [
        ("pi4", 0, "sd_card"),
        ("pi4-throttled", 7, "under_voltage"),
        ("pi5-undervolt", 7, "under_voltage"),
        ("pi4-powersave", 6, "governor_low"),
        ("pi4-slow-link", 6, "link_slow"),
        ("pi4-bare", 0, "sd_card"),
        ("pi5-wifi", 6, "link_wireless"),
        ("pi4-full-disk", 7, "disk_full"),
    ];
    let mut cluster = Cluster::of(1);
    for (name, exit, wanted) in cases {
        let (code, checked) = check(&fixture(name));
        assert_eq!(code, Some(exit), "{name}: {checked:?}");
        assert!(checked.iter().any(|code| code == wanted), "{name}: {checked:?}");
        cluster.signal(0, nix::sys::signal::Signal::SIGTERM);
        assert_eq!(cluster.wait(0), Some(0));
        cluster.start_with_arguments(0, &["--health-root", &fixture(name)]);
        let doctor = cluster.console(&["doctor", "--nodes", &cluster.nodes(), "--json"]);
        assert_eq!(doctor.code, Some(exit), "{name}: {} {}", doctor.out, doctor.err);
        // A daemon compares two readings one second apart. The fixture is static, but it shows a load by other
        // programs.
        assert_eq!(codes(&doctor.json()["nodes"][0]["findings"]), checked, "{name}");
        assert_eq!(codes(&cluster.status(0)["findings"]), checked, "{name}");
    }
    let words = cluster.console(&["doctor", "--nodes", &cluster.nodes()]);
    for part in [
        "error    pi1: / is mounted read-only",
        "fix: sudo dmesg",
        "note     pi1: models are stored on an SD card",
        "cannot be read on pi1: ",
    ] {
        assert!(words.out.contains(part), "{part}: {}", words.out);
    }
    let away = cluster.console(&["doctor", "--nodes", &format!("{},127.0.0.1:1", cluster.nodes()), "--json"]);
    assert_eq!((away.code, &away.json()["nodes"][1]["error"]["code"]), (Some(3), &"node_unreachable".into()));
}

#[test]
fn doctor_compares_nodes() {
    let mut cluster = Cluster::of(2);
    let copy = cluster.state(0).with_extension("health");
    let copied = Command::new("cp").args(["-r", &fixture("pi5")]).arg(&copy).status().expect("cp runs");
    assert!(copied.success());
    std::fs::write(copy.join("sys/class/net/eth0/mtu"), "9000\n").expect("the copy can be written");
    for (index, root) in [fixture("pi5"), copy.to_string_lossy().into_owned()].iter().enumerate() {
        cluster.signal(index, nix::sys::signal::Signal::SIGTERM);
        assert_eq!(cluster.wait(index), Some(0));
        cluster.start_with_arguments(index, &["--health-root", root]);
    }
    let doctor = cluster.console(&["doctor", "--nodes", &cluster.nodes(), "--json"]);
    let between = doctor.json()["between"].clone();
    assert_eq!((doctor.code, codes(&between)), (Some(6), vec!["mtu_differs".to_owned()]));
    assert!(between[0]["meaning"].as_str().is_some_and(|text| text.contains("1500 on pi1; 9000 on pi2")), "{between}");
}

#[test]
fn check_reports_unreadable_sources_and_refuses_an_invalid_root() {
    let run = |root: &str| {
        Command::new(programs().join("brambled")).args(["check", "--root", root]).output().expect("it runs")
    };
    let bare = run(&fixture("pi4-bare"));
    let text = String::from_utf8_lossy(&bare.stdout);
    assert!(text.contains("not available here: temperature, clock and governor"), "{text}");
    assert!(text.contains("disk         / on mmcblk0 (SD card), writable, 20.0 GiB of 29.1 GiB free"), "{text}");
    let nowhere = run("/no/such/folder");
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("/no/such/folder"));
}
