//! Draft models change no answer: not at any temperature, on any number of ranks, or in batches.
use std::{ops::Range, sync::Arc};

use gguf::GgufFile;
use harness::{
    chain::Chain,
    engines::{Answer, Replica},
    families,
    greedy::{ids, request, request_among},
    http::{beside, post, with_fields},
    programs::{Cluster, folder_with, wait_until},
    tiny_model::{Architecture, TinyModel},
};
use nix::sys::signal::Signal;
use planner::holding::{Holding, PANEL_ROWS};
use protocol::message::Generate;
use serde_json::{Value, json};
use topology::{cut, sizes::ModelSizes};

const VOCABULARY: usize = 900;

fn file(model: &TinyModel) -> Arc<GgufFile> {
    Arc::new(GgufFile::from_bytes(vec![model.bytes()]).expect("the model is valid"))
}

/// A model whose steps take many times as long as those of [`small`].
fn large() -> TinyModel {
    TinyModel {
        vocabulary_length: VOCABULARY,
        context_length: 1024,
        block_count: 6,
        feed_forward_length: 1024,
        ..TinyModel::new(Architecture::Llama)
    }
}

fn small(seed: u64) -> TinyModel {
    TinyModel {
        vocabulary_length: VOCABULARY,
        context_length: 1024,
        block_count: 1,
        embedding_length: 64,
        feed_forward_length: 64,
        seed,
        ..TinyModel::new(Architecture::Llama)
    }
}

/// Three requests in one batch, and one that begins like an earlier one.
fn batches(temperature: f32) -> Vec<Vec<Generate>> {
    // Tokens of the chain, whose continuation has no repetitions.
    let ids = |seed: u32, count: usize| -> Vec<u32> { ids(seed, count).into_iter().map(|id| 300 + id).collect() };
    let first = vec![request(ids(1, 150), 60), request(ids(2, 20), 90), request(ids(3, 40), 60)];
    let mut batches = vec![first, vec![request([&ids(1, 140)[..], &ids(4, 10)].concat(), 60)]];
    for generate in batches.iter_mut().flatten() {
        (generate.sampling.temperature, generate.sampling.seed, generate.ignores_end) = (temperature, 7, true);
    }
    batches
}

/// Speculative tokens, and how many of them were accepted.
fn counts(answers: &[Vec<Answer>]) -> (u32, u32) {
    let times = answers.iter().flatten().map(|answer| answer.end().times);
    times.fold((0, 0), |sum, times| (sum.0 + times.drafted_tokens, sum.1 + times.accepted_tokens))
}

/// A request for `count` of the tokens in `among`. None of them occurs twice before all have occurred: only a draft
/// model can propose tokens, prompt lookup finds nothing.
fn unrepeated(among: &Range<usize>, count: usize, vocabulary: usize) -> Generate {
    let mut generate = request_among((3..23).collect(), count, among, vocabulary);
    // Tokens that have occurred stay ahead of those outside of `among`.
    (generate.sampling.presence_penalty, generate.sampling.penalty_last_n) = (1e6, 1024);
    generate
}

/// Checks that a draft model proposes in two answers, each of new engines: no draft step is measured before their first
/// proposals, which therefore depend on no times. Of three tokens one is left when the third is proposed: it must be
/// accepted. Among 200 tokens, models that differ do not choose alike several times in a row.
#[track_caller]
fn assert_proposes(answers: impl Fn(&[Vec<Generate>]) -> Vec<Vec<Answer>>, vocabulary: usize, of: &str) {
    // The fourth token leaves room for a proposal before it.
    let (proposed, accepted) = counts(&answers(&[vec![unrepeated(&(40..43), 4, vocabulary)]]));
    assert_eq!((proposed, accepted), (1, 1), "{of}: proposed and accepted tokens without an alternative");
    let (proposed, accepted) = counts(&answers(&[vec![unrepeated(&(40..240), 30, vocabulary)]]));
    assert!(accepted < proposed, "{of}: {accepted} of {proposed} tokens among 200 were accepted");
}

#[track_caller]
fn assert_same(expected: &[Vec<Answer>], found: &[Vec<Answer>], of: &str) {
    let ids = |answers: &[Vec<Answer>]| -> Vec<Vec<u32>> {
        answers.iter().flatten().map(|answer| answer.ids.clone()).collect()
    };
    assert_eq!(ids(expected), ids(found), "{of}");
}

#[test]
fn draft_of_70_percent_agreement_changes_no_answer() {
    let chain = Chain { seed: 5, agreement: 1.0 };
    let target = file(&large().with_chain(chain));
    let draft = file(&small(2).with_chain(Chain { agreement: 0.7, ..chain }));
    let mut all_accepted = 0;
    for ranks in [1, 2, 4] {
        for temperature in [0.0, 0.8] {
            let of = format!("{ranks} ranks, temperature {temperature}");
            let replica = Replica { slots: 4, ..Replica::of(ranks) };
            let plain = Replica { is_plain: true, ..replica }.answers(&target, &batches(temperature));
            let drafted = replica.answers_drafted(&target, &draft, &batches(temperature));
            assert_same(&plain, &drafted, &of);
            let (proposed, accepted) = counts(&drafted);
            // How many depends on measured times.
            assert!(accepted > 0 && accepted < proposed, "{of}: {accepted} of {proposed} were accepted");
            all_accepted += accepted;
        }
    }
    assert!(all_accepted > 50, "{all_accepted} were accepted");
}

#[test]
fn random_drafts_propose_what_the_target_samples_with_the_same_noise() {
    let target = file(&large());
    let (same, other) = (Arc::clone(&target), file(&small(9)));
    for temperature in [0.0, 0.8] {
        let replica = Replica { slots: 4, ..Replica::of(2) };
        let plain = Replica { is_plain: true, ..replica }.answers(&target, &batches(temperature));
        let mut alone = [vec![unrepeated(&(40..VOCABULARY), 30, VOCABULARY)]];
        (alone[0][0].sampling.temperature, alone[0][0].sampling.seed) = (temperature, 7);
        assert_eq!(counts(&replica.answers(&target, &alone)), (0, 0), "prompt lookup proposes");
        for (draft, agrees) in [(&same, true), (&other, false)] {
            let of = format!("temperature {temperature}, same model: {agrees}");
            let drafted = replica.answers_drafted(&target, draft, &batches(temperature));
            assert_same(&plain, &drafted, &of);
            let (proposed, accepted) = counts(&replica.answers_drafted(&target, draft, &alone));
            assert!(proposed > 0 && (accepted == proposed) == agrees, "{of}: {accepted} of {proposed} were accepted");
        }
    }
}

#[test]
fn targets_with_states_and_windows_take_drafts() {
    const AMONG: Range<usize> = 40..44;
    for (name, target) in families::files(&["qwen35-", "gemma3-", "gpt-oss"]) {
        let vocabulary = models::read(&target).expect("the model is valid").vocabulary_length;
        let request = |prompt: Vec<u32>, count: usize| request_among(prompt, count, &AMONG, vocabulary);
        let draft = file(&TinyModel { vocabulary_length: vocabulary, context_length: 1024, ..small(3) });
        let replica = Replica { slots: 3, blocks: 80, context_length: 500, ..Replica::of(2) };
        let batches = vec![vec![request(ids(1, 48), 60), request(ids(2, 20), 40)]];
        let plain = Replica { is_plain: true, ..replica }.answers(&target, &batches);
        let drafted = replica.answers_drafted(&target, &draft, &batches);
        assert_same(&plain, &drafted, &name);
        assert_proposes(|batches| replica.answers_drafted(&target, &draft, batches), vocabulary, &name);
    }
}

#[test]
fn predictors_change_no_answer_on_any_number_of_ranks() {
    // Few ids: a predictor with random weights is sometimes right.
    const AMONG: Range<usize> = 40..43;
    let mut all_accepted = 0;
    for (name, target) in families::files(&["qwen35+predictor-", "qwen35moe+predictor-ordinary"]) {
        let vocabulary = models::read(&target).expect("the model is valid").vocabulary_length;
        let request = |prompt: Vec<u32>, count: usize| request_among(prompt, count, &AMONG, vocabulary);
        let mut batches = vec![vec![request(ids(1, 48), 90), request(ids(2, 20), 60)], vec![request(ids(1, 40), 60)]];
        for (ranks, temperature) in [(1, 0.0), (1, 0.8), (2, 0.8), (3, 0.0)] {
            let of = format!("{name}, {ranks} ranks, temperature {temperature}");
            for generate in batches.iter_mut().flatten() {
                (generate.sampling.temperature, generate.sampling.seed) = (temperature, 7);
            }
            let replica = Replica { slots: 3, blocks: 80, context_length: 500, ..Replica::of(ranks) };
            let plain = Replica { is_plain: true, ..replica }.answers(&target, &batches);
            let predicted = replica.answers_predicted(&target, &batches);
            assert_same(&plain, &predicted, &of);
            let (proposed, accepted) = counts(&predicted);
            // How many depends on measured times, and some of them are prompt lookup's.
            println!("{of}: {accepted} of {proposed} were accepted");
            all_accepted += accepted;
            assert_proposes(|batches| replica.answers_predicted(&target, batches), vocabulary, &of);
        }
    }
    assert!(all_accepted > 0, "no speculative token was accepted");
}

#[test]
fn sizes_of_a_predictor_are_estimated_from_its_model() {
    for (name, file) in families::files(&["qwen35+predictor-", "qwen35moe+predictor-"]) {
        let spec = models::read(&file).expect("the model is valid");
        let own = models::read_predictor(&file, &spec).expect("it has a predictor");
        let estimated = ModelSizes::of_file(&file, &spec).predictor().expect("a layer attends");
        // Where the file has no norm of its own, the estimate has one more.
        let bytes = |sizes: &ModelSizes| {
            let plan = &cut(&sizes.spec, &[1]).expect("one rank holds all")[0];
            Holding { sizes, plan }.shard_bytes(PANEL_ROWS)
        };
        let (estimated, actual) = (bytes(&estimated), bytes(&ModelSizes::of_file(&file, &own)));
        assert!(estimated.abs_diff(actual) <= actual / 100, "{name}: {estimated} of {actual}");
    }
}

#[test]
fn daemons_run_the_predictor_of_a_file() {
    let shapes = families::shapes();
    let file = |name: &str| shapes.iter().find(|(own, _)| own == name).expect("it exists").1.bytes();
    let (with, without) = (file("qwen35+predictor-ordinary"), file("qwen35-ordinary"));
    let folder = folder_with(&[("with.gguf", &with), ("without.gguf", &without)]);
    let cluster = Cluster::with(2, folder.path(), "");
    let run = |model: &'static str| ["--model", model, "--prompt", "ab", "--max-tokens", "2"];
    cluster.generate(2, &run("with.gguf")).completion();
    assert_eq!(without_alternative(&cluster), (0, 0), "prompt lookup proposes");
    let (plain, _) = completions(&cluster, &json!("ab"));
    cluster.generate(2, &[&run("with.gguf")[..], &["--draft", "mtp"]].concat()).completion();
    assert_eq!(without_alternative(&cluster), (1, 1), "the predictor proposes the only token that is left");
    let (drafted, _) = completions(&cluster, &json!("ab"));
    assert_eq!(plain, drafted);
    let shown = cluster.console(&["topology", "show", "--nodes", &cluster.nodes()]);
    assert!(shown.out.contains("draft = \"mtp\""), "{}", shown.out);
    let refused = cluster.generate(2, &[&run("without.gguf")[..], &["--draft", "mtp"]].concat());
    refused.assert_error(4, "topology_invalid", &["without.gguf has no block that predicts further tokens"]);
    let told = refused.out + &refused.err;
    assert!(!told.contains("download"), "a file is complete without it: {told}");
}

/// Two completions of the running model, at temperature 0 and 0.8, and how many speculative tokens were accepted.
fn completions(cluster: &Cluster, prompt: &Value) -> ([String; 2], u64) {
    let answers = [0.0, 0.8].map(|temperature| {
        let body =
            json!({"prompt": prompt, "max_tokens": 80, "temperature": temperature, "seed": 3, "ignore_eos": true});
        post(&beside(&cluster.addresses[0]), "/v1/completions", &body).good()
    });
    let accepted = answers.iter().map(|answer| answer["timings"]["draft_n_accepted"].as_u64().unwrap_or_default());
    let accepted = accepted.sum();
    (answers.map(|answer| answer["choices"][0]["text"].as_str().expect("a text").to_owned()), accepted)
}

/// Speculative tokens of an answer, and how many of them were accepted. Its first two tokens are the same two in either
/// order: the second has no alternative. Prompt lookup cannot propose it; a draft model of which no step is measured
/// does.
fn without_alternative(cluster: &Cluster) -> (u64, u64) {
    let address = beside(&cluster.addresses[0]);
    let body = json!({"prompt": [5, 6, 7], "max_tokens": 2, "ignore_eos": true});
    // Nothing is proposed before a step is measured. An answer of two tokens has no room for proposals.
    post(&address, "/v1/completions", &body).good();
    let bias = json!({"280": 100.0, "281": 100.0});
    let more = json!({"max_tokens": 3, "temperature": 0.0, "logit_bias": bias, "repeat_penalty": 100.0});
    let answer = post(&address, "/v1/completions", &with_fields(body, more)).good();
    let count = |name: &str| answer["timings"][name].as_u64().expect("a number of tokens");
    (count("draft_n"), count("draft_n_accepted"))
}

#[test]
fn daemons_run_a_draft_model_also_after_a_restart() {
    let chain = Chain { seed: 5, agreement: 1.0 };
    let other = TinyModel { vocabulary_length: 400, ..small(2) };
    let [target, draft, other] = [
        large().with_chain(chain).bytes(),
        small(2).with_chain(Chain { agreement: 0.7, ..chain }).bytes(),
        other.bytes(),
    ];
    let folder = folder_with(&[("target.gguf", &target), ("draft.gguf", &draft), ("other.gguf", &other)]);
    let mut cluster = Cluster::with(2, folder.path(), "recover = true\nsilent_ms = 30000\nstall_ms = 60000\n");
    let run = ["--model", "target.gguf", "--prompt", "ab", "--max-tokens", "2"];
    cluster.generate(2, &run).completion();
    // Tokens of the chain, which does not come back to one within an answer: nothing but the draft model can propose the next.
    let prompt = json!([310, 402]);
    assert_eq!(without_alternative(&cluster), (0, 0), "prompt lookup proposes");
    let (plain, _) = completions(&cluster, &prompt);
    let refused = cluster.generate(2, &[&run[..], &["--draft", "other.gguf", "--topology", "tp2"]].concat());
    refused.assert_error(4, "topology_invalid", &["other.gguf cannot draft for target.gguf", "400 tokens"]);
    let pipeline = cluster.generate(2, &[&run[..], &["--draft", "draft.gguf", "--topology", "pp2"]].concat());
    pipeline.assert_error(4, "topology_invalid", &["a draft model needs a topology of one stage"]);
    cluster.generate(2, &[&run[..], &["--draft", "draft.gguf"]].concat()).completion();
    assert_eq!(without_alternative(&cluster), (1, 1), "the draft model proposes the only token that is left");
    let (drafted, accepted) = completions(&cluster, &prompt);
    assert_eq!(plain, drafted);
    assert!(accepted > 0, "{accepted} were accepted");

    cluster.signal(1, Signal::SIGKILL);
    cluster.wait(1);
    cluster.start(1);
    wait_until("the topology returns", || {
        cluster.status(1)["state"] == "ready" && cluster.status(0)["state"] == "ready"
    });
    let shown = cluster.console(&["topology", "show", "--nodes", &cluster.nodes()]);
    assert!(shown.out.contains("draft = \"draft.gguf\""), "{}", shown.out);
    assert_eq!(without_alternative(&cluster), (1, 1), "the draft model of the new engine proposes");
    let (again, accepted) = completions(&cluster, &prompt);
    assert_eq!(again, plain);
    assert!(accepted > 0, "{accepted} were accepted");
}
