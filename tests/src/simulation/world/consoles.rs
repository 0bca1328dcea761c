//! Operators' consoles: they speak the messages of `shared/assignment` and `console/src/client`, whose sessions need
//! sockets and real time. Which shards stay, and the topology without a node, is decided by the real functions.
use std::{collections::BTreeMap, time::Duration};

use assignment::previous::previous;
use common::{
    fault::{Fault, FaultKind},
    ids::{MemberIndex, RequestId},
};
use planner::replan::{Stays, replan};
use protocol::{
    message::{Prepare, Request, RequestBody, ResponseBody},
    recovery::{Committed, RecoveryAsk},
};
use telemetry::NodeReport;
use topology::{Exclusion, Exclusions, Rolling, Topology, rolling::Phase};

use crate::simulation::{
    network::Packet,
    world::{Event, World, name},
};

/// A command of an operator.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Command {
    /// Takes a node out of the topology, or takes it in again.
    Exclude(usize),
    Include(usize),
    /// Keeps requests away from the replica of a node, or no longer.
    Cordon(usize),
    Uncordon(usize),
    /// Assigns a topology.
    Assign(Box<Topology>),
    /// Restarts all members, one after another.
    RestartAll,
}

impl Command {
    /// Whether it is repeated until it succeeds: it ends what an earlier command has begun.
    fn is_repeated(&self) -> bool {
        matches!(self, Self::Include(_) | Self::Uncordon(_))
    }

    fn subject(&self) -> Option<(usize, bool, bool)> {
        match *self {
            Self::Exclude(node) => Some((node, true, false)),
            Self::Include(node) => Some((node, false, false)),
            Self::Cordon(node) => Some((node, true, true)),
            Self::Uncordon(node) => Some((node, false, true)),
            Self::Assign(_) | Self::RestartAll => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConsoleStage {
    Look,
    Spread,
    Prepare,
    Commit,
    Abort,
    /// Orders that need no second phase.
    Order,
    TakeBack,
    Over,
}

impl ConsoleStage {
    /// Longest wait for its answers.
    fn patience(self) -> Duration {
        Duration::from_secs(match self {
            Self::Look | Self::Spread | Self::TakeBack => 5,
            Self::Prepare => 120,
            Self::Commit | Self::Order => 30,
            Self::Abort | Self::Over => 2,
        })
    }
}

/// One command of one operator.
#[derive(Debug)]
pub(crate) struct Console {
    command: Command,
    vanishes: bool,
    stage: ConsoleStage,
    /// Number of stages so far: also the number of the request.
    turn: u64,
    sessions: BTreeMap<usize, u64>,
    /// Nodes that have not answered in this stage, and answers.
    waiting: Vec<usize>,
    answers: BTreeMap<usize, Result<ResponseBody, Fault>>,
    reports: BTreeMap<usize, NodeReport>,
    exclusions: Exclusions,
    before: Option<Exclusion>,
    next: Option<Committed>,
    /// When it ended.
    ended: Option<Duration>,
}

/// The operator of all consoles.
pub(crate) const OPERATOR: &str = "op@console";
/// How long a gateway may still believe that a command runs: a node that dies before the command ends reports no end.
const KNOWN: Duration = Duration::from_secs(3);
/// Pause before a command is repeated.
const AGAIN: Duration = Duration::from_secs(1);

impl World {
    /// An operator gives a command; with `vanishes`, the console is killed in the middle of it.
    pub(crate) fn command(&mut self, command: Command, vanishes: bool) {
        let mut open = self.consoles.iter().filter(|console| console.stage != ConsoleStage::Over);
        let is_early =
            open.any(|console| console.command.subject().map(|one| one.0) == command.subject().map(|one| one.0));
        if is_early && command.is_repeated() {
            return self.command_later(AGAIN, command, vanishes);
        }
        let index = self.consoles.len();
        self.story.say(self.now, "operator", || told(&command));
        // Both are one command of the console.
        if let Command::Include(node) | Command::Uncordon(node) = &command {
            self.out.remove(node);
        }
        self.consoles.push(Console {
            command,
            vanishes,
            stage: ConsoleStage::Look,
            turn: 0,
            sessions: BTreeMap::new(),
            waiting: Vec::new(),
            answers: BTreeMap::new(),
            reports: BTreeMap::new(),
            exclusions: Exclusions::default(),
            before: None,
            next: None,
            ended: None,
        });
        let asks = (0..self.machines.len()).map(|node| (node, RequestBody::Report)).collect();
        self.console_asks(index, ConsoleStage::Look, asks);
    }

    /// An operator gives a command after a delay.
    pub(crate) fn command_later(&mut self, delay: Duration, command: Command, vanishes: bool) {
        self.commands_due += 1;
        self.later(delay, Event::Command(Box::new(command), vanishes));
    }

    /// Whether a command has not ended, or is about to be repeated.
    pub(crate) fn operators_are_busy(&self) -> bool {
        self.consoles.iter().any(|console| console.stage != ConsoleStage::Over)
            || self.commands_due > 0
            || self
                .machines
                .iter()
                .filter_map(|machine| machine.process.as_ref())
                .any(|process| process.node.rolling().is_some_and(Rolling::is_running))
    }

    /// Whether an operator is assigning another topology, whose model may differ, as far as the gateway can know.
    pub(crate) fn is_assigning(&self) -> bool {
        let mut open = self.consoles.iter().filter(|console| console.ended.is_none_or(|at| self.now < at + KNOWN));
        open.any(|console| matches!(console.command, Command::Assign(_)))
    }

    fn console_asks(&mut self, index: usize, stage: ConsoleStage, asks: Vec<(usize, RequestBody)>) {
        let own = self.gateway_end() + 1 + index;
        let console = &mut self.consoles[index];
        console.turn += 1;
        (console.stage, console.waiting) = (stage, Vec::new());
        console.answers.clear();
        let turn = console.turn;
        for (node, body) in asks {
            let known = self.consoles[index].sessions.get(&node).copied();
            let known = known.filter(|number| self.network.connections.get(number).is_some_and(|one| one.is_open[0]));
            let number = known.or_else(|| self.dial(own, node));
            let console = &mut self.consoles[index];
            match number {
                Some(number) => {
                    console.sessions.insert(node, number);
                    console.waiting.push(node);
                    self.send(number, 0, Packet::Request(Box::new(Request { id: RequestId(turn), body })));
                }
                None => drop(console.answers.insert(node, Err(unreachable(node)))),
            }
        }
        self.later(stage.patience(), Event::ConsoleOverdue(index, turn));
        if self.consoles[index].vanishes && matches!(stage, ConsoleStage::Prepare | ConsoleStage::Commit) {
            let delay =
                Duration::from_micros(
                    self.random.below(if stage == ConsoleStage::Commit { 2_000 } else { 600_000 }) as u64
                );
            self.later(delay, Event::ConsoleGone(index));
        }
        self.console_continues(index);
    }

    pub(crate) fn console_gone(&mut self, index: usize) {
        if self.consoles[index].stage != ConsoleStage::Over {
            self.story.say(self.now, "operator", || "the console is killed".into());
            self.console_ends(index);
        }
    }

    pub(crate) fn console_overdue(&mut self, index: usize, turn: u64) {
        let console = &mut self.consoles[index];
        if console.turn == turn && console.stage != ConsoleStage::Over {
            for node in std::mem::take(&mut console.waiting) {
                let kind = FaultKind::Timeout { what: "an answer".into(), seconds: 5 };
                console.answers.insert(node, Err(Fault::new(name(node), kind)));
            }
            self.console_continues(index);
        }
    }

    /// Handles a packet that arrives at a console.
    pub(crate) fn at_console(&mut self, index: usize, number: u64, packet: Packet) {
        let Some(console) = self.consoles.get_mut(index) else { return };
        let node = console.sessions.iter().find(|(_, known)| **known == number).map(|(node, _)| *node);
        let Some(node) = node else { return };
        let answer = match packet {
            Packet::Response(response, _) if response.id != RequestId(console.turn) => return,
            Packet::Response(response, _) => match response.body {
                ResponseBody::Loading(_) => return,
                ResponseBody::Failed(fault) => Err(fault),
                body => Ok(body),
            },
            Packet::Closed => {
                if let Some(connection) = self.network.connections.get_mut(&number) {
                    connection.is_open[0] = false;
                }
                Err(unreachable(node))
            }
            _ => return,
        };
        let count = console.waiting.len();
        console.waiting.retain(|waiting| *waiting != node);
        if console.waiting.len() < count {
            console.answers.insert(node, answer);
            self.console_continues(index);
        }
    }

    fn console_continues(&mut self, index: usize) {
        let console = &mut self.consoles[index];
        let has_failed = console.answers.values().any(Result::is_err);
        // One failure ends an assignment, as in `assign`; the commits of all are awaited.
        let is_decided = has_failed && console.stage == ConsoleStage::Prepare;
        if console.stage == ConsoleStage::Over || (!console.waiting.is_empty() && !is_decided) {
            return;
        }
        match console.stage {
            ConsoleStage::Look => self.console_has_looked(index),
            ConsoleStage::Spread => self.console_has_spread(index),
            ConsoleStage::Prepare | ConsoleStage::Commit if has_failed => {
                if let Some(fault) = console.answers.values().find_map(|answer| answer.as_ref().err()).cloned() {
                    self.story.say(self.now, "operator", || format!("the assignment fails: {fault}"));
                }
                self.console_assigns(index, ConsoleStage::Abort);
            }
            ConsoleStage::Prepare => self.console_assigns(index, ConsoleStage::Commit),
            ConsoleStage::Commit => {
                self.story.say(self.now, "operator", || "the assignment is committed".into());
                self.console_succeeds(index);
            }
            ConsoleStage::Abort => self.console_takes_back(index),
            // One node that stores it is enough: it tells the others.
            ConsoleStage::Order if console.answers.values().any(Result::is_ok) => self.console_succeeds(index),
            ConsoleStage::Order | ConsoleStage::TakeBack => self.console_fails(index),
            ConsoleStage::Over => {}
        }
    }

    fn console_has_looked(&mut self, index: usize) {
        let console = &mut self.consoles[index];
        for (node, answer) in std::mem::take(&mut console.answers) {
            if let Ok(ResponseBody::Report(report)) = answer {
                console.exclusions.merge(&report.exclusions);
                console.reports.insert(node, *report);
            }
        }
        match console.command.clone() {
            Command::Assign(topology) => self.console_prepares(index, *topology, None),
            Command::RestartAll => self.console_restarts_all(index),
            command => {
                let Some((node, is_out, is_cordon)) = command.subject() else { return };
                let address = self.address(node);
                let console = &mut self.consoles[index];
                if command.is_repeated() && !console.reports.contains_key(&node) {
                    return self.console_fails(index);
                }
                console.before = console.exclusions.0.iter().find(|entry| entry.node == name(node)).cloned();
                let (reason, by) = (is_out.then(|| "an operator says so".to_owned()), OPERATOR.to_owned());
                console.exclusions.put(Exclusion {
                    node: name(node),
                    address,
                    reason,
                    by,
                    revision: 0,
                    is_cordon: is_cordon && is_out,
                });
                self.console_spreads(index, ConsoleStage::Spread);
            }
        }
    }

    /// Sends the list of exclusions to all nodes that answer.
    fn console_spreads(&mut self, index: usize, stage: ConsoleStage) {
        let console = &self.consoles[index];
        let asks =
            console.reports.keys().map(|node| (*node, RequestBody::Exclude(console.exclusions.clone()))).collect();
        self.console_asks(index, stage, asks);
    }

    fn console_has_spread(&mut self, index: usize) {
        let console = &self.consoles[index];
        let Some((subject, _, is_cordon)) = console.command.subject() else { return };
        let voters: Vec<usize> = (0..self.machines.len()).filter(|node| *node != subject).collect();
        let lost = voters.iter().filter(|node| !matches!(console.answers.get(node), Some(Ok(_)))).count();
        if 2 * lost >= voters.len() {
            return self.console_takes_back(index);
        }
        if is_cordon {
            return self.console_succeeds(index);
        }
        self.console_assigns_rest(index, subject);
    }

    /// Assigns the desired topology to its included members.
    fn console_assigns_rest(&mut self, index: usize, subject: usize) {
        let console = &self.consoles[index];
        let joins = matches!(console.command, Command::Include(_));
        let held = console.reports.values().filter(|report| report.topology.is_some());
        let Some(held) = held.max_by_key(|report| report.epoch) else { return self.console_succeeds(index) };
        let Some((topology, ..)) = &held.topology else { return };
        let desired = held.desired.as_deref().unwrap_or(topology).clone();
        let (subject, topology) = (name(subject), topology.clone());
        let is_member = topology.members.iter().any(|member| member.name == subject);
        if is_member == joins || (joins && desired.members.iter().all(|member| member.name != subject)) {
            return self.console_succeeds(index);
        }
        let mut stay = Vec::new();
        for (place, member) in desired.members.iter().enumerate() {
            let stays =
                if member.name == subject { joins } else { topology.members.iter().any(|one| one.name == member.name) };
            let node = self.named(&member.name).filter(|node| console.reports.contains_key(node));
            if let Some(node) = node.filter(|_| stays) {
                let free = Default::default();
                stay.push(Stays { member: MemberIndex(place as u16), address: self.address(node), free });
            }
        }
        match replan(&desired, &stay, &self.sizes) {
            Ok(next) => {
                let wanted = (!next.is_alike(&desired)).then(|| Box::new(desired));
                self.console_prepares(index, next, wanted);
            }
            Err(_) => self.console_takes_back(index),
        }
    }

    fn console_prepares(&mut self, index: usize, topology: Topology, desired: Option<Box<Topology>>) {
        let console = &self.consoles[index];
        let members: Vec<Option<&NodeReport>> = topology
            .members
            .iter()
            .map(|member| console.reports.values().find(|report| report.name == member.name))
            .collect();
        // As in the console: an exclusion or inclusion looks at all nodes, an assignment at its members.
        let is_assignment = matches!(console.command, Command::Assign(_));
        let others = console.reports.values().filter(|_| !is_assignment);
        let epochs = members.iter().flatten().copied().chain(others).map(|report| report.epoch);
        let epoch = epochs.max().unwrap_or_default().next();
        // As `assignment::content` does, before anything is prepared.
        let mut nodes = topology.members.iter().filter_map(|member| self.named(&member.name));
        let has_content = nodes.all(|node| !self.machines[node].has_other_file);
        let is_complete = has_content && members.iter().all(Option::is_some);
        self.consoles[index].next = Some(Committed { epoch, topology, desired });
        if is_complete { self.console_assigns(index, ConsoleStage::Prepare) } else { self.console_takes_back(index) }
    }

    fn console_assigns(&mut self, index: usize, stage: ConsoleStage) {
        let console = &self.consoles[index];
        let Some(Committed { epoch, topology, desired }) = console.next.clone() else { return };
        let hash = topology.hash();
        let named: Vec<usize> = topology.members.iter().filter_map(|member| self.named(&member.name)).collect();
        let reports: Vec<NodeReport> = named.iter().filter_map(|node| console.reports.get(node).cloned()).collect();
        let fates = previous(&topology, &reports, &self.sizes);
        let mut asks = Vec::with_capacity(named.len());
        for (place, node) in named.into_iter().enumerate() {
            let body = match stage {
                ConsoleStage::Prepare => RequestBody::Prepare(Box::new(Prepare {
                    seen: reports[place].epoch,
                    epoch,
                    topology: topology.clone(),
                    member: MemberIndex(place as u16),
                    desired: desired.clone(),
                    previous: fates[place],
                })),
                ConsoleStage::Commit => RequestBody::Commit { epoch, hash },
                _ => RequestBody::Abort { epoch, hash },
            };
            asks.push((node, body));
        }
        self.console_asks(index, stage, asks);
    }

    /// A failed command leaves the list of exclusions as it was.
    fn console_takes_back(&mut self, index: usize) {
        let console = &mut self.consoles[index];
        let Some((node, ..)) = console.command.subject().filter(|_| !console.command.is_repeated()) else {
            return self.console_fails(index);
        };
        let by = OPERATOR.to_owned();
        let none =
            Exclusion { node: name(node), address: String::new(), reason: None, by, revision: 0, is_cordon: false };
        let before = console.before.clone().unwrap_or(none);
        let address = self.address(node);
        self.consoles[index].exclusions.put(Exclusion { address, ..before });
        self.console_spreads(index, ConsoleStage::TakeBack);
    }

    fn console_restarts_all(&mut self, index: usize) {
        let console = &self.consoles[index];
        let revision = console.reports.keys().filter_map(|node| self.machines[*node].process.as_ref()?.node.rolling());
        let revision = revision.map(|rolling| rolling.revision).max().unwrap_or(0) + 1;
        let mut held = console.reports.values().filter_map(|report| report.topology.as_ref());
        let Some((topology, ..)) = held.next_back() else { return self.console_succeeds(index) };
        let targets = topology.members.iter().map(|member| (member.name.clone(), member.address.clone())).collect();
        let by = OPERATOR.into();
        let rolling = Rolling { targets, done: 0, before: None, phase: Phase::Runs, drain_ms: 4_000, by, revision };
        let asks = console.reports.keys().map(|node| {
            let ask = RecoveryAsk::Rolling(rolling.clone());
            (*node, RequestBody::Recovery(Box::new(ask)))
        });
        let asks = asks.collect();
        self.console_asks(index, ConsoleStage::Order, asks);
    }

    fn console_succeeds(&mut self, index: usize) {
        if let Command::Exclude(node) = self.consoles[index].command {
            self.out.insert(node, self.now);
        }
        self.console_ends(index);
    }

    fn console_fails(&mut self, index: usize) {
        let command = self.consoles[index].command.clone();
        self.story.say(self.now, "operator", || format!("could not {}", told(&command)));
        self.console_ends(index);
        if command.is_repeated() {
            self.command_later(AGAIN, command, false);
        }
    }

    fn console_ends(&mut self, index: usize) {
        let console = &mut self.consoles[index];
        (console.stage, console.ended) = (ConsoleStage::Over, Some(self.now));
        console.reports.clear();
        let sessions = std::mem::take(&mut console.sessions);
        sessions.into_values().for_each(|number| self.send(number, 0, Packet::Closed));
    }
}

fn unreachable(node: usize) -> Fault {
    Fault::new(name(node), FaultKind::Unreachable { address: name(node), reason: "no answer".into() })
}

fn told(command: &Command) -> String {
    match command {
        Command::Exclude(node) => format!("exclude {}", name(*node)),
        Command::Include(node) => format!("include {}", name(*node)),
        Command::Cordon(node) => format!("cordon {}", name(*node)),
        Command::Uncordon(node) => format!("uncordon {}", name(*node)),
        Command::Assign(topology) => format!("assign {} of {}", topology.layout, topology.model),
        Command::RestartAll => "restart all nodes, one after another".into(),
    }
}
