//! `brambled check`: reads this machine like a running daemon and reports problems with their remedies. Changes
//! nothing.
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Args;
use protocol::{BUILD, PORT};
use serde_json::json;
use telemetry::{Health, finding::exit_code};

use crate::{
    config::Config,
    health::{Monitor, WatchedFolders},
    print::line_out,
};

/// Time between the two readings from which rates are computed.
const INTERVAL: Duration = Duration::from_millis(500);

/// Options of `brambled check`.
#[derive(Clone, Debug, Args)]
pub struct Check {
    /// Read /proc and /sys below this folder instead of /
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Checks the machine for a daemon with these settings (`None`: the defaults, and the interface of the default route).
/// Returns the exit code: 0, or that of the worst finding.
///
/// # Errors
/// The root is not a folder, or the output cannot be written.
pub fn run(check: &Check, config: Option<&Config>) -> anyhow::Result<u8> {
    std::fs::read_dir(&check.root).with_context(|| format!("cannot read {}", check.root.display()))?;
    let anywhere = SocketAddr::from((IpAddr::V4(Ipv4Addr::UNSPECIFIED), PORT));
    // A daemon on loopback does not serve other machines yet; the check is about the link that it will use.
    let listen = config.map(|config| config.listen).filter(|address| !address.ip().is_loopback()).unwrap_or(anywhere);
    let usual = PathBuf::from("/var/lib/bramble");
    let usual = WatchedFolders { models: vec![usual.join("models")], state: usual };
    let mut monitor = Monitor::new(&check.root, listen, config.map_or(usual, Config::watched_folders));
    let first = monitor.read(Instant::now());
    let health = if check.root == Path::new("/") {
        std::thread::sleep(INTERVAL);
        monitor.read(Instant::now())
    } else {
        first
    };
    let findings = health.findings();
    if check.json {
        line_out(
            &json!({"build": BUILD, "health": health, "unread": health.unread(), "findings": findings}).to_string(),
        )?;
    } else {
        summary(&health).iter().try_for_each(|line| line_out(line))?;
        for finding in &findings {
            finding.lines().iter().try_for_each(|line| line_out(line))?;
        }
        if findings.is_empty() {
            line_out("ok       no problems found")?;
        }
    }
    Ok(exit_code(&findings))
}

/// One line per reading, and one for those that are unavailable.
fn summary(health: &Health) -> Vec<String> {
    let unread = health.unread();
    let mut lines = health.readings();
    if !unread.is_empty() {
        lines.push(format!("not available here: {}", unread.join(", ")));
    }
    lines
}
