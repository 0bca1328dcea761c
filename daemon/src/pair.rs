//! `brambled pair`: a code by which this node can be adopted for some minutes. It is stored in a file of the state
//! folder that only root and the daemon can read; the running daemon reads it when a console adopts the node.
use std::{
    fs::{self, File},
    io::{self, ErrorKind, Write},
    net::{IpAddr, SocketAddr},
    os::unix::fs::{MetadataExt, fchown},
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use nix::{
    errno::Errno,
    fcntl::{OFlag, open, openat, renameat},
    ifaddrs::getifaddrs,
    sys::stat::Mode,
    unistd::{UnlinkatFlags, unlinkat},
};
use protocol::noise::pake::Code;
use serde_json::json;

use crate::{
    config::Config,
    keys,
    node::driver::state::{Holder, StateLock},
};

/// Wrong codes that a node accepts from one address (IPv6: from one /64 network), so that others can still adopt it.
pub const ATTEMPTS_MAX: u32 = 5;
/// Wrong codes that it accepts in total; then the code is removed.
pub const ATTEMPTS_IN_ALL_MAX: u32 = 50;
/// Name of the file in the state folder.
const FILE: &str = "pairing";
/// Maximum lifetime of a code in seconds.
const SECONDS_MAX: u64 = 60 * 60;
/// Maximum size of the file.
const FILE_BYTES_MAX: u64 = 256;

/// Options of `brambled pair`.
#[derive(Clone, Debug, Args)]
pub struct PairArguments {
    /// Lifetime of the code in minutes
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=60))]
    minutes: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A code with its expiry in seconds since boot, because the wall clock may be wrong before the first NTP answer. A
/// daemon removes any code that it finds at startup: it may be from before the boot. (The kernel's boot id does not
/// help: in a container, only some programs see it.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisplayedCode {
    /// The code.
    pub code: Code,
    until: u64,
}

/// Creates and prints a code.
///
/// # Errors
/// The node already has a key, or the state folder cannot be written.
pub fn run(arguments: &PairArguments, config: &Config) -> anyhow::Result<()> {
    if let Some(key) = keys::load(config)?.current() {
        let file = config.key_file.display();
        bail!(
            "{} already belongs to cluster {}; to adopt it again, remove {file} and restart it",
            config.name,
            key.fingerprint()
        );
    }
    let code = Code::random().map_err(|error| anyhow!(error))?;
    let seconds = 60 * u64::from(arguments.minutes);
    let now = since_start().context("cannot read the time since boot")?;
    let shown = DisplayedCode { code: code.clone(), until: now + seconds };
    write(&config.state, &shown).map_err(|error| refused(&config.state, &error))?;
    let daemon = StateLock::holder(&config.state);
    let (name, listen) = match &daemon {
        Some(Holder { name, listen, .. }) => (name, reached(*listen)),
        None => (&config.name, reached(config.listen)),
    };
    if arguments.json {
        let object = json!({"node": name, "address": listen.to_string(), "code": code.to_string(),
            "seconds": seconds, "attempts": ATTEMPTS_MAX, "attempts_in_all": ATTEMPTS_IN_ALL_MAX});
        println!("{object}");
        return Ok(());
    }
    if daemon.is_none() {
        println!("note: no brambled runs with state folder {}; start it first", config.state.display());
    }
    println!(
        "node {name} at {listen}\ncode {code} (for {} minutes, {ATTEMPTS_MAX} attempts from one address, \
         {ATTEMPTS_IN_ALL_MAX} in total)",
        arguments.minutes
    );
    let port = if listen.port() == protocol::PORT { String::new() } else { format!(":{}", listen.port()) };
    let host =
        if listen.is_ipv6() && !port.is_empty() { format!("[{}]", listen.ip()) } else { listen.ip().to_string() };
    println!("next: run `console key adopt {host}{port} --code {code}` on the operator's machine");
    if listen.ip().is_loopback() {
        println!(
            "note: the node listens on {listen}, which only this machine can reach; set listen in \
             /etc/bramble/bramble.toml"
        );
    }
    Ok(())
}

/// Why the code cannot be written, and what to do.
fn refused(state: &Path, error: &io::Error) -> anyhow::Error {
    let folder = state.display();
    let next = match error.kind() {
        ErrorKind::NotFound => "start brambled first, or name its state folder with --state DIR",
        ErrorKind::PermissionDenied => {
            "run it as root (sudo brambled pair), or name another state folder with --state DIR"
        }
        _ => "check the disk (brambled check)",
    };
    anyhow!("cannot write to state folder {folder}: {error}; {next}")
}

/// The address at which other machines reach a daemon that listens on `listen`: for a wildcard address, the machine's
/// first address that is not loopback, if any; otherwise `listen`.
fn reached(listen: SocketAddr) -> SocketAddr {
    if !listen.ip().is_unspecified() {
        return listen;
    }
    let addresses = getifaddrs().into_iter().flatten().filter_map(|each| Some(each.address?.as_sockaddr_in()?.ip()));
    let found = addresses.filter(|ip| !ip.is_loopback() && !ip.is_link_local()).map(IpAddr::V4).next();
    SocketAddr::new(found.unwrap_or(listen.ip()), listen.port())
}

/// The code of this node, if it has not expired.
pub fn shown(state: &Path) -> Option<DisplayedCode> {
    let path = path(state);
    let text = match fs::metadata(&path) {
        Ok(metadata) if metadata.len() <= FILE_BYTES_MAX => fs::read_to_string(&path).ok()?,
        _ => return None,
    };
    let shown = parse(&text)?;
    let now = since_start().ok()?;
    (now + 1..=now + SECONDS_MAX).contains(&shown.until).then_some(shown)
}

/// Removes the code.
///
/// # Errors
/// The file cannot be removed.
pub fn forget(state: &Path) -> io::Result<()> {
    match fs::remove_file(path(state)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn path(state: &Path) -> PathBuf {
    state.join(FILE)
}

/// Writes the code as root or as the daemon's user. That user owns the folder and may place a link at any name in it
/// at any time. Therefore root opens names only relative to the open folder, follows no link there, and changes
/// the owner only of the file that it has opened itself.
fn write(state: &Path, shown: &DisplayedCode) -> io::Result<()> {
    let folder = File::from(open(state, OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?);
    let beside = format!("{FILE}.new");
    match unlinkat(&folder, beside.as_str(), UnlinkatFlags::NoRemoveDir) {
        Err(Errno::ENOENT) | Ok(()) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut file = File::from(openat(&folder, beside.as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
    file.write_all(format(shown).as_bytes())?;
    // Root writes the code, the daemon's user reads it.
    let owner = folder.metadata()?;
    if owner.uid() != file.metadata()?.uid() {
        fchown(&file, Some(owner.uid()), Some(owner.gid()))?;
    }
    Ok(renameat(&folder, beside.as_str(), &folder, FILE)?)
}

fn format(shown: &DisplayedCode) -> String {
    format!("{} {}\n", shown.code, shown.until)
}

fn parse(text: &str) -> Option<DisplayedCode> {
    let mut words = text.split_whitespace();
    let (code, until) = (words.next()?, words.next()?);
    Some(DisplayedCode { code: code.parse().ok()?, until: until.parse().ok()? })
}

/// Seconds since boot.
fn since_start() -> io::Result<u64> {
    let uptime = fs::read_to_string("/proc/uptime")?;
    let seconds = uptime.split('.').next().and_then(|seconds| seconds.parse().ok());
    Ok(seconds.ok_or(ErrorKind::InvalidData)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown_for(seconds: u64) -> DisplayedCode {
        let now = since_start().expect("/proc is there");
        DisplayedCode { code: "1234-5678".parse().expect("a code"), until: now + seconds }
    }

    #[test]
    fn code_expires_and_cannot_exceed_the_maximum() {
        let folder = std::env::temp_dir().join(format!("bramble-pair-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder can be made");
        assert_eq!(shown(&folder), None);
        let good = shown_for(60);
        write(&folder, &good).expect("the folder can be written");
        assert_eq!(fs::metadata(path(&folder)).expect("it is there").mode() & 0o777, 0o600);
        assert_eq!(shown(&folder), Some(good.clone()));
        write(&folder, &shown_for(0)).expect("the folder can be written");
        assert_eq!(shown(&folder), None, "it has expired");
        write(&folder, &shown_for(SECONDS_MAX + 60)).expect("the folder can be written");
        assert_eq!(shown(&folder), None, "no code lasts that long");
        write(&folder, &good).expect("the folder can be written");
        forget(&folder).expect("it is there");
        assert_eq!(shown(&folder), None);
        forget(&folder).expect("a missing file is removed already");
        fs::remove_dir_all(folder).expect("it is ours");
    }

    #[test]
    fn refusal_fits_its_cause() {
        let text = |kind: ErrorKind| refused(Path::new("/x"), &kind.into()).to_string();
        assert!(text(ErrorKind::NotFound).contains("start brambled first"));
        assert!(text(ErrorKind::PermissionDenied).contains("sudo brambled pair"));
        assert!(!text(ErrorKind::StorageFull).contains("root"));
    }

    #[test]
    fn link_at_the_file_name_is_not_followed() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let victim = folder.path().join("victim");
        fs::write(&victim, "mine").expect("the folder can be written");
        let state = folder.path().join("state");
        fs::create_dir(&state).expect("the folder can be written");
        for name in ["pairing.new", "pairing"] {
            std::os::unix::fs::symlink(&victim, state.join(name)).expect("the folder can be written");
        }
        write(&state, &shown_for(60)).expect("the folder can be written");
        assert_eq!(fs::read_to_string(&victim).expect("it is there"), "mine");
        assert!(fs::symlink_metadata(path(&state)).expect("it is there").is_file());
    }

    /// The folder's owner replaces the file with a link to another user's file while root writes: no other file changes
    /// its owner.
    #[test]
    fn racing_link_gives_no_file_away() {
        const OTHER: u32 = 65534;
        if !nix::unistd::geteuid().is_root() {
            return eprintln!("SKIPPED: only root can change owners");
        }
        let folder = tempfile::tempdir().expect("a folder can be made");
        let (victim, state) = (folder.path().join("victim"), folder.path().join("state"));
        fs::write(&victim, "root's").expect("the folder can be written");
        fs::create_dir(&state).expect("the folder can be written");
        std::os::unix::fs::chown(&state, Some(OTHER), Some(OTHER)).expect("root may");
        let ended = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (link, name) = (state.join("link"), state.join("pairing.new"));
                while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = std::os::unix::fs::symlink(&victim, &link);
                    if fs::symlink_metadata(&name).is_ok_and(|metadata| metadata.is_file()) {
                        let _ = fs::rename(&link, &name);
                    }
                }
            });
            let until = std::time::Instant::now() + std::time::Duration::from_secs(2);
            while std::time::Instant::now() < until && fs::metadata(&victim).is_ok_and(|file| file.uid() == 0) {
                // Losing the race is an error, and so is winning it if the name was removed meanwhile.
                let _ = write(&state, &shown_for(60));
            }
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert_eq!(fs::metadata(&victim).expect("it is there").uid(), 0);
    }

    #[test]
    fn malformed_codes_are_rejected() {
        for text in ["", "1234-5678", "1234-567 9", "1234-5678 x"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
