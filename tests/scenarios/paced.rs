//! Paced nodes, which wait instead of computing: steps take the time of the profile, no weights are loaded, and status
//! and log report the mode.
use gguf::BlockFormat;
use harness::tiny_model::Architecture;
use harness::{
    programs::{Cluster, DEEP, folder_with},
    tiny_model::TinyModel,
};
use tempfile::TempDir;

const PACED: &str = "http = \"127.0.0.1:0\"\n[paced]\nprofile = \"pi5\"\n";
const TOKENS: usize = 16;
const LAYERS: usize = 8;

/// A model file with only a header and a hole in place of 3 GB of weights.
fn hollow() -> TempDir {
    let mut model = TinyModel::new(Architecture::Llama).with_format(BlockFormat::F16);
    (model.block_count, model.context_length, model.embedding_length) = (LAYERS, 512, 4096);
    (model.feed_forward_length, model.head_count, model.head_length) = (14_336, 32, 128);
    model.rope_dimension_count = 128;
    let folder = folder_with(&[]);
    let mut file = std::fs::File::create(folder.path().join(DEEP)).expect("write to the folder");
    let length = model.writer().write_header(&mut file).expect("write to the folder");
    file.set_len(length).expect("the system has files with holes");
    assert!(length > 2 << 30, "{length} bytes");
    folder
}

#[test]
fn paced_nodes_follow_their_profile_and_hold_no_weights() {
    let models = hollow();
    let cluster = Cluster::with(2, models.path(), PACED);
    let arguments = ["--model", DEEP, "--topology", "tp2", "--max-tokens", "16", "--temperature", "0"];
    let answer = cluster.generate(2, &[&arguments[..], &["--prompt", "abc", "--context", "64"]].concat()).completion();
    let tokens = answer["token_ids"].as_array().expect("a list");
    assert_eq!(tokens.len(), TOKENS, "no token may end the answer: {answer}");
    let prompt = answer["prompt_token_ids"].as_array().and_then(|ids| ids.last()).expect("a prompt");
    assert!(tokens.iter().all(|id| id == prompt), "each token must repeat the last token of the prompt: {answer}");
    // Half of each layer's matrices in F16, read at 12.2 GB/s.
    let layer = (4096 * 4096 * 2 + 2 * 4096 * 256 + 3 * 4096 * 14_336) as f64;
    let least = layer * LAYERS as f64 * 2.0 / 2.0 / 12.2e9 * 1e3;
    // Repeated tokens are predicted by speculative decoding: a step may give several.
    let decode = &answer["ranks"][0]["decode"];
    let time = |name: &str| decode[name].as_f64().expect("a number");
    let step = (time("compute_ms") + time("wait_ms") + time("wire_ms")) / time("steps");
    // Other tests compete for the cores, and attention, the output layer and messages take time as well.
    assert!(step > least && step < 6.0 * least, "{step} ms a step, computing would take {least}");
    let status = cluster.status(0);
    assert_eq!(status["paced"], true, "{status}");
    assert!(status["kernels"].as_str().is_some_and(|name| name.starts_with("paced pi5")), "{status}");
    let resident = status["memory_resident"].as_u64().expect("a number");
    assert!(resident < 400 << 20, "{resident} bytes are resident; the weights have {}", status["shard_bytes"]);
    assert!(cluster.log(0).contains("computes nothing"), "{}", cluster.log(0));
}

#[test]
fn paced_nodes_refuse_http_benches_and_computing_peers() {
    let models = folder_with(&[(DEEP, &TinyModel::new(Architecture::Llama).bytes())]);
    let mut cluster = Cluster::with(2, models.path(), PACED);
    assert!(!cluster.log(0).contains("http="), "{}", cluster.log(0));
    let nodes = cluster.nodes();
    let shown = cluster.console(&["status", "--nodes", &nodes]);
    assert!(shown.out.contains("its output is meaningless"), "{}", shown.out);
    let measured = cluster.console(&["bench", "node", "--nodes", &nodes, "--model", DEEP, "--tokens", "1", "--json"]);
    assert_ne!(measured.code, Some(0), "{}", measured.out);
    assert!(format!("{}{}", measured.out, measured.err).contains("computes nothing"), "{}", measured.err);
    // The other node computes: its content hash is that of the weights.
    cluster.set_settings("");
    cluster.signal(1, nix::sys::signal::Signal::SIGTERM);
    cluster.wait(1);
    cluster.start(1);
    let mixed = cluster.generate(2, &["--model", DEEP, "--topology", "tp2", "--prompt", "abc"]);
    mixed.assert_error(4, "content_differs", &[]);
}
