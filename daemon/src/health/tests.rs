//! Fixtures of a Raspberry Pi 4 (healthy, and throttled), a Pi 5 and a plain Linux machine, and malformed files.
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use common::units::{Bytes, Celsius, Megahertz, Milliwatts};
use telemetry::{
    Warning,
    health::{Clock, LoadByOthers, RunQueue, Space, Storage, ThrottleBits, Traffic},
};

use super::*;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/health/fixtures").join(name)
}

fn monitor(root: &Path) -> Monitor {
    Monitor::new(root, ([192, 168, 1, 11], 9999).into(), folders("/models"))
}

/// One folder for models and state.
fn folders(path: &str) -> WatchedFolders {
    WatchedFolders { models: vec![path.into()], state: path.into() }
}

/// Expected values of a fixture: temperature, (governor, clock, limit), bits, (interface, speed), the words of the
/// warnings.
#[track_caller]
fn check(name: &str, celsius: f32, clock: (&str, u32, u32), bits: Option<u32>, link: (&str, u32), words: &[&str]) {
    let health = monitor(&fixture(name)).read(Instant::now());
    assert_eq!(health.temperature, Some(Celsius(celsius)));
    let read = health.clock.as_ref().expect("a clock");
    assert_eq!((read.governor.as_str(), read.current, read.limit), (clock.0, Megahertz(clock.1), Megahertz(clock.2)));
    assert_eq!(health.firmware, bits.map(ThrottleBits));
    let read = health.link.as_ref().expect("a link");
    assert_eq!((read.interface.as_str(), read.mbit, read.is_wireless), (link.0, Some(link.1), false));
    assert_eq!(health.warnings().iter().map(Warning::short).collect::<Vec<_>>(), words);
    assert!(health.load.is_none(), "one reading has no rate");
}

#[test]
fn healthy_raspberry_pi_4() {
    check("pi4", 52.582, ("ondemand", 1800, 1800), Some(0), ("eth0", 1000), &[]);
}

#[test]
fn throttled_hot_raspberry_pi_4_with_low_memory_and_slow_link() {
    let words = ["UNDERVOLT", "THROTTLED", "HOT", "low memory", "100 Mb/s"];
    check("pi4-throttled", 84.241, ("ondemand", 600, 1800), Some(0x5_0005), ("eth0", 100), &words);
}

#[test]
fn raspberry_pi_5_without_throttle_bits_in_sys() {
    check("pi5", 61.3, ("ondemand", 2400, 2400), None, ("eth0", 1000), &[]);
}

#[test]
fn plain_linux_machine() {
    check("linux", 47.0, ("powersave", 1100, 4200), None, ("enp3s0", 2500), &[]);
    let memory = monitor(&fixture("linux")).read(Instant::now()).memory.expect("memory");
    assert_eq!((memory.total, memory.available), (Bytes(16_291_828 << 10), Bytes(12_345_678 << 10)));
    assert_eq!((memory.swap_total, memory.swap_used), (Bytes(2_097_148 << 10), Bytes(97_148 << 10)));
}

/// Expected findings of a fixture: the codes, and the exit code of a check.
#[track_caller]
fn findings(name: &str, codes: &[&str], exit: u8) -> Health {
    let health = monitor(&fixture(name)).read(Instant::now());
    let findings = health.findings();
    assert_eq!(findings.iter().map(|finding| finding.code).collect::<Vec<_>>(), codes, "{name}");
    assert_eq!(telemetry::finding::exit_code(&findings), exit, "{name}");
    health
}

#[test]
fn healthy_machines_have_at_most_notes() {
    let pi4 = findings("pi4", &["sd_card", "governor_scales"], 0);
    assert_eq!(pi4.unread(), ["read rate of the disk", "load by other processes"]);
    assert_eq!(pi4.page, Some(Bytes(4096)));
    let disk = pi4.disk.expect("a disk");
    assert_eq!((disk.device.as_str(), disk.mount.as_str(), disk.storage), ("mmcblk0", "/", Storage::Sd));
    assert_eq!(disk.space, Some(Space { total: Bytes(31_268_536_320), available: Bytes(21_474_836_480) }));
    let link = pi4.link.expect("a link");
    assert_eq!((link.is_full_duplex, link.mtu, link.is_energy_efficient), (Some(true), Some(1500), Some(false)));
    assert_eq!(link.frames, Some(Traffic { count: 17_456_381, failed: 0 }));
    assert_eq!(pi4.tcp, Some(Traffic { count: 8_273_645, failed: 412 }));
    let pi5 = findings("pi5", &["governor_scales", "link_energy_efficient"], 0);
    let storage = pi5.disk.map(|disk| (disk.device, disk.storage));
    assert_eq!((storage, pi5.page), (Some(("nvme0n1".into(), Storage::Nvme)), Some(Bytes(16_384))));
}

#[test]
fn pi5_measures_its_power_and_names_its_model_and_kernel() {
    let mut monitor = monitor(&fixture("pi5"));
    let health = monitor.read(Instant::now());
    assert_eq!(health.power, Some(Milliwatts(3489)));
    let hardware = health.hardware.clone().expect("it was read");
    assert_eq!(hardware.model.as_deref(), Some("Raspberry Pi 5 Model B Rev 1.0"));
    assert_eq!(hardware.kernel.as_deref(), Some("6.12.34+rpt-rpi-2712"));
    let lines = health.readings();
    assert!(lines.contains(&"power        3.49 W".to_owned()), "{lines:?}");
    let pi4 = self::monitor(&fixture("pi4")).read(Instant::now());
    assert_eq!((pi4.power, pi4.hardware), (None, None));
}

#[test]
fn problems_are_found() {
    findings("pi5-undervolt", &["under_voltage", "governor_scales", "link_energy_efficient"], 7);
    findings("pi4-powersave", &["governor_low", "time_free", "sd_card"], 6);
    let slow = ["link_slow", "link_half_duplex", "link_errors", "tcp_resends", "sd_card", "governor_scales"];
    findings("pi4-slow-link", &slow, 6);
    findings("pi5-wifi", &["link_wireless", "governor_scales"], 6);
    let full = findings("pi4-full-disk", &["disk_read_only", "disk_full", "sd_card", "governor_scales"], 7);
    let remount = "sudo mount -o remount,rw \"$(findmnt -n -o TARGET -T /)\"";
    assert!(full.findings()[0].fix.contains(remount), "{:?}", full.findings());
    let bare = findings("pi4-bare", &["sd_card"], 0);
    for missing in ["temperature", "clock and governor", "throttle bits of the firmware", "time synchronisation"] {
        assert!(bare.unread().contains(&missing), "{missing}: {:?}", bare.unread());
    }
}

#[test]
fn disk_read_rate_is_known_after_a_large_read() {
    let copy = Copy::of("pi5", "disk");
    let mut monitor = monitor(&copy.0);
    let mut rate = |sectors: u64, busy_ms: u64| {
        let line = format!(" 259 0 nvme0n1 1 0 {sectors} 9 0 0 0 0 0 {busy_ms} 9\n");
        copy.write("proc/diskstats", line.as_bytes());
        monitor.read(Instant::now()).disk.and_then(|disk| disk.read_rate)
    };
    assert_eq!(rate(1000, 50), None, "the total since boot is not a rate");
    assert_eq!(rate(2000, 60), None, "half a MB is too little");
    // 512 MiB in 500 ms of work.
    assert_eq!(rate(2000 + (1 << 20), 560), Some(Bytes(1 << 30)));
    assert_eq!(rate(2000 + (2 << 20), 60_560), Some(Bytes(1 << 30)), "the best stays");
    assert_eq!(rate(0, 0), Some(Bytes(1 << 30)), "counters that go back");
}

#[test]
fn worst_of_the_written_disks_is_reported() {
    const FREE: u64 = 1 << 39;
    let copy = Copy::of("pi4", "disks");
    for folder in ["mnt/ssd/models", "image/models"] {
        fs::create_dir_all(copy.0.join(folder)).expect("a folder can be made");
    }
    // Later model folders are never written: this one is on an image, which is always full and read-only.
    let models = vec!["/mnt/ssd/models".into(), "/image/models".into()];
    let folders = WatchedFolders { models, state: "/state".into() };
    let mut monitor = Monitor::new(&copy.0, ([192, 168, 1, 11], 9999).into(), folders.clone());
    copy.write("image/statvfs", format!("{} 0", 1_u64 << 40).as_bytes());
    let mut sectors = 0;
    let mut read = |monitor: &mut Monitor, ssd: u64, card: &str, card_free: u64| {
        let lines = [
            format!("25 1 179:2 / / rw shared:1 - ext4 /dev/root {card}"),
            "26 25 8:1 / /mnt/ssd rw shared:2 - ext4 /dev/sda1 rw".to_owned(),
            "27 25 7:1 / /image ro shared:3 - ext4 /dev/loop1 ro".to_owned(),
        ];
        copy.write("proc/self/mountinfo", lines.join("\n").as_bytes());
        copy.write("mnt/ssd/statvfs", format!("{} {ssd}", 1_u64 << 40).as_bytes());
        copy.write("statvfs", format!("{} {card_free}", 1_u64 << 40).as_bytes());
        sectors += 1 << 20;
        copy.write("proc/diskstats", format!(" 179 0 mmcblk0 1 0 {sectors} 9 0 0 0 0 0 {sectors} 9\n").as_bytes());
        let health = monitor.read(Instant::now());
        let found: Vec<&str> = health.findings().iter().map(|finding| finding.code).collect();
        let found = found.into_iter().filter(|code| *code != "governor_scales").collect::<Vec<_>>().join(", ");
        (health.disk.expect("there are disks"), found)
    };
    for (ssd, card, card_free, mount, findings) in [
        (FREE, "rw", FREE, "/mnt/ssd", ""),
        (1 << 30, "rw", FREE, "/mnt/ssd", "disk_short"),
        (FREE, "rw", 1 << 30, "/", "disk_short"),
        (1 << 30, "rw", 1 << 20, "/", "disk_full"),
        (1 << 20, "rw", 1 << 30, "/mnt/ssd", "disk_full"),
        (FREE, "ro", FREE, "/", "disk_read_only"),
    ] {
        let (disk, found) = read(&mut monitor, ssd, card, card_free);
        assert_eq!((disk.mount.as_str(), found.as_str()), (mount, findings), "{ssd}, {card}, {card_free}");
        assert_eq!((disk.storage, disk.read_rate), (Storage::Other, None), "no models are on the card: {disk:?}");
    }
    let models = [folders.models, vec!["/models".into()]].concat();
    monitor.watch_disks(WatchedFolders { models, ..folders });
    read(&mut monitor, FREE, "ro", FREE);
    let (disk, found) = read(&mut monitor, FREE, "ro", FREE);
    assert_eq!((disk.mount.as_str(), found.as_str()), ("/", "disk_read_only, sd_card"));
    assert!(disk.storage == Storage::Sd && disk.read_rate.is_some(), "some models are there: {disk:?}");
}

/// A copy of a fixture that a test may change.
struct Copy(PathBuf);

impl Copy {
    fn of(name: &str, label: &str) -> Self {
        let to = std::env::temp_dir().join(format!("bramble-health-{label}-{}", std::process::id()));
        copy(&fixture(name), &to);
        Self(to)
    }

    fn write(&self, path: &str, text: &[u8]) {
        fs::write(self.0.join(path), text).expect("the copy can be written");
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder can be made");
    for entry in fs::read_dir(from).expect("the fixture is there").flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("a file can be copied");
        }
    }
}

#[test]
fn rates_come_from_two_readings() {
    let copy = Copy::of("pi4", "rates");
    let mut monitor = monitor(&copy.0);
    let start = Instant::now();
    monitor.read(start);
    // Ten seconds of four cores at 100 ticks: 1500 busy, 500 of them this daemon's.
    copy.write("proc/stat", b"cpu  41500 0 10000 1002500 100 0 20 0 0 0\ncpu0 1\ncpu1 1\ncpu2 1\ncpu3 1\n");
    copy.write("proc/self/stat", b"4711 (brambled) S 1 4711 4711 0 -1 4194560 900 0 0 0 3400 300 0 0 20\n");
    copy.write("proc/vmstat", b"pswpin 1000\npswpout 1560\n");
    let health = monitor.read(start + Duration::from_secs(10));
    assert_eq!(health.load, Some(LoadByOthers { others: 1.0, cores: 4 }));
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().expect("pages have a size");
    assert_eq!(health.memory.map(|memory| memory.swap_rate), Some(Bytes(256 * page as u64)));
    let words: Vec<String> = health.warnings().iter().map(Warning::short).collect();
    assert_eq!(words, ["SWAPS", "other programs: 1.0 cores"]);
    // Counters that decrease (a container that moved) give no rates.
    copy.write("proc/stat", b"cpu  1 0 1 1 1 0 0 0 0 0\ncpu0 1\n");
    assert_eq!(monitor.read(start).load, Some(LoadByOthers { others: 0.0, cores: 1 }));
}

#[test]
fn engine_thread_that_waited_longest_for_a_core_counts() {
    let copy = Copy::of("pi4", "threads");
    for (thread, name) in [(10, "brambled"), (11, "engine"), (12, "compute-1"), (13, "tokio-rt-worker")] {
        fs::create_dir_all(copy.0.join(format!("proc/self/task/{thread}"))).expect("a folder can be made");
        copy.write(&format!("proc/self/task/{thread}/comm"), format!("{name}\n").as_bytes());
    }
    let all = |texts: [&str; 4]| {
        for (thread, text) in (10..).zip(texts) {
            copy.write(&format!("proc/self/task/{thread}/schedstat"), text.as_bytes());
        }
    };
    let (mut monitor, start) = (monitor(&copy.0), Instant::now());
    let mut second = 0;
    let mut read = || {
        second += 1;
        monitor.read(start + Duration::from_secs(second))
    };
    all(["5 5 1\n", "1000 2000 1\n", "1000 2000 1\n", "5 5 1\n"]);
    assert_eq!(read().run_queue, None, "one reading has no rate");
    // The main thread and the threads of sockets may wait for any time.
    all(["5 900000000 1\n", "900001000 100002000 9\n", "600001000 300002000 9\n", "5 900000000 1\n"]);
    let health = read();
    assert_eq!(health.run_queue, Some(RunQueue { waited: 0.3, ran: 0.6 }));
    assert_eq!(health.warnings().iter().map(Warning::short).collect::<Vec<_>>(), ["CPU contention 30 %"]);
    // Nothing ran and nothing waited: idle, or stopped.
    assert_eq!(read().run_queue, Some(RunQueue { waited: 0.0, ran: 0.0 }));
    for odd in ["", "warm", "1", "1 x", "-1 -1 0", "0 0 0", "99999999999999999999999 1 1"] {
        all([odd; 4]);
        assert_eq!(read().run_queue, None, "{odd:?}");
    }
    // A counter that jumps is limited to the elapsed time.
    all(["1 1 1\n"; 4]);
    read();
    all(["1 1 1\n", "1 1 1\n", "1 18446744073709551615 1\n", "1 1 1\n"]);
    assert_eq!(read().run_queue, Some(RunQueue { waited: 1.0, ran: 0.0 }));
}

#[test]
fn swap_counters_that_reappear_give_no_rate_since_boot() {
    let copy = Copy::of("pi4", "swap");
    let mut monitor = monitor(&copy.0);
    let start = Instant::now();
    let mut rate = |seconds, counters: &[u8]| {
        copy.write("proc/vmstat", counters);
        monitor.read(start + Duration::from_secs(seconds)).memory.map(|memory| memory.swap_rate)
    };
    let counters = b"pswpin 900000\npswpout 900000\n";
    for (second, text) in [&counters[..], b"", counters, b"pswpin 900000\n", counters].into_iter().enumerate() {
        assert_eq!(rate(second as u64, text), Some(Bytes(0)), "reading {second}");
    }
    assert!(rate(5, b"pswpin 900001\npswpout 900000\n").is_some_and(|rate| rate.0 >= 4096));
}

#[test]
fn processor_temperature_has_precedence_over_other_zones() {
    let copy = Copy::of("linux", "zones");
    let celsius = || monitor(&copy.0).read(Instant::now()).temperature.map(|celsius| celsius.0);
    fs::remove_dir_all(copy.0.join("sys/class/hwmon/hwmon2")).expect("a folder can be removed");
    assert_eq!(celsius(), Some(27.8), "without coretemp: the mainboard's zone, never the disk's monitor");
    for (zone, kind, temp) in [(1, "x86_pkg_temp", "odd"), (2, "x86_pkg_temp", "55000"), (3, "soc-thermal", "66000")] {
        let folder = format!("sys/class/thermal/thermal_zone{zone}");
        fs::create_dir_all(copy.0.join(&folder)).expect("a folder can be made");
        copy.write(&format!("{folder}/type"), kind.as_bytes());
        copy.write(&format!("{folder}/temp"), temp.as_bytes());
    }
    assert_eq!(celsius(), Some(55.0), "if one cannot be read, the next one of its kind");
}

#[test]
fn wireless_interface_is_reported() {
    let copy = Copy::of("pi4", "wireless");
    fs::create_dir(copy.0.join("sys/class/net/eth0/wireless")).expect("a folder can be made");
    assert_eq!(monitor(&copy.0).read(Instant::now()).warnings(), [Warning::Wireless]);
}

#[test]
fn malformed_or_missing_files_give_no_reading_and_no_panic() {
    let odd: [&[u8]; 7] =
        [b"", b"\n", b"warm\n", b"-9999999999999999999\n", b"99999999999999999999999\n", b"\xff\xfe", b"1 2 3"];
    let files = [
        "sys/class/thermal/thermal_zone0/temp",
        "sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq",
        "sys/devices/platform/soc/soc:firmware/get_throttled",
        "sys/class/net/eth0/speed",
        "proc/meminfo",
        "proc/stat",
    ];
    let copy = Copy::of("pi4", "odd");
    for bytes in odd {
        files.iter().for_each(|file| copy.write(file, bytes));
        let health = monitor(&copy.0).read(Instant::now());
        assert_eq!((health.temperature, health.clock, health.firmware), (None, None, None), "{bytes:?}");
        assert_eq!((health.memory, health.link.and_then(|link| link.mbit)), (None, None), "{bytes:?}");
    }
    copy.write("sys/class/net/eth0/speed", b"-1\n");
    copy.write("sys/class/thermal/thermal_zone0/temp", b"999999\n");
    let health = monitor(&copy.0).read(Instant::now());
    assert_eq!((health.temperature, health.link.and_then(|link| link.mbit)), (None, None));
    let nothing = monitor(Path::new("/no/such/folder")).read(Instant::now());
    assert_eq!(nothing, Health::default());
}

#[test]
fn this_machine_can_be_read() {
    let mut monitor = Monitor::new(Path::new("/"), ([127, 3, 2, 1], 9999).into(), folders("/no/such/folder"));
    monitor.read(Instant::now());
    let health = monitor.read(Instant::now());
    assert!(health.memory.is_some_and(|memory| memory.total.0 > memory.available.0));
    assert!(health.load.is_some_and(|load| load.cores > 0 && load.others >= 0.0));
    assert_eq!(health.link.map(|link| (link.interface, link.mbit)), Some(("lo".into(), None)));
    assert!(memory::available().0 > 0 && memory::resident().0 > 0);
}

#[test]
fn disk_of_another_folder_is_read_after_a_reload() {
    let mut monitor = Monitor::new(Path::new("/"), ([127, 3, 2, 1], 9999).into(), folders("/no/such/folder"));
    monitor.read(Instant::now());
    monitor.watch_disks(folders("/proc"));
    let disk = monitor.read(Instant::now()).disk.expect("it is mounted");
    assert_eq!((disk.mount.as_str(), disk.read_rate), ("/proc", None));
}

#[test]
fn fastest_cores_count_and_cores_without_policies_are_found() {
    let copy = Copy::of("linux", "cores");
    let policies = copy.0.join("sys/devices/system/cpu/cpufreq");
    let core = copy.0.join("sys/devices/system/cpu/cpu0");
    fs::create_dir_all(&core).expect("a folder can be made");
    fs::rename(policies.join("policy4"), core.join("cpufreq")).expect("a folder can be moved");
    fs::remove_dir_all(&policies).expect("a folder can be removed");
    let clock = monitor(&copy.0).read(Instant::now()).clock;
    assert!(matches!(clock, Some(Clock { hardware: Megahertz(3400), .. })), "{clock:?}");
}
