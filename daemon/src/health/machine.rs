//! Identity of this machine, and the cores that the daemon may use.
use std::{fs, path::Path};

use nix::{sched::sched_getaffinity, unistd::Pid};

/// Equal for two daemons on one running kernel, and different for two Pis with the same SD card image, whose machine-id
/// files are equal: the boot id, or the host name if there is none. A boot id below `root` takes precedence, for tests.
pub fn machine(root: &Path) -> String {
    let boot_id = |root: &Path| fs::read_to_string(root.join("proc/sys/kernel/random/boot_id"));
    let boot = boot_id(root).or_else(|_| boot_id(Path::new("/"))).map(|id| id.trim().to_owned());
    boot.unwrap_or_else(|_| host_name())
}

/// The host name, or `node`.
pub fn host_name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| "node".into())
}

/// Cores that this process may run on.
pub fn allowed_cores() -> Vec<u16> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return vec![0] };
    (0..1024).filter(|core| set.is_set(usize::from(*core)).unwrap_or(false)).collect()
}
