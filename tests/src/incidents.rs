//! Incidents on two replicas while clients stream: nodes of one replica are excluded, included, killed and restarted.
//! Streams on the other replica must not be affected, and the requested layout must be restored soon after the last
//! incident.
use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    deep_models::deep_models,
    http::{beside, get, stream, text_of},
    programs::{Cluster, DEEP, console, wait_until},
    random::Random,
};

/// Lost nodes are detected and excluded quickly.
const SETTINGS: &str = "recover = true\nsilent_ms = 1000\nstall_ms = 20000\nexclude_after_ms = 1500\n";
const LAYOUT: &str = "dp2-tp2";
const NODES: usize = 4;
/// Number of concurrent streams, and tokens of each.
const STREAMS: usize = 3;
const TOKENS: u32 = 60;
/// The longest pause allowed for a stream on the untouched replica, also before its first token.
const GAP: Duration = Duration::from_secs(1);
/// On a busy machine each rank that a token needs may be delayed by as much as a thread of this test.
const STALLS: u32 = 4;
/// Deadline for the requested layout to serve again.
const BACK: Duration = Duration::from_secs(15);

/// An action on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Exclude,
    Include,
    Kill,
    /// Killed if it is alive, and started.
    Restart,
    /// Restarted by the nodes themselves, as after an upgrade.
    Roll,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Exclude => "exclude",
            Self::Include => "include",
            Self::Kill => "kill",
            Self::Restart => "restart",
            Self::Roll => "rolling restart",
        })
    }
}

/// The result of one stream.
#[derive(Clone, Debug)]
struct Streamed {
    /// The head that completed it.
    head: String,
    /// Number of resumptions, on another replica or on the same one.
    resumed: u64,
    /// The longest pause before one of its events: since the previous one, before the first since the request was sent.
    gap: Duration,
}

/// The results of all sequences.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Streams that completed with the expected text.
    pub streams: usize,
    /// Streams that were resumed at least once.
    pub resumed: usize,
    /// The longest pause of a stream that stayed on the untouched replica, as [`Streamed::gap`].
    pub gap_beside: Duration,
    /// The longest pause of any stream.
    pub gap: Duration,
    /// For each sequence, the time from the last action until the requested layout served again.
    pub back: Vec<Duration>,
}

impl Found {
    /// Adds streams. Returns the longest pause of those that only the replica with this head served; `None` if there
    /// are none.
    fn add(&mut self, streams: &[Streamed], head: &str) -> Option<Duration> {
        let stayed = streams.iter().filter(|one| one.resumed == 0 && one.head == head);
        let longest = stayed.map(|one| one.gap).max();
        self.streams += streams.len();
        self.resumed += streams.iter().filter(|one| one.resumed > 0).count();
        self.gap = streams.iter().map(|one| one.gap).fold(self.gap, Duration::max);
        self.gap_beside = self.gap_beside.max(longest.unwrap_or_default());
        longest
    }
}

/// Runs `sequences` sequences of 5 to 10 actions on one cluster.
///
/// # Panics
/// If a stream fails or has another text, no stream is on the untouched replica or one pauses there for longer than a
/// second, an engine of that replica is replaced, or the requested layout does not serve again within 15 s.
pub fn strike(sequences: usize, seed: u64, tell: &mut dyn FnMut(&str)) -> Found {
    let (mut random, models) = (Random::new(seed), deep_models());
    let mut cluster = Cluster::with(NODES, models.path(), SETTINGS);
    let run = ["--model", DEEP, "--prompt", "ab", "--max-tokens", "1", "--topology", LAYOUT, "--context", "2048"];
    cluster.generate(NODES, &run).completion();
    let address = beside(&cluster.addresses[0]);
    wait_until("both replicas serve", || {
        get(&address, "/health").json()["replicas"] == json!({"serving": 2, "all": 2})
    });
    let expected: Arc<Vec<String>> = Arc::new((0..STREAMS).map(|kind| text(&address, kind).0).collect());
    let mut found = Found::default();
    for sequence in 0..sequences {
        let replica = random.below(2);
        let untouched = 1 - replica;
        let before: Vec<usize> = of(untouched).map(|node| changes(&cluster, node)).collect();
        assert!(before.iter().all(|count| *count > 0), "logs do not show how engines started: {before:?}");
        let clients = Clients::start(&beside(&cluster.addresses[2 * untouched]), &expected);
        let (story, last) = act(&mut cluster, replica, &mut random);
        wait_until(&format!("{LAYOUT} is back after {story}"), || {
            assert!(last.elapsed() <= BACK, "{LAYOUT} is not back {BACK:?} after {story}");
            is_whole(&cluster)
        });
        let back = last.elapsed();
        let (streams, stall) = clients.stop();
        let after: Vec<usize> = of(untouched).map(|node| changes(&cluster, node)).collect();
        assert_eq!(before, after, "nodes of the other replica were disturbed by {story}");
        let pause = found.add(&streams, &cluster.addresses[2 * untouched]);
        let pause =
            pause.unwrap_or_else(|| panic!("none of {} streams was on the other replica: {story}", streams.len()));
        assert!(
            pause <= GAP + STALLS * stall,
            "a stream of the other replica paused for {pause:?}, a thread of this test for {stall:?}: {story}"
        );
        found.back.push(back);
        tell(&format!("{}: {story}; {} streams, back after {:.1} s", sequence + 1, streams.len(), back.as_secs_f64()));
    }
    found
}

fn of(replica: usize) -> std::ops::Range<usize> {
    2 * replica..2 * replica + 2
}

/// Performs 5 to 10 random actions on the nodes of a replica, then starts and includes all of them. Returns the
/// actions, and when the restoration began.
fn act(cluster: &mut Cluster, replica: usize, random: &mut Random) -> (String, Instant) {
    let (mut lives, mut is_out) = ([true; NODES], [false; NODES]);
    let mut story = Vec::new();
    for _ in 0..5 + random.below(6) {
        let node = 2 * replica + random.below(2);
        let mut possible = Vec::new();
        possible.extend((!is_out[node]).then_some(Action::Exclude));
        possible.extend((is_out[node] && lives[node]).then_some(Action::Include));
        possible.extend(lives[node].then_some(Action::Kill));
        possible.push(Action::Restart);
        let action = possible[random.below(possible.len())];
        story.push(format!("{action} pi{}", node + 1));
        perform(cluster, node, action, lives[node]);
        is_out[node] = action == Action::Exclude || is_out[node] && action != Action::Include;
        lives[node] = action == Action::Restart || lives[node] && action != Action::Kill;
        thread::sleep(Duration::from_millis(random.below(2500) as u64));
    }
    let last = Instant::now();
    for node in of(replica) {
        if !lives[node] {
            perform(cluster, node, Action::Restart, false);
        }
        if is_out[node] {
            perform(cluster, node, Action::Include, true);
        }
    }
    (story.join(", "), last)
}

fn perform(cluster: &mut Cluster, node: usize, action: Action, lives: bool) {
    let nodes = cluster.nodes();
    let name = format!("pi{}", node + 1);
    match action {
        Action::Exclude => {
            change(&["node", "exclude", &name, "--reason", "test", "--nodes", &nodes, "--yes", "--json"], &nodes)
        }
        Action::Include => change(&["node", "include", &name, "--nodes", &nodes, "--yes", "--json"], &nodes),
        Action::Roll => change(&["restart", &name, "--rolling", "--nodes", &nodes, "--yes", "--json"], &nodes),
        Action::Kill | Action::Restart => {
            if lives {
                cluster.signal(node, Signal::SIGKILL);
                cluster.wait(node);
            }
            if action == Action::Restart {
                cluster.start(node);
            }
        }
    }
}

/// Repeats a console command until it succeeds: another assignment may be in progress.
fn change(arguments: &[&str], nodes: &str) {
    let begun = Instant::now();
    loop {
        let ended = console(arguments);
        if ended.code == Some(0) {
            return;
        }
        let is_late = begun.elapsed() > 2 * BACK;
        assert!(!is_late, "{arguments:?}: {} {}\n{}", ended.out, ended.err, console(&["status", "--nodes", nodes]).out);
        thread::sleep(Duration::from_millis(300));
    }
}

fn is_whole(cluster: &Cluster) -> bool {
    let ended = console(&["status", "--nodes", &cluster.nodes(), "--json"]);
    let Ok(status) = serde_json::from_str::<Value>(&ended.out) else { return false };
    let nodes = status["nodes"].as_array().cloned().unwrap_or_default();
    nodes.len() == NODES
        && nodes.iter().all(|node| {
            matches!(node["state"].as_str(), Some("ready" | "serving")) && node["topology"]["layout"] == LAYOUT
        })
}

/// The number of state changes in a node's log, without those at the start and the end of requests.
fn changes(cluster: &Cluster, node: usize) -> usize {
    cluster
        .log(node)
        .lines()
        .filter(|line| {
            [" -> idle", " -> faulted", " -> loading", " -> connecting"].iter().any(|change| line.contains(change))
        })
        .count()
}

/// Streams an answer; returns its text and statistics.
fn text(address: &str, kind: usize) -> (String, Streamed) {
    text_with(address, kind, &|_| {})
}

/// As [`text`]; passes the pause before each event to `tell`.
fn text_with(address: &str, kind: usize, tell: &dyn Fn(Duration)) -> (String, Streamed) {
    let prompt: String = "ab".chars().cycle().take(2 + 5 * kind).collect();
    let body = json!({"prompt": prompt, "max_tokens": TOKENS, "temperature": 0.8, "seed": kind, "stream": true});
    let (mut gap, mut latest) = (Duration::ZERO, Instant::now());
    let mut answer = stream(address, "/v1/completions", &body);
    if answer.status != 200 {
        let status = answer.status;
        panic!("{status}: {}", answer.rest().body);
    }
    let mut events = Vec::<Value>::new();
    while let Some(data) = answer.event() {
        if data == "[DONE]" {
            let trace = events.last().map_or(Value::Null, |event| event["timings"]["trace"].clone());
            let head = trace["head"].as_str().unwrap_or_default().to_owned();
            let resumed = trace["resumed"].as_u64().unwrap_or_default();
            return (text_of(&events, 0), Streamed { head, resumed, gap });
        }
        let pause = latest.elapsed();
        tell(pause);
        gap = gap.max(pause);
        latest = Instant::now();
        events.push(serde_json::from_str(&data).expect("an event is JSON"));
    }
    panic!("a stream ended without [DONE] after {:?}", events.last());
}

/// Changes the layout of one replica of three nodes at least `count` times while clients stream: a node is excluded and
/// included, restarted by the others as after an upgrade, or killed, and started again once the others continue without
/// it. Returns the longest pause of any stream at each change; a kill does not count as one.
///
/// # Panics
/// If a stream fails or has another text, or a layout does not serve in time.
pub fn change_layout(count: usize, tell: &mut dyn FnMut(&str)) -> Vec<Duration> {
    let models = deep_models();
    let mut cluster = Cluster::supervised(3, models.path(), SETTINGS);
    let run = ["--model", DEEP, "--prompt", "ab", "--max-tokens", "1", "--topology", "tp3", "--context", "2048"];
    cluster.generate(3, &run).completion();
    let address = beside(&cluster.addresses[0]);
    wait_until("it serves", || get(&address, "/health").status == 200);
    let expected: Arc<Vec<String>> = Arc::new((0..STREAMS).map(|kind| text(&address, kind).0).collect());
    let clients = Clients::start(&address, &expected);
    let mut pauses = Vec::new();
    while pauses.len() < count {
        for action in [Action::Exclude, Action::Include, Action::Roll, Action::Kill, Action::Restart] {
            let (lives, layout) = match action {
                Action::Exclude | Action::Kill => (true, "tp2"),
                Action::Include | Action::Restart | Action::Roll => (action != Action::Restart, "tp3"),
            };
            clients.longest.store(0, Ordering::Release);
            perform(&mut cluster, 2, action, lives);
            wait_until(&format!("{layout} serves after {action}"), || serves(&cluster, 0, layout));
            clients.move_on();
            let pause = Duration::from_millis(clients.longest.load(Ordering::Acquire));
            if action != Action::Kill {
                pauses.push(pause);
            }
            tell(&format!("{}: {action}, {layout}: {} ms", pauses.len(), pause.as_millis()));
        }
    }
    clients.stop();
    pauses
}

fn serves(cluster: &Cluster, node: usize, layout: &str) -> bool {
    let status = cluster.status(node);
    matches!(status["state"].as_str(), Some("ready" | "serving")) && status["topology"]["layout"] == layout
}

/// Clients that stream one answer after another.
struct Clients {
    end: Arc<AtomicBool>,
    /// The longest pause before an event since it was set to 0, in milliseconds.
    longest: Arc<AtomicU64>,
    /// How many events each client received.
    events: Arc<[AtomicU64; STREAMS]>,
    /// The longest scheduling delay of a thread of this test, in milliseconds.
    stall: Arc<AtomicU64>,
    threads: Vec<thread::JoinHandle<()>>,
    done: Arc<Mutex<Vec<Streamed>>>,
}

impl Clients {
    fn start(address: &str, expected: &Arc<Vec<String>>) -> Self {
        let (end, done) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<Vec<Streamed>>>::default());
        let (longest, events) = (Arc::<AtomicU64>::default(), Arc::<[AtomicU64; STREAMS]>::default());
        let mut threads: Vec<thread::JoinHandle<()>> = (0..STREAMS)
            .map(|kind| {
                let (end, done) = (Arc::clone(&end), Arc::clone(&done));
                let (longest, events) = (Arc::clone(&longest), Arc::clone(&events));
                let (address, expected) = (address.to_owned(), Arc::clone(expected));
                thread::spawn(move || {
                    while !end.load(Ordering::Acquire) {
                        let (text, streamed) = text_with(&address, kind, &|gap| {
                            longest.fetch_max(gap.as_millis() as u64, Ordering::AcqRel);
                            events[kind].fetch_add(1, Ordering::AcqRel);
                        });
                        assert_eq!(text, expected[kind], "{streamed:?}");
                        done.lock().unwrap_or_else(PoisonError::into_inner).push(streamed);
                    }
                })
            })
            .collect();
        let stall = Arc::<AtomicU64>::default();
        let (over, worst) = (Arc::clone(&end), Arc::clone(&stall));
        threads.push(thread::spawn(move || {
            const NAP: Duration = Duration::from_millis(10);
            while !over.load(Ordering::Acquire) {
                let begun = Instant::now();
                thread::sleep(NAP);
                worst.fetch_max(begun.elapsed().saturating_sub(NAP).as_millis() as u64, Ordering::AcqRel);
            }
        }));
        Self { end, longest, events, stall, threads, done }
    }

    fn counts(&self) -> [u64; STREAMS] {
        std::array::from_fn(|kind| self.events[kind].load(Ordering::Acquire))
    }

    /// Waits until each client has received more than 20 further events: a pause is known only once the event after it
    /// has come.
    fn move_on(&self) {
        let before = self.counts();
        wait_until("each stream continues", || self.counts().iter().zip(before).all(|pair| *pair.0 > pair.1 + 20));
    }

    /// Waits for the running streams; returns the results of all, and the longest scheduling delay of a thread.
    ///
    /// # Panics
    /// If a stream failed.
    fn stop(mut self) -> (Vec<Streamed>, Duration) {
        self.end.store(true, Ordering::Release);
        for thread in std::mem::take(&mut self.threads) {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
        let stall = Duration::from_millis(self.stall.load(Ordering::Acquire));
        (self.done.lock().unwrap_or_else(PoisonError::into_inner).clone(), stall)
    }
}

impl Drop for Clients {
    /// Ends the threads even if a check failed, because their cluster is about to end.
    fn drop(&mut self) {
        self.end.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_streams_served_by_one_replica_count_as_undisturbed() {
        let stream = |head: &str, resumed, ms| Streamed { head: head.into(), resumed, gap: Duration::from_millis(ms) };
        let mut found = Found::default();
        assert_eq!(found.add(&[stream("a", 0, 900), stream("b", 1, 700)], "b"), None);
        assert_eq!(found.add(&[stream("b", 0, 20), stream("b", 0, 30)], "b"), Some(Duration::from_millis(30)));
        assert_eq!((found.streams, found.resumed), (4, 1));
        assert_eq!((found.gap_beside.as_millis(), found.gap.as_millis()), (30, 900));
    }
}
