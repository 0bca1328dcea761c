//! Nodes without a key: what they answer, how they are adopted by a pairing code or over ssh, and how the cluster key
//! is rotated.
use std::{
    fs,
    net::{TcpListener, UdpSocket},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

use harness::programs::{Cluster, Ended, console, demo_models, finish, programs};
use tempfile::TempDir;

use crate::json_output::assert_described;

/// Creates a key in a new folder.
fn key() -> (TempDir, String) {
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let path = folder.path().join("cluster.key").into_os_string().into_string().expect("tempfile's names are ASCII");
    assert_eq!(console(&["key", "new", "--key", &path, "--json"]).code, Some(0));
    (folder, path)
}

/// Runs `brambled pair` next to a running node; returns the code.
pub(crate) fn pair(cluster: &Cluster, index: usize) -> String {
    let mut brambled = Command::new(programs().join("brambled"));
    brambled.args(["--listen", &cluster.addresses[index], "--name", "pi1", "--state"]).arg(cluster.state(index));
    let ended = brambled.args(["pair", "--json"]).output().expect("brambled runs");
    let err = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success(), "{err}");
    let object: serde_json::Value = serde_json::from_slice(&ended.stdout).expect("an object");
    object["code"].as_str().expect("a code").to_owned()
}

fn adopt(address: &str, code: &str, key: &str) -> Ended {
    console(&["key", "adopt", address, "--code", code, "--key", key, "--json"])
}

/// A different code.
fn another(code: &str, number: u32) -> String {
    let digits: u32 = code.replace('-', "").parse().expect("eight digits");
    let other = format!("{:08}", (digits + number) % 100_000_000);
    format!("{}-{}", &other[..4], &other[4..])
}

/// Runs `console` with an empty home, so that no key is found in the default place.
fn keyless(arguments: &[&str]) -> Ended {
    let home = tempfile::tempdir().expect("create a temporary folder");
    let mut command = Command::new(programs().join("console"));
    command.args(arguments).env("XDG_CONFIG_HOME", home.path()).env_remove("BRAMBLE_KEY_FILE");
    let ended = command.env_remove("BRAMBLE_NODES").output().expect("console runs");
    let text = |bytes| String::from_utf8(bytes).expect("console prints UTF-8");
    Ended { code: ended.status.code(), out: text(ended.stdout), err: text(ended.stderr) }
}

fn generate(address: &str) -> [&str; 11] {
    let (model, prompt) = ("bard-q8_0.gguf", "ROMEO:");
    [
        "generate",
        "--nodes",
        address,
        "--model",
        model,
        "--prompt",
        prompt,
        "--max-tokens",
        "4",
        "--json",
        "--temperature=0",
    ]
}

/// An address of this machine other than loopback; found without sending a packet.
fn own_address() -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let ip = socket.local_addr().ok()?.ip();
    let listener = TcpListener::bind((ip, 0)).ok()?;
    (!ip.is_loopback() && !ip.is_unspecified()).then(|| listener.local_addr().ok().map(|a| a.to_string())).flatten()
}

#[test]
fn unclaimed_node_answers_only_pairing_until_it_has_a_key() {
    let Some(address) = own_address() else {
        return eprintln!("SKIPPED: this machine has only loopback addresses");
    };
    let cluster = Cluster::at(&address, &[]);
    keyless(&generate(&address)).assert_error(4, "unclaimed", &["pi1", "no cluster key"]);
    let status = keyless(&["status", "--nodes", &address, "--json"]).json();
    assert_eq!(status["nodes"][0]["error"]["code"], "unclaimed", "{status}");
    let (_folder, key) = key();
    // A console that has a key must still use it.
    console(&[&generate(&address)[..], &["--key", &key]].concat()).assert_error(4, "unclaimed", &[]);
    adopt(&address, "1234-5678", &key).assert_error(4, "not_pairing", &["shows no pairing code"]);
    let code = pair(&cluster, 0);
    adopt(&address, &another(&code, 1), &key).assert_error(4, "code_wrong", &["pi1", "4 more"]);
    let adopted = adopt(&address, &code, &key).json();
    let fingerprint = console(&["key", "show", "--fingerprint", "--key", &key]);
    assert_eq!(adopted["nodes"][0]["fingerprint"], fingerprint.out.trim(), "{adopted}");
    console(&[&generate(&address)[..], &["--key", &key]].concat()).completion();
    keyless(&generate(&address)).assert_error(4, "key_needed", &[]);
    adopt(&address, &code, &key).assert_error(4, "claimed", &["already"]);
    let mode = fs::metadata(cluster.state(0).join("cluster.key")).expect("it was kept").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn insecure_node_on_the_network_serves_everyone_and_reports_it() {
    let Some(address) = own_address() else {
        return eprintln!("SKIPPED: this machine has only loopback addresses");
    };
    let cluster = Cluster::at(&address, &["--insecure"]);
    keyless(&generate(&address)).completion();
    assert!(cluster.log(0).contains("insecure: everyone"), "{}", cluster.log(0));
}

#[test]
fn after_five_wrong_codes_only_that_address_is_blocked() {
    let cluster = Cluster::of(1);
    let (_folder, key) = key();
    let (address, code) = (&cluster.addresses[0], pair(&cluster, 0));
    for number in 1..=5 {
        let left = format!("{} more", 5 - number);
        adopt(address, &another(&code, number), &key).assert_error(4, "code_wrong", &[&left]);
    }
    adopt(address, &code, &key).assert_error(4, "not_pairing", &[]);
    assert!(cluster.log(0).contains("wrong code"), "{}", cluster.log(0));
    let again = pair(&cluster, 0);
    assert_eq!(adopt(address, &again, &key).code, Some(0));
}

#[test]
fn nodes_are_adopted_over_ssh_and_rotate_their_key_together() {
    let cluster = Cluster::with(2, &demo_models(), "");
    let (folder, key) = key();
    // A fake ssh that runs the commands for those hosts on this machine.
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).expect("write to the folder");
    let hosts: Vec<&str> = cluster.addresses.iter().filter_map(|a| a.split(':').next()).collect();
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in\n*' {} sudo brambled pair --json') state={} ;;\n*' {} sudo brambled pair --json') state={} ;;\n\
         *) echo \"unexpected: $*\" >&2; exit 255 ;;\nesac\nexec {}/brambled --state $state pair --json\n",
        hosts[0],
        cluster.state(0).display(),
        hosts[1],
        cluster.state(1).display(),
        programs().display()
    );
    let ssh = bin.join("ssh");
    fs::write(&ssh, script).expect("write to the folder");
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).expect("this process owns the file");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(programs().join("console"));
    command.args(["key", "adopt"]).args(&cluster.addresses).args(["--ssh", "--json", "--key", &key]).env("PATH", path);
    let ended = command.output().expect("console runs");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_described("console key adopt", &serde_json::from_slice(&ended.stdout).expect("an object"));
    let with = |key: &str| cluster.generate(2, &["--prompt", "ROMEO:", "--max-tokens", "4", "--key", key]);
    with(&key).completion();

    let before = folder.path().join("before.key").into_os_string().into_string().expect("ASCII");
    copy(Path::new(&key), Path::new(&before));
    let nodes = cluster.nodes();
    let rotate =
        |grace| console(&["key", "rotate", "--nodes", &nodes, "--grace", grace, "--yes", "--json", "--key", &key]);
    let old = console(&["key", "show", "--fingerprint", "--key", &before]).out;
    let rotated = rotate("3600").json();
    assert_described("console key rotate", &rotated);
    assert!(rotated["fingerprint"].as_str().is_some_and(|new| new != old.trim()), "{rotated}");
    with(&key).completion();
    with(&before).completion();
    rotate("0").json();
    with(&before).assert_error(4, "key_differs", &[]);
    with(&key).completion();
    assert!(!Path::new(&format!("{key}.next")).exists());
}

#[test]
fn failed_command_over_ssh_is_no_failed_login() {
    let (folder, key) = key();
    let script = "#!/bin/sh\ncase \"$*\" in\n\
        *' 192.0.2.1 sudo '*) echo 'sudo: a password is required' >&2; exit 1 ;;\n\
        *' 192.0.2.2 sudo '*) echo 'Permission denied (publickey).' >&2; exit 255 ;;\n\
        *) echo 'brambled: pi3 already belongs to cluster 1a2b' >&2; exit 1 ;;\nesac\n";
    let ssh = folder.path().join("ssh");
    fs::write(&ssh, script).expect("write to the folder");
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).expect("this process owns the file");
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap_or_default());
    let adopt = |address: &str| {
        let mut command = Command::new(programs().join("console"));
        command.args(["key", "adopt", address, "--ssh", "--json", "--key", &key]).env("PATH", &path);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        finish(command.spawn().expect("console runs"))
    };
    let asks = adopt("192.0.2.1");
    asks.assert_error(8, "state", &["192.0.2.1: sudo brambled pair failed over ssh: sudo: a password is required"]);
    let next = asks.json()["error"]["next"].to_string();
    assert!(next.contains("sudo brambled pair") && next.contains("without a password"), "{next}");
    adopt("192.0.2.2").assert_error(3, "node_unreachable", &["Permission denied"]);
    adopt("192.0.2.3").assert_error(4, "claimed", &["already belongs"]);
}

#[test]
fn rotation_that_misses_a_node_locks_no_console_out() {
    let mut cluster = Cluster::of(2);
    let (_folder, key) = key();
    for index in 0..2 {
        let code = pair(&cluster, index);
        assert_eq!(adopt(&cluster.addresses[index], &code, &key).code, Some(0));
    }
    let (addresses, nodes) = (cluster.addresses.clone(), cluster.nodes());
    // Without a grace period: a node that has the new key accepts no other.
    let rotate =
        |nodes: &str| console(&["key", "rotate", "--nodes", nodes, "--grace", "0", "--yes", "--json", "--key", &key]);
    let status = |index: usize| console(&["status", "--nodes", &addresses[index], "--json", "--key", &key]);
    let is_open = || Path::new(&format!("{key}.next")).exists();
    for is_left_out in [false, true] {
        cluster.signal(1, nix::sys::signal::Signal::SIGKILL);
        cluster.wait(1);
        let missed = rotate(&nodes);
        missed.assert_error(3, "node_unreachable", &[]);
        let next = missed.json()["error"]["next"].to_string();
        assert!(next.contains(&addresses[1]) && next.contains(&format!("--nodes {};", addresses[0])), "{next}");
        assert_eq!(status(0).code, Some(0), "{}", status(0).err);
        assert!(is_open(), "the rotation can be continued");
        if is_left_out {
            rotate(&addresses[0]).json();
            assert!(!is_open() && status(0).code == Some(0));
        } else {
            cluster.start(1);
            rotate(&nodes).json();
            assert!(!is_open() && [status(0).code, status(1).code] == [Some(0); 2]);
        }
    }
}

fn copy(from: &Path, to: &Path) {
    fs::copy(from, to).expect("write to the folder");
    fs::set_permissions(to, fs::Permissions::from_mode(0o600)).expect("this process owns the file");
}
