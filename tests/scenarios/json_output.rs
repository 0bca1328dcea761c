//! The objects of `--json` on a real cluster, compared with `docs/json/console.schema.json`, and `docs/json.md`, which is
//! written from it.
use std::{collections::BTreeMap, fs, path::Path};

use harness::{
    json_schema::{differences, document},
    programs::{Cluster, Ended, demo_models, root},
};
use serde_json::Value;

/// Commands that print an object, on two nodes that serve the demo model. `ALL` stands for the nodes, `MODEL` for the file
/// of the demo model, and `FOLDER` for a new folder. The definition follows `=` if it is not the command itself.
const LINES: &[&str] = &[
    "generate --nodes ALL --prompt ROMEO: --max-tokens 4 --logprobs 2 --yes",
    "generate --nodes ALL --prompt ROMEO: --max-tokens 4 --profile",
    "run bard ROMEO: --nodes ALL --max-tokens 4",
    "run bard ROMEO: --nodes ALL --dry-run = dry_run",
    "status --nodes ALL",
    "status --nodes ALL,127.0.0.1:1 = console status",
    "sync --nodes ALL",
    "sync --nodes ALL1 = console sync",
    "sync --nodes 127.0.0.1:1 = failure",
    "doctor --nodes ALL",
    "events --nodes ALL",
    "events --nodes ALL,127.0.0.1:1 = console events",
    "kv --nodes ALL",
    "kv clear --nodes ALL --yes",
    "doctor --nodes ALL --bundle FOLDER/bundle.tar.gz = console doctor --bundle",
    "cluster list",
    "key new --key FOLDER/cluster.key",
    "key show --key FOLDER/cluster.key",
    "key show --key FOLDER/cluster.key --fingerprint",
    "logs pi1 --nodes ALL --tail 3",
    "model list --nodes ALL",
    "model list --nodes ALL,127.0.0.1:1 = console model list",
    "model search llama --nodes ALL",
    "model verify bard-q8_0.gguf --nodes ALL = console model pull",
    "model pull bard-q8_0.gguf --from pi1 --node pi2 --nodes ALL",
    "node check pi2 --nodes ALL",
    "node show pi1 --nodes ALL",
    "requests --nodes ALL",
    "requests --nodes ALL,127.0.0.1:1 = console requests",
    "topology show --nodes ALL",
    "topology show --nodes ALL,127.0.0.1:1 = console topology show",
    "topology take-over --nodes ALL --yes = failure",
    "tokenize --model MODEL --text hello",
    "topology plan --model llama-3.1-8b --count 2",
    "topology simulate --model llama-3.1-8b --nodes 1..2",
    "node cordon pi2 --nodes ALL --reason fan --yes",
    "node include pi2 --nodes ALL --yes = console node exclude",
    "node exclude pi2 --nodes ALL --reason fan --yes",
    "node include pi2 --nodes ALL --yes = console node exclude",
    "node remove pi2 --nodes ALL --yes",
    "node add ALL2 --nodes ALL1 --yes",
    "topology unload --nodes ALL --yes",
    "restart --nodes ALL --yes",
    "bench links --nodes ALL --pings 8 --stream-ms 50",
    "bench node --nodes ALL --model bard-q8_0.gguf --prefill 8 --context 0 --tokens 2 --repeats 1",
    "restart --rolling --nodes ALL --yes --detach",
    "restart abort --nodes ALL = console restart --rolling",
    "node show pi9 --nodes ALL = failure",
];

/// Definitions that other scenarios compare, with [`assert_described`].
const ELSEWHERE: &[&str] = &[
    "console acceptance",
    "console acceptance --compare",
    "console demo",
    "console demo --tour",
    "console key adopt",
    "console key rotate",
    "console model remove",
    "console node replace",
    "console topology take-over",
    "console up",
];
/// Definitions that are not compared with output.
const UNCOMPARED: &[&str] = &["console node discover", "console requests cancel", "console topology assign"];

/// Asserts that an object has exactly the fields of a definition.
///
/// # Panics
/// If it differs.
#[track_caller]
pub(crate) fn assert_described(name: &str, object: &Value) {
    assert!(ELSEWHERE.contains(&name), "add {name} to the list");
    let different = differences(&schema(), name, object);
    assert!(different.is_empty(), "docs/json/console.schema.json differs: {different:#?}");
}

fn schema() -> Value {
    let path = root().join("docs/json/console.schema.json");
    serde_json::from_str(&fs::read_to_string(path).expect("the schema is there")).expect("it is JSON")
}

/// The definition for a command line: that after `=`, else the longest one whose words begin the line.
fn definition<'a>(schema: &'a Value, line: &'a str) -> &'a str {
    if let Some((_, name)) = line.split_once(" = ") {
        return name;
    }
    let names = schema["$defs"].as_object().expect("definitions").keys();
    let command = format!("console {line} ");
    let fitting = names.filter(|name| command.starts_with(&format!("{name} ")));
    fitting.max_by_key(|name| name.len()).unwrap_or_else(|| panic!("no definition for {line}"))
}

fn run(cluster: &Cluster, folder: &Path, line: &str) -> Ended {
    let words = line.split(" = ").next().unwrap_or(line).split(' ').map(|word| match word {
        "ALL" => cluster.nodes(),
        "ALL1" => cluster.addresses[0].clone(),
        "ALL2" => cluster.addresses[1].clone(),
        "MODEL" => demo_models().join("bard-q8_0.gguf").display().to_string(),
        word => {
            let word = word.replace("ALL,", &format!("{},", cluster.nodes()));
            word.replace("FOLDER/", &format!("{}/", folder.display()))
        }
    });
    let words: Vec<String> = words.collect();
    let words: Vec<&str> = words.iter().map(String::as_str).chain(["--json"]).collect();
    cluster.console(&words)
}

#[test]
fn json_output_has_exactly_the_fields_of_its_schema() {
    let schema = schema();
    // Without recovery, the nodes store a rolling restart and do not carry it out.
    let cluster = Cluster::supervised(2, &demo_models(), "");
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let mut found: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for line in LINES {
        let ended = run(&cluster, folder.path(), line);
        let objects: Vec<&str> = ended.out.lines().collect();
        assert!(!objects.is_empty(), "{line} printed nothing: {}", ended.err);
        for object in objects {
            let object: Value =
                serde_json::from_str(object).unwrap_or_else(|error| panic!("{line}: {error}: {object}"));
            let name = definition(&schema, line);
            let different = differences(&schema, name, &object);
            if !different.is_empty() {
                found.entry(line).or_default().extend(different);
            }
        }
    }
    assert!(found.is_empty(), "add the fields to docs/json/console.schema.json: {found:#?}");
}

#[test]
fn result_that_does_not_fit_is_the_only_object_and_has_the_error() {
    let schema = schema();
    let cluster = Cluster::with(1, &demo_models(), "memory_max_mib = 2\n");
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let file = folder.path().join("one.toml");
    let stage = format!("[[stage]]\nnodes = [\"{}\"]\n", cluster.addresses[0]);
    fs::write(&file, format!("model = \"bard-q8_0.gguf\"\ncontext_length = 256\n{stage}")).expect("write the file");
    let assign = format!("topology assign {} --dry-run --json", file.display());
    let plan = "topology plan --model llama-3.1-8b --count 1 --memory 1G --json";
    let mut objects = Vec::new();
    for (line, name, code, error) in
        [(plan, "console topology plan", 8, "state"), (assign.as_str(), "dry_run", 4, "memory_short")]
    {
        let ended = cluster.console(&line.split(' ').collect::<Vec<_>>());
        let object = ended.json();
        assert_eq!((ended.code, object["error"]["code"].as_str()), (Some(code), Some(error)), "{object} {}", ended.err);
        assert!(ended.err.contains("next: "), "{}", ended.err);
        let different = differences(&schema, name, &object);
        assert!(different.is_empty(), "docs/json/console.schema.json differs: {different:#?}");
        objects.push(object);
    }
    let lists = [&objects[0]["dropped"], &objects[1]["plan"]["members"]];
    assert!(lists.iter().all(|list| list.as_array().is_some_and(|list| !list.is_empty())), "{objects:?}");
}

#[test]
fn every_definition_of_a_command_is_compared_or_listed() {
    let schema = schema();
    let compared: Vec<&str> = LINES.iter().map(|line| definition(&schema, line)).collect();
    let names = schema["$defs"].as_object().expect("definitions").keys();
    for name in names.filter(|name| name.starts_with("console ")) {
        let is_listed = ELSEWHERE.contains(&name.as_str()) || UNCOMPARED.contains(&name.as_str());
        assert!(compared.contains(&name.as_str()) != is_listed, "{name}: compare it with output, once");
    }
}

#[test]
fn document_of_the_json_output_is_written_from_its_schema() {
    let path = root().join("docs/json.md");
    let text = document(&schema());
    if std::env::var_os("BRAMBLE_UPDATE_SNAPSHOTS").is_some() {
        fs::write(&path, &text).expect("the document can be written");
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(written, text, "write it again: BRAMBLE_UPDATE_SNAPSHOTS=1 cargo test -p bramble-tests json_output");
}

#[test]
fn every_command_with_json_has_a_definition() {
    let schema = schema();
    let names = schema["$defs"].as_object().expect("definitions");
    let mut missing = Vec::new();
    leaves(&console::cli::command(), "console", &mut |path| {
        let is_known = names.contains_key(path) || SAME.iter().any(|same| same.0 == path && names.contains_key(same.1));
        if !is_known && !TEXT_ONLY.contains(&path) {
            missing.push(path.to_owned());
        }
    });
    assert!(missing.is_empty(), "docs/json/console.schema.json lacks {missing:?}");
}

/// Commands whose object is that of another one.
const SAME: &[(&str, &str)] = &[
    ("console cluster add", "console cluster"),
    ("console cluster list", "console cluster"),
    ("console cluster remove", "console cluster"),
    ("console cluster use", "console cluster"),
    ("console kv list", "console kv"),
    ("console model verify", "console model pull"),
    ("console node include", "console node exclude"),
];
/// Commands that print no object of their own.
const TEXT_ONLY: &[&str] = &["console completions", "console proxy", "console replay", "console screen"];

fn leaves(at: &clap::Command, path: &str, found: &mut dyn FnMut(&str)) {
    if at.get_name() != "console" && !at.is_subcommand_required_set() {
        found(path);
    }
    at.get_subcommands().for_each(|next| leaves(next, &format!("{path} {}", next.get_name()), found));
}
