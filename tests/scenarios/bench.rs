//! Benchmarks of nodes through their daemons and of this machine without one; how a benchmark is cancelled, and that it
//! leaves nothing behind.
use std::{
    fs,
    path::Path,
    process::{Child, Command},
};

use harness::{
    deep_models::deep_models,
    programs::{
        Cluster, DEEP, bench, console, demo_models, finish, programs, root, spawn_bench, spawn_console, wait_until,
    },
    terminal::Terminal,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

const MODEL: &str = "bard-q8_0.gguf";
/// A minimal workload; its results are not representative of the machine.
const SMALL: &[&str] = &["--read-mib", "4", "--tokens", "2", "--repeats", "1", "--product-tokens", "1,4"];

/// Runs `console bench node` on all nodes.
fn measure(cluster: &Cluster, more: &[&str]) -> harness::programs::Ended {
    let nodes = cluster.nodes();
    console(&[&["bench", "node", "--nodes", &nodes], SMALL, more].concat())
}

/// Starts a benchmark that takes minutes; returns once its process is running.
fn start_long(cluster: &Cluster) -> (Child, Pid) {
    let nodes = cluster.nodes();
    let long = ["--model", DEEP, "--read-mib", "1", "--prefill", "8000", "--repeats", "99", "--json"];
    let child = spawn_console(&[&["bench", "node", "--nodes", &nodes], &long[..]].concat());
    wait_until("the bench runs", || children(cluster.pid(0)).len() == 1);
    assert_eq!(cluster.status(0)["state"], "benching");
    (child, children(cluster.pid(0))[0])
}

/// Parent and state of a process.
fn stat(process: &Path) -> Option<(i32, char)> {
    let text = fs::read_to_string(process.join("stat")).ok()?;
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.chars().next()?;
    Some((fields.next()?.parse().ok()?, state))
}

/// Live child processes.
fn children(parent: Pid) -> Vec<Pid> {
    fs::read_dir("/proc")
        .expect("there is a /proc")
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let (ppid, state) = stat(&entry.path())?;
            (ppid == parent.as_raw() && state != 'Z').then_some(Pid::from_raw(pid))
        })
        .collect()
}

fn is_gone(pid: Pid) -> bool {
    stat(&Path::new("/proc").join(pid.to_string())).is_none_or(|(_, state)| state == 'Z')
}

#[track_caller]
fn assert_positive(values: &[&Value]) {
    values.iter().for_each(|value| assert!(value.as_f64().is_some_and(|value| value > 0.0), "{value} in {values:?}"));
}

/// Asserts that every section of the results is present and has plausible figures.
#[track_caller]
fn check(found: &Value) {
    let (node, kernels) = (&found["node"], &found["kernels"]);
    let list = |value: &Value| value.as_array().expect("a list").clone();
    assert_eq!(node["model"], MODEL);
    assert_positive(&[&node["threads"], &node["weight_bytes"], &node["resident_peak"], &node["load"]["warm_seconds"]]);
    // If the folder is in memory the page cache cannot be dropped, which is reported.
    let load = &node["load"];
    assert!(load["cold_seconds"].as_f64().is_some_and(|cold| cold > 0.0) || load["cold_note"].is_string(), "{load}");
    let bandwidth = list(&node["bandwidth"]);
    assert_eq!(bandwidth[0]["threads"], 1);
    assert_eq!(bandwidth.last().expect("at least one measurement")["threads"], node["threads"]);
    bandwidth.iter().for_each(|one| assert_positive(&[&one["bytes_per_second"]]));
    let lengths = |list: &[Value], key: &str| list.iter().filter_map(|one| one[key].as_u64()).collect::<Vec<_>>();
    let (prefill, decode) = (list(&node["prefill"]), list(&node["decode"]));
    assert_eq!(lengths(&prefill, "tokens"), [32, 128, 512]);
    prefill.iter().for_each(|one| assert_positive(&[&one["tokens_per_second"], &one["gmacs"]]));
    assert_eq!(lengths(&decode, "context"), [0]);
    decode.iter().for_each(|one| assert_positive(&[&one["tokens_per_second"], &one["share_of_bandwidth"]]));
    assert_eq!(list(&node["skipped"]).len(), 2, "contexts of 1000 and 5000 are beyond the model's");
    let products = list(&kernels["tables"][0]["products"]);
    assert_eq!(lengths(&products, "tokens"), [1, 4]);
    for one in &products {
        assert_eq!(one["format"], "Q8_0");
        assert_positive(&[&one["gmacs"], &one["gigabytes"], &one["microseconds"]]);
    }
}

#[test]
fn nodes_are_measured_singly_or_together_and_lost_ones_named() {
    let mut cluster = Cluster::with(2, &demo_models(), "");
    let both = measure(&cluster, &["--model", MODEL, "--json"]);
    assert_eq!(both.code, Some(0), "{} {}", both.out, both.err);
    let names = ["pi1", "pi2"].map(Value::from);
    let found = both.json()["nodes"].as_array().expect("a list").clone();
    assert_eq!(found.iter().map(|one| one["name"].clone()).collect::<Vec<_>>(), names);
    found.iter().for_each(check);
    wait_until("they are idle", || (0..2).all(|index| cluster.status(index)["state"] == "idle"));
    cluster.signal(1, Signal::SIGTERM);
    cluster.wait(1);
    let one = measure(&cluster, &["--model", MODEL, "--parallel", "--json"]);
    assert_eq!(one.code, Some(3), "{} {}", one.out, one.err);
    let found = &one.json()["nodes"];
    check(&found[0]);
    assert_eq!((&found[1]["error"]["code"], &found[1]["node"]), (&"node_unreachable".into(), &Value::Null));
    // It may be the name of the node that does not answer.
    measure(&cluster, &["pi9", "--model", MODEL, "--json"]).assert_error(
        3,
        "node_unreachable",
        &[&cluster.addresses[1]],
    );
    let only = measure(&cluster, &["pi1", "--kernels", "--model", MODEL, "--json"]);
    assert_eq!((only.code, only.json()["nodes"].as_array().map(Vec::len)), (Some(0), Some(1)), "{}", only.err);
    let text = measure(&cluster, &["--kernels", "--formats", "Q4_0", "--rows", "16", "--columns", "256"]);
    assert_eq!(text.code, Some(3));
    assert!(text.out.contains("pi1 ") && text.out.contains("Q4_0         16 x 256"), "{}", text.out);
    assert!(!text.out.contains("prefill"), "{}", text.out);
}

#[test]
fn bench_never_disturbs_a_topology_and_bad_options_are_refused() {
    let cluster = Cluster::of(1);
    let refused = |more: &[&str]| measure(&cluster, &[more, &["--json"]].concat());
    let error = |ended: &harness::programs::Ended| ended.json()["nodes"][0]["error"].clone();
    let missing = refused(&["--model", "none.gguf"]);
    assert_eq!((missing.code, &error(&missing)["code"]), (Some(4), &"model_missing".into()));
    let outside = refused(&["--model", MODEL, "--context", "600"]);
    assert_eq!((outside.code, &error(&outside)["code"]), (Some(1), &"bench_failed".into()), "{}", outside.out);
    assert!(error(&outside)["message"].as_str().is_some_and(|said| said.contains("--context")), "{}", outside.out);
    refused(&["--kernels", "--columns", "1"]).assert_error(2, "usage", &["columns"]);
    assert_eq!(refused(&[]).code, Some(2), "a model is needed");
    let ids = cluster.generate(1, &["--prompt", "ROMEO:", "--max-tokens", "2", "--temperature", "0"]).completion();
    let serving = refused(&["--model", MODEL]);
    assert_eq!((serving.code, &error(&serving)["code"]), (Some(4), &"not_idle".into()));
    assert!(error(&serving)["next"].as_str().is_some_and(|next| next.contains("exclude")), "{}", serving.out);
    assert!(children(cluster.pid(0)).is_empty());
    let again = cluster.generate(1, &["--prompt", "ROMEO:", "--max-tokens", "2", "--temperature", "0"]).completion();
    assert_eq!((&ids["token_ids"], &ids["epoch"]), (&again["token_ids"], &again["epoch"]));
}

#[test]
fn cancelled_bench_leaves_no_process_and_does_not_block_another() {
    let models = deep_models();
    let mut cluster = Cluster::with(1, models.path(), "");
    let (bench, process) = start_long(&cluster);
    let second = measure(&cluster, &["--model", DEEP, "--json"]);
    assert_eq!((second.code, &second.json()["nodes"][0]["error"]["code"]), (Some(4), &"bench_runs".into()));
    kill(Pid::from_raw(bench.id().cast_signed()), Signal::SIGINT).expect("the console is running");
    finish(bench).assert_error(130, "interrupted", &[]);
    wait_until("its process is gone", || is_gone(process));
    assert_eq!(cluster.status(0)["state"], "idle");
    // A console that dies cancels the benchmark as well.
    let (mut bench, process) = start_long(&cluster);
    bench.kill().expect("the console is running");
    bench.wait().expect("it was killed");
    wait_until("its process is gone", || is_gone(process) && cluster.status(0)["state"] == "idle");
    // Drain the node.
    let (bench, process) = start_long(&cluster);
    cluster.signal(0, Signal::SIGTERM);
    assert_eq!(cluster.wait(0), Some(0));
    assert!(is_gone(process), "the benchmark must end before the node");
    let ended = finish(bench);
    assert_eq!((ended.code, &ended.json()["nodes"][0]["error"]["code"]), (Some(5), &"drain_ended".into()));
    // Kill the node.
    cluster.start(0);
    let (bench, process) = start_long(&cluster);
    cluster.signal(0, Signal::SIGKILL);
    cluster.wait(0);
    wait_until("its process is gone", || is_gone(process));
    assert_eq!(finish(bench).code, Some(5));
}

#[test]
fn assignment_takes_precedence_over_a_bench() {
    let models = deep_models();
    let cluster = Cluster::with(1, models.path(), "");
    let (bench, process) = start_long(&cluster);
    let text = cluster.generate(1, &["--model", DEEP, "--prompt", "ab", "--max-tokens", "2"]);
    assert_eq!(text.completion()["token_ids"].as_array().map(Vec::len), Some(2));
    assert!(is_gone(process), "its memory must be free before anything is loaded");
    let ended = finish(bench);
    let error = &ended.json()["nodes"][0]["error"];
    assert_eq!((ended.code, &error["code"]), (Some(5), &"bench_superseded".into()), "{}", ended.out);
    assert!(
        error["message"].as_str().is_some_and(|said| said.contains('@')),
        "the error must name the console that assigned: {error}"
    );
}

/// Asserts one row per size and algorithm, in order, with plausible figures.
#[track_caller]
fn check_collectives(found: &Value, ranks: f64, kinds: &[(u64, u64, &str)]) {
    let rows = found["rows"].as_array().expect("a list");
    let wanted = kinds.iter().map(|(tokens, columns, name)| (json!(tokens), json!(columns), json!(name)));
    assert_eq!(
        rows.iter()
            .map(|row| (row["tokens"].clone(), row["columns"].clone(), row["algorithm"].clone()))
            .collect::<Vec<_>>(),
        wanted.collect::<Vec<_>>()
    );
    for (row, (tokens, columns, _)) in rows.iter().zip(kinds) {
        let number = |key: &str| row[key].as_f64().expect(key);
        assert_eq!(row["bytes"], 4 * tokens * columns);
        assert!(number("p50_us") > 0.0 && number("p50_us") <= number("p99_us"), "{row}");
        let (algbw, busbw) = (number("algbw_bytes_per_second"), number("busbw_bytes_per_second"));
        assert!((algbw * number("p50_us") / 1e6 / number("bytes") - 1.0).abs() < 1e-6, "{row}");
        assert!((busbw / algbw - 2.0 * (ranks - 1.0) / ranks).abs() < 1e-6, "{row}");
    }
}

#[test]
fn bench_collectives_times_a_topology_without_disturbing_it() {
    let cluster = Cluster::of(2);
    let two = cluster.nodes();
    let asked = |more: &[&str]| bench(&[&["collectives", "--nodes", &two, "--model", MODEL, "--yes"], more].concat());
    let short = ["--sizes", "1,16", "--algorithms", "direct,ring", "--repeats", "40", "--json"];
    let ended = asked(&short);
    assert_eq!(ended.code, Some(0), "{} {}", ended.out, ended.err);
    let found = ended.json();
    let columns = found["rows"][0]["columns"].as_u64().expect("the model's");
    let kinds = [(1, columns, "direct"), (1, columns, "ring"), (16, columns, "direct"), (16, columns, "ring")];
    check_collectives(&found, 2.0, &kinds);
    assert_eq!((&found["nodes"], &found["topology"]), (&json!(["pi1", "pi2"]), &json!("tp2")));
    let rows = found["rows"].as_array().expect("a list");
    assert!(rows.iter().all(|row| row["count"] == 40 && (row["algorithm"] != "ring" || row["is_used"] == false)));
    // The same topology continues: its steps follow those of the benchmark, and another generation gives the same text.
    let generate = |more: &[&str]| {
        let fixed = ["--prompt", "ROMEO:", "--max-tokens", "8", "--temperature", "0"];
        cluster.generate(2, &[&fixed[..], more].concat()).completion()
    };
    let text = generate(&[]);
    assert_eq!(text["epoch"], found["epoch"], "nothing may be assigned again");
    let text_ids = text["token_ids"].clone();
    let again = asked(&["--sizes", "1", "--repeats", "3", "--collective", "ring"]);
    assert_eq!(again.code, Some(0), "{} {}", again.out, again.err);
    let of = |name: &str| again.out.lines().find(|line| line.contains(&format!(" {name} "))).expect(name).to_owned();
    assert!(of("ring").ends_with("used") && !of("direct").ends_with("used"), "{}", again.out);
    assert!(again.out.contains("busbw MB/s") && again.out.contains("between pi1, pi2"), "{}", again.out);
    // The links of later stages are not timed, and a stage with one rank has no all-reduce to time.
    asked(&["--topology", "pp2-tp1", "--json"]).assert_error(4, "no_links", &["pi1", "single rank"]);
    assert_eq!(generate(&["--topology", "pp2-tp1"])["token_ids"], text_ids);
    for bad in [&["--sizes", "129"][..], &["--sizes", "1x256"], &["--ranks", "2"], &["--repeats", "1001"]] {
        asked(&[bad, &["--json"]].concat()).assert_error(2, "usage", &[]);
    }
    bench(&["collectives", "--nodes", &two, "--json"]).assert_error(2, "usage", &["--model"]);
    cluster.assert_alive();
}

#[test]
fn bench_collectives_refuses_a_busy_head_and_names_a_lost_node() {
    let models = deep_models();
    let mut cluster = Cluster::with(2, models.path(), "");
    let nodes = cluster.nodes();
    let timing = ["collectives", "--nodes", &nodes, "--model", DEEP, "--json"];
    let busy = cluster.start_generation("4000");
    bench(&timing).assert_error(4, "requests_run", &["pi1"]);
    kill(Pid::from_raw(busy.id().cast_signed()), Signal::SIGINT).expect("the console is running");
    finish(busy);
    wait_until("the head is idle", || cluster.status(0)["state"] == "ready");
    let long = ["--sizes", "128,127,126,125,124,123,122,121", "--repeats", "1000"];
    let child = spawn_bench(&[&timing[..], &long].concat());
    wait_until("the benchmark times links", || cluster.status(0)["state"] == "serving");
    cluster.signal(1, Signal::SIGKILL);
    cluster.wait(1);
    finish(child).assert_error(5, "node_lost", &["pi2"]);
}

#[test]
fn bench_collectives_runs_on_threads_without_a_daemon() {
    let few = ["--sizes", "1x64,3x96", "--algorithms", "star,rs-ag", "--repeats", "5", "--exchange", "q80"];
    let local = [&["collectives", "--local", "--ranks", "3"], &few[..]].concat();
    let ended = bench(&[&local[..], &["--json"]].concat());
    assert_eq!(ended.code, Some(0), "{} {}", ended.out, ended.err);
    let found = ended.json();
    check_collectives(&found, 3.0, &[(1, 64, "star"), (1, 64, "rs-ag"), (3, 96, "star"), (3, 96, "rs-ag")]);
    assert_eq!((&found["ranks"], &found["exchange"]), (&json!(3), &json!("q80")));
    found["rows"].as_array().expect("a list").iter().for_each(|row| {
        assert_positive(&[&row["bare_us"], &row["over_bare"], &row["messages"], &row["calls_per_message"]]);
    });
    let text = bench(&local);
    assert_eq!(text.code, Some(0), "{}", text.err);
    assert!(text.out.contains("busbw MB/s") && text.out.contains("rs-ag"), "{}", text.out);
    for (bad, named) in [(&["--sizes", "16"][..], "TOKENSxCOLUMNS"), (&["--sizes", "99999x99999"], "values")] {
        let bad = [&["collectives", "--local", "--json"], bad].concat();
        bench(&bad).assert_error(2, "usage", &[named]);
    }
}

#[test]
fn this_machine_is_measured_without_a_daemon() {
    let file = root().join("packaging/demo").join(MODEL);
    let file = file.to_str().expect("a UTF-8 path");
    let ended = console(&[&["bench", "node", "--model", file, "--json"], SMALL].concat());
    assert_eq!(ended.code, Some(0), "{} {}", ended.out, ended.err);
    let found = &ended.json()["nodes"];
    assert_eq!((found.as_array().map(Vec::len), &found[0]["address"]), (Some(1), &Value::Null));
    check(&found[0]);
    console(&["bench", "node", "pi1", "--kernels", "--json"]).assert_error(2, "usage", &["no nodes"]);
    let missing = console(&[&["bench", "node", "--model", "none.gguf", "--json"], SMALL].concat());
    missing.assert_error(1, "failed", &["none.gguf"]);
    // A terminal shows the progress.
    let mut watched = Command::new(programs().join("console"));
    watched.args(["bench", "node", "--local", "--model", file]).args(SMALL);
    let mut terminal = Terminal::run(watched, 120, 40);
    terminal.wait_for(" prefill of 128 tokens");
    terminal.wait_for("of peak");
    assert_eq!(terminal.ended(), Some(0));
    // Both programs print the same table, and brambled reports its progress if asked to.
    let text = console(&[&["bench", "node", "--model", file], SMALL].concat()).out;
    let mut brambled = Command::new(programs().join("brambled"));
    brambled.args(["bench", "node", "--model", file, "--progress"]).args(&SMALL[..6]);
    let output = brambled.output().expect("brambled runs");
    let words = |text: &str| {
        // Another test may read the same file in the meantime: then only one of the two loads is cold.
        let lines = text.lines().filter(|line| !line.starts_with("load cold"));
        lines
            .flat_map(str::split_whitespace)
            .filter(|word| !word.contains(|letter: char| letter.is_ascii_digit()))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let own = words(&String::from_utf8_lossy(&output.stdout));
    let printed = words(&text);
    assert!(own.len() > 40 && printed.windows(own.len()).any(|part| part == own), "{text}");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.lines().any(|line| line.ends_with(" prefill of 128 tokens")), "{told}");
}
