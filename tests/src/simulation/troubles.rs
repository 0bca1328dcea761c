//! The effects of faults on machines, connections and disks, and how they end.
use std::{collections::BTreeSet, time::Duration};

use daemon::node::event::Event as NodeEvent;

use super::{
    faults::Trouble,
    network::{End, GONE_AFTER, PROBE_AFTER, Packet},
    process::Input,
    world::{Event, Own, World},
};

impl World {
    pub(super) fn fault(&mut self, index: usize) {
        let trouble = self.faults[index].trouble.clone();
        self.story.say(self.now, "FAULT", || trouble.to_string());
        let mut ends = Duration::ZERO;
        match trouble {
            Trouble::Kill { node, back } => self.kill(node, back),
            Trouble::Power { node, back } => {
                for (number, at) in self.end_process(node, false) {
                    self.close_later(number, 1 - at, GONE_AFTER.min(back + PROBE_AFTER));
                }
                self.machines[node].has_power = false;
                self.start_later(node, back);
                ends = back;
            }
            Trouble::Wipe { node, back } => {
                self.kill(node, back);
                self.machines[node].disk.wipe();
            }
            Trouble::Stop { node, lasts } => {
                if let Some(process) = &mut self.machines[node].process {
                    process.is_stopped = true;
                }
                ends = lasts;
            }
            Trouble::Restart { node } => {
                let now = self.since(node);
                self.input(node, Input::Event(NodeEvent::Terminate { now }));
            }
            Trouble::Cut { lasts, .. } | Trouble::Isolate { lasts, .. } => {
                for (from, to) in self.directions(index) {
                    self.network.set_cut(from, to, true, self.now);
                    if lasts > GONE_AFTER {
                        for number in self.network.between(from, to) {
                            (0..2).for_each(|at| self.close_later(number, at, GONE_AFTER));
                        }
                    }
                }
                ends = lasts;
            }
            Trouble::Reset { one, two, is_data } => {
                if let Some(number) = self.link_between(one, two, is_data) {
                    self.reset(number);
                }
            }
            Trouble::Disk { node, lasts } => {
                self.machines[node].disk.is_broken = true;
                ends = lasts;
            }
        }
        self.calm = self.calm.max(self.now + ends);
        if ends > Duration::ZERO {
            self.later(ends, Event::Mend(index));
        }
    }

    /// Resets a connection at both ends.
    fn reset(&mut self, number: u64) {
        let Some(ends) = self.network.connections.get(&number).map(|one| one.ends) else { return };
        for (at, end) in ends.into_iter().enumerate() {
            self.later(Duration::from_micros(200), Event::Own(end, Own::Arrives(number, at, Packet::Closed)));
        }
    }

    /// The kernel at one end of a connection closes it after a delay.
    fn close_later(&mut self, number: u64, at: usize, delay: Duration) {
        let Some(end) = self.network.connections.get(&number).map(|one| one.ends[at]) else { return };
        if end.node < self.machines.len() {
            self.later(delay, Event::Own(end, Own::Arrives(number, at, Packet::Closed)));
        }
    }

    fn directions(&self, index: usize) -> Vec<(usize, usize)> {
        match self.faults[index].trouble {
            Trouble::Cut { from, to, both, .. } if both => vec![(from, to), (to, from)],
            Trouble::Cut { from, to, .. } => vec![(from, to)],
            Trouble::Isolate { node, .. } => {
                let others = (0..self.machines.len()).filter(|other| *other != node);
                others.flat_map(|other| [(node, other), (other, node)]).collect()
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn mend(&mut self, index: usize) {
        let trouble = self.faults[index].trouble.clone();
        match &trouble {
            Trouble::Stop { node, .. } => {
                let node = *node;
                if let Some(process) = &mut self.machines[node].process {
                    process.is_stopped = false;
                    let end = End { node, life: process.life };
                    let deferred = std::mem::take(&mut self.machines[node].deferred);
                    for own in deferred {
                        self.own(end, own);
                    }
                    self.work(node);
                }
            }
            Trouble::Cut { .. } | Trouble::Isolate { .. } => {
                let directions: BTreeSet<(usize, usize)> = self.directions(index).into_iter().collect();
                for (from, to) in directions {
                    for arrival in self.network.set_cut(from, to, false, self.now) {
                        self.schedule(arrival);
                    }
                }
            }
            Trouble::Disk { node, .. } => self.machines[*node].disk.is_broken = false,
            _ => {}
        }
        self.story.say(self.now, "fault", || format!("over: {trouble}"));
    }
}
