//! The machines of a simulated cluster, a heap of events in virtual time, and the handling of the events.
mod checks;
pub(super) mod consoles;
pub(super) mod gateway;
mod lives;
mod ranks;
mod states;
pub(super) mod votes;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    time::Duration,
};

use common::{
    fault::{Fault, FaultKind, Loss},
    ids::{Epoch, RequestId},
};
use daemon::{
    config::Liveness,
    node::{
        SessionId,
        event::Event as NodeEvent,
        steward::{Question, Reply},
    },
};
use protocol::{
    message::{RequestBody, ResponseBody},
    recovery::{Committed, RecoveryAsk},
};
use telemetry::NodeState;
use topology::{Topology, sizes::ModelSizes};

use super::{
    coverage::Coverage,
    disk::Disk,
    faults::TimedFault,
    network::{Arrival, End, Network, Packet},
    process::{Input, Process},
    story::Story,
    world::{
        checks::Told,
        consoles::{Command, Console},
        gateway::{Asked, Gateway},
        votes::VoteScript,
    },
};
use crate::random::Random;

/// The daemon's default settings.
pub(crate) const LIVENESS: Liveness =
    Liveness { heartbeat: Duration::from_millis(250), silent: Duration::from_secs(2), stall: Duration::from_secs(10) };
/// Interval at which a driver checks its clock; 50 ms in the daemon.
const TICK: Duration = Duration::from_millis(250);
/// Interval of backups of all state folders.
const BACK_UP: Duration = Duration::from_secs(20);
/// How much later a slow daemon handles an event.
const SLOWNESS: Duration = Duration::from_millis(60);

/// An event in one daemon.
#[derive(Debug)]
pub(crate) enum Own {
    Tick,
    Look,
    Written,
    Overdue(u64, RequestId),
    Unreachable(Question),
    Planned(Question, Box<Result<Topology, FaultKind>>),
    SameContent(Question, Result<(), Fault>),
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
    /// Like `Own`, in a slow daemon that has come to it.
    Slowed(End, Own),
    /// A packet for the gateway.
    Client(u64, Packet),
    /// The time of a fault has come, or it has waited for its state for long enough, or it ends.
    Fault(usize),
    FaultOverdue(usize),
    Mend(usize),
    /// All disks are copied to their backups.
    BackUp,
    /// The nodes report to the gateway.
    Reports,
    /// A console has waited for its answers for long enough.
    ConsoleOverdue(usize, u64),
    /// A console is killed.
    ConsoleGone(usize),
    /// An operator gives a command; whether the console is killed in the middle of it.
    Command(Box<Command>, bool),
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
    /// Everything takes longer until then.
    pub(crate) slow_until: Duration,
    /// When it has handled its latest event, if it is slow.
    busy_until: Duration,
    /// Its model file was replaced by one of the same name with other weights.
    pub(crate) has_other_file: bool,
    /// Its model file is the right one, but its shard cannot be read.
    pub(crate) is_unreadable: bool,
    /// How far its clock is ahead.
    pub(crate) ahead: Duration,
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
    /// Faults that wait for the state that they are tied to.
    pub(crate) tied: Vec<usize>,
    /// Number of faults that have begun.
    pub(crate) begun: usize,
    pub(crate) coverage: Coverage,
    /// The host number of each machine's address.
    pub(crate) hosts: Vec<usize>,
    /// End of the latest fault.
    pub(crate) calm: Duration,
    /// End of the latest fault of a machine or of the network.
    pub(crate) rough: Duration,
    pub(crate) asked: Vec<Asked>,
    pub(crate) gateway: Gateway,
    /// The epoch that a restarted gateway expects back, and until when.
    pub(crate) expects: Option<(Epoch, Duration)>,
    /// The topology that operators go back to.
    pub(crate) desired: Topology,
    pub(crate) consoles: Vec<Console>,
    /// Number of commands that operators are about to give.
    pub(crate) commands_due: usize,
    /// Nodes that operators have excluded.
    pub(crate) out: BTreeMap<usize, Duration>,
    pub(crate) runs: u64,
    exclude_after: Duration,
    witness: Option<String>,
    pub(crate) told: Told,
    /// Whether the history ended in what only an operator can settle.
    pub(crate) is_left: bool,
    pub(crate) violation: Option<String>,
    pub(crate) script: Option<VoteScript>,
}

pub(crate) fn name(node: usize) -> String {
    format!("n{}", node + 1)
}

/// The address of a host.
pub(crate) fn address(host: usize) -> String {
    format!("10.0.0.{}:9999", host + 1)
}

impl Machine {
    fn new(disk: Disk) -> Self {
        Self {
            disk,
            process: None,
            has_power: true,
            lives: 0,
            deferred: Vec::new(),
            is_away: false,
            slow_until: Duration::ZERO,
            busy_until: Duration::ZERO,
            has_other_file: false,
            is_unreadable: false,
            ahead: Duration::ZERO,
        }
    }
}

impl World {
    /// Starts machines that have committed a topology, plus the witness if there is one.
    pub(crate) fn new(seed: u64, committed: &Committed, witness: bool, exclude_after: Duration, story: Story) -> Self {
        let members = committed.topology.members.len();
        let mut machines: Vec<Machine> = (0..members).map(|_| Machine::new(Disk::of_member(committed))).collect();
        if witness {
            machines.push(Machine::new(Disk::default()));
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
            tied: Vec::new(),
            begun: 0,
            coverage: Coverage::default(),
            hosts: (0..machines.len()).collect(),
            calm: Duration::ZERO,
            rough: Duration::ZERO,
            asked: Vec::new(),
            gateway: Gateway::new(),
            expects: None,
            desired: committed.topology.clone(),
            consoles: Vec::new(),
            commands_due: 0,
            out: BTreeMap::new(),
            runs: 0,
            exclude_after,
            witness: witness.then(|| address(members)),
            told: Told::default(),
            is_left: false,
            violation: None,
            script: None,
            machines,
        };
        (0..world.machines.len()).for_each(|node| world.start_later(node, Duration::ZERO));
        world.later(Duration::ZERO, Event::Reports);
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
        self.later(BACK_UP, Event::BackUp);
    }

    /// Number of faults that have not begun.
    pub(crate) fn faults_left(&self) -> usize {
        self.faults.len() - self.begun
    }

    fn at_client(&mut self, number: u64, packet: Packet) {
        let own = self.network.connections.get(&number).map(|connection| connection.ends[0].node);
        match own.and_then(|own| own.checked_sub(self.gateway_end() + 1)) {
            Some(console) => self.at_console(console, number, packet),
            None => self.at_gateway(number, packet),
        }
    }

    /// The number of the gateway among the ends of connections: after those of the machines.
    pub(crate) fn gateway_end(&self) -> usize {
        self.machines.len()
    }

    /// Whether an end of a connection is not a machine.
    pub(crate) fn is_client(&self, node: usize) -> bool {
        node >= self.machines.len()
    }

    /// The address on which a machine listens.
    pub(crate) fn address(&self, node: usize) -> String {
        address(self.hosts[node])
    }

    /// The machine of this name.
    pub(crate) fn named(&self, wanted: &str) -> Option<usize> {
        (0..self.machines.len()).find(|node| name(*node) == wanted)
    }

    /// The clock of a machine.
    pub(crate) fn clock(&self, node: usize) -> Duration {
        self.now + self.machines[node].ahead
    }

    /// The current life of a daemon.
    pub(crate) fn life(&self, node: usize) -> Option<u64> {
        if self.is_client(node) {
            return Some(0);
        }
        Some(self.machines[node].process.as_ref()?.life)
    }

    /// Time since a daemon started.
    pub(crate) fn since(&self, node: usize) -> Duration {
        self.machines[node].process.as_ref().map_or(Duration::ZERO, |process| self.clock(node) - process.since)
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
            Event::Own(end, own) => self.own_if_fast(end, own),
            Event::Slowed(end, own) => self.own(end, own),
            Event::Client(number, packet) => self.at_client(number, packet),
            Event::Reports => self.take_reports(),
            Event::ConsoleOverdue(index, turn) => self.console_overdue(index, turn),
            Event::ConsoleGone(index) => self.console_gone(index),
            Event::Command(command, vanishes) => {
                self.commands_due -= 1;
                self.command(*command, vanishes);
            }
            Event::Fault(index) => self.fault(index),
            Event::FaultOverdue(index) => self.fault_overdue(index),
            Event::Mend(index) => self.mend(index),
            Event::BackUp => {
                self.machines.iter_mut().for_each(|machine| machine.disk.back_up());
                self.later(BACK_UP, Event::BackUp);
            }
            Event::Start(node, life) if self.machines[node].lives == life => self.start(node),
            Event::Start(..) => {}
            Event::Ask(index) => self.try_request(index),
        }
        self.begin_tied();
        true
    }

    /// A slow daemon handles its events later, but in the same order.
    fn own_if_fast(&mut self, end: End, own: Own) {
        let now = self.now;
        let machine = &mut self.machines[end.node];
        let is_slow = now < machine.slow_until;
        if !is_slow && now >= machine.busy_until {
            return self.own(end, own);
        }
        let at = machine.busy_until.max(now + if is_slow { SLOWNESS } else { Duration::ZERO });
        machine.busy_until = at;
        self.later(at - now, Event::Slowed(end, own));
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
            Own::SameContent(question, result) => self.hear(node, question, Reply::Content(result)),
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
        let event = match self.is_client(to.node) {
            true => Event::Client(connection, packet),
            false => Event::Own(to, Own::Arrives(connection, end, packet)),
        };
        self.later(at.saturating_sub(self.now), event);
    }
}
