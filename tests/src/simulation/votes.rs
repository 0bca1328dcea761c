//! Kills placed at message boundaries of a vote: after so many messages of votes have arrived, a member is killed and others go away.
use std::time::Duration;

use super::world::{World, name};

/// One step of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// After so many messages of votes since the step before.
    pub after: usize,
    /// Who is killed; it starts again at once unless it is away.
    pub kill: usize,
    /// Who is away from then on.
    pub away: Vec<usize>,
}

/// Who goes away when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Script {
    /// Steps still to come, the next one last.
    pub(super) turns: Vec<Turn>,
    /// Messages since the step before.
    pub(super) seen: usize,
}

impl World {
    /// Members that are away from now on; the others are there.
    pub(super) fn set_away(&mut self, away: &[usize]) {
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

    /// Follows a script.
    pub(super) fn follow(&mut self, mut turns: Vec<Turn>) {
        turns.reverse();
        self.script = Some(Script { turns, seen: 0 });
    }

    /// Steps of the script that were not reached.
    pub(super) fn steps_left(&self) -> usize {
        self.script.as_ref().map_or(0, |script| script.turns.len())
    }

    pub(super) fn count_vote(&mut self, is_vote: bool) {
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
