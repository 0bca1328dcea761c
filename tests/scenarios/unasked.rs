//! Tries and refuses every console command that changes something: nothing changes on a serving cluster without
//! confirmation. A command missing from the list below fails the test: its effect must be declared.
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use gguf::BlockFormat;
use harness::tiny_model::Architecture;
use harness::{
    programs::{CONFIG_HOME, Cluster, DEEP, Ended, finish, folder_with, programs, wait_until},
    tiny_model::TinyModel,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// The effect of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    /// Changes nothing permanently.
    Reads,
    /// Only adds something new, as its arguments state; supports `--dry-run`.
    Adds,
    /// Changes or ends something: asks for confirmation and supports `--dry-run`.
    Changes,
}
use Does::{Adds, Changes, Reads};

/// A model other than the one that is served.
const OTHER: &str = "tiny.gguf";

/// All commands, and the arguments of those that change something, a line for each form. ALL are all nodes, SERVE those that serve, NEW one
/// that does not, FILE a model on this machine, TOPOLOGY a topology file, OUT a file that does not exist, REQUEST a
/// running request.
const COMMANDS: &[(&str, Does, &str)] = &[
    ("acceptance", Changes, "--nodes SERVE --out OUT"),
    ("bench links", Reads, ""),
    ("bench node", Reads, ""),
    ("cluster add", Adds, "lab 127.0.0.1"),
    ("cluster list", Reads, ""),
    ("cluster remove", Adds, "home"),
    ("cluster use", Adds, "home"),
    ("completions", Reads, ""),
    ("demo", Reads, ""),
    ("doctor", Reads, ""),
    ("events", Reads, ""),
    ("generate", Changes, "--nodes ALL --model tiny.gguf --prompt a --max-tokens 1"),
    ("generate", Changes, "--profile --nodes ALL --model tiny.gguf --prompt a --max-tokens 1"),
    ("key adopt", Adds, "NEW --code 1234-5678"),
    ("key new", Adds, "--key OUT"),
    ("key rotate", Changes, "--nodes SERVE"),
    ("key show", Reads, ""),
    ("kv", Reads, ""),
    ("kv clear", Changes, "--nodes ALL"),
    ("kv list", Reads, ""),
    ("logs", Reads, ""),
    ("model list", Reads, ""),
    ("model pull", Adds, "FILE --node pi5 --nodes ALL"),
    ("model pull", Adds, "http://127.0.0.1:9/new.gguf --nodes ALL"),
    ("model pull", Adds, "tiny.gguf --from pi1 --node pi5 --nodes ALL"),
    ("model remove", Changes, "tiny.gguf --nodes ALL"),
    ("model search", Reads, ""),
    ("model verify", Reads, ""),
    ("node add", Changes, "NEW --nodes SERVE"),
    ("node check", Reads, ""),
    ("node cordon", Changes, "pi2 --reason fan --nodes ALL"),
    ("node discover", Reads, ""),
    ("node exclude", Changes, "pi2 --reason fan --nodes ALL"),
    ("node include", Changes, "pi4 --nodes ALL"),
    ("node remove", Changes, "pi3 --nodes SERVE"),
    ("node replace", Changes, "pi3 NEW --nodes SERVE"),
    ("node show", Reads, ""),
    ("proxy", Reads, ""),
    ("replay", Reads, ""),
    ("requests", Reads, ""),
    ("requests cancel", Changes, "REQUEST --nodes SERVE"),
    ("restart", Changes, "--nodes SERVE"),
    ("run", Changes, "tiny.gguf hello --nodes ALL"),
    ("screen", Reads, ""),
    ("status", Reads, ""),
    ("sync", Reads, ""),
    ("tokenize", Reads, ""),
    ("topology assign", Changes, "TOPOLOGY"),
    ("topology plan", Reads, ""),
    ("topology show", Reads, ""),
    ("topology simulate", Reads, ""),
    ("topology take-over", Changes, "--nodes SERVE"),
    ("topology unload", Changes, "--nodes SERVE"),
    ("up", Changes, "ALL --insecure --model tiny.gguf --prompt a"),
];

fn leaves(at: &clap::Command, path: &str, found: &mut BTreeMap<String, clap::Command>) {
    if !path.is_empty() && !at.is_subcommand_required_set() {
        found.insert(path.trim_start().to_owned(), at.clone());
    }
    for next in at.get_subcommands() {
        leaves(next, &format!("{path} {}", next.get_name()), found);
    }
}

#[test]
fn every_command_declares_whether_it_changes_something() {
    let mut found = BTreeMap::new();
    leaves(&console::cli::command(), "", &mut found);
    let mut known: Vec<&str> = COMMANDS.iter().map(|(path, ..)| *path).collect();
    known.dedup();
    assert_eq!(found.keys().map(String::as_str).collect::<Vec<_>>(), known);
    for (path, does, _) in COMMANDS {
        let has = |id: &str| found[*path].get_arguments().any(|argument| argument.get_id() == id);
        let expected = match does {
            Reads => (false, false),
            Adds => (true, false),
            Changes => (true, true),
        };
        assert_eq!((has("dry_run"), has("yes")), expected, "{path} {does:?}: --dry-run, --yes");
    }
}

/// Five nodes: pi1 to pi3 are replicas, of which pi3 is cordoned; pi4 is excluded, pi5 has no topology.
struct Served {
    cluster: Cluster,
    models: tempfile::TempDir,
    home: tempfile::TempDir,
    /// A request that runs on pi1 or pi2, and its name.
    running: Option<(Child, String)>,
}

impl Served {
    fn start() -> Self {
        let mut deep = TinyModel::new(Architecture::Llama);
        (deep.block_count, deep.context_length) = (96, 8192);
        let deep = deep.with_format(BlockFormat::Q8_0).bytes();
        let models = folder_with(&[(DEEP, &deep), (OTHER, &TinyModel::new(Architecture::Llama).bytes())]);
        let cluster = Cluster::supervised(5, models.path(), "");
        let home = tempfile::tempdir().expect("create a temporary folder");
        let served = Self { cluster, models, home, running: None };
        let four = served.cluster.addresses[..4].join(",");
        let good = |line: &str| {
            let ended = served.console(line);
            assert_eq!(ended.code, Some(0), "{line}: {} {}", ended.out, ended.err);
        };
        good("key new --json");
        good(&format!("cluster add home {four}"));
        let deep = format!("--model {DEEP} --context 8192 --prompt ab --max-tokens 1");
        good(&format!("generate --nodes SERVE --topology dp3-tp1 {deep}"));
        good(&format!("node exclude pi4 --reason old --yes --nodes {four}"));
        good(&format!("node cordon pi3 --reason fan --yes --nodes {four}"));
        served
    }

    /// Starts a console without a terminal; replaces the placeholders of [`COMMANDS`] in its line.
    fn spawn(&self, line: &str) -> Child {
        let nodes = &self.cluster.addresses;
        let path = |name: &str| self.models.path().join(name).display().to_string();
        let home = |name: &str| self.home.path().join(name).display().to_string();
        let request = self.running.as_ref().map_or("", |(_, name)| name.as_str());
        let words = [
            ("ALL", self.cluster.nodes()),
            ("SERVE", nodes[..3].join(",")),
            ("NEW", nodes[4].clone()),
            ("FILE", path(DEEP)),
            ("TOPOLOGY", home("other.toml")),
            ("OUT", home("out")),
            ("REQUEST", request.to_owned()),
        ];
        let mut command = Command::new(programs().join("console"));
        command.env("BRAMBLE_INSECURE", "true");
        command.args(line.split(' ').filter(|part| !part.is_empty()).map(|word| {
            let found = words.iter().find(|(name, _)| *name == word);
            found.map_or_else(|| word.to_owned(), |(_, value)| value.clone())
        }));
        command.env_remove("BRAMBLE_NODES").env_remove("BRAMBLE_LOG_DIR").env_remove("BRAMBLE_KEY_FILE");
        command.env(CONFIG_HOME, self.home.path()).env("BRAMBLE_SILENT_MS", "10000");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("console starts")
    }

    fn console(&self, line: &str) -> Ended {
        finish(self.spawn(line))
    }

    /// Starts a request on a head that is not cordoned.
    fn begin_request(&mut self) {
        let asked = self.spawn(&format!(
            "generate --nodes SERVE --model {DEEP} --prompt ab --max-tokens 8000 --temperature 0 --json"
        ));
        let mut name = String::new();
        wait_until("the request runs", || {
            let heads = self.console("requests --nodes SERVE --json").json()["heads"].clone();
            name = heads
                .as_array()
                .and_then(|heads| heads.iter().find_map(|head| head["running"][0]["id"].as_str().map(str::to_owned)))
                .unwrap_or_default();
            !name.is_empty()
        });
        self.running = Some((asked, name));
    }

    fn end_request(&mut self) {
        let Some((asked, name)) = self.running.take() else { return };
        kill(Pid::from_raw(asked.id().cast_signed()), Signal::SIGINT).expect("the console is running");
        let ended = finish(asked);
        assert_eq!(ended.code, Some(130), "{name} must run until its own console ends it: {}", ended.err);
    }

    /// Everything that a command could change: state and reports of the nodes, files of the nodes and the console,
    /// processes.
    fn picture(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        let status = self.console("status --nodes ALL --json").json();
        for (index, node) in status["nodes"].as_array().expect("a list").iter().enumerate() {
            let said = ["name", "epoch", "topology", "fault", "exclusions"].map(|field| node[field].to_string());
            found.insert(format!("status of pi{}", index + 1), said.join(" "));
            found.insert(format!("process of pi{}", index + 1), self.cluster.pid(index).to_string());
            files(&self.cluster.state(index), &mut found);
        }
        found.insert("models".into(), self.console("model list --nodes ALL --json").json()["nodes"].to_string());
        files(self.models.path(), &mut found);
        files(self.home.path(), &mut found);
        found
    }
}

/// The contents of all files below a folder, by path.
fn files(folder: &Path, found: &mut BTreeMap<String, String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.map(|entry| entry.expect("it can be read").path()) {
        if path.is_dir() {
            files(&path, found);
        } else {
            let bytes = fs::read(&path).unwrap_or_default();
            let text = String::from_utf8(bytes).unwrap_or_else(|error| format!("{} bytes", error.as_bytes().len()));
            found.insert(path.display().to_string(), text);
        }
    }
}

fn write_topology(served: &Served) -> PathBuf {
    let path = served.home.path().join("other.toml");
    let node = &served.cluster.addresses[0];
    fs::write(&path, format!("model = \"{OTHER}\"\n\n[[stage]]\nnodes = [\"{node}\"]\n")).expect("it can be written");
    path
}

#[test]
fn nothing_changes_without_confirmation_on_a_serving_cluster() {
    let mut served = Served::start();
    write_topology(&served);
    let mut before = served.picture();
    for (path, does, words) in COMMANDS.iter().filter(|(_, does, _)| *does != Reads) {
        if *path == "requests cancel" {
            served.begin_request();
            before = served.picture();
        }
        let tried = served.console(&format!("{path} {words} --dry-run"));
        assert_eq!(tried.code, Some(0), "{path} --dry-run: {} {}", tried.out, tried.err);
        assert!(tried.out.contains("would do"), "{path} must print what it would do: {}", tried.out);
        assert_eq!(served.picture(), before, "{path} --dry-run");
        if *does == Changes {
            let refused = served.console(&format!("{path} {words}"));
            assert_eq!(refused.code, Some(2), "{path}: {} {}", refused.out, refused.err);
            assert!(refused.err.contains("--yes"), "{path} must mention --yes: {}", refused.err);
            assert_eq!(served.picture(), before, "{path} without --yes");
        }
        served.end_request();
    }
    // A running topology is used whatever its layout, without a question.
    let again = served.console(&format!("generate --nodes ALL --model {DEEP} --prompt ab --max-tokens 1 --json"));
    assert_eq!(again.completion()["topology"], "dp3-tp1");
    assert_eq!(served.picture(), before);
    // The question names everything that would be lost.
    let refused = served.console(&format!("generate --nodes ALL --model {OTHER} --prompt a"));
    for part in ["dp3-tp1", DEEP, "no running requests", OTHER] {
        assert!(refused.err.contains(part), "{part} is not in {}", refused.err);
    }
}

#[test]
fn saved_cluster_follows_nodes_that_join_and_leave() {
    let served = Served::start();
    let kept = || served.console("cluster list --json").json()["clusters"][0]["nodes"].clone();
    assert_eq!(kept().as_array().map(Vec::len), Some(4));
    let good = |line: &str| {
        let ended = served.console(line);
        assert_eq!(ended.code, Some(0), "{line}: {} {}", ended.out, ended.err);
        ended
    };
    good("node include pi3 --yes");
    good("node add NEW --yes");
    let names = kept();
    assert_eq!(names.as_array().map(Vec::len), Some(5), "{names}");
    let run = good(&format!("generate --model {DEEP} --prompt ab --max-tokens 1 --json"));
    assert_eq!(run.completion()["topology"], "tp4", "the node that joined must stay");
    good("node remove pi5 --yes");
    assert_eq!(kept().as_array().map(Vec::len), Some(4));
}
