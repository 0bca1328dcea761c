//! Both programs as real processes: builds them once, starts daemons on free loopback addresses and ends all of them.
use std::{
    ffi::OsString,
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

/// File name of the slow model.
pub const DEEP: &str = "deep.gguf";

/// Limit of every wait; only a failing test waits this long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests package is in the repository").into()
}

/// Folder of the programs, rebuilt if their sources changed so that no test runs a stale daemon.
///
/// # Panics
/// If they do not compile.
pub fn programs() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        // Build scripts would see the variables that cargo sets for a test's own package as a change and run again.
        std::env::vars_os()
            .map(|(name, _)| name)
            .filter(|name| {
                let name = name.to_string_lossy();
                ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_"].iter().any(|prefix| name.starts_with(prefix))
            })
            .for_each(|name| {
                build.env_remove(name);
            });
        build
            .args(["build", "--locked", "-p", "bramble-daemon", "-p", "bramble-console", "-p", "bramble-bench"])
            .current_dir(root());
        let built = build.stdin(Stdio::null()).status().expect("cargo runs");
        assert!(built.success(), "the programs must compile");
        let own = std::env::current_exe().expect("a process has a program");
        // A test is in target/debug/deps, a command in target/debug.
        let folder = own.ancestors().skip(1).find(|folder| folder.join("brambled").is_file());
        folder.expect("the programs were built just now").into()
    })
}

/// The folder with the demo model.
pub fn demo_models() -> PathBuf {
    root().join("packaging/demo")
}

/// A loopback network (127.x.y.*) for each cluster of this process, and a port that is free on it.
fn network(count: usize) -> (String, u16) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed) + std::process::id() * 16;
        let prefix = format!("127.{}.{}", 1 + number / 250 % 250, 1 + number % 250);
        if (0..count).all(|index| TcpListener::bind(format!("{prefix}.{}:9999", index + 1)).is_ok()) {
            return (prefix, 9999);
        }
    }
}

/// The daemons of one test.
#[derive(Debug)]
pub struct Cluster {
    /// `ADDRESS:PORT` of each.
    pub addresses: Vec<String>,
    nodes: Arc<Mutex<Vec<Option<Node>>>>,
    models: PathBuf,
    settings: String,
    arguments: Vec<Vec<String>>,
    folder: TempDir,
}

/// A daemon and the command that restarts it.
#[derive(Debug)]
struct Node {
    child: Child,
    command: Vec<OsString>,
    log: PathBuf,
}

impl Node {
    fn spawn(command: Vec<OsString>, log: PathBuf) -> Self {
        let file = fs::OpenOptions::new().append(true).create(true).open(&log).expect("a log file");
        let mut started = Command::new(&command[0]);
        started.args(&command[1..]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(file);
        Self { child: started.spawn().expect("brambled starts"), command, log }
    }
}

/// Restarts daemons that exit with 75, as systemd does on a node. Ends with its cluster.
fn supervise(nodes: &Weak<Mutex<Vec<Option<Node>>>>) {
    while let Some(nodes) = nodes.upgrade() {
        for node in lock(&nodes).iter_mut().flatten() {
            if node.child.try_wait().is_ok_and(|ended| ended.is_some_and(|status| status.code() == Some(75))) {
                *node = Node::spawn(node.command.clone(), node.log.clone());
            }
        }
        drop(nodes);
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

fn lock(nodes: &Mutex<Vec<Option<Node>>>) -> MutexGuard<'_, Vec<Option<Node>>> {
    // Daemons must end even if a test failed elsewhere and poisoned the lock.
    nodes.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    /// Starts `count` daemons with the demo model, named pi1 and up.
    pub fn of(count: usize) -> Self {
        Self::with(count, &demo_models(), "")
    }

    /// Starts `count` daemons with a model folder and lines for their configuration files. Liveness timeouts are long:
    /// a busy machine must not look like a lost node.
    pub fn with(count: usize, models: &Path, settings: &str) -> Self {
        Self::start_all(count, models, settings, &[])
    }

    /// Like [`Self::with`], under a supervisor that restarts a daemon when it exits with 75, as systemd does.
    pub fn supervised(count: usize, models: &Path, settings: &str) -> Self {
        let cluster = Self::start_all(count, models, settings, &["--supervised"]);
        let watched = Arc::downgrade(&cluster.nodes);
        std::thread::spawn(move || supervise(&watched));
        cluster
    }

    /// Starts one daemon with the demo model at an address.
    pub fn at(address: &str, arguments: &[&str]) -> Self {
        Self::start_at(vec![address.into()], &demo_models(), "", arguments)
    }

    fn start_all(count: usize, models: &Path, settings: &str, arguments: &[&str]) -> Self {
        let (prefix, port) = network(count);
        let addresses = (1..=count).map(|index| format!("{prefix}.{index}:{port}")).collect();
        Self::start_at(addresses, models, settings, arguments)
    }

    fn start_at(addresses: Vec<String>, models: &Path, settings: &str, arguments: &[&str]) -> Self {
        let count = addresses.len();
        let folder = tempfile::tempdir().expect("create a temporary folder");
        let nodes = Arc::new(Mutex::new((0..count).map(|_| None).collect()));
        let arguments = vec![arguments.iter().map(|argument| (*argument).to_owned()).collect(); count];
        let mut cluster =
            Self { addresses, nodes, models: models.into(), settings: settings.into(), arguments, folder };
        (0..count).for_each(|index| cluster.start(index));
        cluster
    }

    /// Restarts a node with additional arguments.
    pub fn start_with_arguments(&mut self, index: usize, arguments: &[&str]) {
        self.arguments[index] = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        self.start(index);
    }

    /// Sets the lines of the configuration files of nodes that start from now on.
    pub fn set_settings(&mut self, settings: &str) {
        self.settings = settings.into();
    }

    /// The addresses in the form of `--nodes`.
    pub fn nodes(&self) -> String {
        self.addresses.join(",")
    }

    /// A node's state folder.
    pub fn state(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("pi{}", index + 1))
    }

    /// A node's log so far.
    pub fn log(&self, index: usize) -> String {
        fs::read_to_string(self.log_path(index)).unwrap_or_default()
    }

    fn log_path(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("pi{}.log", index + 1))
    }

    /// Starts or restarts a node and waits until it listens.
    ///
    /// # Panics
    /// If it does not listen in time.
    pub fn start(&mut self, index: usize) {
        let models = self.models.clone();
        self.start_with(index, &models);
    }

    /// Like [`Self::start`], with another model folder.
    ///
    /// # Panics
    /// If the node does not listen in time.
    pub fn start_with(&mut self, index: usize, models: &Path) {
        let config = self.folder.path().join(format!("pi{}.toml", index + 1));
        let liveness = if self.settings.contains("silent_ms") { "" } else { "silent_ms = 30000\nstall_ms = 60000\n" };
        // Tests of other topics assign topologies themselves.
        let recover = if self.settings.contains("recover") { "" } else { "recover = false\n" };
        fs::write(&config, format!("{liveness}{recover}{}", self.settings)).expect("write the configuration");
        // The file may contain API keys.
        fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).expect("this process owns the file");
        let name = format!("pi{}", index + 1);
        let fixed = ["--listen", &self.addresses[index], "--name", &name, "--exit-with-parent", "--config"];
        let mut command: Vec<OsString> = vec![programs().join("brambled").into()];
        command.extend(fixed.map(OsString::from));
        command.extend([config.into(), "--models".into(), models.into(), "--state".into(), self.state(index).into()]);
        command.extend(self.arguments[index].iter().map(OsString::from));
        lock(&self.nodes)[index] = Some(Node::spawn(command, self.log_path(index)));
        let address = self.addresses[index].clone();
        wait_until("the daemon listens", || {
            assert!(self.is_running(index), "brambled ended: {}", self.log(index));
            std::net::TcpStream::connect(&address).is_ok()
        });
    }

    /// Whether a node's process is alive.
    pub fn is_running(&mut self, index: usize) -> bool {
        let mut nodes = lock(&self.nodes);
        nodes[index].as_mut().is_some_and(|node| node.child.try_wait().is_ok_and(|ended| ended.is_none()))
    }

    /// Sends a signal to a node.
    ///
    /// # Panics
    /// If the node is not running.
    pub fn signal(&self, index: usize, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(self.pid(index), signal).expect("the node is running");
    }

    /// A node's process id.
    ///
    /// # Panics
    /// If the node is not running.
    pub fn pid(&self, index: usize) -> Pid {
        let id = lock(&self.nodes)[index].as_ref().expect("the node was started").child.id();
        Pid::from_raw(id.cast_signed())
    }

    /// Waits until a node ends; returns its exit code (`None` if a signal ended it).
    ///
    /// # Panics
    /// If it does not end in time.
    pub fn wait(&mut self, index: usize) -> Option<i32> {
        let mut child = lock(&self.nodes)[index].take().expect("the node was started").child;
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = child.try_wait().expect("wait for the child") {
                return status.code();
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                panic!("pi{} did not end: {}", index + 1, self.log(index));
            }
            std::thread::yield_now();
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// Runs `console` with arguments to its end; a console that does not end is killed and fails the test.
    pub fn console(&self, arguments: &[&str]) -> Ended {
        console(arguments)
    }

    /// `console generate --json` on the first `count` nodes.
    pub fn generate(&self, count: usize, more: &[&str]) -> Ended {
        let nodes = self.addresses[..count].join(",");
        // `--yes` permits replacing the running topology; the confirmation has its own tests.
        let mut arguments = vec!["generate", "--nodes", &nodes, "--json", "--yes"];
        if !more.contains(&"--model") {
            arguments.extend(["--model", "bard-q8_0.gguf"]);
        }
        arguments.extend(more);
        console(&arguments)
    }

    /// Starts a `console generate --json` of the slow model on all nodes and returns once it generates tokens.
    ///
    /// # Panics
    /// If no tokens arrive.
    pub fn start_generation(&self, max_tokens: &str) -> Child {
        let nodes = self.nodes();
        let child = spawn_console(&[
            "generate",
            "--nodes",
            &nodes,
            "--model",
            DEEP,
            "--prompt",
            "ab",
            "--max-tokens",
            max_tokens,
            "--temperature",
            "0",
            "--json",
            "--yes",
        ]);
        wait_until("tokens arrive", || self.status(0)["tokens"].as_u64() > Some(3));
        child
    }

    /// A node's state according to `console status --json`.
    ///
    /// # Panics
    /// If the node does not answer.
    pub fn status(&self, index: usize) -> Value {
        let ended = console(&["status", "--nodes", &self.addresses[index], "--json"]);
        assert_eq!(ended.code, Some(0), "pi{} answers: {}", index + 1, ended.err);
        ended.json()["nodes"][0].clone()
    }

    /// Asserts that all nodes answer.
    ///
    /// # Panics
    /// If a node does not answer.
    pub fn assert_alive(&self) {
        (0..self.addresses.len()).for_each(|index| drop(self.status(index)));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for mut node in lock(&self.nodes).drain(..).flatten() {
            let _ = node.child.kill();
            let _ = node.child.wait();
        }
        if std::thread::panicking() {
            for index in 0..self.addresses.len() {
                eprintln!("--- pi{}\n{}", index + 1, self.log(index));
            }
        }
    }
}

/// The result of a console that ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Ended {
    /// Standard output as one JSON object.
    ///
    /// # Panics
    /// If it is not one.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {:?} {}", self.out, self.err))
    }

    /// The object of a completion.
    ///
    /// # Panics
    /// If the command failed.
    #[track_caller]
    pub fn completion(&self) -> Value {
        assert_eq!(self.code, Some(0), "{} {}", self.out, self.err);
        self.json()
    }

    /// Asserts an exit code and an error object with this code, whose message contains all of `parts`.
    ///
    /// # Panics
    /// If the result differs.
    #[track_caller]
    pub fn assert_error(&self, exit: i32, code: &str, parts: &[&str]) {
        let context = format!("{} {}", self.out, self.err);
        assert_eq!(self.code, Some(exit), "{context}");
        let object = self.json();
        assert_eq!(object["error"]["code"], code, "{context}");
        let message = object["error"]["message"].as_str().expect("an error has a message");
        parts.iter().for_each(|part| assert!(message.contains(part), "{part:?} is not in {message:?}"));
        // Errors of this machine, such as a file that cannot be read, name their cause and nothing else.
        let has_next = object["error"]["next"].as_str().is_some_and(|next| !next.is_empty());
        assert!(has_next || code == "failed", "no next step: {context}");
        assert!(self.err.contains(message), "the message is missing on standard error: {context}");
    }
}

/// Starts `console` with pipes for all standard streams.
///
/// # Panics
/// If it cannot be started.
pub fn spawn_console(arguments: &[&str]) -> Child {
    spawn_console_with(arguments, Some("10000"))
}

/// Where consoles look for saved clusters, keys and a keymap.
pub const CONFIG_HOME: &str = "XDG_CONFIG_HOME";
/// The variable with the folder of conversations and histories.
pub const DATA_HOME: &str = "XDG_DATA_HOME";
/// A folder that does not exist, so that the settings of the user who runs the tests have no effect.
pub const NO_FOLDER: &str = "/nonexistent";

/// Like [`spawn_console`]; a node that is silent for this many milliseconds is lost (`None`: the default).
///
/// # Panics
/// If the console cannot be started.
pub fn spawn_console_with(arguments: &[&str], silent_ms: Option<&str>) -> Child {
    spawn_program("console", arguments, silent_ms)
}

fn spawn_program(name: &str, arguments: &[&str], silent_ms: Option<&str>) -> Child {
    let mut command = Command::new(programs().join(name));
    command.args(arguments).env_remove("BRAMBLE_NODES").env_remove("BRAMBLE_LOG_DIR").env_remove("BRAMBLE_KEY_FILE");
    command.envs(silent_ms.map(|silent| ("BRAMBLE_SILENT_MS", silent))).env(CONFIG_HOME, NO_FOLDER);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("start the program")
}

/// Waits for a started console.
///
/// # Panics
/// If it does not end in time.
pub fn finish(child: Child) -> Ended {
    let pid = Pid::from_raw(child.id().cast_signed());
    let (done, watch) = std::sync::mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if watch.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
    });
    let Output { status, stdout, stderr } = child.wait_with_output().expect("wait for the console");
    drop(done);
    watchdog.join().expect("the watchdog ends");
    let text = |bytes| String::from_utf8(bytes).expect("console prints UTF-8");
    Ended { code: status.code(), out: text(stdout), err: text(stderr) }
}

/// Runs `console` with arguments to its end.
pub fn console(arguments: &[&str]) -> Ended {
    finish(spawn_console(arguments))
}

/// Starts `bramble-bench` with pipes for all standard streams.
///
/// # Panics
/// If it cannot be started.
pub fn spawn_bench(arguments: &[&str]) -> Child {
    spawn_program("bramble-bench", arguments, Some("10000"))
}

/// Runs `bramble-bench` with arguments to its end.
pub fn bench(arguments: &[&str]) -> Ended {
    finish(spawn_bench(arguments))
}

/// Polls until a condition holds; fails the test at the deadline.
///
/// # Panics
/// If the condition does not hold in time.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Writes files into a new temporary folder and returns the folder; panics if it cannot be written.
pub fn folder_with(files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().expect("create a temporary folder");
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).expect("write a file");
    }
    folder
}
