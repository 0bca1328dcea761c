//! The machines of a simulated cluster, a heap of events in virtual time, and the handling of the events.
mod checks;
mod gateway;
mod ranks;
pub(super) mod votes;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    time::Duration,
};

use common::{
    fault::{FaultKind, Loss},
    ids::RequestId,
};
use daemon::{
    config::{Liveness, Recovery},
    node::{
        Node, SessionId,
        event::Event as NodeEvent,
        machine::Patience,
        steward::{Question, Reply, Steward, StewardSettings},
    },
};
use protocol::{
    message::{RequestBody, ResponseBody},
    recovery::{Committed, RecoveryAsk},
};
use telemetry::NodeState;
use topology::{Topology, sizes::ModelSizes};

use super::{
    disk::Disk,
    faults::TimedFault,
    network::{Arrival, End, Network, Packet},
    process::{Input, Process},
    story::Story,
    world::{checks::Told, gateway::Asked, votes::VoteScript},
};
use crate::random::Random;

/// The daemon's default settings.
pub(crate) const LIVENESS: Liveness =
    Liveness { heartbeat: Duration::from_millis(250), silent: Duration::from_secs(2), stall: Duration::from_secs(10) };
/// Interval at which a driver checks its clock; 50 ms in the daemon.
const TICK: Duration = Duration::from_millis(250);

/// An event in one daemon.
#[derive(Debug)]
pub(crate) enum Own {
    Tick,
    Look,
    Written,
    Overdue(u64, RequestId),
    Unreachable(Question),
    Planned(Question, Box<Result<Topology, FaultKind>>),
    SameContent(Question),
    Loaded(u64),
    LinksOverdue(u64),
    DialFailed(u64),
    DialOverdue(u64, u64),
    Beats(u64),
    Step(u64),
    Arrives(u64, usize, Packet),
}

/// An event of the world.
#[derive(Debug)]
pub(crate) enum Event {
    /// An event in a daemon, valid only for the given life.
    Own(End, Own),
    /// A packet for the gateway.
    Gateway(u64, Packet),
    /// A fault begins, or ends.
    Fault(usize),
    Mend(usize),
    /// A daemon starts.
    Start(usize, u64),
    /// A request is sent or retried.
    Ask(usize),
}

/// An event in the heap, ordered by time and then by the order of scheduling.
#[derive(Debug)]
struct Scheduled(Duration, u64, Event);

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// One machine.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) disk: Disk,
    /// The daemon, while it is alive.
    pub(crate) process: Option<Process>,
    pub(crate) has_power: bool,
    /// Number of the daemon's next start; a start that was scheduled before a later kill is ignored.
    pub(crate) lives: u64,
    /// Events that arrived while the daemon was stopped.
    pub(crate) deferred: Vec<Own>,
    /// Stays down until a script ends its absence.
    pub(crate) is_away: bool,
}

/// A simulated cluster.
pub(crate) struct World {
    pub(crate) now: Duration,
    heap: BinaryHeap<Reverse<Scheduled>>,
    scheduled: u64,
    pub(crate) random: Random,
    pub(crate) machines: Vec<Machine>,
    pub(crate) network: Network,
    pub(crate) story: Story,
    pub(crate) sizes: ModelSizes,
    pub(crate) faults: Vec<TimedFault>,
    /// End of the latest fault.
    pub(crate) calm: Duration,
    pub(crate) asked: Vec<Asked>,
    /// Open requests by connection.
    pub(crate) streams: BTreeMap<u64, usize>,
    pub(crate) runs: u64,
    exclude_after: Duration,
    witness: Option<String>,
    pub(crate) told: Told,
    pub(crate) violation: Option<String>,
    pub(crate) script: Option<VoteScript>,
}

pub(crate) fn name(node: usize) -> String {
    format!("n{}", node + 1)
}

/// The address on which a machine listens.
pub(crate) fn address(node: usize) -> String {
    format!("10.0.0.{}:9999", node + 1)
}

impl World {
    /// Starts machines that have committed a topology, plus the witness if there is one.
    pub(crate) fn new(seed: u64, committed: &Committed, witness: bool, exclude_after: Duration, story: Story) -> Self {
        let members = committed.topology.members.len();
        let machine =
            |disk| Machine { disk, process: None, has_power: true, lives: 0, deferred: Vec::new(), is_away: false };
        let mut machines: Vec<Machine> = (0..members).map(|_| machine(Disk::of_member(committed))).collect();
        if witness {
            machines.push(machine(Disk::default()));
        }
        let sizes = ModelSizes::known("tinyllama-1.1b", topology::sizes::Quantisation::Q8_0);
        let mut world = Self {
            now: Duration::ZERO,
            heap: BinaryHeap::new(),
            scheduled: 0,
            random: Random::new(seed),
            network: Network::default(),
            story,
            sizes: sizes.expect("the model is known"),
            faults: Vec::new(),
            calm: Duration::ZERO,
            asked: Vec::new(),
            streams: BTreeMap::new(),
            runs: 0,
            exclude_after,
            witness: witness.then(|| address(members)),
            told: Told::default(),
            violation: None,
            script: None,
            machines,
        };
        world.told.begin(committed);
        (0..world.machines.len()).for_each(|node| world.start_later(node, Duration::ZERO));
        world
    }

    /// Schedules an event.
    pub(crate) fn later(&mut self, delay: Duration, event: Event) {
        self.scheduled += 1;
        self.heap.push(Reverse(Scheduled(self.now + delay, self.scheduled, event)));
    }

    /// Schedules an event of a daemon; it is ignored in a later life of that daemon.
    pub(crate) fn own_later(&mut self, node: usize, delay: Duration, own: Own) {
        if let Some(end) = self.own_end(node) {
            self.later(delay, Event::Own(end, own));
        }
    }

    pub(crate) fn start_later(&mut self, node: usize, delay: Duration) {
        self.machines[node].lives += 1;
        let life = self.machines[node].lives;
        self.later(delay, Event::Start(node, life));
    }

    /// Schedules faults.
    pub(crate) fn add_faults(&mut self, faults: Vec<TimedFault>) {
        for (index, fault) in faults.iter().enumerate() {
            self.later(fault.at, Event::Fault(index));
        }
        self.faults = faults;
    }

    /// The current life of a daemon.
    pub(crate) fn life(&self, node: usize) -> Option<u64> {
        if node == self.machines.len() {
            return Some(0);
        }
        Some(self.machines[node].process.as_ref()?.life)
    }

    /// Time since a daemon started.
    pub(crate) fn since(&self, node: usize) -> Duration {
        self.machines[node].process.as_ref().map_or(Duration::ZERO, |process| self.now - process.since)
    }

    /// Time of the next event.
    pub(crate) fn next_at(&self) -> Option<Duration> {
        self.heap.peek().map(|Reverse(Scheduled(at, ..))| *at)
    }

    /// Whether any daemon is still draining.
    pub(crate) fn is_draining(&self) -> bool {
        let mut processes = self.machines.iter().filter_map(|machine| machine.process.as_ref());
        processes.any(|process| process.node.state() == NodeState::Draining)
    }

    /// Handles the next event; returns `false` if there is none.
    pub(crate) fn turn(&mut self) -> bool {
        let Some(Reverse(Scheduled(at, _, event))) = self.heap.pop() else { return false };
        self.now = at;
        match event {
            Event::Own(end, own) => self.own(end, own),
            Event::Gateway(number, packet) => self.at_gateway(number, packet),
            Event::Fault(index) => self.fault(index),
            Event::Mend(index) => self.mend(index),
            Event::Start(node, life) if self.machines[node].lives == life => self.start(node),
            Event::Start(..) => {}
            Event::Ask(index) => self.try_request(index),
        }
        true
    }

    pub(crate) fn own(&mut self, end: End, own: Own) {
        let machine = &mut self.machines[end.node];
        if machine.process.as_ref().is_none_or(|process| process.life != end.life) {
            // A running machine resets connections that its daemon does not know.
            if let Own::Arrives(number, at, packet) = own
                && machine.has_power
                && !matches!(packet, Packet::Closed)
                && let Some(connection) = self.network.connections.get_mut(&number)
            {
                connection.is_open[at] = true;
                self.send(number, at, Packet::Closed);
            }
            return;
        }
        if machine.process.as_ref().is_some_and(|process| process.is_stopped) {
            machine.deferred.push(own);
            return;
        }
        let node = end.node;
        match own {
            Own::Tick => {
                let now = self.since(node);
                self.input(node, Input::Event(NodeEvent::Tick { now }));
                self.own_later(node, TICK, Own::Tick);
            }
            Own::Look => self.input(node, Input::Look),
            Own::Written => self.written(node),
            Own::Overdue(number, id) => self.overdue(node, number, id),
            Own::Unreachable(question) => self.unreachable(node, question),
            Own::Planned(question, planned) => self.hear(node, question, Reply::Plan(*planned)),
            Own::SameContent(question) => self.hear(node, question, Reply::Content(Ok(()))),
            Own::Loaded(attempt) => self.loaded(node, attempt),
            Own::LinksOverdue(attempt) => self.links_overdue(node, attempt),
            Own::DialFailed(attempt) => self.dial_failed(node, attempt),
            Own::DialOverdue(attempt, number) => self.dial_overdue(node, attempt, number),
            Own::Beats(attempt) => self.beats(node, attempt),
            Own::Step(attempt) => self.step(node, attempt),
            Own::Arrives(number, at, packet) => self.arrives(node, number, at, packet),
        }
    }

    fn arrives(&mut self, node: usize, number: u64, at: usize, packet: Packet) {
        let Some(connection) = self.network.connections.get_mut(&number).filter(|one| one.is_open[at]) else { return };
        if matches!(packet, Packet::Closed) {
            connection.is_open[at] = false;
        }
        match packet {
            Packet::Request(request) => {
                let is_vote =
                    matches!(&request.body, RequestBody::Recovery(ask) if matches!(**ask, RecoveryAsk::Vote(_)));
                self.note_vote(number, &request);
                let by = name(self.network.connections[&number].ends[0].node);
                let event = NodeEvent::Request { session: SessionId(number), by, request: *request };
                self.input(node, Input::Event(event));
                self.count_vote(is_vote);
            }
            Packet::Response(response, _) => {
                let is_vote =
                    matches!(&response.body, ResponseBody::Recovery(protocol::recovery::RecoveryAnswer::Vote(_)));
                self.answered(node, number, response.id, response.body);
                self.count_vote(is_vote);
            }
            Packet::Dial { .. } => self.dialled(node, number, &packet),
            Packet::Welcome(is_welcome) => self.welcomed(node, number, is_welcome),
            Packet::Beat(beat) => self.heard(node, number, &beat),
            Packet::Closed => {
                self.welcomed(node, number, false);
                self.link_lost(node, number, Loss::Reset);
                if at == 0 {
                    self.session_lost(node, number);
                } else {
                    self.input(node, Input::Event(NodeEvent::SessionClosed(SessionId(number))));
                }
            }
        }
    }

    /// Sends from an end of a connection.
    pub(crate) fn send(&mut self, number: u64, from: usize, packet: Packet) {
        let delay = Duration::from_micros(150 + self.random.below(600) as u64);
        if let Some(arrival) = self.network.send(number, from, packet, self.now + delay) {
            self.schedule(arrival);
        }
    }

    pub(crate) fn schedule(&mut self, Arrival { at, connection, end, packet }: Arrival) {
        let Some(to) = self.network.connections.get(&connection).map(|one| one.ends[end]) else { return };
        let event = match to.node == self.machines.len() {
            true => Event::Gateway(connection, packet),
            false => Event::Own(to, Own::Arrives(connection, end, packet)),
        };
        self.later(at.saturating_sub(self.now), event);
    }

    fn start(&mut self, node: usize) {
        let machine = &mut self.machines[node];
        if machine.process.is_some() || machine.is_away {
            return;
        }
        machine.has_power = true;
        let witness = self.witness.clone().filter(|own| *own != address(node));
        let patience = Patience { lease: Duration::from_secs(60), drain: Duration::from_secs(20) };
        let recovery = Recovery {
            enabled: true,
            exclude_after: Some(self.exclude_after),
            exclude_slow: None,
            retry_slow: None,
            rebalance_after: None,
            witness: witness.clone(),
        };
        let settings = StewardSettings {
            name: name(node),
            own: address(node),
            listen: Some(address(node)),
            recovery,
            known: Vec::new(),
        };
        let beginning = machine.disk.beginning(&name(node), witness);
        machine.lives += 1;
        let life = machine.lives;
        machine.deferred.clear();
        machine.process = Some(Process {
            life,
            since: self.now,
            node: Node::new(beginning, patience),
            inbox: Default::default(),
            effects: Default::default(),
            writes: VecDeque::new(),
            is_stopped: false,
            steward: Steward::new(settings),
            sessions: BTreeMap::new(),
            asked: BTreeMap::new(),
            requests: 0,
            attempts: 0,
            opening: None,
            run: None,
            heard: BTreeMap::new(),
            exits: false,
        });
        self.story.say(self.now, &name(node), || "is started".into());
        let delay = Duration::from_millis(self.random.below(250) as u64);
        self.own_later(node, delay, Own::Tick);
        self.own_later(node, delay, Own::Look);
    }

    /// Ends a daemon: its kernel closes its connections, unless the machine has no power. Returns the connections, each
    /// with the daemon's end.
    pub(crate) fn end_process(&mut self, node: usize, says_so: bool) -> Vec<(u64, usize)> {
        let Some(process) = self.machines[node].process.take() else { return Vec::new() };
        let end = End { node, life: process.life };
        if let Some(writing) = process.writes.front() {
            self.machines[node].disk.cut(&writing.entries, &mut self.random);
        }
        self.machines[node].lives += 1;
        let connections = self.network.of(end);
        for (number, at) in connections.iter().copied() {
            if says_so {
                self.send(number, at, Packet::Closed);
            } else if let Some(connection) = self.network.connections.get_mut(&number) {
                connection.is_open[at] = false;
            }
        }
        self.network.sweep();
        connections
    }

    /// Kills a daemon; it restarts after a delay.
    pub(crate) fn kill(&mut self, node: usize, back: Duration) {
        self.end_process(node, true);
        self.start_later(node, back);
        self.calm = self.calm.max(self.now + back);
    }
}
