//! Faults on a real cluster: a topology generates the same text repeatedly while its nodes are killed and stopped and
//! its connections are reset and blocked. Every request must end with the right tokens or with one typed error, and the
//! next one must work.
use std::{
    collections::BTreeMap,
    fmt,
    process::Child,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;
use topology::Layout;

use crate::{
    deep_models::{assert_varied, deep_hybrid_models, deep_models},
    programs::{Cluster, DEEP, Ended, console, finish, spawn_console_with},
    proxy::Proxies,
    random::Random,
};

/// Letters of a prompt, enough for several prefill steps.
const PROMPT_LETTERS: usize = 200;
/// Different prompts of disturbed requests.
const PROMPTS: usize = 3;
/// Tokens of a disturbed request.
const TOKENS: &str = "60";
/// Silence after which a peer is lost, in the runs of random faults.
const SILENT_MS: u64 = 600;
/// Deadline for a topology to work again after its nodes are back.
const RECOVERY: Duration = Duration::from_secs(20);

/// The daemons of a topology, each behind a proxied connection.
#[derive(Debug)]
pub struct Rig {
    /// The daemons.
    pub cluster: Cluster,
    proxies: Proxies,
    layout: Layout,
    _models: TempDir,
}

impl Rig {
    /// Starts one daemon per node of the topology.
    pub fn new(layout: Layout, settings: &str) -> Self {
        Self::with(deep_models(), layout, settings)
    }

    /// The same with other models.
    fn with(models: TempDir, layout: Layout, settings: &str) -> Self {
        let cluster = Cluster::with(layout.node_count(), models.path(), settings);
        let proxies = Proxies::to(&cluster.addresses);
        Self { cluster, proxies, layout, _models: models }
    }

    /// Number of nodes of the topology.
    pub fn node_count(&self) -> usize {
        self.layout.node_count()
    }

    /// Starts a generation from the prompt with this number; the console assigns the topology first if none is running.
    pub fn start(&self, number: usize, tokens: &str, is_json: bool) -> Child {
        let (nodes, prompt) = (self.proxies.addresses.join(","), prompt(number));
        let topology = self.layout.to_string();
        let fixed =
            ["generate", "--nodes", &nodes, "--model", DEEP, "--topology", &topology, "--temperature", "0", "--yes"];
        let more = ["--prompt", &prompt, "--max-tokens", tokens];
        let arguments: Vec<&str> = fixed.into_iter().chain(more).chain(is_json.then_some("--json")).collect();
        spawn_console_with(&arguments, None)
    }

    /// Flips one bit per `every` bytes on the connections to a node; `None` stops it.
    pub fn damage(&self, index: usize, every: Option<usize>) {
        self.proxies.damage(index, every);
    }

    /// Restarts all nodes and restores all connections.
    pub fn mend(&mut self) {
        for index in 0..self.node_count() {
            self.proxies.hold(index, false);
            self.proxies.damage(index, None);
            if self.cluster.is_running(index) {
                self.cluster.signal(index, Signal::SIGCONT);
            } else {
                self.cluster.start(index);
            }
        }
    }

    /// Generates from the prompt with this number until it works; returns the ids and how many requests were refused
    /// before.
    ///
    /// # Panics
    /// If it does not work in time, or an error has no code or no next step.
    pub fn works(&self, number: usize, tokens: &str) -> (Vec<u64>, usize) {
        let begun = Instant::now();
        for refused in 0.. {
            let ended = finish(self.start(number, tokens, true));
            if ended.code == Some(0) {
                return (ids(&ended.json()), refused);
            }
            let code = error_code(&ended);
            assert!(begun.elapsed() < RECOVERY, "{} still does not work: {code} {}", self.layout, ended.err);
            std::thread::park_timeout(Duration::from_millis(20));
        }
        unreachable!("the loop ends with a result or a panic")
    }

    /// The answer that the undisturbed topology gives to the prompt with this number.
    ///
    /// # Panics
    /// As [`Self::works`], or if the answer is so monotonous that it would hide wrong keys and values.
    fn undisturbed(&self, number: usize) -> UndisturbedAnswer {
        let (ids, _) = self.works(number, TOKENS);
        assert_varied(&ids);
        let text = finish(self.start(number, TOKENS, false)).out;
        assert!(!text.is_empty(), "the model must generate text");
        UndisturbedAnswer { ids, text }
    }

    /// The state that a node reports, and its fault (empty if none); `None` if it does not answer.
    pub fn state(&self, index: usize) -> Option<(String, String)> {
        let ended = console(&["status", "--nodes", &self.cluster.addresses[index], "--json"]);
        let status = (ended.code == Some(0)).then(|| ended.json()["nodes"][0].clone())?;
        let text = |key: &str| status[key].as_str().unwrap_or_default().to_owned();
        Some((text("state"), text("fault")))
    }
}

/// A prompt of random letters, other ones for each number.
fn prompt(number: usize) -> String {
    let mut random = Random::new(number as u64);
    (0..PROMPT_LETTERS).map(|_| char::from(b'a' + random.below(26) as u8)).collect()
}

/// An answer with which those of disturbed requests are compared.
struct UndisturbedAnswer {
    ids: Vec<u64>,
    /// As the console prints it.
    text: String,
}

/// The token ids of a completion.
pub fn ids(completion: &Value) -> Vec<u64> {
    completion["token_ids"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
}

/// The code of the single typed error with which a console ended.
///
/// # Panics
/// If the console hung or ended in another way.
#[track_caller]
pub fn error_code(ended: &Ended) -> String {
    let context = format!("{:?} {} {}", ended.code, ended.out, ended.err);
    assert!(matches!(ended.code, Some(3..=5)), "not a typed error of a node, session or request: {context}");
    let error = &ended.json()["error"];
    assert!(error["next"].as_str().is_some_and(|next| !next.is_empty()), "no next step: {context}");
    error["code"].as_str().unwrap_or_else(|| panic!("no code: {context}")).to_owned()
}

/// A fault of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// kill -9.
    Kill,
    /// SIGSTOP until the peers have declared the node lost.
    Stop,
    /// SIGSTOP for a shorter time than that.
    Pause,
    /// Resets the node's connections.
    Reset,
    /// Blocks the node's connections until the peers have declared it lost.
    BlackHole,
    /// Blocks the node's connections for a shorter time than that.
    Hold,
}

const FAULTS: [Fault; 6] = [Fault::Kill, Fault::Stop, Fault::Pause, Fault::Reset, Fault::BlackHole, Fault::Hold];

impl Fault {
    /// Applies the fault to a node and undoes it if it is temporary.
    fn strike(self, rig: &mut Rig, node: usize, random: &mut Random) {
        let short = Duration::from_millis(5 + random.below(SILENT_MS as usize / 4) as u64);
        let wait = match self {
            Self::Stop | Self::BlackHole => Duration::from_millis(3 * SILENT_MS),
            _ => short,
        };
        match self {
            Self::Kill => {
                rig.cluster.signal(node, Signal::SIGKILL);
                rig.cluster.wait(node);
            }
            Self::Stop | Self::Pause => {
                rig.cluster.signal(node, Signal::SIGSTOP);
                std::thread::sleep(wait);
                rig.cluster.signal(node, Signal::SIGCONT);
            }
            Self::Reset => rig.proxies.reset(node),
            Self::BlackHole | Self::Hold => {
                rig.proxies.hold(node, true);
                std::thread::sleep(wait);
                rig.proxies.hold(node, false);
            }
        }
    }
}

/// Counts of how requests ended, by fault.
#[derive(Clone, Debug, Default)]
pub struct Endings {
    by_fault: BTreeMap<Fault, BTreeMap<String, usize>>,
    /// Maximum number of requests refused after a fault before one worked.
    pub refused_max: usize,
    /// Longest time from the end of a fault to the end of a request.
    pub slowest: Duration,
    /// Number of faults that struck a request before its end.
    pub struck: usize,
}

impl Endings {
    /// Number of requests that ended with all their tokens.
    pub fn right(&self) -> usize {
        self.by_fault.values().filter_map(|endings| endings.get(RIGHT)).sum()
    }
}

impl fmt::Display for Endings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (fault, endings) in &self.by_fault {
            let list: Vec<String> = endings.iter().map(|(ending, count)| format!("{ending} {count}")).collect();
            writeln!(f, "{:<10} {}", format!("{fault:?}"), list.join(", "))?;
        }
        let slowest = self.slowest.as_millis();
        write!(
            f,
            "slowest end {slowest} ms after its fault; at most {} requests refused before the next worked",
            self.refused_max
        )
    }
}

/// Key of requests that ended with all their tokens despite the fault.
const RIGHT: &str = "right";

/// Applies `count` random faults one after another to a model of attention or, if `is_hybrid`, of recurrent layers;
/// `tell` receives a line about each.
///
/// # Panics
/// If a request hangs, has a wrong token or ends without a typed error, if the next request fails, or if undisturbed
/// answers are monotonous.
pub fn strike_all(layout: Layout, is_hybrid: bool, count: usize, seed: u64, tell: &mut dyn FnMut(&str)) -> Endings {
    let mut random = Random::new(seed);
    let models = if is_hybrid { deep_hybrid_models() } else { deep_models() };
    let mut rig = Rig::with(models, layout, &format!("heartbeat_ms = 50\nsilent_ms = {SILENT_MS}\n"));
    let begun = Instant::now();
    let mut expected = vec![rig.undisturbed(0)];
    // The whole time from an assignment to the last token: the fault may fall on any moment of it.
    let span = begun.elapsed().as_millis() as usize / 2;
    expected.extend((1..PROMPTS).map(|number| rig.undisturbed(number)));
    let mut endings = Endings::default();
    for number in 0..count {
        let (fault, node) = (FAULTS[random.below(FAULTS.len())], random.below(rig.node_count()));
        let (moment, is_json) = (random.below(span.max(1)), random.below(2) == 0);
        tell(&format!("{}: {fault:?} of pi{} after {moment} ms", number + 1, node + 1));
        let mut child = rig.start(number % PROMPTS, TOKENS, is_json);
        std::thread::sleep(Duration::from_millis(moment as u64));
        endings.struck += usize::from(child.try_wait().is_ok_and(|ended| ended.is_none()));
        fault.strike(&mut rig, node, &mut random);
        let struck = Instant::now();
        let ended = finish(child);
        endings.slowest = endings.slowest.max(struck.elapsed());
        let ending = ending(&ended, is_json, &expected[number % PROMPTS]);
        tell(&format!("   {ending}"));
        *endings.by_fault.entry(fault).or_default().entry(ending).or_default() += 1;
        rig.mend();
        let next = (number + 1) % PROMPTS;
        let (found, refused) = rig.works(next, "8");
        assert_eq!(found, expected[next].ids[..found.len()], "wrong tokens in the next request");
        endings.refused_max = endings.refused_max.max(refused);
    }
    endings
}

/// How a request ended: `RIGHT`, or the error's code (its exit code if the console printed the text as it arrived).
fn ending(ended: &Ended, is_json: bool, expected: &UndisturbedAnswer) -> String {
    let (expected, text) = (&expected.ids, expected.text.as_str());
    if ended.code == Some(0) && is_json {
        assert_eq!(&ids(&ended.json()), expected, "wrong tokens");
        return RIGHT.into();
    }
    if is_json {
        return error_code(ended);
    }
    let came = if ended.code == Some(0) { &ended.out } else { ended.out.trim_end_matches('\n') };
    assert!(text.starts_with(came), "wrong tokens before the end: {came:?} is not a prefix of {text:?}");
    if ended.code == Some(0) {
        assert_eq!(came, text, "tokens are missing");
        return RIGHT.into();
    }
    assert!(matches!(ended.code, Some(3..=5)) && !ended.err.is_empty(), "{:?} {}", ended.code, ended.err);
    format!("exit {}", ended.code.unwrap_or_default())
}
