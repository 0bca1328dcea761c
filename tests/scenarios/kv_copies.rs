//! Copies of keys and values on other nodes: an answer continues after the loss of any node without its prompt being
//! computed again, in the same cut or in another one.
use harness::{
    deep_models::{assert_varied, deep_hybrid_models, deep_models},
    http::{Stream, beside, get, post, stream},
    programs::{Cluster, DEEP, wait_until},
    random::Random,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

const RECOVER: &str = "recover = true\nsilent_ms = 30000\nstall_ms = 60000\n";
/// Tokens of the prompt and of the answer, and those that have arrived when a node is killed.
const PROMPT: usize = 300;
const ANSWER: usize = 200;
const ARRIVED: usize = 70;
/// Most positions of a sequence that are computed again.
const COMPUTED_MAX: u64 = 64;
/// Temperature of answers that are sampled.
const SAMPLED: f64 = 0.9;
/// Largest difference of log probabilities that is rounding: sums of other ranks differ in their last bits, and then
/// some keys and values in the last of their 16 bits. A wrong block must change more than ten times as much.
const ROUNDING: f64 = 0.02;

/// The ids of a prompt: other ones for each number.
fn prompt(number: usize) -> Vec<u64> {
    let mut random = Random::new(number as u64);
    (0..PROMPT).map(|_| 3 + random.below(290) as u64).collect()
}

/// Tokens of an answer with their log probabilities, which differ even where wrong keys and values change no token.
#[derive(Debug, Default, PartialEq)]
struct ScoredTokens {
    ids: Vec<u64>,
    logprobs: Vec<f64>,
}

impl ScoredTokens {
    /// Adds the tokens of an event of a stream, and returns the event.
    fn add(&mut self, event: &str) -> Value {
        let event: Value = serde_json::from_str(event).expect("JSON");
        for token in event["completion_probabilities"].as_array().into_iter().flatten() {
            self.ids.push(token["id"].as_u64().expect("an id"));
            self.logprobs.push(token["logprob"].as_f64().expect("a finite number"));
        }
        event
    }
}

/// How probable a token is where it stands, and how probable the best one there.
struct Score {
    own: f64,
    best: f64,
}

/// Nodes with a topology, and a gateway that outlives all of them.
struct ServedNodes {
    cluster: Cluster,
    gateway: Cluster,
}

impl ServedNodes {
    fn new(models: &TempDir, topology: &str, nodes: usize, settings: &str) -> Self {
        let cluster = Cluster::with(nodes, models.path(), &format!("{RECOVER}{settings}"));
        let peers = cluster.addresses.iter().map(|address| format!("\"{address}\"")).collect::<Vec<_>>().join(", ");
        let gateway = Cluster::with(1, models.path(), &format!("peers = [{peers}]\n"));
        let run = ["--model", DEEP, "--context", "1024", "--prompt", "ab", "--max-tokens", "1", "--topology", topology];
        cluster.generate(nodes, &run).completion();
        let served = Self { cluster, gateway };
        served.until_healthy();
        served
    }

    fn until_healthy(&self) {
        wait_until("the gateway has the topology", || {
            get(&beside(&self.gateway.addresses[0]), "/health").status == 200
        });
    }

    fn begin(&self, number: usize, temperature: f64) -> Stream {
        let body = json!({
            "prompt": prompt(number), "n_predict": ANSWER, "temperature": temperature, "seed": 5, "n_probs": 1,
            "top_k": 0, "top_p": 1.0, "min_p": 0.0, "ignore_eos": true, "stream": true,
        });
        let answer = stream(&beside(&self.gateway.addresses[0]), "/completion", &body);
        assert_eq!(answer.status, 200);
        answer
    }

    /// A whole answer to the prompt with this number, during which `lose` is called once.
    fn answer(&mut self, number: usize, temperature: f64, lose: impl FnOnce(&mut Cluster)) -> ScoredTokens {
        let mut answer = self.begin(number, temperature);
        let mut found = ScoredTokens::default();
        while found.ids.len() < ARRIVED {
            found.add(&answer.event().expect("tokens arrive"));
        }
        lose(&mut self.cluster);
        let mut end = Value::Null;
        while let Some(event) = answer.event() {
            end = found.add(&event);
        }
        assert_eq!((&end["stop"], found.ids.len()), (&json!(true), ANSWER), "{end}");
        assert_varied(&found.ids);
        found
    }

    /// The scores of an answer's tokens behind a prompt, all computed again and from nothing that is cached or stored.
    fn scores(&self, prompt: &[u64], answer: &[u64]) -> Vec<Score> {
        let tokens = [prompt, answer].concat();
        let body = json!({"prompt": tokens, "echo": true, "logprobs": 1, "max_tokens": 0});
        let scored = post(&beside(&self.gateway.addresses[0]), "/v1/completions", &body).good();
        assert_eq!(scored["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "{}", scored["usage"]);
        let logprobs = &scored["choices"][0]["logprobs"];
        let scores = (prompt.len()..tokens.len()).map(|position| {
            let own = logprobs["token_logprobs"][position].as_f64().expect("a finite number");
            let best = logprobs["top_logprobs"][position].as_object().expect("an object").values();
            Score { own, best: best.filter_map(Value::as_f64).fold(own, f64::max) }
        });
        scores.collect()
    }

    /// Asserts that a computation from nothing gives an answer of the most probable tokens, too.
    #[track_caller]
    fn assert_most_probable(&self, number: usize, answer: &ScoredTokens) {
        let prompt = prompt(number);
        let scores = self.scores(&prompt, &answer.ids);
        for (index, score) in scores.iter().enumerate() {
            let (reported, Score { own, best }) = (answer.logprobs[index], score);
            assert!((reported - own).abs() <= ROUNDING, "token {index} had {reported}, computed again it has {own}");
            assert!(best - own <= ROUNDING, "token {index} has {own}, the best one there {best}");
        }
        // Other tokens in one block of the prompt: a wrong block would be seen.
        let other = [&prompt[..64], &prompt[..32], &prompt[96..]].concat();
        let others = self.scores(&other, &answer.ids);
        let change = scores.iter().zip(&others).map(|pair| (pair.0.own - pair.1.own).abs()).fold(0.0, f64::max);
        assert!(change > 10.0 * ROUNDING, "another block changes log probabilities only by {change}");
    }

    /// The tokens that were read and computed when an answer continued for the `count`-th time, from the log of its head.
    fn continued(&self, head: usize, count: usize) -> (u64, u64) {
        let log = self.cluster.log(head);
        let lines = log.lines().filter(|line| line.contains("resumed answer or stored prompt"));
        let lines: Vec<&str> = lines.collect();
        assert_eq!(lines.len(), count, "{log}");
        let number = |key: &str| {
            let rest = lines[count - 1].split(key).nth(1).expect("it is logged");
            rest.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
        };
        (number(" read="), number(" computed="))
    }
}

fn kill(cluster: &mut Cluster, index: usize) {
    cluster.signal(index, Signal::SIGKILL);
    cluster.wait(index);
}

/// Kills each rank of a topology; at most so many positions may be computed again. The same cut gives the same bits.
#[track_caller]
fn check_killed_and_restarted(models: &TempDir, topology: &str, nodes: usize, computed_max: u64) {
    // On other nodes: what an undisturbed answer stores and copies would be there before the disturbed one begins.
    let mut undisturbed = ServedNodes::new(models, topology, nodes, "");
    let expected = (0..nodes).map(|number| undisturbed.answer(number, SAMPLED, |_| {}));
    let expected: Vec<ScoredTokens> = expected.collect();
    drop(undisturbed);
    let mut served = ServedNodes::new(models, topology, nodes, "");
    for (victim, expected) in expected.iter().enumerate() {
        let found = served.answer(victim, SAMPLED, |cluster| {
            kill(cluster, victim);
            cluster.start(victim);
        });
        assert_eq!(found, *expected, "pi{} of {topology} was killed", victim + 1);
        let (read, computed) = served.continued(0, victim + 1);
        let all = (PROMPT + ARRIVED) as u64;
        assert!(computed <= computed_max && read + computed >= all, "pi{}: {read} read, {computed}", victim + 1);
        served.until_healthy();
    }
}

#[test]
fn answers_continue_from_copies_after_the_loss_of_each_rank() {
    let models = deep_models();
    check_killed_and_restarted(&models, "tp2", 2, COMPUTED_MAX);
    check_killed_and_restarted(&models, "pp2-tp2", 4, COMPUTED_MAX);
}

/// A state is saved once in a prompt: what follows is computed again.
#[test]
fn states_continue_from_copies_too() {
    check_killed_and_restarted(&deep_hybrid_models(), "tp2", 2, COMPUTED_MAX + 2 * ARRIVED as u64);
}

/// Three ranks add up the parts of a sum in another order than two, so that an undisturbed answer may differ from this
/// one behind a near tie. Therefore an undisturbed computation of the remaining ranks scores this answer: each token
/// must be the most probable one at its place, and have the log probability with which it arrived.
#[test]
fn ranks_of_another_cut_continue_from_copies_after_a_loss_for_good() {
    let models = deep_models();
    for victim in [1, 0] {
        let mut served = ServedNodes::new(&models, "tp3", 3, "exclude_after_ms = 1000\n");
        let answer = served.answer(victim, 0.0, |cluster| kill(cluster, victim));
        let head = usize::from(victim == 0);
        assert_eq!(served.cluster.status(head)["topology"]["layout"], "tp2");
        let (read, computed) = served.continued(head, 1);
        assert!(computed <= COMPUTED_MAX, "pi{} was lost: {read} read, {computed} computed", victim + 1);
        served.until_healthy();
        served.assert_most_probable(victim, &answer);
    }
}

#[test]
fn nothing_is_copied_if_copies_are_off() {
    let models = deep_models();
    let mut served = ServedNodes::new(&models, "tp2", 2, "kv_copies = false\n");
    let expected = served.answer(0, SAMPLED, |_| {});
    let found = served.answer(0, SAMPLED, |cluster| {
        kill(cluster, 1);
        cluster.start(1);
    });
    assert_eq!(found, expected);
    let (read, computed) = served.continued(0, 1);
    assert!(read == 0 && computed >= (PROMPT + ARRIVED) as u64, "{read} read, {computed} computed");
}
