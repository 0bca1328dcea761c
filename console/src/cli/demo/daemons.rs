//! Daemons as child processes on loopback addresses, restarted when they request it or fail. No daemon outlives the
//! console: each ends when its standard input closes, and `Daemons` kills and reaps all of them when it is dropped.
use std::{
    fs::OpenOptions,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail};
use nix::unistd::Pid;
use protocol::PORT;
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    task::JoinHandle,
};

use crate::cli::{
    demo::machine::Machine,
    shared::{brambled, output},
};
use crate::client::session;

/// Time limit for all daemons to answer.
const START: Duration = Duration::from_secs(20);
/// A loopback address that no daemon of a demo listens on.
const CLAIM: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 254);
/// Time limit for daemons to drain before they are killed.
const DRAIN: Duration = Duration::from_secs(2);

/// Exit code of a daemon that requests a restart.
const RESTART_CODE: i32 = 75;
/// Pause before a daemon that failed is restarted, as in the service of the package.
const RESTART_AFTER: Duration = Duration::from_secs(1);
/// Interval of checks for ended daemons.
const LOOK: Duration = Duration::from_millis(20);

/// The command line of a daemon.
#[derive(Clone, Debug)]
struct Recipe {
    program: PathBuf,
    address: String,
    name: String,
    models: PathBuf,
    folder: PathBuf,
    /// Root of its simulated health files, if it has any.
    health: Option<PathBuf>,
}

/// A daemon of the demo.
#[derive(Debug)]
struct Daemon {
    child: Child,
    /// When it was first seen to have ended, or could not be started again.
    failed: Option<Instant>,
    /// Whether the demo itself killed it, and starts it again.
    is_held: bool,
}

impl From<Child> for Daemon {
    fn from(child: Child) -> Self {
        Self { child, failed: None, is_held: false }
    }
}

/// Running daemons; dropping this kills them.
#[derive(Debug)]
pub(super) struct Daemons {
    addresses: Vec<String>,
    children: Arc<Mutex<Vec<Daemon>>>,
    recipes: Vec<Recipe>,
    supervisor: Option<JoinHandle<()>>,
    folder: TempDir,
    /// Prevents other demos from using the port until all daemons have ended.
    _claim: TcpListener,
}

impl Recipe {
    fn spawn(&self) -> anyhow::Result<Child> {
        let log = OpenOptions::new().create(true).append(true).open(self.folder.join(format!("{}.log", self.name)));
        let mut command = Command::new(&self.program);
        command
            .args(["--listen", &self.address, "--name", &self.name, "--exit-with-parent", "--supervised"])
            .arg("--models")
            .arg(&self.models)
            .arg("--state")
            .arg(self.folder.join(&self.name))
            .args(self.health.iter().flat_map(|root| ["--health-root".as_ref(), root.as_os_str()]))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log.context("cannot create the log file")?)
            // Ctrl-C must reach only the console, which cancels the work and then stops the daemons.
            .process_group(0)
            .kill_on_drop(true);
        command.spawn().with_context(|| format!("cannot start {}", self.program.display()))
    }
}

/// Restarts daemons as systemd does on a node: at once if they request it, after a pause if they failed or were killed.
/// SIGTERM ends a daemon for good.
async fn supervise(recipes: Vec<Recipe>, children: Arc<Mutex<Vec<Daemon>>>) {
    loop {
        tokio::time::sleep(LOOK).await;
        for (daemon, recipe) in lock(&children).iter_mut().zip(&recipes) {
            let ended = daemon.child.try_wait().ok().flatten();
            if ended.is_some_and(|status| daemon.is_due(status, Instant::now())) {
                match recipe.spawn() {
                    Ok(again) => *daemon = again.into(),
                    Err(error) => {
                        daemon.failed = Some(Instant::now());
                        tracing::error!("cannot restart {}: {error:#}", recipe.name);
                    }
                }
            }
        }
    }
}

impl Daemon {
    /// Whether to start it again, after it ended with this status.
    fn is_due(&mut self, status: ExitStatus, now: Instant) -> bool {
        if self.is_held || status.success() {
            return false;
        }
        let is_asked = self.failed.is_none() && status.code() == Some(RESTART_CODE);
        let failed = *self.failed.get_or_insert(now);
        is_asked || now >= failed + RESTART_AFTER
    }
}

fn lock(children: &Mutex<Vec<Daemon>>) -> MutexGuard<'_, Vec<Daemon>> {
    // The list is valid even if a task panicked while it held the lock.
    children.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Daemons {
    /// Starts `count` daemons on 127.0.0.2 and up and waits until all answer. Daemon i reads the health of
    /// `machines[i]`, if there is one, otherwise of this machine.
    pub(super) async fn start(count: usize, models: &Path, machines: &[Machine]) -> anyhow::Result<Self> {
        let program = brambled::path()?;
        let folder =
            tempfile::Builder::new().prefix("bramble-demo-").tempdir().context("cannot create a temporary folder")?;
        let (port, claim) = claim_port(count, PORT)?;
        if port != PORT {
            output::note(&format!("port {PORT} is in use; the daemons use port {port}"));
        }
        let addresses = (0..count).map(|index| address(index, port)).collect();
        let recipes = (0..count).map(|index| Recipe {
            program: program.clone(),
            address: address(index, port),
            name: name(index),
            models: models.into(),
            folder: folder.path().into(),
            health: machines.get(index).map(|machine| machine.root().into()),
        });
        let recipes: Vec<Recipe> = recipes.collect();
        let children = recipes.iter().map(|recipe| Ok(recipe.spawn()?.into()));
        let children = children.collect::<anyhow::Result<Vec<Daemon>>>()?;
        let children = Arc::new(Mutex::new(children));
        let mut daemons =
            Self { addresses, children, recipes: recipes.clone(), supervisor: None, folder, _claim: claim };
        let deadline = Instant::now() + START;
        for index in 0..count {
            daemons.await_answer(index, deadline).await?;
        }
        daemons.supervisor = Some(tokio::spawn(supervise(recipes, Arc::clone(&daemons.children))));
        Ok(daemons)
    }

    /// `ADDRESS:PORT` of each daemon.
    pub(super) fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// The process id of a daemon, if it is running.
    pub(super) fn pid(&self, index: usize) -> Option<Pid> {
        lock(&self.children)[index].child.id().map(|pid| Pid::from_raw(pid.cast_signed()))
    }

    /// Kills a daemon with SIGKILL, as abrupt as a power loss.
    ///
    /// # Errors
    /// The process cannot be killed.
    pub(super) fn kill(&self, index: usize) -> anyhow::Result<()> {
        let mut children = lock(&self.children);
        children[index].is_held = true;
        children[index].child.start_kill().with_context(|| format!("cannot kill {}", name(index)))
    }

    /// Restarts a daemon that was killed.
    ///
    /// # Errors
    /// The process cannot be started.
    pub(super) fn start_again(&self, index: usize) -> anyhow::Result<()> {
        let child = self.recipes[index].spawn()?;
        lock(&self.children)[index] = child.into();
        Ok(())
    }

    fn log(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("{}.log", name(index)))
    }

    async fn await_answer(&mut self, index: usize, deadline: Instant) -> anyhow::Result<()> {
        loop {
            let answer = session::open(&self.addresses[index]).await;
            let ended = lock(&self.children)[index].child.try_wait().context("cannot get the status of a daemon")?;
            // If another daemon took the port first, the child has ended.
            if answer.is_ok_and(|session| session.identity.name == name(index)) && ended.is_none() {
                return Ok(());
            }
            if ended.is_some() || Instant::now() > deadline {
                let log = std::fs::read(self.log(index)).unwrap_or_default();
                let log = String::from_utf8_lossy(&log);
                let last: Vec<&str> = log.lines().rev().take(5).collect();
                let last: Vec<String> = last.into_iter().rev().map(output::clean).collect();
                bail!("{} did not start on {}: {}", name(index), self.addresses[index], last.join(" | "));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends all daemons: SIGTERM, then SIGKILL after [`DRAIN`].
    pub(super) async fn stop(mut self) {
        self.release();
        let mut children = std::mem::take(&mut *lock(&self.children));
        for Daemon { child, .. } in &children {
            if let Some(pid) = child.id() {
                let pid = nix::unistd::Pid::from_raw(pid.cast_signed());
                // The signal fails if the process has already ended.
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
            }
        }
        let deadline = tokio::time::Instant::now() + DRAIN;
        for Daemon { child, .. } in &mut children {
            if tokio::time::timeout_at(deadline, child.wait()).await.is_err() {
                let _ = child.kill().await;
            }
        }
    }

    /// Stops the supervisor, so that no daemon is restarted.
    fn release(&mut self) {
        if let Some(supervisor) = self.supervisor.take() {
            supervisor.abort();
        }
    }
}

impl Drop for Daemons {
    fn drop(&mut self) {
        self.release();
        let mut children = std::mem::take(&mut *lock(&self.children));
        for Daemon { child, .. } in &mut children {
            let _ = child.start_kill();
        }
        // Reap the children, so that none is left as a zombie while the console continues.
        let deadline = Instant::now() + Duration::from_secs(1);
        while Instant::now() < deadline && children.iter_mut().any(|daemon| matches!(daemon.child.try_wait(), Ok(None)))
        {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn name(index: usize) -> String {
    format!("pi{}", index + 1)
}

fn address(index: usize, port: u16) -> String {
    format!("127.0.0.{}:{port}", index + 2)
}

/// The first port, starting at `first`, that is free on all addresses, and a listener that claims it. Two demos that
/// start at the same time may both find a port free, but only one of them can listen on the claim address.
fn claim_port(count: usize, first: u16) -> anyhow::Result<(u16, TcpListener)> {
    let found = (first..first.saturating_add(200)).find_map(|port| Some((port, claim(count, port)?)));
    found.ok_or_else(|| anyhow!("none of 200 ports from {first} on is free on all of {count} loopback addresses"))
}

/// Claims a port if it is free on all addresses.
fn claim(count: usize, port: u16) -> Option<TcpListener> {
    let claim = TcpListener::bind((CLAIM, port)).ok()?;
    let is_free = (0..count).all(|index| TcpListener::bind(address(index, port)).is_ok());
    is_free.then_some(claim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_in_use_on_one_address_is_skipped() {
        // The port of the first address is chosen by the system; all others follow from it.
        let taken = TcpListener::bind(address(2, 0)).expect("loopback can be bound");
        let port = taken.local_addr().expect("a bound listener has an address").port();
        let (next, _claim) = claim_port(4, port).expect("one of 200 ports is free");
        assert!(next > port, "{next}");
    }

    #[test]
    fn concurrent_demos_claim_different_ports() {
        let claims: Vec<_> = (0..8).map(|_| std::thread::spawn(|| claim_port(2, 21_000))).collect();
        let claims: Vec<_> = claims.into_iter().map(|claim| claim.join().expect("no panic").expect("a port")).collect();
        let mut ports: Vec<u16> = claims.iter().map(|(port, _)| *port).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 8, "{ports:?}");
    }

    #[tokio::test]
    async fn killed_daemon_is_restarted_after_a_pause_unless_the_demo_killed_it() {
        let child = Command::new("sleep").arg("60").kill_on_drop(true).spawn().expect("sleep is installed");
        let mut daemon = Daemon::from(child);
        daemon.child.start_kill().expect("it runs");
        let killed = daemon.child.wait().await.expect("it can be awaited");
        let now = Instant::now();
        assert!(!daemon.is_due(killed, now), "not at once");
        assert!(daemon.is_due(killed, now + RESTART_AFTER));
        daemon.is_held = true;
        assert!(!daemon.is_due(killed, now + RESTART_AFTER), "the tour starts it itself");
    }

    #[test]
    fn daemons_have_consecutive_names_and_addresses() {
        let all: Vec<(String, String)> = (0..4).map(|index| (name(index), address(index, PORT))).collect();
        assert_eq!(all[0], ("pi1".into(), "127.0.0.2:9999".into()));
        assert_eq!(all[3], ("pi4".into(), "127.0.0.5:9999".into()));
    }
}
