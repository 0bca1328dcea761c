//! A whole cluster in one process and in virtual time, deterministic for a seed: the daemons' own pure parts (node,
//! steward, voter, liveness, rolling restart, gateway's router and queues, scheduler) on simulated disks, links and
//! compute, with consoles. Each event is checked; a failing history is shrunk and told. Links are TCP: nothing is doubled
//! or reordered within one; frames lost with their connection, late packets of an old one and its successor stand in.
//! Not run: sockets and keys, text and forward pass, KV copies between groups and disks, benches, unloading, speculation,
//! stragglers, signs of life to nodes that have loaded while others load. Wall clocks are in no pure part; a clock that
//! jumps is the one that events carry.
mod compute;
mod coverage;
mod disk;
mod driver;
mod faults;
mod log;
mod network;
#[cfg(any(debug_assertions, feature = "planted"))]
pub mod planted;
mod process;
mod shrinking;
mod states;
mod stewarding;
mod story;
#[cfg(test)]
mod tests;
mod troubles;
mod world;

use std::time::Duration;

use collectives::Choice;
use common::{
    ids::{ContentRoot, Epoch, ModelIdentity},
    precision::{Exchange, KvFormat},
};
use protocol::recovery::Committed;
use topology::{Layout, Member, Topology};

pub use self::{
    coverage::Coverage,
    faults::{TimedFault, Trouble, TroubleKind},
    states::ClusterState,
};
use self::{
    faults::{Scope, TIED},
    story::Story,
    world::World,
};
use crate::random::Random;
pub use crate::simulation::world::votes::Turn;

/// A topology must serve again this long after the last fault ended.
pub const RECOVERY: Duration = Duration::from_secs(12);
/// Like [`RECOVERY`] after all machines lost power: counted from the last start.
pub const POWER: Duration = Duration::from_secs(10);
/// The desired topology must serve again this long after a reduced one serves.
const RETURN: Duration = Duration::from_secs(40);
/// A command of an operator must have ended this long after the last fault.
const COMMANDS: Duration = Duration::from_secs(400);
/// A request must have ended this long after that.
const REQUESTS: Duration = Duration::from_secs(90);
/// Interval between two checks whether all members serve.
const SLICE: Duration = Duration::from_millis(100);

/// Layouts of the histories; the last column selects a witness.
pub const SCENES: [(&str, bool); 6] = [
    ("tp3", false),
    ("tp4", false),
    ("pp2-tp2", false),
    ("dp2-tp2", false),
    ("prefill:tp1+decode:tp2", false),
    ("tp2", true),
];

/// A history of a cluster: its layout, faults and requests.
#[derive(Clone, Debug)]
pub struct History {
    /// Layout, and whether there is a witness.
    pub scene: (&'static str, bool),
    /// Seed of everything random.
    pub seed: u64,
    /// The faults.
    pub faults: Vec<TimedFault>,
    /// Number of requests during the faults.
    pub requests: usize,
    /// A member that is away for longer is voted out.
    pub exclude_after: Duration,
    /// Deadline to serve again.
    pub within: Duration,
}

/// The outcome of a history.
#[derive(Debug, Default)]
pub struct HistoryOutcome {
    /// The violated invariant, if any.
    pub violation: Option<String>,
    /// Time from the end of the last fault until the cluster served again.
    pub recovery: Duration,
    /// Number of requests that were answered in full.
    pub whole: usize,
    /// Number of requests that ended with an error.
    pub errors: usize,
    /// Number of decided votes.
    pub decisions: u32,
    /// Whether only an operator can bring the desired topology back: a member has an address that no other one knows, or
    /// the last copy of the topology is lost.
    pub is_left: bool,
    /// The faults, by kind and state of the cluster.
    pub coverage: Coverage,
    /// Lines of the story.
    pub story: Vec<String>,
}

/// The topology of a layout on machines `n1`, `n2`, ...
pub fn topology(layout: &str) -> Topology {
    let layout: Layout = layout.parse().expect("the layout is valid");
    let members = (0..layout.node_count())
        .map(|index| {
            let stage = u32::from(layout.place(common::ids::MemberIndex(index as u16)).stage);
            let cut = |stage: u32| 22 * stage / u32::from(layout.stages);
            Member {
                name: world::name(index),
                address: world::address(index),
                weight: 1,
                layers: cut(stage)..cut(stage + 1),
                cores: Vec::new(),
                threads: 1,
                spin: false,
            }
        })
        .collect();
    Topology {
        layout,
        members,
        model: "tinyllama.gguf".into(),
        identity: ModelIdentity::default(),
        content: Some(ContentRoot([1; 32])),
        unload_after: None,
        draft: None,
        kv: KvFormat::F16,
        exchange: Exchange::F32,
        collective: Choice::Auto,
        context_length: 512,
        slots: 8,
    }
}

impl History {
    /// A history of at least 20 faults and 50 requests.
    pub fn draw(seed: u64) -> Self {
        let mut random = Random::named(seed, "history");
        let scene = SCENES[seed as usize % SCENES.len()];
        let members = topology(scene.0).members.len();
        let votes = (seed as usize / SCENES.len()).is_multiple_of(2);
        let scope = Scope {
            members,
            nodes: members + usize::from(scene.1),
            has_replicas: scene.0.starts_with("dp"),
            votes,
            ordinal: seed as usize / (2 * SCENES.len()),
        };
        let count = 20 + random.below(6);
        let faults = faults::draw(&mut random, scope, count);
        let exclude_after = Duration::from_secs(if votes { 4 } else { 60 });
        Self { scene, seed, faults, requests: 50 + random.below(10), exclude_after, within: RECOVERY }
    }

    /// A history in which all machines lose power at the same instant, possibly during a recovery.
    pub fn draw_power_loss(seed: u64) -> Self {
        let mut random = Random::named(seed, "power");
        let scene = SCENES[seed as usize % SCENES.len()];
        let nodes = topology(scene.0).members.len() + usize::from(scene.1);
        let mut faults = Vec::new();
        let mut at = Duration::from_millis(3_000 + random.below(3_000) as u64);
        if random.below(3) > 0 {
            let back = Duration::from_millis(100 + random.below(12_000) as u64);
            let trouble = Trouble { kind: TroubleKind::Kill, node: random.below(nodes), other: 0, lasts: back };
            faults.push(TimedFault { at, when: None, trouble });
            at += Duration::from_millis(random.below(14_000) as u64);
        }
        for node in 0..nodes {
            let back = Duration::from_millis(500 + random.below(4_000) as u64);
            let trouble = Trouble { kind: TroubleKind::PowerLoss, node, other: 0, lasts: back };
            faults.push(TimedFault { at, when: None, trouble });
        }
        let exclude_after = Duration::from_secs([60, 3][random.below(2)]);
        Self { scene, seed, faults, requests: 10, exclude_after, within: POWER }
    }

    fn world(&self, is_told: bool) -> World {
        let committed = Committed::new(Epoch(1), topology(self.scene.0));
        World::new(self.seed, &committed, self.scene.1, self.exclude_after, Story::new(is_told))
    }

    /// Runs the history; `is_told` keeps the lines of its story.
    pub fn run(&self, is_told: bool) -> HistoryOutcome {
        log::read(|| self.run_unread(is_told))
    }

    fn run_unread(&self, is_told: bool) -> HistoryOutcome {
        let mut world = self.world(is_told);
        let last = self.faults.iter().map(|fault| fault.at).max().unwrap_or(Duration::from_secs(5));
        let mut random = Random::named(self.seed, "requests");
        for index in 0..self.requests {
            let at = Duration::from_secs(1) + last.mul_f64(index as f64 / self.requests.max(1) as f64);
            world.add_request(at, self.seed ^ (index as u64) << 32, 5 + random.below(120) as u32);
        }
        world.add_faults(self.faults.clone());
        world.run_until(last);
        let end = last + TIED;
        while world.is_sound() && world.faults_left() > 0 && world.time() < end {
            world.run_until(world.time() + SLICE);
        }
        let recovery = world.wait_until_served(self.within);
        world.wait_until_desired();
        let end = world.time() + REQUESTS;
        while world.is_sound() && world.open_requests() > 0 && world.time() < end {
            world.run_until(world.time() + SLICE);
        }
        if world.is_sound() && world.open_requests() > 0 {
            let open = world.open_requests();
            world.violate(format!("{open} requests have not ended"));
        }
        if let Some(line) = log::leak() {
            world.violate(format!("a prompt is logged: {line}"));
        }
        world.outcome(recovery)
    }
}

impl World {
    fn is_sound(&self) -> bool {
        self.violation.is_none()
    }

    fn time(&self) -> Duration {
        self.now
    }

    fn run_until(&mut self, end: Duration) {
        while self.is_sound() && self.next_at().is_some_and(|at| at <= end) {
            self.turn();
        }
        self.now = self.now.max(end);
    }

    /// Waits until the last fault has ended, then until all members serve; returns how long the latter took.
    fn wait_until_served(&mut self, within: Duration) -> Duration {
        let end = self.now + COMMANDS;
        loop {
            self.run_until(self.now + SLICE);
            if !self.is_sound() {
                return Duration::ZERO;
            }
            if self.is_draining() || self.operators_are_busy() {
                self.calm = self.calm.max(self.now);
                if self.now > end && self.is_out_of_sight() {
                    return self.leave_to_operators();
                }
                if self.now > end {
                    self.violate(format!("a command of an operator has not ended after {} s", COMMANDS.as_secs()));
                }
            }
            if self.now < self.calm {
                continue;
            }
            let took = self.now - self.calm;
            let away = self.away();
            if away.is_empty() {
                return took;
            }
            if took > within && (self.is_out_of_sight() || self.is_forgotten()) {
                return self.leave_to_operators();
            }
            if took > within {
                let (seconds, away) = (within.as_secs(), away.join(", "));
                self.violate(format!("it does not serve {seconds} s after the last fault: {away}"));
            }
        }
    }

    /// Ends a wait for what only an operator can settle; there is no time of recovery.
    fn leave_to_operators(&mut self) -> Duration {
        self.is_left = true;
        Duration::ZERO
    }

    /// Waits until the topology that an operator asked for serves again.
    fn wait_until_desired(&mut self) {
        let mut end = self.now + RETURN;
        let last = end + COMMANDS;
        while self.is_sound() && !self.is_desired() {
            // Members return only when a rolling restart is over.
            if self.operators_are_busy() && self.now < last {
                end = self.now + RETURN;
            }
            if self.now > end && (self.is_out_of_sight() || self.is_divided()) {
                self.leave_to_operators();
                return;
            }
            if self.now > end {
                let seconds = RETURN.as_secs();
                return self.violate(format!("the desired topology does not serve {seconds} s after a reduced one"));
            }
            self.run_until(self.now + SLICE);
        }
    }

    fn outcome(self, recovery: Duration) -> HistoryOutcome {
        let ended = |is_whole: bool| {
            self.asked.iter().filter(|asked| asked.ended.as_ref().is_some_and(|end| end.is_ok() == is_whole)).count()
        };
        let (whole, errors, decisions) = (ended(true), ended(false), self.told.decisions);
        HistoryOutcome {
            violation: self.violation,
            recovery,
            whole,
            errors,
            decisions,
            is_left: self.is_left,
            coverage: self.coverage,
            story: self.story.lines().to_vec(),
        }
    }
}

/// Runs a vote of `members` members in which members are killed and go away according to a script.
pub fn run_vote(members: usize, away: &[usize], turns: &[Turn], seed: u64, is_told: bool) -> HistoryOutcome {
    let committed = Committed::new(Epoch(1), topology(&format!("tp{members}")));
    let exclude_after = Duration::from_millis(500);
    let mut world = World::new(seed, &committed, false, exclude_after, Story::new(is_told));
    world.run_until(Duration::from_secs(2));
    world.set_away(away);
    world.follow(turns.to_vec());
    for _ in 0..=turns.len() {
        let left = world.steps_left();
        let end = world.now + Duration::from_secs(8);
        while world.is_sound() && world.now < end && world.steps_left() == left {
            world.run_until(world.now + SLICE);
        }
    }
    world.follow(Vec::new());
    world.set_away(&[]);
    world.calm = world.now + Duration::from_millis(500);
    let recovery = world.wait_until_served(RECOVERY);
    world.outcome(recovery)
}

/// The victims and all scripts that kill a voter or the proposer at each message boundary of two consecutive votes with
/// different members away.
pub fn vote_scripts(members: usize, victims: usize) -> (Vec<usize>, Vec<Vec<Turn>>) {
    let (first, second) = if members < 5 { (vec![1], vec![2]) } else { (vec![1, 3], vec![2, 4]) };
    let messages = 4 * (members - first.len());
    let there = |away: &[usize]| (0..members).filter(|node| !away.contains(node)).take(victims).collect::<Vec<_>>();
    let mut scripts = Vec::new();
    for one in 1..=messages {
        for kill_one in there(&first) {
            for two in 1..=messages {
                for kill_two in there(&second) {
                    let then = Turn { after: one, kill: kill_one, away: second.clone() };
                    let last = Turn { after: two, kill: kill_two, away: first.clone() };
                    scripts.push(vec![then, last]);
                }
            }
        }
    }
    (first, scripts)
}
