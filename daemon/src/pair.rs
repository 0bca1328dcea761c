//! `brambled pair`: a code by which this node can be adopted for some minutes. It lies in a file of the state folder that only root and the
//! daemon can read; the running daemon looks for it when somebody wants to adopt it.
use std::{
    fs::{self, OpenOptions},
    io::{self, ErrorKind, Write},
    net::{IpAddr, SocketAddr},
    os::unix::fs::{MetadataExt, OpenOptionsExt, chown},
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use nix::ifaddrs::getifaddrs;
use serde_json::json;
use shared::protocol::noise::pake::Code;

use crate::{config::Config, keys};

/// Wrong codes that a node bears; then it shows none any more.
pub const ATTEMPTS_MAX: u32 = 5;
/// Name of the file in the state folder.
const FILE: &str = "pairing";
/// Longest time that a code counts, in seconds.
const SECONDS_MAX: u64 = 60 * 60;
/// Longest such file.
const FILE_BYTES_MAX: u64 = 256;

/// Options of `brambled pair`.
#[derive(Clone, Debug, Args)]
pub struct Arguments {
    /// How long the code counts
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=60))]
    minutes: u32,
    /// Print an object
    #[arg(long)]
    json: bool,
}

/// A code that counts until a time since the machine's start, in seconds: the clock on the wall may be wrong before the first NTP answer.
/// A daemon forgets at its start what it finds: the code may be from before the machine's. (The kernel's id of the start is no help: a
/// container shows it to some of its programs.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The code.
    pub code: Code,
    until: u64,
}

/// Shows a code.
///
/// # Errors
/// The node has a key already, or the state folder cannot be written.
pub fn run(arguments: &Arguments, config: &Config) -> anyhow::Result<()> {
    if let Some(key) = keys::load(config)?.current() {
        let file = config.key_file.display();
        bail!(
            "{} belongs to cluster {} already; to claim it anew, remove {file} and restart it",
            config.name,
            key.fingerprint()
        );
    }
    let code = Code::random().map_err(|error| anyhow!(error))?;
    let seconds = 60 * u64::from(arguments.minutes);
    let now = since_start().context("cannot read how long the machine runs")?;
    let shown = Shown { code: code.clone(), until: now + seconds };
    let help = || format!("cannot write below {}; run it as root: sudo brambled pair", config.state.display());
    write(&config.state, &shown).with_context(help)?;
    let (name, listen) = (&config.name, reached(config.listen));
    if arguments.json {
        let object = json!({"node": name, "address": listen.to_string(), "code": code.to_string(),
            "seconds": seconds, "attempts": ATTEMPTS_MAX});
        println!("{object}");
        return Ok(());
    }
    println!("node {name} at {listen}\ncode {code} (for {} minutes, {ATTEMPTS_MAX} attempts)", arguments.minutes);
    let port = if listen.port() == shared::protocol::PORT { String::new() } else { format!(":{}", listen.port()) };
    let host =
        if listen.is_ipv6() && !port.is_empty() { format!("[{}]", listen.ip()) } else { listen.ip().to_string() };
    println!("next: console adopt {host}{port} --code {code}");
    if listen.ip().is_loopback() {
        println!(
            "note: it listens on {listen}, which only this machine reaches; set listen in /etc/bramble/bramble.toml"
        );
    }
    Ok(())
}

/// Where others reach a daemon that listens on an address; on all: the machine's first that is not loopback, else as it is.
fn reached(listen: SocketAddr) -> SocketAddr {
    if !listen.ip().is_unspecified() {
        return listen;
    }
    let addresses = getifaddrs().into_iter().flatten().filter_map(|each| Some(each.address?.as_sockaddr_in()?.ip()));
    let found = addresses.filter(|ip| !ip.is_loopback() && !ip.is_link_local()).map(IpAddr::V4).next();
    SocketAddr::new(found.unwrap_or(listen.ip()), listen.port())
}

/// The code that this node shows, if it still counts.
pub fn shown(state: &Path) -> Option<Shown> {
    let path = path(state);
    let text = match fs::metadata(&path) {
        Ok(metadata) if metadata.len() <= FILE_BYTES_MAX => fs::read_to_string(&path).ok()?,
        _ => return None,
    };
    let shown = parse(&text)?;
    let now = since_start().ok()?;
    (now + 1..=now + SECONDS_MAX).contains(&shown.until).then_some(shown)
}

/// The code counts no more.
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

fn write(state: &Path, shown: &Shown) -> io::Result<()> {
    let beside = state.join(format!("{FILE}.new"));
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    file.write_all(format(shown).as_bytes())?;
    // Root shows the code, the daemon's user reads it.
    let owner = fs::metadata(state)?;
    if owner.uid() != file.metadata()?.uid() {
        chown(&beside, Some(owner.uid()), Some(owner.gid()))?;
    }
    fs::rename(&beside, path(state))
}

fn format(shown: &Shown) -> String {
    format!("{} {}\n", shown.code, shown.until)
}

fn parse(text: &str) -> Option<Shown> {
    let mut words = text.split_whitespace();
    let (code, until) = (words.next()?, words.next()?);
    Some(Shown { code: code.parse().ok()?, until: until.parse().ok()? })
}

/// Seconds since the machine's start.
fn since_start() -> io::Result<u64> {
    let uptime = fs::read_to_string("/proc/uptime")?;
    let seconds = uptime.split('.').next().and_then(|seconds| seconds.parse().ok());
    Ok(seconds.ok_or(ErrorKind::InvalidData)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown_for(seconds: u64) -> Shown {
        let now = since_start().expect("/proc is there");
        Shown { code: "1234-5678".parse().expect("a code"), until: now + seconds }
    }

    #[test]
    fn a_code_counts_for_its_time_and_no_longer_than_any_may() {
        let folder = std::env::temp_dir().join(format!("bramble-pair-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder can be made");
        assert_eq!(shown(&folder), None);
        let good = shown_for(60);
        write(&folder, &good).expect("the folder can be written");
        assert_eq!(fs::metadata(path(&folder)).expect("it is there").mode() & 0o777, 0o600);
        assert_eq!(shown(&folder), Some(good.clone()));
        write(&folder, &shown_for(0)).expect("the folder can be written");
        assert_eq!(shown(&folder), None, "its time is over");
        write(&folder, &shown_for(SECONDS_MAX + 60)).expect("the folder can be written");
        assert_eq!(shown(&folder), None, "nobody shows a code for so long");
        write(&folder, &good).expect("the folder can be written");
        forget(&folder).expect("it is there");
        assert_eq!(shown(&folder), None);
        forget(&folder).expect("what is gone is gone");
        fs::remove_dir_all(folder).expect("it is ours");
    }

    #[test]
    fn what_is_no_code_is_none() {
        for text in ["", "1234-5678", "1234-567 9", "1234-5678 x"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
