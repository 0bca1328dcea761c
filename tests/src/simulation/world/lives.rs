//! Starts and ends of daemons.
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use daemon::{
    config::Recovery,
    node::{
        Node,
        machine::Patience,
        steward::{Steward, StewardSettings},
    },
};

use crate::simulation::{
    network::{End, Packet},
    process::Process,
    world::{Own, World, name},
};

impl World {
    pub(super) fn start(&mut self, node: usize) {
        let (own, clock) = (self.address(node), self.clock(node));
        let machine = &mut self.machines[node];
        if machine.process.is_some() || machine.is_away {
            return;
        }
        machine.has_power = true;
        self.told.forget_epoch(node);
        let machine = &mut self.machines[node];
        let witness = self.witness.clone().filter(|witness| *witness != own);
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
            StewardSettings { name: name(node), own: own.clone(), listen: Some(own), recovery, known: Vec::new() };
        let beginning = machine.disk.beginning(&name(node), witness);
        machine.lives += 1;
        let life = machine.lives;
        machine.deferred.clear();
        machine.process = Some(Process {
            life,
            since: clock,
            node: Node::new(beginning, patience),
            inbox: Default::default(),
            effects: Default::default(),
            writes: VecDeque::new(),
            is_stopped: false,
            steward: Steward::new(settings),
            restarting: Default::default(),
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
        self.rough = self.rough.max(self.now + back);
    }
}
