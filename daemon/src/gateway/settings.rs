//! The gateway's address, keys and time limits, checked before anything is opened.
use std::{
    fmt, fs,
    io::Read,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::unix::fs::MetadataExt,
    path::Path,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use common::browser::BrowserPolicy;
use protocol::{PORT, address::is_address};

/// Default port of the HTTP API, next to 9999 for the node.
const HTTP_PORT: u16 = 9980;
/// Most keys.
const KEYS_MAX: usize = 1024;
/// Longest and shortest key in bytes.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 8..=256;
/// Seconds after which a model that was loaded for a request is unloaded.
const UNLOAD_AFTER: u32 = 900;
/// Most peer addresses of a node without a shard.
const PEERS_MAX: usize = 64;

/// A key of the API; never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

impl ApiKey {
    /// Compares a client's key in constant time for keys of the same length.
    pub fn is(&self, given: &[u8]) -> bool {
        let own = self.0.as_bytes();
        let difference = own.iter().zip(given).fold(0, |difference, (a, b)| difference | (a ^ b));
        std::hint::black_box(difference) == 0 && own.len() == given.len()
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(..)")
    }
}

/// Settings as given by the command line and the configuration file.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// `ADDR:PORT` or `off`.
    pub http: Option<String>,
    /// Keys in the configuration file.
    pub keys: Vec<String>,
    /// A file of keys, one per line.
    pub key_file: Option<std::path::PathBuf>,
    /// Keys whose clients may also change models, as `keys`.
    pub operator_keys: Vec<String>,
    /// A file of them, one per line.
    pub operator_key_file: Option<std::path::PathBuf>,
    /// Seconds without a request after which a model that was loaded for one is unloaded; 0: never.
    pub unload_after: Option<u32>,
    /// Names of this node and of its machine.
    pub own: Vec<String>,
    /// Additional host names accepted in requests; `*`: any.
    pub hosts: Vec<String>,
    /// Origins of web pages that may send requests; `*`: any.
    pub origins: Vec<String>,
    /// This machine's memory in bytes.
    pub memory: u64,
    /// Nodes to ask for a topology.
    pub peers: Vec<String>,
    /// Most waiting requests.
    pub queue: Option<usize>,
    /// Longest wait in the queue.
    pub queue_wait: Duration,
    /// Longest wait of a broken answer for a replica.
    pub resume_wait: Duration,
    /// Longest duration of a request.
    pub request_max: Duration,
    /// Silence after which a node counts as lost.
    pub silent: Duration,
    /// Whether a broken topology recovers by itself: then new requests wait for it.
    pub recovers: bool,
}

/// Checked settings of the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewaySettings {
    /// Address to listen on; `None`: no gateway.
    pub listen: Option<SocketAddr>,
    /// Whether that address is the default: then it is only a warning if it is in use.
    pub is_default: bool,
    /// Accepted keys; empty: no key is required.
    pub keys: Vec<ApiKey>,
    /// Accepted keys whose clients may also change models; empty: no client may.
    pub operator_keys: Vec<ApiKey>,
    /// Seconds without a request after which a model that was loaded for one is unloaded; `None`: never.
    pub unload_after: Option<u32>,
    /// Additional accepted host names, as configured.
    pub hosts: Vec<String>,
    /// Accepted origins of web pages, as configured.
    pub origins: Vec<String>,
    /// The policy that follows from both and from the node's own names.
    pub browsers: BrowserPolicy,
    /// This machine's memory in bytes.
    pub memory: u64,
    /// `ADDR:PORT` of nodes to ask for a topology, for a node without a shard.
    pub peers: Vec<String>,
    /// Most requests in the queue.
    pub queue: usize,
    /// Longest wait for a slot.
    pub queue_wait: Duration,
    /// Longest wait of a broken answer for a replica that continues it.
    pub resume_wait: Duration,
    /// Longest duration of a request, from its first byte to its last.
    pub request_max: Duration,
    /// Silence after which a node counts as lost.
    pub silent: Duration,
    /// Whether a broken topology recovers by itself: then new requests wait for it.
    pub recovers: bool,
}

impl Wanted {
    /// Checks all settings; `listen` is the address of the node itself.
    ///
    /// # Errors
    /// A setting is out of range, or an address beyond loopback has no key.
    pub fn check(self, listen: SocketAddr) -> anyhow::Result<GatewaySettings> {
        let is_default = self.http.is_none();
        let address = match self.http.as_deref() {
            None => Some(beside(listen)),
            Some("off") => None,
            Some(text) => match text.parse() {
                Ok(address) => Some(address),
                Err(_) => bail!("http address {text:?} is not ADDRESS:PORT or off; for example 127.0.0.1:{HTTP_PORT}"),
            },
        };
        let keys = checked("API key", self.keys, self.key_file.as_deref())?;
        let operator_keys = checked("operator API key", self.operator_keys, self.operator_key_file.as_deref())?;
        if let Some(address) = address.filter(|address| !address.ip().is_loopback()) {
            ensure!(
                !keys.is_empty() || !operator_keys.is_empty(),
                "http address {address} is reachable from outside without an API key; set api_keys or api_key_file, \
                 or listen on a loopback address"
            );
        }
        ensure!(self.peers.len() <= PEERS_MAX, "{} peers were given, at most {PEERS_MAX}", self.peers.len());
        for peer in &self.peers {
            ensure!(is_address(peer), "peer {peer:?} is not ADDRESS:PORT; for example 192.168.1.11:{PORT}");
        }
        let browsers = match BrowserPolicy::new(&self.own, &self.hosts, &self.origins) {
            Ok(browsers) => browsers,
            Err(why) => bail!("http_hosts or http_origins: {why}"),
        };
        let queue = self.queue.unwrap_or(64);
        ensure!(queue <= 4096, "http_queue is {queue}, it must be at most 4096");
        Ok(GatewaySettings {
            listen: address,
            is_default,
            keys,
            operator_keys,
            unload_after: match self.unload_after {
                Some(0) => None,
                Some(seconds) => Some(seconds),
                None => Some(UNLOAD_AFTER),
            },
            hosts: self.hosts,
            origins: self.origins,
            browsers,
            memory: self.memory,
            peers: self.peers,
            queue,
            queue_wait: self.queue_wait,
            resume_wait: self.resume_wait,
            request_max: self.request_max,
            silent: self.silent,
            recovers: self.recovers,
        })
    }
}

/// Default HTTP address: each loopback address has a gateway of its own, so that several daemons on one machine do not
/// collide; for any other address the gateway is on the machine's loopback address.
fn beside(listen: SocketAddr) -> SocketAddr {
    let ip = if listen.ip().is_loopback() { listen.ip() } else { IpAddr::V4(Ipv4Addr::LOCALHOST) };
    let distance = PORT - HTTP_PORT;
    SocketAddr::new(ip, listen.port().checked_sub(distance).filter(|port| *port >= 1024).unwrap_or(HTTP_PORT))
}

/// Rejects a file with API keys that others can read, or that its group can change.
///
/// # Errors
/// Its permissions allow more than its owner and the daemon's group need.
pub fn check_mode(path: &Path, metadata: &fs::Metadata) -> anyhow::Result<()> {
    let (path, mode) = (path.display(), metadata.mode() & 0o777);
    ensure!(
        mode & 0o027 == 0,
        "{path} holds API keys and others can read or change it (mode {mode:04o}): chown root:bramble {path}; chmod 640 {path}"
    );
    Ok(())
}

/// The keys of the configuration and of a file.
fn checked(what: &str, mut texts: Vec<String>, file: Option<&Path>) -> anyhow::Result<Vec<ApiKey>> {
    if let Some(path) = file {
        texts.extend(keys_in(path)?);
    }
    ensure!(texts.len() <= KEYS_MAX, "{} {what}s were given, at most {KEYS_MAX}; leave some out", texts.len());
    for (index, key) in texts.iter().enumerate() {
        let is_good = KEY_BYTES.contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
        let (least, most) = (KEY_BYTES.start(), KEY_BYTES.end());
        ensure!(is_good, "{what} {} must have {least} to {most} visible ASCII characters; give another", index + 1);
    }
    Ok(texts.into_iter().map(ApiKey).collect())
}

/// Reads one key per line; ignores empty lines and those that begin with #.
fn keys_in(path: &Path) -> anyhow::Result<Vec<String>> {
    let reading = || format!("cannot read the API keys in {}", path.display());
    let mut file = fs::File::open(path).with_context(reading)?;
    check_mode(path, &file.metadata().with_context(reading)?)?;
    let mut text = String::new();
    file.read_to_string(&mut text).with_context(reading)?;
    let keys: Vec<String> =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).map(Into::into).collect();
    ensure!(!keys.is_empty(), "{} holds no API key; write one a line", path.display());
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(change: impl FnOnce(&mut Wanted)) -> Result<GatewaySettings, String> {
        let mut wanted = Wanted::default();
        change(&mut wanted);
        wanted.check("192.168.1.11:9999".parse().expect("an address")).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn without_key_only_loopback_is_allowed() {
        let error = check(|wanted| wanted.http = Some("0.0.0.0:80".into())).expect_err("there is no key");
        assert!(error.contains("0.0.0.0:80") && error.contains("api_key"), "{error}");
        assert!(
            check(|wanted| {
                (wanted.http, wanted.keys) = (Some("0.0.0.0:80".into()), vec!["sk-0123456789".into()]);
            })
            .is_ok()
        );
        assert_eq!(check(|_| {}).expect("the default").listen, Some("127.0.0.1:9980".parse().expect("an address")));
        assert_eq!(check(|wanted| wanted.http = Some("off".into())).expect("off").listen, None);
    }

    #[test]
    fn daemons_on_loopback_addresses_have_a_gateway_each() {
        for (listen, http) in [
            ("127.0.0.2:9999", "127.0.0.2:9980"),
            ("127.0.0.2:10000", "127.0.0.2:9981"),
            ("127.0.0.2:7", "127.0.0.2:9980"),
            ("[::1]:9999", "[::1]:9980"),
            ("10.0.0.1:1234", "127.0.0.1:1215"),
        ] {
            assert_eq!(beside(listen.parse().expect("an address")).to_string(), http, "{listen}");
        }
    }

    #[test]
    fn invalid_key_address_or_peer_is_named() {
        for (change, part) in [
            (
                Box::new(|wanted: &mut Wanted| wanted.keys = vec!["short".into()]) as Box<dyn FnOnce(&mut Wanted)>,
                "API key 1",
            ),
            (Box::new(|wanted: &mut Wanted| wanted.http = Some("here".into())), "here"),
            (Box::new(|wanted: &mut Wanted| wanted.peers = vec!["pi1".into()]), "pi1"),
            (Box::new(|wanted: &mut Wanted| wanted.hosts = vec!["http://pi1".into()]), "http_hosts"),
            (Box::new(|wanted: &mut Wanted| wanted.origins = vec!["chat.example".into()]), "chat.example"),
            (Box::new(|wanted: &mut Wanted| wanted.queue = Some(5000)), "http_queue"),
            (Box::new(|wanted: &mut Wanted| wanted.key_file = Some("/nowhere/keys".into())), "/nowhere/keys"),
        ] {
            let error = check(change).expect_err("it is refused");
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn key_is_compared_whole_and_never_printed() {
        let key = ApiKey("sk-secret".into());
        assert!(key.is(b"sk-secret"));
        assert!(!key.is(b"sk-secre") && !key.is(b"sk-secret1") && !key.is(b"") && !key.is(b"sk-secreT"));
        assert!(!format!("{key:?}").contains("secret"));
    }
}
