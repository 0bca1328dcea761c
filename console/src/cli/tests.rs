//! Command lines, exit codes and JSON, tested against scripted nodes.
use std::sync::Arc;

use ::collectives::{Algorithm, Choice, Table, TableRow};
use ::topology::{Layout, Member, Topology};
use clap::CommandFactory;
use common::{
    chat::FinishReason,
    fault::{Fault, FaultKind, Loss},
    ids::{Epoch, MemberIndex, ModelIdentity},
    latency::RequestTimes,
    precision::{Exchange, KvFormat},
    sampling::SamplingParameters,
    units::Nanoseconds,
};
use protocol::message::TokenLogprob;
use serde_json::Value;
use tokio::sync::mpsc::channel;

use super::*;
use crate::cli::{
    generate::{Completion, complete, object},
    shared::interrupts::Interrupts,
};
use crate::client::{
    assign::Assigned,
    cluster::Cluster,
    fake_node::{FakeNode, Generation, Script, TOKENS, finished},
    session,
};

#[test]
fn command_line_definition_is_consistent() {
    Arguments::command().debug_assert();
}

/// Largest number of commands that can be run (the dashboard, which is no subcommand, excluded), and of the arguments and
/// options of all, global ones excluded.
const COMMANDS_MAX: usize = 51;
const OPTIONS_MAX: usize = 325;

/// Counts the commands that can be run below a command, itself included, and their options.
fn counted(command: &clap::Command) -> (usize, usize) {
    let own = command
        .get_arguments()
        .filter(|one| !one.is_global_set() && !matches!(one.get_id().as_str(), "help" | "version"));
    let runs = !command.is_subcommand_required_set();
    let own = if runs { (1, own.count()) } else { (0, 0) };
    let below = command.get_subcommands().filter(|below| below.get_name() != "help").map(counted);
    below.fold(own, |sum, next| (sum.0 + next.0, sum.1 + next.1))
}

#[test]
fn command_line_stays_small() {
    // The program itself opens the dashboard.
    let (all, options) = counted(&command());
    let commands = all - 1;
    println!("{commands} commands, {options} options");
    assert!(commands <= COMMANDS_MAX && options <= OPTIONS_MAX, "{commands} commands, {options} options");
}

#[test]
fn invalid_values_are_usage_errors_with_a_message() {
    for (line, part) in [
        ("console generate --nodes a --topology 4tp --prompt x --model m", "tp4"),
        ("console generate --nodes , --prompt x --model m", "ADDRESS"),
        ("console generate --nodes a --prompt x --model m --temperature nan", "expected 0 to 100"),
        ("console generate --nodes a --prompt x --model m --top-p 2", "expected 0 to 1"),
        ("console generate --nodes a --prompt x --model m --max-tokens 0", "max-tokens"),
        ("console generate --nodes a --prompt x --model m --logprobs 21", "logprobs"),
        ("console generate --nodes a --prompt x --model m --kv f8", "q4_0 or f32"),
        ("console generate --nodes a --prompt x --model m --exchange q4", "f32, f16 or q80"),
        ("console generate --nodes a --prompt x --model m --context 0", "context"),
        ("console generate --nodes a --prompt x --prompt-file y --model m", "cannot be used with"),
        ("console generate --nodes a --model m", "--prompt"),
        ("console generate --nodes a --prompt x --temperature -1", "expected 0 to 100"),
        ("console generate --nodes a --prompt x --max-tokens -1", "-1 is not in"),
        ("console run m --url http://a --topology tp2", "cannot be used with"),
        ("console run m x --prompt y", "cannot be used with"),
        ("console generate --prompt x --trace t.json", "--profile"),
        ("console generate --prompt x --profile --url http://a", "cannot be used with"),
        ("console model pull m.gguf --from pi1 --name n.gguf", "cannot be used with"),
        ("console completions tcsh", "bash, zsh, fish"),
        ("console generate --nodes a --prompt x --model m --stop=", "1 to 256 bytes"),
        ("console demo --nodes 0", "0"),
        ("console demo --nodes 9", "9"),
        ("console tokenize --model m", "--text"),
        ("console topology simulate --nodes 4..2", "1..8"),
        ("console topology simulate --nodes 65", "64"),
        ("console topology simulate --nodes 4 --topology tp4", "cannot be used with"),
        ("console topology simulate --profile pi6", "pi4 or pi5"),
        ("console topology simulate --collective cube", "auto"),
        ("console topology simulate --slow 2", "RANK:PERCENT"),
        ("console topology plan --memory 8", "8G"),
        ("console topology plan --goal cheap", "throughput"),
        ("console topology plan --count 0", "count"),
        ("console topology plan --quant q3", "q4_k_m"),
        ("console generate --prompt x --url https://a", "https is not supported"),
        ("console chat --url a:0", "from 1 to 65535"),
        ("console proxy", "--to"),
        ("console proxy --to a/b", "HOST"),
        ("console paint", "paint"),
        ("console statsu", "a similar subcommand exists: 'status'"),
        ("console doctor --jsn", "a similar argument exists: '--json'"),
    ] {
        let error = Arguments::try_parse_from(line.split(' ')).expect_err(line);
        assert_eq!(error.exit_code(), 2, "{line}");
        let object = usage_failure(&error).json();
        assert_eq!(object["error"]["code"], "usage");
        let message = object["error"]["message"].as_str().expect("a message");
        assert!(
            message.contains(part) && !message.starts_with("error") && !message.contains('\n'),
            "{line}: {message}"
        );
    }
}

/// Runs a command line. Returns the exit code and the error object.
async fn execute_line(line: &str) -> (u8, Value) {
    let mut arguments = target::parse(line.split(' ').map(OsString::from)).expect("the line is right");
    if let Err(failure) = target::resolve(&mut arguments) {
        return (failure.code(), failure.json()["error"].clone());
    }
    match Box::pin(execute(arguments)).await {
        Ok(code) => (code, Value::Null),
        Err(failure) => (failure.code(), failure.json()["error"].clone()),
    }
}

async fn generate_on(script: Script) -> (u8, Value) {
    let nodes = [FakeNode::start("pi1", Script::default()).await, FakeNode::start("pi2", script.clone()).await];
    // The second node is the head, which generates.
    let order = format!("{},{}", nodes[1].address, nodes[0].address);
    execute_line(&format!("console generate --json --seed 1 --nodes {order} --model m --prompt x")).await
}

#[tokio::test]
async fn generate_exits_with_0_1_3_4_or_5_and_names_the_node() {
    assert_eq!(generate_on(Script::default()).await, (0, Value::Null));

    let failing = |kind| Script { generation: Generation::Fails(Fault::new("pi9", kind)), ..Script::default() };
    let (code, error) = generate_on(failing(FaultKind::Internal { reason: "r".into() })).await;
    assert_eq!((code, &error["code"]), (1, &"internal".into()));
    let (code, error) = generate_on(failing(FaultKind::NodeLost { how: Loss::Reset })).await;
    assert_eq!((code, &error["code"], &error["node"]), (5, &"node_lost".into(), &"pi9".into()));
    let (code, error) = generate_on(failing(FaultKind::PromptTooLong { tokens: 9, context: 8 })).await;
    assert_eq!((code, &error["code"]), (4, &"prompt_too_long".into()));

    let closes = Script { generation: Generation::Closes, ..Script::default() };
    let (code, error) = generate_on(closes).await;
    // The node ends the resumed request as well.
    assert_eq!((code, &error["code"], &error["node"]), (1, &"request_ends_heads".into(), &"pi2".into()));
    let refuses = Script { prepare: Some(FaultKind::Draining), ..Script::default() };
    let (code, error) = generate_on(refuses).await;
    assert_eq!((code, &error["code"], &error["node"]), (4, &"draining".into(), &"pi2".into()));
    assert!(error["next"].as_str().is_some_and(|next| !next.is_empty()));

    let (code, error) = execute_line("console generate --json --nodes 127.0.0.1:1 --model m --prompt x").await;
    assert_eq!((code, &error["code"], &error["node"]), (3, &"node_unreachable".into(), &"127.0.0.1:1".into()));
}

#[tokio::test]
async fn status_exits_with_3_if_a_node_is_unreachable() {
    let node = FakeNode::start("pi1", Script::default()).await;
    assert_eq!(execute_line(&format!("console status --json --nodes {}", node.address)).await.0, 0);
    assert_eq!(execute_line(&format!("console status --nodes {},127.0.0.1:1", node.address)).await.0, 3);
}

#[tokio::test]
async fn silent_node_counts_in_lists_unless_it_is_excluded() {
    let (node, away) = (FakeNode::start("pi1", Script::default()).await, "127.0.0.1:1");
    let mut cluster = Cluster::dial(std::slice::from_ref(&node.address)).await;
    let nodes = format!("{},{away}", node.address);
    let codes = async || {
        let mut codes = Vec::new();
        for line in ["doctor", "kv list", "model list", "kv clear --yes", "kv clear --yes --node 127.0.0.1:1"] {
            codes.push(execute_line(&format!("console {line} --nodes {nodes}")).await.0);
        }
        codes
    };
    assert_eq!(codes().await, [3; 5]);
    cluster.exclusions.cordon("pi2", away, "fan", "me@here");
    assert!(cluster.spread().await.is_empty());
    assert_eq!(codes().await, [3; 5], "a cordoned node may still serve");
    cluster.exclusions.say("pi2", away, Some("dead"), "me@here");
    assert!(cluster.spread().await.is_empty());
    assert_eq!(codes().await, [0, 0, 0, 0, 3], "a node that is named must answer");
}

#[tokio::test]
async fn dashboard_without_a_terminal_is_a_usage_error() {
    // The test runner may have a terminal.
    if !dashboard::has_terminal() {
        assert_eq!(execute_line("console --nodes 127.0.0.1:1").await.0, 2);
    }
}

#[tokio::test]
async fn signal_cancels_and_keeps_text_second_signal_does_not_wait() {
    let script = Script { generation: Generation::UntilCancelled, ..Script::default() };
    let node = FakeNode::start("pi1", script).await;
    let nodes = [Arc::new(session::open(&node.address).await.expect("it answers"))];
    let sampling = SamplingParameters::default();
    let request = protocol::message::Generate::new("x", 9, sampling, Vec::new());

    let (signal, codes) = channel(4);
    let mut interrupts = Interrupts::from(codes);
    let running = complete(&nodes, request.clone(), false, &mut interrupts);
    let interrupting = async {
        node.await_asked("generate").await;
        signal.send(130).await.expect("the receiver is open");
    };
    let (completion, ()) = tokio::join!(running, interrupting);
    let completion = completion.expect("the head ends it");
    assert_eq!((completion.interrupted, completion.finished.reason), (Some(130), FinishReason::Cancelled));
    assert_eq!(completion.text, "O Romeo");

    let mute = FakeNode::start("pi2", Script { is_mute: true, ..Script::default() }).await;
    let session = session::open(&mute.address).await.expect("it answers");
    for _ in 0..2 {
        signal.send(130).await.expect("the receiver is open");
    }
    let ended = complete(&[Arc::new(session)], request, false, &mut interrupts).await;
    assert!(matches!(ended, Err(Failure::Interrupted { code: 130 })), "{ended:?}");
}

#[tokio::test]
async fn signal_during_an_assignment_ends_the_command() {
    let (signal, codes) = channel(4);
    let mut interrupts = Interrupts::from(codes);
    signal.send(143).await.expect("the receiver is open");
    let never = std::future::pending::<Result<(), Failure>>();
    assert_eq!(interrupts.end(never).await.map_err(|failure| failure.code()), Err(143));
    let done = std::future::ready(Ok::<_, Failure>(7));
    assert_eq!(interrupts.end(done).await.map_err(|failure| failure.code()), Ok(7));
}

fn assigned() -> Assigned {
    let member = |name: &str| Member {
        name: name.into(),
        address: format!("{name}:9999"),
        weight: 1,
        layers: 0..6,
        cores: Vec::new(),
        threads: 1,
        spin: false,
    };
    let topology = Topology {
        layout: Layout::tensor_parallel(2),
        members: vec![member("pi1"), member("pi2")],
        model: "m.gguf".into(),
        identity: ModelIdentity([0; 32]),
        content: None,
        unload_after: None,
        draft: None,
        kv: KvFormat::F16,
        exchange: Exchange::F32,
        collective: Choice::Auto,
        context_length: 512,
        slots: 4,
    };
    Assigned { epoch: Epoch(7), topology, reused: false }
}

#[test]
fn generation_object_has_exactly_the_documented_fields() {
    let logprobs = vec![TokenLogprob { id: 10, text: "O ".into(), logprob: -0.5, bytes: Vec::new() }];
    let completion = Completion {
        thought: String::new(),
        text: "O Romeo".into(),
        prompt_token_ids: vec![1, 2],
        token_ids: TOKENS.map(|(id, _)| id).to_vec(),
        logprobs: vec![logprobs; 3],
        finished: finished(FinishReason::Length),
        resumed: 0,
        moved: None,
        interrupted: None,
    };
    let full = object(&completion, (&assigned(), MemberIndex(0)), 42, true);
    let keys = |value: &Value| -> Vec<String> {
        let mut keys: Vec<String> = value.as_object().expect("an object").keys().cloned().collect();
        keys.sort();
        keys
    };
    let wanted = [
        "epoch",
        "finish_reason",
        "logprobs",
        "prompt_token_ids",
        "ranks",
        "replica",
        "resumed",
        "seed",
        "text",
        "timings",
        "token_ids",
        "topology",
    ];
    assert_eq!(keys(&full), wanted);
    let timings = [
        "accepted_tokens",
        "bubble_ms",
        "cached_tokens",
        "compute_ms",
        "decode_tokens_per_second",
        "drafted_tokens",
        "network_fraction",
        "prefill_tokens_per_second",
        "stored_tokens",
        "threads_ms",
        "tpot_ms",
        "trace",
        "transfer",
        "ttft_ms",
        "wait_ms",
        "wire_ms",
    ];
    assert_eq!(keys(&full["timings"]), timings);
    assert_eq!(full["timings"]["trace"], crate::cli::generate::trace(&completion.finished.times));
    assert_eq!(full["timings"]["ttft_ms"], 11.0);
    assert_eq!(full["timings"]["tpot_ms"], 10.0);
    assert_eq!(full["timings"]["network_fraction"], 0.4);
    assert_eq!((&full["topology"], &full["epoch"], &full["seed"]), (&"tp2".into(), &7.into(), &42.into()));
    assert_eq!(full["finish_reason"], "length");
    assert_eq!((&full["ranks"][1]["node"], &full["ranks"][1]["compute_ms"]), (&"pi2".into(), &12.0.into()));
    assert_eq!(full["ranks"][0]["decode"]["bytes_sent"], 24_576);
    assert_eq!(keys(&full["logprobs"][2][0]), ["id", "logprob", "text"]);
    assert!(object(&completion, (&assigned(), MemberIndex(0)), 42, false).get("logprobs").is_none());
}

#[test]
fn trace_has_no_flush_before_a_byte_is_sent() {
    let first_token = Nanoseconds(11_000_000);
    let mut times = RequestTimes { first_token, ..RequestTimes::default() };
    let fields = [
        "t_prefill_start",
        "t_prefill_done",
        "t_first_token",
        "t_first_byte_sent",
        "t_last_token",
        "sampling_ms",
        "flush_ms",
    ];
    let unsent = crate::cli::generate::trace(&times);
    let object = unsent.as_object().expect("an object");
    assert_eq!(object.keys().collect::<Vec<_>>(), fields);
    assert!(unsent["flush_ms"].is_null() && unsent["t_first_byte_sent"].is_null(), "{unsent}");
    times.sent = Nanoseconds(first_token.0 + 500_000);
    assert_eq!(crate::cli::generate::trace(&times)["flush_ms"], 0.5);
}

/// A model of which only the length of a hidden state is known.
const EXCHANGED: profile::table::Exchanged<'_> = profile::table::Exchanged { embedding_length: 256, spec: None };

#[test]
fn profile_compares_each_rank_with_the_formula() {
    let lines = profile::table::lines(&finished(FinishReason::Length), &assigned().topology, 0, EXCHANGED, &[]);
    let rows: Vec<&String> = lines.iter().filter(|line| line.starts_with("decode   p")).collect();
    assert_eq!(rows.len(), 2);
    for (row, node) in rows.iter().zip(["pi1", "pi2"]) {
        // 12 all-reduces of 256 values to one peer: 12 * (1024 + 64) bytes; 24 messages in 2 steps were sent.
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(words[1], node);
        assert!(row.contains("40.0%") && row.contains("12.0 KiB") && row.contains("12.8 KiB"), "{row}");
        assert_eq!(&words[words.len() - 2..], ["12.0", "12"], "{row}");
    }
    let summed: Vec<&String> = lines.iter().skip_while(|line| !line.starts_with("summary")).take(5).collect();
    // Both ranks wait 8 of 20 ms while 20 ms pass between three tokens.
    assert!(summed[2].starts_with("decode ") && summed[2].ends_with("40.0%"), "{summed:?}");
    assert!(summed[3].starts_with("decode, a token") && summed[3].contains("10.00 ms"), "{summed:?}");
    // The tables of the ranks name another algorithm: two messages of half the values each.
    let row = TableRow { tokens: 1, algorithm: Algorithm::ReduceScatter, timed: Vec::new() };
    let tables = vec![Some(Table { rows: vec![row] }); 2];
    let lines = profile::table::lines(&finished(FinishReason::Length), &assigned().topology, 0, EXCHANGED, &tables);
    let row = lines.iter().find(|line| line.starts_with("decode")).expect("it decoded");
    assert!(row.contains("13.5 KiB") && row.ends_with(" 24"), "{row}");
}

#[tokio::test]
async fn simulate_and_plan_need_no_node_and_report_bad_values() {
    assert_eq!(execute_line("console topology simulate --model qwen3-0.6b --nodes 1,2 --prompt 64 --json").await.0, 0);
    assert_eq!(execute_line("console topology simulate --model qwen3-0.6b --topology pp2-tp2 --watch 64").await.0, 0);
    assert_eq!(execute_line("console topology plan --model qwen3-0.6b --count 3 --prompt 64 --all").await.0, 0);
    for (line, part) in [
        ("console topology simulate --model llama-9", "llama-3.1-8b"),
        ("console topology simulate --model qwen3-0.6b --jitter-file Cargo.toml", "64 times"),
        ("console topology simulate --model qwen3-0.6b --topology pp30", "28 stages"),
        ("console topology simulate --model qwen3-0.6b --topology dp2-tp2", "replicas"),
        ("console topology simulate --nodes a,b --model qwen3-0.6b", "1..8"),
    ] {
        let parsed = target::parse(line.split(' ').map(OsString::from));
        let (code, message) = match parsed {
            Err(error) => (2, error.to_string()),
            Ok(_) => {
                let (code, error) = execute_line(line).await;
                (code, error["message"].as_str().unwrap_or_default().to_owned())
            }
        };
        assert!(code == 2 && message.contains(part), "{line}: {code} {message}");
    }
    let (code, error) = execute_line("console topology plan --model llama-3.3-70b --count 2 --memory 4G").await;
    assert!(code == 8 && error["message"].as_str().is_some_and(|text| text.contains("no layout fits")), "{error}");
    let as_json = execute_line("console topology plan --model llama-3.3-70b --count 2 --memory 4G --json").await;
    assert_eq!(as_json, (8, Value::Null), "the plan is the only object");
}

#[tokio::test]
async fn plan_measures_the_given_nodes() {
    let nodes = [FakeNode::start("pi1", Script::default()).await, FakeNode::start("pi2", Script::default()).await];
    // This node only measures matrix products.
    let (code, error) = execute_line(&format!("console topology plan {} --model qwen3-0.6b", nodes[0].address)).await;
    assert_eq!(code, 1);
    assert!(error["message"].as_str().is_some_and(|message| message.contains("pi1")), "{error}");
    let (code, error) = execute_line("console topology plan 127.0.0.1:1 --model qwen3-0.6b").await;
    assert_eq!((code, &error["code"]), (3, &"node_unreachable".into()));
}

#[tokio::test]
async fn http_commands_exit_with_0_3_4_or_5_and_name_the_server() {
    use crate::http::fake::{FakeServer, FakeStep, answer, completion};
    let server = FakeServer::start(|_, request| match request.line.split(' ').nth(1) {
        Some("/v1/models") => vec![FakeStep::Bytes(answer(200, "", "{\"data\":[{\"id\":\"bard\"}]}"))],
        Some("/v1/completions") => {
            let body: Value = serde_json::from_str(&request.body).expect("JSON");
            assert_eq!((&body["model"], &body["prompt"], &body["seed"]), (&"bard".into(), &"x".into(), &7.into()));
            completion(&["O"])
        }
        Some("/v1/chat/completions") => {
            let body: Value = serde_json::from_str(&request.body).expect("JSON");
            assert_eq!(body["messages"][0]["role"], "system");
            vec![FakeStep::Bytes(answer(
                429,
                "Retry-After: 1\r\n",
                "{\"error\":{\"message\":\"full\",\"code\":\"queue_full\"}}",
            ))]
        }
        _ => vec![FakeStep::Close],
    });
    let url = server.url();
    assert_eq!(execute_line(&format!("console generate --url {url} --prompt x --seed 7")).await, (0, Value::Null));
    let (code, error) = execute_line(&format!("console chat --url {url} --prompt x --system y")).await;
    assert_eq!((code, &error["code"], &error["node"]), (4, &"queue_full".into(), &server.address().into()));
    let (code, error) = execute_line(&format!("console generate --url {url}/other --model m --prompt x")).await;
    assert_eq!((code, &error["code"]), (5, &"connection_lost".into()));
    let (code, error) = execute_line("console generate --url 127.0.0.1:1 --prompt x").await;
    assert_eq!((code, &error["code"]), (3, &"unreachable".into()));
    assert_eq!(execute_line("console chat --prompt x").await.0, 2);
}
