//! The machines of a simulated cluster, a heap of events in virtual time, and what faults do to them.
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    time::Duration,
};

use daemon::{
    config::{Liveness, Recovery},
    node::{
        Node, SessionId,
        event::Event as NodeEvent,
        machine::Patience,
        steward::{Question, Reply, Settings, Steward},
    },
};
use shared::{
    ids::RequestId,
    protocol::{
        error::{FaultKind, Loss},
        message::{RequestBody, ResponseBody},
        recovery::{Committed, RecoveryAsk},
    },
    telemetry::NodeState,
    topology::{Topology, sizes::ModelSizes},
};

use super::{
    checks::Told,
    disk::Disk,
    faults::Fault,
    gateway::Asked,
    network::{Arrival, End, Network, Packet},
    process::{Input, Process},
    story::Story,
    votes::Script,
};
use crate::random::Random;

/// As the daemon has it where nothing is configured.
pub(super) const LIVENESS: Liveness =
    Liveness { heartbeat: Duration::from_millis(250), silent: Duration::from_secs(2), stall: Duration::from_secs(10) };
/// Between two looks of a driver at its clock; the daemon's is 50 ms.
const TICK: Duration = Duration::from_millis(250);

/// Something that happens in one daemon.
#[derive(Debug)]
pub(super) enum Own {
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

/// Something that happens.
#[derive(Debug)]
pub(super) enum Event {
    /// In a daemon of this life.
    Own(End, Own),
    /// At the gateway.
    Gateway(u64, Packet),
    /// A fault begins, or ends.
    Fault(usize),
    Mend(usize),
    /// A daemon is started.
    Start(usize, u64),
    /// A request is sent, or tried again.
    Ask(usize),
}

/// An event in the heap: by time, then by the order in which it was scheduled.
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
pub(super) struct Machine {
    /// Its disk.
    pub(super) disk: Disk,
    /// Its daemon, while it is alive.
    pub(super) process: Option<Process>,
    /// Whether it has power.
    pub(super) has_power: bool,
    /// Which start of the daemon comes next: a start that was ordered before a later kill does not count.
    pub(super) lives: u64,
    /// What came while the daemon was stopped.
    pub(super) deferred: Vec<Own>,
    /// It stays away until a script says otherwise.
    pub(super) is_away: bool,
}

/// A simulated cluster.
pub(super) struct World {
    pub(super) now: Duration,
    heap: BinaryHeap<Reverse<Scheduled>>,
    scheduled: u64,
    pub(super) random: Random,
    pub(super) machines: Vec<Machine>,
    pub(super) network: Network,
    pub(super) story: Story,
    pub(super) sizes: ModelSizes,
    pub(super) faults: Vec<Fault>,
    /// When the latest fault ended.
    pub(super) calm: Duration,
    pub(super) asked: Vec<Asked>,
    /// Open requests by connection.
    pub(super) streams: BTreeMap<u64, usize>,
    pub(super) runs: u64,
    exclude_after: Duration,
    witness: Option<String>,
    pub(super) told: Told,
    pub(super) violation: Option<String>,
    pub(super) script: Option<Script>,
}

/// A machine's name.
pub(super) fn name(node: usize) -> String {
    format!("n{}", node + 1)
}

/// Where a machine listens.
pub(super) fn address(node: usize) -> String {
    format!("10.0.0.{}:9999", node + 1)
}

impl World {
    /// Machines that have committed a topology and are started now; one more is the witness if there is one.
    pub(super) fn new(seed: u64, committed: &Committed, witness: bool, exclude_after: Duration, story: Story) -> Self {
        let members = committed.topology.members.len();
        let machine =
            |disk| Machine { disk, process: None, has_power: true, lives: 0, deferred: Vec::new(), is_away: false };
        let mut machines: Vec<Machine> = (0..members).map(|_| machine(Disk::of_member(committed))).collect();
        if witness {
            machines.push(machine(Disk::default()));
        }
        let sizes = ModelSizes::known("tinyllama-1.1b", shared::topology::sizes::Quantisation::Q8_0);
        let mut world = Self {
            now: Duration::ZERO,
            heap: BinaryHeap::new(),
            scheduled: 0,
            random: Random::new(seed),
            network: Network::default(),
            story,
            sizes: sizes.expect("it is a known model"),
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
    pub(super) fn later(&mut self, delay: Duration, event: Event) {
        self.scheduled += 1;
        self.heap.push(Reverse(Scheduled(self.now + delay, self.scheduled, event)));
    }

    /// Schedules an event of a daemon; it does not happen in a later life.
    pub(super) fn own_later(&mut self, node: usize, delay: Duration, own: Own) {
        if let Some(end) = self.own_end(node) {
            self.later(delay, Event::Own(end, own));
        }
    }

    pub(super) fn start_later(&mut self, node: usize, delay: Duration) {
        self.machines[node].lives += 1;
        let life = self.machines[node].lives;
        self.later(delay, Event::Start(node, life));
    }

    /// Adds faults.
    pub(super) fn add_faults(&mut self, faults: Vec<Fault>) {
        for (index, fault) in faults.iter().enumerate() {
            self.later(fault.at, Event::Fault(index));
        }
        self.faults = faults;
    }

    /// Which life a daemon is in.
    pub(super) fn life(&self, node: usize) -> Option<u64> {
        if node == self.machines.len() {
            return Some(0);
        }
        Some(self.machines[node].process.as_ref()?.life)
    }

    /// Time since a daemon was started.
    pub(super) fn since(&self, node: usize) -> Duration {
        self.machines[node].process.as_ref().map_or(Duration::ZERO, |process| self.now - process.since)
    }

    /// When the next event happens.
    pub(super) fn next_at(&self) -> Option<Duration> {
        self.heap.peek().map(|Reverse(Scheduled(at, ..))| *at)
    }

    /// Whether a daemon still drains.
    pub(super) fn is_draining(&self) -> bool {
        let mut processes = self.machines.iter().filter_map(|machine| machine.process.as_ref());
        processes.any(|process| process.node.state() == NodeState::Draining)
    }

    /// Lets the next event happen; `false`: there is none.
    pub(super) fn turn(&mut self) -> bool {
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

    pub(super) fn own(&mut self, end: End, own: Own) {
        let machine = &mut self.machines[end.node];
        if machine.process.as_ref().is_none_or(|process| process.life != end.life) {
            // A machine that is up resets what no daemon of it knows.
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
            Own::Arrives(number, at, packet) => self.arrives(node, (number, at), packet),
        }
    }

    fn arrives(&mut self, node: usize, (number, at): (u64, usize), packet: Packet) {
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
                let is_vote = matches!(
                    &response.body,
                    ResponseBody::Recovery(shared::protocol::recovery::RecoveryAnswer::Ruling(_))
                );
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
    pub(super) fn send(&mut self, number: u64, from: usize, packet: Packet) {
        let delay = Duration::from_micros(150 + self.random.below(600) as u64);
        if let Some(arrival) = self.network.send(number, from, packet, self.now + delay) {
            self.schedule(arrival);
        }
    }

    pub(super) fn schedule(&mut self, Arrival { at, connection, end, packet }: Arrival) {
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
        let settings =
            Settings { name: name(node), own: address(node), listen: Some(address(node)), recovery, known: Vec::new() };
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
            writing: None,
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

    /// A daemon is gone: its kernel closes its connections, unless it has no power. Returns them, each with its end there.
    pub(super) fn end_process(&mut self, node: usize, says_so: bool) -> Vec<(u64, usize)> {
        let Some(process) = self.machines[node].process.take() else { return Vec::new() };
        let end = End { node, life: process.life };
        if let Some(writing) = &process.writing {
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

    /// Kills a daemon; it comes back after a time.
    pub(super) fn kill(&mut self, node: usize, back: Duration) {
        self.end_process(node, true);
        self.start_later(node, back);
        self.calm = self.calm.max(self.now + back);
    }
}
