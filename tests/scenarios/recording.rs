//! A session with real daemons is recorded to a file, and the file is played back as text and JSON, without a node.
use std::process::Command;

use harness::{
    programs::{Cluster, console, programs},
    terminal::Terminal,
};
use serde_json::Value;

#[test]
fn recorded_session_plays_without_nodes_and_is_read_only() {
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let file = folder.path().join("session.bramble").to_string_lossy().into_owned();
    let cluster = Cluster::of(2);
    let model = ["--model", "bard-q8_0.gguf", "--max-tokens", "16", "--temperature", "0"];
    let text = cluster.generate(2, &["--prompt", "ROMEO:", "--max-tokens", "16", "--temperature", "0"]).completion();
    let text = text["text"].as_str().expect("a text").lines().next_back().expect("a line").to_owned();
    let mut command = Command::new(programs().join("console"));
    command.args(["--nodes", &cluster.nodes(), "--record", &file]).args(model);
    let mut terminal = Terminal::run(command, 100, 30);
    terminal.wait_for("Ready. i to type a prompt");
    terminal.wait_for("REC");
    terminal.keys("iROMEO:\r");
    terminal.wait_for("16 tokens, max tokens");
    terminal.keys("\x03");
    assert_eq!(terminal.ended(), Some(130));
    drop(cluster);

    let mut command = Command::new(programs().join("console"));
    command.args(["replay", &file]);
    let mut terminal = Terminal::run(command, 100, 30);
    terminal.wait_for("REPLAY");
    // The end of the session, which was in the prompt box; keys still switch pages.
    terminal.keys("\x1b[F");
    terminal.wait_for("16 tokens, max tokens");
    terminal.wait_for(text.trim());
    terminal.keys("1");
    terminal.wait_for("Nodes");
    terminal.keys("R");
    terminal.wait_for("this is a recording");
    terminal.keys("q");
    assert_eq!(terminal.ended(), Some(0));
    terminal.assert_restored();

    let ended = console(&["replay", &file, "--json"]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let events: Vec<Value> = ended.out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(events.len() > 20, "{} events", events.len());
    let broken = folder.path().join("broken.bramble");
    std::fs::write(&broken, "no recording\n").expect("write to the folder");
    let ended = console(&["replay", &broken.to_string_lossy()]);
    assert!(ended.code == Some(2) || ended.code == Some(1), "{:?}", ended.code);
    assert!(ended.err.contains("line 1") || ended.err.contains("recording"), "{}", ended.err);
}
