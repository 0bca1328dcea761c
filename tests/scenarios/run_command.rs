//! `console run`, and `console generate` without a model: names that are only a part of a file's name.
use harness::programs::{Cluster, Ended};

fn on(cluster: &Cluster, arguments: &[&str]) -> Ended {
    let nodes = cluster.nodes();
    let more = ["--nodes", &nodes, "--json", "--temperature", "0", "--max-tokens", "8"];
    cluster.console(&[arguments, &more[..]].concat())
}

#[test]
fn part_of_a_model_name_is_enough_and_generate_needs_none() {
    let cluster = Cluster::of(2);
    let only = on(&cluster, &["generate", "--prompt", "ROMEO:"]);
    assert_eq!(only.code, Some(0), "the only model is used: {} {}", only.out, only.err);
    assert!(only.err.contains("model bard-q8_0.gguf"), "{}", only.err);

    let answered = on(&cluster, &["run", "bard", "ROMEO:"]);
    assert_eq!(answered.code, Some(0), "{} {}", answered.out, answered.err);
    assert!(answered.json()["text"].as_str().is_some_and(|text| !text.is_empty()), "{}", answered.out);
    assert_eq!(answered.json()["epoch"], only.json()["epoch"], "the topology that serves the model is used");

    let missing = on(&cluster, &["run", "bart", "ROMEO:"]);
    missing.assert_error(4, "model_missing", &["bart"]);
    assert!(missing.err.contains("did you mean bard-q8_0.gguf?"), "{}", missing.err);
}
