//! `console acceptance` on real daemons: its steps, its report, how it continues, and that it restores what ran before.
use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
    thread::JoinHandle,
};

use harness::{
    deep_models::deep_models,
    programs::{Cluster, DEEP, Ended, demo_models, finish, programs, spawn_console, wait_until},
    terminal::Terminal,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::json_output::assert_described;

const MODEL: &str = "bard-q8_0.gguf";
const RECOVER: &str = "recover = true\nsilent_ms = 30000\nstall_ms = 60000\n";
/// The command that checks over ssh whether the daemon of a node may be killed.
const CHECK: &str = "sudo -n -l systemctl kill -s KILL brambled";
/// The layout before the test.
const BEFORE: &[&str] = &["--prompt", "ROMEO:", "--max-tokens", "4", "--temperature", "0", "--topology", "dp2-tp1"];

fn spawn(cluster: &Cluster, out: &Path, more: &[&str]) -> Child {
    let (nodes, out) = (cluster.nodes(), out.to_string_lossy().into_owned());
    let fixed = ["acceptance", "--nodes", &nodes, "--out", &out, "--load-seconds", "1", "--json"];
    spawn_console(&[&fixed[..], more].concat())
}

/// Runs steps to their end. Whether goals are reached on this machine does not matter.
#[track_caller]
fn run(cluster: &Cluster, out: &Path, more: &[&str]) -> Value {
    report(finish(spawn(cluster, out, &[more, &["--yes"]].concat())))
}

#[track_caller]
fn report(ended: Ended) -> Value {
    assert!(matches!(ended.code, Some(0 | 6)), "{:?} {} {}", ended.code, ended.out, ended.err);
    let report = ended.json();
    assert_described("console acceptance", &report);
    report
}

/// Runs the command on a terminal and answers no to these questions, after which it must end. Returns the screen.
#[track_caller]
fn decline(nodes: &str, out: &Path, more: &[&str], questions: &[&str]) -> String {
    let mut command = Command::new(programs().join("console"));
    command.args(["acceptance", "--nodes", nodes, "--out"]).arg(out).args(more);
    command.env_remove("BRAMBLE_NODES").env_remove("BRAMBLE_LOG_DIR").env_remove("BRAMBLE_KEY_FILE");
    let mut terminal = Terminal::run(command, 200, 40);
    for question in questions {
        terminal.wait_for(question);
        terminal.keys("n\n");
    }
    terminal.wait_for("console: cancelled");
    assert_eq!(terminal.ended(), Some(1), "{}", terminal.screen());
    terminal.screen()
}

/// What a step found.
#[track_caller]
fn found<'a>(report: &'a Value, step: &str) -> &'a Value {
    let outcome = &report["steps"][step];
    assert!(!outcome["found"].is_null(), "{step} found nothing: {outcome}");
    &outcome["found"]
}

#[track_caller]
fn assert_positive(values: &[&Value]) {
    values.iter().for_each(|value| assert!(value.as_f64().is_some_and(|value| value > 0.0), "{value} in {values:?}"));
}

/// The layout that serves.
fn layout(cluster: &Cluster) -> Value {
    cluster.status(0)["topology"]["layout"].clone()
}

/// A llama-server that answers two prompts with these tokens, once.
fn llama_server(answers: [Value; 2]) -> (String, JoinHandle<Vec<Value>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    let serving = std::thread::spawn(move || {
        let mut asked = Vec::new();
        let (mut stream, _) = listener.accept().expect("the console connects");
        for tokens in answers {
            asked.push(body(&mut stream));
            let timings = json!({"prompt_per_second": 100.0, "predicted_per_second": 50.0});
            let answer = json!({"content": "", "tokens": tokens, "timings": timings}).to_string();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}", answer.len());
            write!(stream, "{head}\r\n\r\n{answer}").expect("the console reads");
        }
        asked
    });
    (url, serving)
}

/// The JSON body of the next request.
fn body(stream: &mut TcpStream) -> Value {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = stream.read(&mut buffer).expect("the console sends");
        assert!(read > 0, "the request is complete: {}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&bytes);
        let body = text.split_once("\r\n\r\n").and_then(|(_, body)| serde_json::from_str(body).ok());
        if let Some(body) = body {
            return body;
        }
    }
}

#[test]
fn acceptance_measures_reports_continues_and_restores() {
    let cluster = Cluster::with(2, &demo_models(), RECOVER);
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let out = folder.path().join("report");
    cluster.generate(2, BEFORE).completion();

    let planned = finish(spawn(&cluster, &out, &["--dry-run"]));
    assert_eq!(planned.code, Some(0), "{} {}", planned.out, planned.err);
    let plan = &planned.json()["plan"];
    assert_eq!(plan["replaces"][0]["topology"], "dp2-tp1", "{plan}");
    assert_eq!(plan["steps"].as_array().map(Vec::len), Some(9), "{plan}");
    assert!(
        planned.err.contains("recovery  kill a node during an answer: not measured: no supervisor"),
        "{}",
        planned.err
    );
    assert!(!out.with_extension("json").exists(), "a dry run writes nothing");
    let refused = finish(spawn(&cluster, &out, &[]));
    assert_eq!(refused.code, Some(2), "it asks: {} {}", refused.out, refused.err);
    assert_eq!(layout(&cluster), "dp2-tp1");

    // A console has a minute for each part.
    run(&cluster, &out, &["--only", "machines,links"]);
    let first = run(&cluster, &out, &["--only", "nodes"]);
    let machine = &found(&first, "machines")[1];
    assert_eq!((&machine["node"], &machine["machine"]), (&json!("pi2"), &json!(0)), "both are one machine: {machine}");
    assert!(machine["kernel"].is_string(), "{machine}");
    let link = &found(&first, "links")[0];
    assert_positive(&[&link["round_trip_us"], &link["mbit_per_second"]]);
    let node = &found(&first, "nodes")[0];
    assert_positive(&[&node["read_bytes_per_second"], &node["decode_share"], &node["speeds"]["prefill"]]);
    assert_eq!(first["replaced"], json!([]), "it was restored");
    assert_eq!(layout(&cluster), "dp2-tp1");

    run(&cluster, &out, &["--only", "load"]);
    let second = run(&cluster, &out, &["--only", "links,single,all"]);
    assert_eq!(second["steps"]["links"], first["steps"]["links"], "a finished step is not repeated");
    assert_eq!(second["unix_ms"], first["unix_ms"]);
    let load = &found(&second, "load")[1];
    assert!(load["runs"].as_array().is_some_and(|runs| runs.len() >= 2), "{load}");
    let (single, all) = (found(&second, "single"), found(&second, "all"));
    assert_eq!((&single["topology"], &all["topology"]), (&json!("tp1"), &json!("tp2")));
    let ids = |layout: &Value, answer: usize| layout["answers"][answer]["ids"].clone();
    assert_eq!(ids(single, 0).as_array().map(Vec::len), Some(64));
    assert_eq!([ids(single, 0), ids(single, 1)], [ids(all, 0), ids(all, 1)]);
    assert!(all["unpredicted"].as_str().is_some_and(|why| why.contains("share a machine")), "{all}");
    assert!(all["all_reduces"].as_array().is_some_and(|times| times.len() == 3), "{all}");
    assert_eq!(layout(&cluster), "dp2-tp1");

    // The second answer differs at its third token.
    let other = json!(ids(single, 1).as_array().expect("a list")[..2]);
    let other = json!([other[0], other[1], 1]);
    let (url, serving) = llama_server([ids(single, 0), other]);
    let third = run(&cluster, &out, &["--only", "llama", "--llama-cpp", &url]);
    // Before the join, which never returns if the step failed before it asked twice.
    let llama = found(&third, "llama");
    let asked = serving.join().expect("it was asked twice");
    assert_eq!((&asked[0]["n_predict"], &asked[1]["n_predict"]), (&json!(64), &json!(32)));
    assert_eq!((&llama["answers"][0]["differs"], &llama["answers"][1]["differs"]["at"]), (&Value::Null, &json!(2)));
    assert_eq!(layout(&cluster), "dp2-tp1");

    for file in ["report.json", "report.md"] {
        let text = fs::read_to_string(folder.path().join(file)).expect("it was written");
        let mut words = text.split(|letter: char| !letter.is_ascii_digit() && letter != '.');
        let has_address =
            words.any(|word| word.trim_matches('.').parse::<Ipv4Addr>().is_ok_and(|one| one.is_loopback()));
        assert!(!has_address && text.contains("pi1"), "no addresses: {text}");
    }
    show_and_compare(folder.path(), &third);
}

/// The parser reads what was written.
fn show_and_compare(folder: &Path, report: &Value) {
    let file = folder.join("report.json").to_string_lossy().into_owned();
    let shown = finish(spawn_console(&["acceptance", "--show", &file, "--json"]));
    assert_eq!(&shown.json(), report, "{}", shown.err);
    let text = finish(spawn_console(&["acceptance", "--show", &file]));
    let written = fs::read_to_string(folder.join("report.md")).expect("it was written");
    assert_eq!(text.out.trim(), written.trim());
    let compared = finish(spawn_console(&["acceptance", "--compare", &file, &file, "--json"]));
    assert_described("console acceptance --compare", &compared.json());
    let figures = compared.json()["figures"].as_array().expect("a list").clone();
    assert!(figures.len() > 10 && figures.iter().all(|row| row["first"] == row["second"]), "{figures:?}");
    let broken = folder.join("broken.json");
    fs::write(&broken, "{}").expect("write to the folder");
    let refused = finish(spawn_console(&["acceptance", "--show", &broken.to_string_lossy(), "--json"]));
    refused.assert_error(8, "state", &["not a report"]);
}

#[test]
fn node_whose_sudo_asks_for_a_password_is_named_before_the_test() {
    let cluster = Cluster::with(2, &demo_models(), RECOVER);
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let ssh = folder.path().join("ssh");
    let asking = cluster.addresses[1].split(':').next().expect("an address has a host");
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in\n*' {asking} {CHECK}') echo 'sudo: a password is required' >&2; exit 1 ;;\n\
         *' {CHECK}') exit 0 ;;\n*) exit 255 ;;\nesac\n"
    );
    fs::write(&ssh, script).expect("write to the folder");
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).expect("this process owns the file");
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap_or_default());
    let plan = |only: &str| {
        let mut command = Command::new(programs().join("console"));
        command.args(["acceptance", "--nodes", &cluster.nodes(), "--model", MODEL, "--only", only, "--out"]);
        command.arg(folder.path().join("report")).args(["--ssh", "--dry-run", "--json"]).env("PATH", &path);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let ended = finish(command.spawn().expect("console runs"));
        assert_eq!(ended.code, Some(0), "{} {}", ended.out, ended.err);
        ended
    };
    let planned = plan("machines,recovery");
    let reason = format!("`{CHECK}` over ssh on pi2 failed with exit status: 1: sudo: a password is required");
    assert!(planned.err.contains(&format!("not measured: {reason}")), "{}", planned.err);
    assert_eq!(planned.json()["plan"]["steps"][1]["state"], "skipped", "{}", planned.out);
    assert!(!plan("machines").err.contains("sudo"), "no other step needs it");
}

#[test]
fn declined_acceptance_changes_nothing() {
    let cluster = Cluster::with(2, &demo_models(), RECOVER);
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let out = folder.path().join("report");
    cluster.generate(2, BEFORE).completion();
    let held = || {
        let nodes = [0, 1].map(|index| cluster.status(index));
        nodes.map(|node| ["epoch", "topology"].map(|field| node[field].clone()))
    };
    let before = held();
    let screen = decline(&cluster.nodes(), &out, &[], &["restores it afterwards. [y/N]"]);
    let begins = format!("acceptance test of 2 nodes with {MODEL}:");
    let replaces = format!("This replaces dp2-tp1 with {MODEL} on pi1, pi2 (no running requests) during the test");
    for part in ["  nodes     ", "not measured: ", &begins, &replaces] {
        assert!(screen.contains(part), "{part:?} is not on\n{screen}");
    }
    for part in ["the report is in", "restoring", "next:"] {
        assert!(!screen.contains(part), "{part:?} is on\n{screen}");
    }
    assert_eq!(held(), before);
    assert_eq!(fs::read_dir(folder.path()).expect("the folder is there").count(), 0, "no report is written");
}

#[test]
fn interrupted_acceptance_restores_the_topology() {
    let cluster = Cluster::with(2, &demo_models(), RECOVER);
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let out = folder.path().join("report");
    cluster.generate(2, BEFORE).completion();
    let line = ["--only", "load", "--load-seconds", "600", "--yes"];
    let (nodes, path) = (cluster.nodes(), out.to_string_lossy().into_owned());
    let running = spawn_console(&[&["acceptance", "--nodes", &nodes, "--out", &path, "--json"], &line[..]].concat());
    wait_until("the load runs", || cluster.status(0)["state"] == "benching");
    let stored: Value = fs::read(out.with_extension("json"))
        .map(|bytes| serde_json::from_slice(&bytes).expect("it is JSON"))
        .expect("it was written before the load");
    assert_eq!(stored["replaced"][0]["wanted"]["model"], MODEL, "a console that is killed leaves what to restore");
    kill(Pid::from_raw(running.id().cast_signed()), Signal::SIGINT).expect("the console is running");
    finish(running).assert_error(130, "interrupted", &[]);
    assert_eq!(layout(&cluster), "dp2-tp1");
    wait_until("both serve", || (0..2).all(|index| cluster.status(index)["state"] == "ready"));
}

#[test]
fn topology_of_a_killed_run_is_restored_only_if_its_members_answer() {
    let cluster = Cluster::with(3, &demo_models(), RECOVER);
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let out = folder.path().join("report");
    let serve = |count: usize, layout: &str| {
        let more = ["--prompt", "ROMEO:", "--max-tokens", "4", "--temperature", "0", "--topology", layout];
        cluster.generate(count, &more).completion();
    };
    serve(3, "dp3-tp1");
    // The test is of two of the three members.
    let (nodes, path) = (cluster.addresses[..2].join(","), out.to_string_lossy().into_owned());
    let begin = |more: &[&str]| {
        let fixed = ["acceptance", "--nodes", &nodes, "--out", &path, "--yes", "--json"];
        spawn_console(&[&fixed[..], more].concat())
    };
    let running = begin(&["--only", "load", "--load-seconds", "600"]);
    wait_until("the load runs", || cluster.status(0)["state"] == "benching");
    kill(Pid::from_raw(running.id().cast_signed()), Signal::SIGKILL).expect("the console is running");
    assert_eq!(finish(running).code, None);
    wait_until("the load is over", || (0..2).all(|index| cluster.status(index)["state"] == "idle"));

    // Nodes under test do not know the third member any more.
    serve(2, "tp2");
    let machines = ["--only", "machines", "--again", "machines"];
    finish(begin(&machines)).assert_error(8, "state", &["pi3"]);
    assert_eq!(layout(&cluster), "tp2", "nothing was unloaded");

    serve(3, "pp3");
    let stored = || fs::read(out.with_extension("json")).expect("the killed run has written it");
    let (before, served) = (stored(), layout(&cluster));
    let questions = ["which an earlier run replaced? [y/N]", "This interrupts nothing. [y/N]"];
    let screen = decline(&nodes, &out, &machines, &questions);
    assert!(screen.contains("Unload pp3") && screen.contains("and restore dp3-tp1"), "{screen}");
    assert_eq!((stored(), layout(&cluster)), (before, served), "a later run can still restore it");

    let ended = finish(begin(&machines));
    assert!(ended.err.contains("restores dp3-tp1 with") && ended.err.contains("unloads pp3"), "{}", ended.err);
    assert_eq!(report(ended)["replaced"], json!([]), "it was restored");
    assert_eq!(layout(&cluster), "dp3-tp1");
}

#[test]
fn killed_and_restarted_nodes_leave_the_answer_as_it_was() {
    let models = deep_models();
    let mut cluster = Cluster::supervised(3, models.path(), RECOVER);
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let out = folder.path().join("report");
    let check = |report: &Value, how: &str| {
        let loss = found(report, "recovery");
        assert_eq!((&loss["node"], &loss["how"]), (&json!("pi3"), &json!(how)), "{loss}");
        // Random weights make near ties, which another number of ranks may decide otherwise.
        let is_near = loss["differs"]["margin"].as_f64().is_some_and(|margin| margin < 0.2);
        assert!(loss["differs"].is_null() || is_near, "{loss}");
        assert_positive(&[&loss["pause_ms"], &loss["resumed"], &loss["back_ms"]]);
    };
    let line = ["--model", DEEP, "--only", "recovery"];
    check(&run(&cluster, &out, &line), "restarted");
    let killed = format!("test \"$BRAMBLE_NODE\" = pi3 && kill -9 {}", cluster.pid(2));
    let more = ["--again", "recovery", "--kill-command", &killed, "--yes"];
    let running = spawn(&cluster, &out, &[&line[..], &more].concat());
    cluster.wait(2);
    cluster.start(2);
    check(&report(finish(running)), "killed");
    wait_until("the nodes are idle, as before", || cluster.status(0)["topology"].is_null());
}
