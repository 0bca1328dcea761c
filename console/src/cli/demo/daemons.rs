//! Daemons as child processes on loopback addresses, started again when they ask for it. None stays behind: they end when
//! this end of their standard input closes, whatever happens to the console, and are killed and waited for when it ends.
use std::{
    fs::OpenOptions,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail};
use nix::unistd::Pid;
use shared::protocol::PORT;
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    task::JoinHandle,
};

use super::machine::Machine;
use crate::{
    cli::{brambled, output},
    client::session,
};

/// All daemons must answer within this.
const START: Duration = Duration::from_secs(20);
/// A loopback address that no daemon of a demo listens on.
const CLAIM: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 254);
/// Daemons get this long to drain before they are killed.
const DRAIN: Duration = Duration::from_secs(2);

/// Exit code of a daemon that wants to be started again.
const RESTART_CODE: i32 = 75;
/// Between two looks at daemons that may have ended.
const LOOK: Duration = Duration::from_millis(20);

/// How a daemon is started.
#[derive(Clone, Debug)]
struct Recipe {
    program: PathBuf,
    address: String,
    name: String,
    models: PathBuf,
    folder: PathBuf,
    /// Where it reads its health, if that is played.
    health: Option<PathBuf>,
}

/// Running daemons.
#[derive(Debug)]
pub(super) struct Daemons {
    addresses: Vec<String>,
    children: Arc<Mutex<Vec<Child>>>,
    recipes: Vec<Recipe>,
    supervisor: Option<JoinHandle<()>>,
    folder: TempDir,
    /// Keeps other demos off the port until all daemons are gone.
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
            .stderr(log.context("cannot make a log file")?)
            // Ctrl-C is for the console: it cancels, then stops the daemons itself.
            .process_group(0)
            .kill_on_drop(true);
        command.spawn().with_context(|| format!("cannot start {}", self.program.display()))
    }
}

/// What systemd does on a node: a daemon that ended to be restarted is started again.
async fn supervise(recipes: Vec<Recipe>, children: Arc<Mutex<Vec<Child>>>) {
    loop {
        tokio::time::sleep(LOOK).await;
        for (child, recipe) in lock(&children).iter_mut().zip(&recipes) {
            let ended = child.try_wait().ok().flatten();
            if ended.is_some_and(|status| status.code() == Some(RESTART_CODE)) {
                match recipe.spawn() {
                    Ok(again) => *child = again,
                    Err(error) => tracing::error!("{} is not started again: {error:#}", recipe.name),
                }
            }
        }
    }
}

fn lock(children: &Mutex<Vec<Child>>) -> MutexGuard<'_, Vec<Child>> {
    // The list is whole even if a task panicked while it held the lock.
    children.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Daemons {
    /// Starts `count` daemons on 127.0.0.2 and up, and waits until all answer. Each of `machines` is read by its daemon as its own.
    pub(super) async fn start(count: usize, models: &Path, machines: &[Machine]) -> anyhow::Result<Self> {
        let program = brambled::path()?;
        let folder = tempfile::Builder::new().prefix("bramble-demo-").tempdir().context("cannot make a folder")?;
        let (port, claim) = claim_port(count, PORT)?;
        if port != PORT {
            output::note(&format!("port {PORT} is taken: the daemons use port {port}"));
        }
        let addresses = (0..count).map(|index| address(index, port)).collect();
        let recipe = |index: usize| Recipe {
            program: program.clone(),
            address: address(index, port),
            name: name(index),
            models: models.into(),
            folder: folder.path().into(),
            health: machines.get(index).map(|machine| machine.root().into()),
        };
        let recipes: Vec<Recipe> = (0..count).map(recipe).collect();
        let children = recipes.iter().map(Recipe::spawn).collect::<anyhow::Result<Vec<Child>>>()?;
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

    /// `ADDRESS:PORT` of each.
    pub(super) fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// A daemon's process, if it runs.
    pub(super) fn pid(&self, index: usize) -> Option<Pid> {
        lock(&self.children)[index].id().map(|pid| Pid::from_raw(pid.cast_signed()))
    }

    /// Ends a daemon without a word, as a loss of power does.
    ///
    /// # Errors
    /// It cannot be ended.
    pub(super) fn kill(&self, index: usize) -> anyhow::Result<()> {
        lock(&self.children)[index].start_kill().with_context(|| format!("cannot kill {}", name(index)))
    }

    /// Starts a daemon again that was killed.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn start_again(&self, index: usize) -> anyhow::Result<()> {
        let child = self.recipes[index].spawn()?;
        lock(&self.children)[index] = child;
        Ok(())
    }

    fn log(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("{}.log", name(index)))
    }

    async fn await_answer(&mut self, index: usize, deadline: Instant) -> anyhow::Result<()> {
        loop {
            let answer = session::open(&self.addresses[index]).await;
            let ended = lock(&self.children)[index].try_wait().context("cannot watch a daemon")?;
            // Somebody else's daemon may have been quicker to take the port: then the child has ended.
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

    /// Ends all of them in order: SIGTERM, a moment, SIGKILL.
    pub(super) async fn stop(mut self) {
        self.release();
        let mut children = std::mem::take(&mut *lock(&self.children));
        for child in &children {
            if let Some(pid) = child.id() {
                let pid = nix::unistd::Pid::from_raw(pid.cast_signed());
                // One that ended already needs no signal.
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
            }
        }
        let deadline = tokio::time::Instant::now() + DRAIN;
        for child in &mut children {
            if tokio::time::timeout_at(deadline, child.wait()).await.is_err() {
                let _ = child.kill().await;
            }
        }
    }

    /// From now on nothing is started again.
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
        for child in &mut children {
            let _ = child.start_kill();
        }
        // Reaped here, so that none is left as a zombie of a parent that goes on.
        let deadline = Instant::now() + Duration::from_secs(1);
        while Instant::now() < deadline && children.iter_mut().any(|child| matches!(child.try_wait(), Ok(None))) {
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

/// The first port from `first` on that is free on all addresses, and what keeps it: two demos that start at the same time
/// both find a port free before either has its daemons on it, but only one can listen on this address.
fn claim_port(count: usize, first: u16) -> anyhow::Result<(u16, TcpListener)> {
    let claim = |port: u16| {
        let claim = TcpListener::bind((CLAIM, port)).ok()?;
        let is_free = (0..count).all(|index| TcpListener::bind(address(index, port)).is_ok());
        is_free.then_some((port, claim))
    };
    let found = (first..first.saturating_add(200)).find_map(claim);
    found.ok_or_else(|| anyhow!("no port from {first} on is free on {count} loopback addresses"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_on_one_address_is_used_on_none() {
        // The port of the first address is chosen by the system; all others follow from it.
        let taken = TcpListener::bind(address(2, 0)).expect("loopback can be bound");
        let port = taken.local_addr().expect("a bound listener has an address").port();
        let (next, _claim) = claim_port(4, port).expect("one of 200 ports is free");
        assert!(next > port, "{next}");
    }

    #[test]
    fn demos_that_start_at_the_same_time_get_different_ports() {
        let claims: Vec<_> = (0..8).map(|_| std::thread::spawn(|| claim_port(2, 21_000))).collect();
        let claims: Vec<_> = claims.into_iter().map(|claim| claim.join().expect("no panic").expect("a port")).collect();
        let mut ports: Vec<u16> = claims.iter().map(|(port, _)| *port).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 8, "{ports:?}");
    }

    #[test]
    fn daemons_are_named_from_pi1_and_listen_from_127_0_0_2_on() {
        let all: Vec<(String, String)> = (0..4).map(|index| (name(index), address(index, PORT))).collect();
        assert_eq!(all[0], ("pi1".into(), "127.0.0.2:9999".into()));
        assert_eq!(all[3], ("pi4".into(), "127.0.0.5:9999".into()));
    }
}
