//! The daemon's settings: command line over file over defaults, all checked before anything is opened.
mod paced;
mod reload;
mod shown;
mod stored;
mod supervised;

use std::{fs, net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context, bail, ensure};
use common::limits::NAME_LENGTH_MAX;
pub use paced::Paced;
use protocol::{PORT, seal::Protection};
use serde::Deserialize;
use stored::{KvStoreSetting, KvStoreSettings};

use crate::{
    gateway,
    health::{WatchedFolders, machine::host_name, memory},
};

/// State folder of a packaged daemon.
const STATE_DEFAULT: &str = "/var/lib/bramble";
/// Configuration file of a packaged daemon.
const FILE_DEFAULT: &str = "/etc/bramble/bramble.toml";

/// Settings on the command line; they win over the file's.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct DaemonArguments {
    /// Address and port to listen on [default: 127.0.0.1:9999]
    #[arg(long, value_name = "ADDR:PORT", global = true)]
    listen: Option<String>,
    /// Name of this node [default: the host name]
    #[arg(long, value_name = "NAME", global = true)]
    name: Option<String>,
    /// Folder with GGUF files; repeatable [default: STATE/models and /usr/share/bramble]
    #[arg(long, value_name = "DIR")]
    models: Vec<PathBuf>,
    /// Folder for data that must survive a restart [default: /var/lib/bramble]
    #[arg(long, value_name = "DIR", global = true)]
    state: Option<PathBuf>,
    /// Compute threads [default: set by the assignment]
    #[arg(long, value_name = "N")]
    threads: Option<u16>,
    /// Address and port of the HTTP APIs, /metrics and the web page, or `off` [default: 127.0.0.1:9980, or the loopback
    /// address of --listen]
    #[arg(long, value_name = "ADDR:PORT|off")]
    http: Option<String>,
    /// Node with a topology, for a node without a shard; repeatable
    #[arg(long, value_name = "ADDR:PORT")]
    peer: Vec<String>,
    /// TOML file with the same settings and more
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// Write the process id to this file once the port is open; removed at exit
    #[arg(long, value_name = "FILE")]
    pid_file: Option<PathBuf>,
    /// Accept everyone who can reach this node while it has no key; use only on a private network
    #[arg(long)]
    insecure: bool,
    /// Exit with code 75 to be restarted by the supervisor, which lets consoles restart this node (automatic under
    /// systemd)
    #[arg(long)]
    supervised: bool,
    /// Read the machine's health below this folder instead of `/` (for tests)
    #[arg(long, value_name = "DIR", hide = true)]
    health_root: Option<PathBuf>,
    /// Exit when standard input closes
    #[arg(long)]
    pub exit_with_parent: bool,
}

/// Prompts with at least this many tokens are computed by a prefill group: one chunk of a step. For shorter ones, the
/// transfer costs more than it saves.
const ELSEWHERE_FROM: u32 = 128;

/// The keys of the configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    listen: Option<String>,
    name: Option<String>,
    models: Option<Vec<PathBuf>>,
    state: Option<PathBuf>,
    threads: Option<u16>,
    log_dir: Option<PathBuf>,
    memory_max_mib: Option<u64>,
    packed_shards: Option<bool>,
    experts_on_disk: Option<bool>,
    kv_store: Option<KvStoreSetting>,
    speculative: Option<bool>,
    kv_store_max_mib: Option<u64>,
    kv_copies: Option<bool>,
    mdns: Option<bool>,
    prefill_elsewhere_from: Option<u32>,
    heartbeat_ms: Option<u64>,
    silent_ms: Option<u64>,
    stall_ms: Option<u64>,
    drain_ms: Option<u64>,
    lease_ms: Option<u64>,
    recover: Option<bool>,
    exclude_after_ms: Option<u64>,
    exclude_slow_ms: Option<u64>,
    rebalance_after_ms: Option<u64>,
    retry_slow_ms: Option<u64>,
    witness: Option<String>,
    key_file: Option<PathBuf>,
    data_links: Option<Protection>,
    insecure: Option<bool>,
    http: Option<String>,
    api_keys: Option<Vec<String>>,
    api_key_file: Option<PathBuf>,
    operator_api_keys: Option<Vec<String>>,
    operator_api_key_file: Option<PathBuf>,
    unload_after_s: Option<u32>,
    http_hosts: Option<Vec<String>>,
    http_origins: Option<Vec<String>>,
    peers: Option<Vec<String>>,
    http_queue: Option<usize>,
    http_queue_ms: Option<u64>,
    http_resume_ms: Option<u64>,
    http_request_ms: Option<u64>,
    paced: Option<paced::Section>,
}

/// When a peer counts as lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Liveness {
    /// Interval of heartbeats.
    pub heartbeat: Duration,
    /// A peer without a heartbeat for this long is lost.
    pub silent: Duration,
    /// A peer with heartbeats but without progress for this long is stalled.
    pub stall: Duration,
}

/// Automatic recovery of a topology.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Whether it is enabled.
    pub enabled: bool,
    /// A member that is away for longer is excluded; `None`: never.
    pub exclude_after: Option<Duration>,
    /// A rank that delays its peers for this long, by more than its work is worth, is excluded; `None`: never.
    pub exclude_slow: Option<Duration>,
    /// Ranks of a stage whose compute times differ for this long get new shares; `None`: never.
    pub rebalance_after: Option<Duration>,
    /// A straggler is tried again after this time if nothing slows its machine down; `None`: never.
    pub retry_slow: Option<Duration>,
    /// Address of a third daemon that votes if a topology has two members; the same on both.
    pub witness: Option<String>,
}

impl Recovery {
    fn check(file: &File) -> anyhow::Result<Self> {
        ensure!(
            file.witness.as_ref().is_none_or(|text| text.parse::<SocketAddr>().is_ok()),
            "witness {:?} is not ADDRESS:PORT; for example 192.168.1.20:9999",
            file.witness.as_deref().unwrap_or_default()
        );
        let unless_zero = |key, value: Option<u64>, default| match value.unwrap_or(default) {
            0 => Ok(None),
            value => milliseconds(key, Some(value), value, 100).map(Some),
        };
        Ok(Self {
            enabled: file.recover.unwrap_or(true),
            exclude_after: unless_zero("exclude_after_ms", file.exclude_after_ms, 60_000)?,
            exclude_slow: unless_zero("exclude_slow_ms", file.exclude_slow_ms, 60_000)?,
            rebalance_after: unless_zero("rebalance_after_ms", file.rebalance_after_ms, 0)?,
            retry_slow: unless_zero("retry_slow_ms", file.retry_slow_ms, 600_000)?,
            witness: file.witness.clone(),
        })
    }
}

fn milliseconds(key: &str, value: Option<u64>, default: u64, least: u64) -> anyhow::Result<Duration> {
    let value = value.unwrap_or(default);
    ensure!((least..=3_600_000).contains(&value), "{key} is {value}, it must be from {least} to 3600000");
    Ok(Duration::from_millis(value))
}

/// Checked settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Name of this node.
    pub name: String,
    /// Model folders, searched in order.
    pub models: Vec<PathBuf>,
    /// State folder.
    pub state: PathBuf,
    /// PID file.
    pub pid_file: Option<PathBuf>,
    /// Whether a supervisor restarts the daemon after it exits with code 75.
    pub supervised: bool,
    /// Number of prompt tokens from which the head of a decode group uses a prefill group.
    pub prefill_elsewhere_from: u32,
    /// For benchmarks: the node waits instead of computing.
    pub paced: Option<Paced>,
    /// Root of /proc and /sys.
    pub health_root: PathBuf,
    /// Compute threads, unless the assignment sets them.
    pub threads: Option<u16>,
    /// Folder for log files; `None`: standard error only.
    pub log_dir: Option<PathBuf>,
    /// Maximum memory of a shard.
    pub memory_max: Option<u64>,
    /// Whether packed shards are kept in the state folder, to speed up the next start.
    pub packed_shards: bool,
    /// Whether experts stay on the disk, behind a cache in memory, if a shard does not fit otherwise.
    pub experts_on_disk: bool,
    /// Whether and how many keys and values are stored, and copied to other nodes.
    pub kv_store: KvStoreSettings,
    /// Whether heads propose tokens before these are sampled.
    pub speculative: bool,
    /// Whether the node announces itself on the local network.
    pub mdns: bool,
    /// When a peer counts as lost.
    pub liveness: Liveness,
    /// Time limit of a drain.
    pub drain: Duration,
    /// A prepared assignment expires after this time.
    pub lease: Duration,
    /// Automatic recovery of a topology.
    pub recovery: Recovery,
    /// File with the cluster's key.
    pub key_file: PathBuf,
    /// Protection of data links between nodes with a key; of two nodes' settings, the stronger applies.
    pub data_links: Protection,
    /// Whether everyone may use the node while it has no key.
    pub insecure: bool,
    /// The HTTP APIs.
    pub http: gateway::GatewaySettings,
}

impl Config {
    /// The folders whose disks are watched.
    pub fn watched_folders(&self) -> WatchedFolders {
        WatchedFolders { models: self.models.clone(), state: self.state.clone() }
    }

    /// Settings for a check of the machine: those of the named file, otherwise of the packaged file if it is readable,
    /// otherwise none.
    ///
    /// # Errors
    /// The named file cannot be read or is invalid.
    pub fn for_check(arguments: DaemonArguments) -> anyhow::Result<Option<Self>> {
        if arguments.config.is_some() || arguments.listen.is_some() {
            return Self::load(arguments).map(Some);
        }
        let packaged = DaemonArguments { config: Some(FILE_DEFAULT.into()), ..arguments };
        Ok(Self::load(packaged).ok())
    }

    /// Reads the configuration file that the arguments name; arguments override it.
    ///
    /// # Errors
    /// The file cannot be read, or has an unknown key or an invalid value.
    pub fn load(arguments: DaemonArguments) -> anyhow::Result<Self> {
        let file = match &arguments.config {
            Some(path) => {
                let reading = || format!("cannot read {}", path.display());
                let text = fs::read_to_string(path).with_context(reading)?;
                let file: File =
                    toml::from_str(&text).with_context(|| format!("{} is invalid; correct it", path.display()))?;
                if [&file.api_keys, &file.operator_api_keys].into_iter().flatten().any(|keys| !keys.is_empty()) {
                    gateway::check_mode(path, &fs::metadata(path).with_context(reading)?)?;
                }
                file
            }
            None => File::default(),
        };
        Self::merge(arguments, file)
    }

    /// Like [`Self::load`], but with the packaged file as the default: for commands on a machine where systemd runs the
    /// daemon.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_as_packaged(mut arguments: DaemonArguments) -> anyhow::Result<Self> {
        arguments.config = arguments.config.or_else(|| Some(PathBuf::from(FILE_DEFAULT)).filter(|path| path.exists()));
        Self::load(arguments)
    }

    fn merge(arguments: DaemonArguments, file: File) -> anyhow::Result<Self> {
        let recovery = Recovery::check(&file)?;
        let listen = arguments.listen.or(file.listen).unwrap_or_else(|| format!("127.0.0.1:{PORT}"));
        let Ok(listen) = listen.parse::<SocketAddr>() else {
            bail!("listen address {listen:?} is not ADDRESS:PORT; for example 192.168.1.11:9999")
        };
        let name = arguments.name.or(file.name).unwrap_or_else(host_name);
        ensure!(
            !name.is_empty() && name.len() <= NAME_LENGTH_MAX && !name.chars().any(|c| c.is_control() || c == ','),
            "name {name:?} is empty, too long or contains control characters or commas; choose another one"
        );
        let state = arguments.state.or(file.state).unwrap_or_else(|| STATE_DEFAULT.into());
        let mut models = arguments.models;
        if models.is_empty() {
            models = file.models.unwrap_or_else(|| vec![state.join("models"), "/usr/share/bramble".into()]);
        }
        let threads = arguments.threads.or(file.threads);
        ensure!(threads.is_none_or(|threads| (1..=256).contains(&threads)), "threads must be from 1 to 256");
        let paced = file.paced.map(Paced::check).transpose()?;
        let liveness = Liveness {
            heartbeat: milliseconds("heartbeat_ms", file.heartbeat_ms, 250, 10)?,
            silent: milliseconds("silent_ms", file.silent_ms, 2000, 50)?,
            stall: milliseconds("stall_ms", file.stall_ms, 10_000, 1000)?,
        };
        ensure!(liveness.silent >= 2 * liveness.heartbeat, "silent_ms must be at least twice heartbeat_ms");
        let http = gateway::Wanted {
            // The output of a paced node must not reach a client.
            http: if paced.is_some() { Some("off".into()) } else { arguments.http.or(file.http) },
            keys: file.api_keys.unwrap_or_default(),
            key_file: file.api_key_file,
            operator_keys: file.operator_api_keys.unwrap_or_default(),
            operator_key_file: file.operator_api_key_file,
            unload_after: file.unload_after_s,
            own: vec![name.clone(), host_name()],
            hosts: file.http_hosts.unwrap_or_default(),
            origins: file.http_origins.unwrap_or_default(),
            memory: memory::total().0,
            peers: if arguments.peer.is_empty() { file.peers.unwrap_or_default() } else { arguments.peer },
            queue: file.http_queue,
            queue_wait: milliseconds("http_queue_ms", file.http_queue_ms, 30_000, 1)?,
            resume_wait: milliseconds("http_resume_ms", file.http_resume_ms, 60_000, 1)?,
            request_max: milliseconds("http_request_ms", file.http_request_ms, 1_800_000, 100)?,
            silent: liveness.silent,
            recovers: file.recover.unwrap_or(true),
        };
        Ok(Self {
            recovery,
            http: http.check(listen)?,
            key_file: file.key_file.unwrap_or_else(|| state.join("cluster.key")),
            data_links: file.data_links.unwrap_or_default(),
            insecure: arguments.insecure || file.insecure.unwrap_or(false),
            listen,
            name,
            models,
            state,
            pid_file: arguments.pid_file,
            prefill_elsewhere_from: file.prefill_elsewhere_from.unwrap_or(ELSEWHERE_FROM),
            paced,
            supervised: arguments.supervised || supervised::by_systemd(),
            health_root: arguments.health_root.unwrap_or_else(|| "/".into()),
            threads,
            log_dir: file.log_dir,
            memory_max: file.memory_max_mib.map(|mib| mib.saturating_mul(1 << 20)),
            packed_shards: file.packed_shards.unwrap_or(true),
            experts_on_disk: file.experts_on_disk.unwrap_or(false),
            kv_store: KvStoreSettings::of(file.kv_store, file.kv_store_max_mib, file.kv_copies),
            speculative: file.speculative.unwrap_or(true),
            mdns: file.mdns.unwrap_or(!listen.ip().is_loopback()),
            liveness,
            drain: milliseconds("drain_ms", file.drain_ms, 20_000, 1)?,
            lease: milliseconds("lease_ms", file.lease_ms, 60_000, 100)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str) -> Result<Config, String> {
        let file = toml::from_str(text).map_err(|error| error.to_string())?;
        let arguments = DaemonArguments { name: Some("pi1".into()), ..DaemonArguments::default() };
        Config::merge(arguments, file).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_that_are_copied_at_the_start_keep_their_values_and_are_named() {
        let old = check("").expect("it is good");
        for key in [
            "kv_store = \"on\"",
            "insecure = true",
            "recover = false",
            "exclude_after_ms = 0",
            "exclude_slow_ms = 0",
            "rebalance_after_ms = 1000",
            "retry_slow_ms = 0",
            "witness = \"127.0.0.1:1\"",
        ] {
            let (kept, differing) = check(key).expect(key).reloaded(&old);
            assert_eq!((kept, differing.len()), (old.clone(), 1), "{key}");
            assert!(key.starts_with(differing[0]), "{key}: {differing:?}");
        }
        let text = "drain_ms = 7\nlease_ms = 5000\nmodels = [\"/srv/models\"]\n";
        let (changed, differing) = check(text).expect("it is good").reloaded(&old);
        assert!(differing.is_empty() && changed.drain == Duration::from_millis(7), "{differing:?}");
        assert_eq!(changed.models, [PathBuf::from("/srv/models")]);
    }

    #[test]
    fn unknown_key_is_refused_with_its_line() {
        let error = check("listen = \"127.0.0.1:1\"\nlisten_adress = 1\n").expect_err("the key does not exist");
        assert!(error.contains("line 2") && error.contains("listen_adress"), "{error}");
    }

    #[test]
    fn values_out_of_bounds_are_refused_by_name() {
        for (text, named) in [
            ("listen = \"here\"", "here"),
            ("threads = 0", "threads"),
            ("heartbeat_ms = 1", "heartbeat_ms"),
            ("heartbeat_ms = 300\nsilent_ms = 400", "silent_ms"),
            ("drain_ms = 9999999999", "drain_ms"),
            ("threads = \"two\"", "line 1"),
            ("data_links = \"secret\"", "secret"),
            ("kv_store = \"maybe\"", "maybe"),
            ("[paced]\nprofile = \"pi9\"", "paced.profile"),
            ("[paced]\nprofile = \"pi5\"\nspeed = nan", "paced.speed"),
            ("[paced]\nprofile = \"pi5\"\nslow_motion = 0.0", "paced.slow_motion"),
            ("[paced]\nprofile = \"pi5\"\nslows_to = 2.0", "paced.slows_to"),
            ("[paced]\nprofile = \"pi5\"\njitter_ppm = 2000000", "paced.jitter_ppm"),
        ] {
            let error = check(text).expect_err("the value is out of bounds");
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn packaged_file_lists_every_key_and_each_is_accepted() {
        let text = include_str!("../../../packaging/bramble.toml");
        let settings: Vec<&str> = text
            .lines()
            .filter(|line| line.contains(" = ") && !line.starts_with("# "))
            .map(|line| line.trim_start_matches('#'))
            .collect();
        assert_eq!(settings.len(), 40);
        let config = check(&settings.join("\n")).expect("every key is known");
        assert_eq!(config.liveness.silent, Duration::from_millis(2000));
        let shipped = check(text).expect("every line is known");
        assert_eq!(shipped.listen.to_string(), "0.0.0.0:9999", "as shipped, only the listen address is set");
    }

    #[test]
    fn readable_files_with_api_keys_are_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder can be made");
        let [keys, config] = ["keys", "bramble.toml"].map(|name| folder.path().join(name));
        fs::write(&keys, "sk-0123456789\n").expect("the folder can be written");
        let load = |text: &str, modes: [u32; 2]| {
            fs::write(&config, text).expect("the folder can be written");
            for (path, mode) in [&keys, &config].into_iter().zip(modes) {
                fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
            }
            let arguments = DaemonArguments { config: Some(config.clone()), ..DaemonArguments::default() };
            Config::load(arguments).map(drop).map_err(|error| format!("{error:#}"))
        };
        let in_file = format!("api_key_file = \"{}\"", keys.display());
        assert_eq!(load(&in_file, [0o600, 0o644]), Ok(()));
        assert_eq!(load(&in_file, [0o640, 0o644]), Ok(()), "a file of root and the daemon's group");
        for mode in [0o644, 0o660, 0o604] {
            let error = load(&in_file, [mode, 0o600]).expect_err("others can read or change it");
            assert!(error.contains(&format!("chmod 640 {}", keys.display())), "{error}");
        }
        let inside = "api_keys = [\"sk-0123456789\"]";
        assert_eq!(load(inside, [0o600, 0o640]), Ok(()));
        assert!(load(inside, [0o600, 0o644]).expect_err("others can read it").contains("chmod 640"));
        assert_eq!(load("threads = 2", [0o600, 0o644]), Ok(()), "without keys it is no secret");
    }

    #[test]
    fn command_line_overrides_the_file() {
        let config = check("name = \"other\"\nmemory_max_mib = 2").expect("the file is good");
        assert_eq!((config.name.as_str(), config.memory_max), ("pi1", Some(2 << 20)));
    }
}
