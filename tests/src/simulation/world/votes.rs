//! Kills at message boundaries of a vote: after a number of vote messages has arrived, a member is killed and others go
//! away.
use std::time::Duration;

use crate::simulation::world::{World, name};

/// One step of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Number of vote messages since the previous step.
    pub after: usize,
    /// Member to kill; it restarts at once unless it is away.
    pub kill: usize,
    /// Members that are away from then on.
    pub away: Vec<usize>,
}

/// A script of kills and absences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VoteScript {
    /// Remaining steps; the next one is last.
    pub(crate) turns: Vec<Turn>,
    /// Vote messages since the previous step.
    pub(crate) seen: usize,
}

impl World {
    /// Sets which members are away from now on; the others are present.
    pub(crate) fn set_away(&mut self, away: &[usize]) {
        for node in 0..self.machines.len() {
            let was = std::mem::replace(&mut self.machines[node].is_away, away.contains(&node));
            if away.contains(&node) {
                self.story.say(self.now, &name(node), || "is away".into());
                self.end_process(node, true);
            } else if was {
                self.start_later(node, Duration::from_millis(300));
            }
        }
    }

    /// Starts a script.
    pub(crate) fn follow(&mut self, mut turns: Vec<Turn>) {
        turns.reverse();
        self.script = Some(VoteScript { turns, seen: 0 });
    }

    /// Number of steps of the script that were not reached.
    pub(crate) fn steps_left(&self) -> usize {
        self.script.as_ref().map_or(0, |script| script.turns.len())
    }

    pub(crate) fn count_vote(&mut self, is_vote: bool) {
        let Some(script) = self.script.as_mut().filter(|_| is_vote) else { return };
        script.seen += 1;
        if script.turns.last().is_none_or(|turn| script.seen < turn.after) {
            return;
        }
        script.seen = 0;
        let Some(turn) = script.turns.pop() else { return };
        self.story
            .say(self.now, "FAULT", || format!("{} is killed at message {} of the vote", name(turn.kill), turn.after));
        self.kill(turn.kill, Duration::from_millis(500));
        self.set_away(&turn.away);
    }
}
