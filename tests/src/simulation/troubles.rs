//! The effects of faults on machines, connections and disks, and how they end.
use std::time::Duration;

use ::topology::Topology;
use common::ids::{ContentRoot, ModelIdentity};
use daemon::node::event::Event as NodeEvent;

use super::{
    disk::DiskTrouble,
    faults::{TIED, Trouble, TroubleKind},
    network::{End, GONE_AFTER, PROBE_AFTER, Packet},
    process::Input,
    topology,
    world::{Event, Own, World, consoles::Command, name},
};

/// How long packets take on a slow connection: less than the time after which a peer counts as silent.
const SPIKE: Duration = Duration::from_millis(900);
const SLOW_LINK: Duration = Duration::from_millis(120);
/// An operator notices that a node was left out because its disk could not be read, and includes it.
const UNREADABLE_NOTICED: Duration = Duration::from_secs(12);

impl World {
    /// The time of a fault has come: it starts now, or when the cluster is in the state that it is tied to.
    pub(super) fn fault(&mut self, index: usize) {
        if self.faults[index].when.is_some_and(|state| state != self.cluster_state()) {
            self.tied.push(index);
            return self.later(TIED, Event::FaultOverdue(index));
        }
        self.begin(index);
    }

    /// Starts the faults that waited for the current state.
    pub(super) fn begin_tied(&mut self) {
        if self.tied.is_empty() {
            return;
        }
        let state = Some(self.cluster_state());
        let (due, rest) = self.tied.iter().partition(|index| self.faults[**index].when == state);
        self.tied = rest;
        let due: Vec<usize> = due;
        due.into_iter().for_each(|index| self.begin(index));
    }

    /// A fault has waited for its state for long enough.
    pub(super) fn fault_overdue(&mut self, index: usize) {
        let count = self.tied.len();
        self.tied.retain(|tied| *tied != index);
        if self.tied.len() < count {
            self.begin(index);
        }
    }

    fn begin(&mut self, index: usize) {
        let trouble = self.faults[index].trouble.clone();
        let state = self.cluster_state();
        self.coverage.met(trouble.kind, state);
        self.begun += 1;
        self.story.say(self.now, "FAULT", || format!("{trouble} [{state:?}]"));
        let ends = self.act(index, &trouble);
        self.calm = self.calm.max(self.now + ends);
        if !trouble.kind.is_command() {
            self.rough = self.rough.max(self.now + ends);
        }
        if ends > Duration::ZERO {
            self.later(ends, Event::Mend(index));
        }
    }

    /// Executes a fault; returns how long it lasts beyond restarts of daemons.
    fn act(&mut self, index: usize, trouble: &Trouble) -> Duration {
        let Trouble { kind, node, other, lasts } = *trouble;
        let until = self.now + lasts;
        match kind {
            TroubleKind::Kill => self.kill(node, lasts),
            TroubleKind::PowerLoss => self.lose_power(node, lasts),
            TroubleKind::Wipe | TroubleKind::Damage | TroubleKind::OlderRecord => {
                self.kill(node, lasts);
                self.lose_records(node, kind);
            }
            TroubleKind::SwapAddresses => {
                self.kill(node, lasts);
                self.kill(other, lasts);
                self.hosts.swap(node, other);
            }
            TroubleKind::Stop => {
                self.machines[node].process.iter_mut().for_each(|process| process.is_stopped = true);
                return lasts;
            }
            TroubleKind::Restart => {
                let now = self.since(node);
                self.input(node, Input::Event(NodeEvent::Terminate { now }));
            }
            TroubleKind::SlowNode => {
                self.machines[node].slow_until = until;
                return lasts;
            }
            TroubleKind::ClockJump => self.machines[node].ahead += lasts,
            TroubleKind::CutOneWay
            | TroubleKind::CutBothWays
            | TroubleKind::Isolate
            | TroubleKind::CutGateway
            | TroubleKind::Drop => {
                self.cut(index, lasts);
                return lasts;
            }
            TroubleKind::Delay => {
                let delay = if lasts < Duration::from_secs(2) { SPIKE } else { SLOW_LINK };
                self.directions(index).into_iter().for_each(|(from, to)| self.network.set_delay(from, to, delay));
                return lasts;
            }
            TroubleKind::ResetData | TroubleKind::ResetControl => {
                let link = self.link_between(node, other, kind == TroubleKind::ResetData);
                link.into_iter().for_each(|number| self.reset(number));
            }
            TroubleKind::ResetSessions => self.sessions_of(node).into_iter().for_each(|number| self.reset(number)),
            TroubleKind::DiskFull | TroubleKind::ReadOnly => {
                let is_full = kind == TroubleKind::DiskFull;
                let trouble = if is_full { DiskTrouble::Full } else { DiskTrouble::ReadOnly };
                self.machines[node].disk.trouble = Some(trouble);
                return lasts;
            }
            TroubleKind::DiskStall => {
                self.machines[node].disk.stalls_until = until;
                return lasts;
            }
            TroubleKind::OtherFile | TroubleKind::Unreadable => {
                self.kill(node, lasts / 2);
                let machine = &mut self.machines[node];
                machine.has_other_file |= kind == TroubleKind::OtherFile;
                machine.is_unreadable |= kind == TroubleKind::Unreadable;
                return lasts;
            }
            TroubleKind::AbandonRequests => self.abandon_requests(),
            TroubleKind::GatewayRestart => {
                let committed = self.machines[node].disk.committed().cloned();
                self.restart_gateway(committed);
            }
            _ => return self.operate(kind, node, lasts),
        }
        Duration::ZERO
    }

    /// Gives the commands of operators; returns after what time later commands take them back.
    fn operate(&mut self, kind: TroubleKind, node: usize, lasts: Duration) -> Duration {
        let now = Duration::ZERO;
        match kind {
            TroubleKind::Exclude => self.command_later(now, Command::Exclude(node), false),
            TroubleKind::Cordon => self.command_later(now, Command::Cordon(node), false),
            TroubleKind::RestartAll => {
                self.command_later(now, Command::RestartAll, false);
                return Duration::ZERO;
            }
            TroubleKind::TwoConsoles => {
                for _ in 0..2 {
                    let delay = Duration::from_micros(self.random.below(30_000) as u64);
                    let topology = self.other_topology();
                    self.command_later(delay, Command::Assign(Box::new(topology)), false);
                }
            }
            _ => {
                let topology = self.other_topology();
                self.command_later(now, Command::Assign(Box::new(topology)), kind == TroubleKind::ConsoleLost);
            }
        }
        lasts
    }

    /// Draws another topology on some of the members.
    fn other_topology(&mut self) -> Topology {
        let members = self.desired.members.len();
        let layouts = ["tp2", "tp3", "tp4", "pp2", "pp3", "pp2-tp2", "dp2-tp2", "dp2"].map(topology);
        let fits: Vec<Topology> = layouts.into_iter().filter(|one| one.members.len() <= members).collect();
        let mut other = fits[self.random.below(fits.len())].clone();
        if self.random.below(2) == 0 {
            (other.model, other.identity) = ("other.gguf".into(), ModelIdentity([7; 32]));
            other.content = Some(ContentRoot([7; 32]));
        }
        self.at_home(other)
    }

    /// The topology with the current addresses of its members.
    fn at_home(&self, mut topology: Topology) -> Topology {
        for (node, member) in topology.members.iter_mut().enumerate() {
            member.address = self.address(node);
        }
        topology
    }

    fn lose_power(&mut self, node: usize, back: Duration) {
        for (number, at) in self.end_process(node, false) {
            self.close_later(number, 1 - at, GONE_AFTER.min(back + PROBE_AFTER));
        }
        self.machines[node].has_power = false;
        self.start_later(node, back);
        self.calm = self.calm.max(self.now + back);
        self.rough = self.rough.max(self.now + back);
    }

    fn lose_records(&mut self, node: usize, kind: TroubleKind) {
        match kind {
            TroubleKind::Wipe => self.machines[node].disk.wipe(),
            TroubleKind::Damage => {
                let damaged = self.machines[node].disk.damage(&mut self.random);
                self.story.say(self.now, "FAULT", || damaged);
            }
            _ => {
                let others = self.machines.iter().enumerate().filter(|(other, _)| *other != node);
                let epochs: Vec<_> = others
                    .filter_map(|(other, machine)| Some((name(other), machine.disk.committed()?.epoch)))
                    .collect();
                self.told.forget_votes(node);
                let is_restored = self.machines[node].disk.restore(&epochs);
                self.story.say(self.now, "FAULT", || format!("votes restored as well: {is_restored}"));
            }
        }
        if self.machines[node].disk.forgets() {
            self.told.lose_votes(node);
        }
    }

    fn cut(&mut self, index: usize, lasts: Duration) {
        for (from, to) in self.directions(index) {
            self.network.set_cut(from, to, true, self.now);
            if lasts > GONE_AFTER {
                for number in self.network.between(from, to) {
                    (0..2).for_each(|at| self.close_later(number, at, GONE_AFTER));
                }
            }
        }
    }

    /// Resets a connection at both ends.
    fn reset(&mut self, number: u64) {
        (0..2).for_each(|at| self.close_later(number, at, Duration::from_micros(200)));
    }

    /// The kernel at one end of a connection closes it after a delay.
    fn close_later(&mut self, number: u64, at: usize, delay: Duration) {
        let Some(end) = self.network.connections.get(&number).map(|one| one.ends[at]) else { return };
        let event = match self.is_client(end.node) {
            true => Event::Client(number, Packet::Closed),
            false => Event::Own(end, Own::Arrives(number, at, Packet::Closed)),
        };
        self.later(delay, event);
    }

    fn directions(&self, index: usize) -> Vec<(usize, usize)> {
        let Trouble { kind, node, other, .. } = self.faults[index].trouble;
        match kind {
            TroubleKind::CutOneWay | TroubleKind::Drop => vec![(node, other)],
            TroubleKind::CutBothWays | TroubleKind::Delay => vec![(node, other), (other, node)],
            TroubleKind::Isolate => {
                let others = (0..self.machines.len()).filter(|other| *other != node);
                others.flat_map(|other| [(node, other), (other, node)]).collect()
            }
            TroubleKind::CutGateway => vec![(node, self.gateway_end())],
            _ => Vec::new(),
        }
    }

    pub(super) fn mend(&mut self, index: usize) {
        let trouble = self.faults[index].trouble.clone();
        let node = trouble.node;
        match trouble.kind {
            TroubleKind::Stop => self.resume(node),
            TroubleKind::CutOneWay | TroubleKind::CutBothWays | TroubleKind::Isolate | TroubleKind::CutGateway => {
                for (from, to) in self.directions(index) {
                    for arrival in self.network.set_cut(from, to, false, self.now) {
                        self.schedule(arrival);
                    }
                }
            }
            TroubleKind::Drop => {
                for (from, to) in self.directions(index) {
                    drop(self.network.set_cut(from, to, false, self.now));
                    self.network.between(from, to).into_iter().for_each(|number| self.reset(number));
                }
            }
            TroubleKind::Delay => {
                self.directions(index)
                    .into_iter()
                    .for_each(|(from, to)| self.network.set_delay(from, to, Duration::ZERO));
            }
            TroubleKind::DiskFull | TroubleKind::ReadOnly => self.machines[node].disk.trouble = None,
            TroubleKind::OtherFile => self.machines[node].has_other_file = false,
            TroubleKind::Unreadable => {
                self.machines[node].is_unreadable = false;
                // A vote that has begun may still leave it out.
                self.command_later(UNREADABLE_NOTICED, Command::Include(node), false);
            }
            TroubleKind::Exclude => self.command_later(Duration::ZERO, Command::Include(node), false),
            TroubleKind::Cordon => self.command_later(Duration::ZERO, Command::Uncordon(node), false),
            TroubleKind::Assign | TroubleKind::TwoConsoles | TroubleKind::ConsoleLost => {
                let topology = self.at_home(self.desired.clone());
                self.command_later(Duration::ZERO, Command::Assign(Box::new(topology)), false);
            }
            _ => {}
        }
        self.story.say(self.now, "fault", || format!("over: {trouble}"));
    }

    /// Resumes a stopped daemon: it handles everything that has arrived in the meantime.
    fn resume(&mut self, node: usize) {
        let Some(process) = &mut self.machines[node].process else { return };
        process.is_stopped = false;
        let end = End { node, life: process.life };
        let deferred = std::mem::take(&mut self.machines[node].deferred);
        deferred.into_iter().for_each(|own| self.own(end, own));
        self.work(node);
    }
}
