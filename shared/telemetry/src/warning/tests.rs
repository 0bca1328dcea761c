//! Bounds, order and fixes of the warnings.
use super::*;
use crate::finding::exit_code;
use crate::health::{Clock, DiskUse, MemoryUse, NetworkLink, Space, Storage, ThrottleBits, Traffic};

#[test]
fn throttle_bits_distinguish_now_and_since_boot() {
    let words = |bits| -> Vec<String> {
        let health = Health { firmware: Some(ThrottleBits(bits)), ..Health::default() };
        health.warnings().iter().map(Warning::short).collect()
    };
    assert_eq!(words(0), [""; 0]);
    assert_eq!(words(0x5_0005), ["UNDERVOLT", "THROTTLED"]);
    assert_eq!(words(0x5_0000), ["was undervolt", "was throttled"]);
    assert_eq!(words(0xE_0008), ["SOFT LIMIT", "was capped", "was throttled"]);
    // Bits that no firmware defines mean nothing.
    assert_eq!(words(0xFFF0_FFF0), [""; 0]);
}

#[test]
fn each_bound_has_two_sides() {
    let warned = |health: Health| health.warnings().len();
    let hot = |celsius| Health { temperature: Some(Celsius(celsius)), ..Health::default() };
    assert_eq!((warned(hot(79.9)), warned(hot(80.0))), (0, 1));
    let link = |mbit, is_wireless| {
        let interface = "eth0".to_owned();
        Health {
            link: Some(NetworkLink { interface, mbit, is_wireless, ..NetworkLink::default() }),
            ..Health::default()
        }
    };
    assert_eq!((warned(link(Some(1000), false)), warned(link(Some(100), false)), warned(link(None, false))), (0, 1, 0));
    assert_eq!(warned(link(Some(100), true)), 1);
    let busy = |others| Health { load: Some(LoadByOthers { others, cores: 4 }), ..Health::default() };
    assert_eq!((warned(busy(0.5)), warned(busy(0.6))), (0, 1));
    let memory = |available, rate| {
        let memory = MemoryUse {
            total: Bytes(4 << 30),
            available: Bytes(available),
            swap_rate: Bytes(rate),
            ..MemoryUse::default()
        };
        Health { memory: Some(memory), ..Health::default() }
    };
    assert_eq!((warned(memory(1 << 30, 0)), warned(memory(1 << 20, 0)), warned(memory(1 << 30, 1 << 20))), (0, 1, 1));
    let waits = |waited| Health { run_queue: Some(RunQueue { waited, ran: 0.9 }), ..Health::default() };
    assert_eq!((warned(waits(0.05)), warned(waits(0.06))), (0, 1));
    let clock = |governor: &str, driver: &str, limit| {
        let clock = Clock {
            governor: governor.into(),
            driver: driver.into(),
            current: Megahertz(600),
            limit: Megahertz(limit),
            hardware: Megahertz(1800),
        };
        Health { clock: Some(clock), ..Health::default() }
    };
    assert_eq!(warned(clock("ondemand", "cpufreq-dt", 1800)), 0);
    assert_eq!(warned(clock("powersave", "cpufreq-dt", 1800)), 1);
    assert_eq!(warned(clock("powersave", "intel_pstate", 1800)), 0);
    assert_eq!(warned(clock("ondemand", "cpufreq-dt", 1500)), 1);
}

#[test]
fn a_cause_is_what_slows_a_node_now() {
    let past = Health { firmware: Some(ThrottleBits(0x4_0000)), ..Health::default() };
    assert_eq!((past.warnings().len(), past.cause()), (1, None));
    let load = Some(LoadByOthers { others: 1.5, cores: 4 });
    let run_queue = Some(RunQueue { waited: 0.4, ran: 0.6 });
    let busy = Health { load, ..past.clone() };
    assert_eq!(busy.cause().map(|cause| cause.short()), Some("other programs: 1.5 cores".into()));
    // The load of other programs is only a guess; the engine's own waiting time is measured.
    let undisturbed = Health { run_queue: Some(RunQueue { waited: 0.01, ran: 0.9 }), ..busy.clone() };
    assert_eq!((undisturbed.warnings().len(), undisturbed.cause()), (2, None));
    let shared = Health { run_queue, ..busy };
    assert_eq!(shared.cause().map(|cause| cause.short()), Some("CPU contention 40 %".into()));
}

#[test]
fn link_and_disk_bounds_have_two_sides() {
    let codes =
        |health: Health| -> Vec<&'static str> { health.findings().iter().map(|finding| finding.code).collect() };
    let link = |link: NetworkLink| codes(Health { link: Some(link), ..Health::default() });
    assert_eq!(link(NetworkLink { is_full_duplex: Some(false), ..NetworkLink::default() }), ["link_half_duplex"]);
    assert_eq!(link(NetworkLink { is_full_duplex: Some(true), ..NetworkLink::default() }), [""; 0]);
    assert_eq!(
        link(NetworkLink { is_energy_efficient: Some(true), ..NetworkLink::default() }),
        ["link_energy_efficient"]
    );
    let frames =
        |count, failed| link(NetworkLink { frames: Some(Traffic { count, failed }), ..NetworkLink::default() });
    assert_eq!((frames(1_000_000, 10).len(), frames(1_000_000, 11).len(), frames(999, 900).len()), (0, 1, 0));
    let loopback = NetworkLink { interface: "lo".into(), ..NetworkLink::default() };
    let stopped = Health { tcp: Some(Traffic { count: 9999, failed: 999 }), link: Some(loopback), ..Health::default() };
    assert_eq!(codes(stopped), Vec::<&str>::new(), "no frame is lost on loopback");
    let tcp = |count, failed| codes(Health { tcp: Some(Traffic { count, failed }), ..Health::default() });
    assert_eq!((tcp(10_000, 10).len(), tcp(10_000, 11), tcp(0, 5).len()), (0, vec!["tcp_resends"], 0));
    let disk = |total, available, storage, is_read_only| {
        let space = Some(Space { total: Bytes(total), available: Bytes(available) });
        codes(Health {
            disk: Some(DiskUse { space, storage, is_read_only, ..DiskUse::default() }),
            ..Health::default()
        })
    };
    let gib = 1 << 30;
    assert_eq!(disk(32 * gib, 2 * gib, Storage::Ssd, false), [""; 0]);
    assert_eq!(disk(32 * gib, gib, Storage::Ssd, false), ["disk_short"]);
    assert_eq!(disk(32 * gib, 100 << 20, Storage::Sd, true), ["disk_read_only", "disk_full", "sd_card"]);
    assert_eq!(disk(0, 0, Storage::Other, false), [""; 0], "a file system without blocks cannot fill up");
    let time = |is| codes(Health { is_time_synchronized: is, ..Health::default() });
    assert_eq!((time(None).len(), time(Some(true)).len(), time(Some(false))), (0, 0, vec!["time_free"]));
    // The kernel's alarm is used if the firmware reports nothing, and is reported once if both do.
    let low = |bits: Option<u32>| {
        codes(Health { is_voltage_low: Some(true), firmware: bits.map(ThrottleBits), ..Health::default() })
    };
    assert_eq!(
        (low(None), low(Some(0x1_0001)), low(Some(0x1_0000))),
        (vec!["under_voltage"], vec!["under_voltage"], vec!["under_voltage"])
    );
}

#[test]
fn notes_are_no_warnings_and_every_finding_has_a_fix() {
    let clock = Clock { governor: "ondemand".into(), driver: "cpufreq-dt".into(), ..clock_of(1800) };
    let disk = Some(DiskUse { storage: Storage::Sd, ..DiskUse::default() });
    let health = Health { clock: Some(clock), disk, ..Health::default() };
    assert_eq!(health.warnings(), []);
    assert_eq!(exit_code(&health.findings()), 0);
    assert_eq!(
        health.findings().iter().map(|finding| finding.code).collect::<Vec<_>>(),
        ["sd_card", "governor_scales"]
    );
    let bad = Health {
        firmware: Some(ThrottleBits(0xF_000F)),
        clock: Some(clock_of(1000)),
        is_time_synchronized: Some(false),
        ..health
    };
    let findings = bad.findings();
    assert!(findings.is_sorted_by_key(|finding| std::cmp::Reverse(finding.severity)), "{findings:?}");
    assert!(
        findings.len() >= 6 && findings.iter().all(|finding| !finding.fix.is_empty() && !finding.meaning.is_empty())
    );
    assert_eq!(exit_code(&findings), 7);
    assert_eq!(exit_code(findings.iter().filter(|finding| finding.severity < Severity::Error)), 6);
    let limited = findings.iter().find(|finding| finding.code == "clock_limited").expect("it is limited");
    assert_eq!(limited.fix, "echo 1800000 | sudo tee /sys/devices/system/cpu/cpufreq/policy*/scaling_max_freq");
}

#[test]
fn fixes_of_a_disk_work_on_the_host_and_keep_default_folders() {
    let space = Some(Space { total: Bytes(32 << 30), available: Bytes(100 << 20) });
    let mount = "/var/lib/bramble".to_owned();
    let disk = DiskUse { mount, space, storage: Storage::Sd, is_read_only: true, ..DiskUse::default() };
    let findings = Health { disk: Some(disk), ..Health::default() }.findings();
    let fix = |code: &str| findings.iter().find(|finding| finding.code == code).expect("it was found").fix.as_str();
    let remount = "else: sudo mount -o remount,rw \"$(findmnt -n -o TARGET -T /var/lib/bramble)\"";
    assert!(fix("disk_read_only").ends_with(remount), "{}", fix("disk_read_only"));
    let free = "sudo apt-get clean; if the journal is stored on the disk: sudo journalctl --vacuum-size=100M";
    assert!(fix("disk_full").starts_with("df -h /var/lib/bramble; ") && fix("disk_full").ends_with(free));
    let folders = "models = [\"/mnt/ssd/models\", \"/var/lib/bramble/models\", \"/usr/share/bramble\"]";
    assert!(fix("sd_card").contains(folders), "{}", fix("sd_card"));
}

fn clock_of(limit: u32) -> Clock {
    let (governor, driver) = ("performance".into(), "cpufreq-dt".into());
    Clock { governor, driver, current: Megahertz(600), limit: Megahertz(limit), hardware: Megahertz(1800) }
}
