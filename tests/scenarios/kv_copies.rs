//! Copies of keys and values on other nodes: an answer continues after the loss of any node without its prompt being
//! computed again, in the same cut or in another one.
use harness::{
    deep_models::{deep_hybrid_models, deep_models},
    http::{Stream, beside, get, stream, text_of},
    programs::{Cluster, DEEP, wait_until},
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

const RECOVER: &str = "recover = true\nsilent_ms = 30000\nstall_ms = 60000\n";
/// Tokens of the prompt and of the answer, and those that have arrived when a node is killed.
const PROMPT: usize = 300;
const ANSWER: usize = 300;
const ARRIVED: usize = 70;
/// Most positions of a sequence that are computed again.
const COMPUTED_MAX: u64 = 64;

/// Nodes with a topology, and a gateway that outlives all of them.
struct ServedNodes {
    cluster: Cluster,
    gateway: Cluster,
    _models: TempDir,
}

impl ServedNodes {
    fn new(models: TempDir, topology: &str, nodes: usize, settings: &str) -> Self {
        let cluster = Cluster::with(nodes, models.path(), &format!("{RECOVER}{settings}"));
        let peers = cluster.addresses.iter().map(|address| format!("\"{address}\"")).collect::<Vec<_>>().join(", ");
        let gateway = Cluster::with(1, models.path(), &format!("peers = [{peers}]\n"));
        let run = ["--model", DEEP, "--context", "1024", "--prompt", "ab", "--max-tokens", "1", "--topology", topology];
        cluster.generate(nodes, &run).completion();
        let served = Self { cluster, gateway, _models: models };
        served.until_healthy();
        served
    }

    fn until_healthy(&self) {
        wait_until("the gateway has the topology", || {
            get(&beside(&self.gateway.addresses[0]), "/health").status == 200
        });
    }

    fn begin(&self) -> Stream {
        let prompt: Vec<usize> = (0..PROMPT).map(|index| 10 + index * 7 % 80).collect();
        let body = json!({"prompt": prompt, "max_tokens": ANSWER, "temperature": 0.9, "seed": 5, "stream": true, "ignore_eos": true});
        let answer = stream(&beside(&self.gateway.addresses[0]), "/v1/completions", &body);
        assert_eq!(answer.status, 200);
        answer
    }

    /// A whole answer, during which `lose` is called once.
    fn answer(&mut self, lose: impl FnOnce(&mut Cluster)) -> String {
        let mut answer = self.begin();
        let mut events: Vec<Value> = Vec::new();
        for _ in 0..ARRIVED {
            let event = answer.event().expect("tokens arrive");
            events.push(serde_json::from_str(&event).expect("JSON"));
        }
        lose(&mut self.cluster);
        events.extend(answer.events());
        text_of(&events, 0)
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

/// Kills each rank of a topology; at most so many positions may be computed again.
#[track_caller]
fn check_killed_and_restarted(models: TempDir, topology: &str, nodes: usize, computed_max: u64) {
    let mut served = ServedNodes::new(models, topology, nodes, "");
    let expected = served.answer(|_| {});
    for victim in 0..nodes {
        let text = served.answer(|cluster| {
            kill(cluster, victim);
            cluster.start(victim);
        });
        assert_eq!(text, expected, "pi{} of {topology} was killed", victim + 1);
        let (read, computed) = served.continued(0, victim + 1);
        let all = (PROMPT + ARRIVED) as u64;
        assert!(computed <= computed_max && read + computed >= all, "pi{}: {read} read, {computed}", victim + 1);
        served.until_healthy();
    }
}

#[test]
fn answers_continue_from_copies_after_the_loss_of_each_rank() {
    check_killed_and_restarted(deep_models(), "tp2", 2, COMPUTED_MAX);
    check_killed_and_restarted(deep_models(), "pp2-tp2", 4, COMPUTED_MAX);
}

/// A state is saved once in a prompt: what follows is computed again.
#[test]
fn states_continue_from_copies_too() {
    check_killed_and_restarted(deep_hybrid_models(), "tp2", 2, COMPUTED_MAX + 2 * ARRIVED as u64);
}

#[test]
fn ranks_of_another_cut_continue_from_copies_after_a_loss_for_good() {
    for victim in [1, 0] {
        let mut served = ServedNodes::new(deep_models(), "tp3", 3, "exclude_after_ms = 1000\n");
        let text = served.answer(|cluster| kill(cluster, victim));
        assert!(text.len() >= ANSWER, "the answer continues on the remaining nodes: {text:?}");
        let head = usize::from(victim == 0);
        assert_eq!(served.cluster.status(head)["topology"]["layout"], "tp2");
        let (read, computed) = served.continued(head, 1);
        assert!(computed <= COMPUTED_MAX, "pi{} was lost: {read} read, {computed} computed", victim + 1);
    }
}

#[test]
fn nothing_is_copied_if_copies_are_off() {
    let mut served = ServedNodes::new(deep_models(), "tp2", 2, "kv_copies = false\n");
    let expected = served.answer(|_| {});
    let text = served.answer(|cluster| {
        kill(cluster, 1);
        cluster.start(1);
    });
    assert_eq!(text, expected);
    let (read, computed) = served.continued(0, 1);
    assert!(read == 0 && computed >= (PROMPT + ARRIVED) as u64, "{read} read, {computed} computed");
}
