//! A rolling restart as every node keeps it: whoever drives it may go away, the next one goes on where it stands. Pure.
use serde::{Deserialize, Serialize};

use super::spec::{NAME_LENGTH_MAX, NODES_MAX};

/// Longest reason of a pause in bytes.
const REASON_LENGTH_MAX: usize = 500;

/// Where it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// It goes on.
    Runs,
    /// It met trouble, or was told to wait; the reason.
    Paused(String),
    /// It was ended before its end.
    Aborted,
    /// All targets were restarted.
    Done,
}

/// A rolling restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rolling {
    /// Nodes to restart, by name and address, in their order.
    pub targets: Vec<(String, String)>,
    /// How many of them are done.
    pub done: u16,
    /// The run of the target's daemon that is to end; `None`: the next step has not begun.
    pub before: Option<u64>,
    /// Where it stands.
    pub phase: Phase,
    /// Longest drain of a node in milliseconds.
    pub drain_ms: u32,
    /// Who asked for it (`user@host`).
    pub by: String,
    /// Counts up with everything that is said of it, also over operations: what was said later wins.
    pub revision: u64,
}

impl Rolling {
    /// The node whose turn it is.
    pub fn target(&self) -> Option<&(String, String)> {
        self.targets.get(usize::from(self.done))
    }

    /// Whether it goes on by itself.
    pub fn is_running(&self) -> bool {
        self.phase == Phase::Runs && self.target().is_some()
    }

    /// The target's daemon is about to be ended: which run of it.
    pub fn begun(&self, instance: u64) -> Self {
        Self { before: Some(instance), revision: self.revision.saturating_add(1), ..self.clone() }
    }

    /// The target is back and serves.
    pub fn advanced(&self) -> Self {
        let done = self.done + 1;
        let phase = if usize::from(done) >= self.targets.len() { Phase::Done } else { self.phase.clone() };
        Self { done, before: None, phase, revision: self.revision.saturating_add(1), ..self.clone() }
    }

    /// As [`Self::clone`] in another phase.
    pub fn in_phase(&self, phase: Phase) -> Self {
        Self { phase, revision: self.revision.saturating_add(1), ..self.clone() }
    }

    /// Checks what came from outside.
    ///
    /// # Errors
    /// What is out of bounds.
    pub fn check(&self) -> Result<(), String> {
        let is_line = |text: &str, most: usize| (1..=most).contains(&text.len()) && !text.chars().any(char::is_control);
        let is_good =
            |(name, address): &(String, String)| is_line(name, NAME_LENGTH_MAX) && is_line(address, NAME_LENGTH_MAX);
        if !(1..=NODES_MAX).contains(&self.targets.len()) || !self.targets.iter().all(is_good) {
            return Err(format!("a rolling restart of {} nodes, 1 to {NODES_MAX} with names", self.targets.len()));
        }
        let reason = if let Phase::Paused(reason) = &self.phase { reason.len() } else { 0 };
        if usize::from(self.done) > self.targets.len()
            || reason > REASON_LENGTH_MAX
            || !is_line(&self.by, NAME_LENGTH_MAX)
        {
            return Err("a rolling restart with a number or text out of bounds".into());
        }
        Ok(())
    }

    /// Takes in what somebody else knows; returns whether that was later.
    pub fn merge(own: &mut Option<Self>, other: &Self) -> bool {
        let is_later = own.as_ref().is_none_or(|own| other.revision > own.revision);
        if is_later {
            *own = Some(other.clone());
        }
        is_later
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rolling() -> Rolling {
        let targets = ["pi1", "pi2"].map(|name| (name.to_owned(), format!("{name}:9999"))).to_vec();
        let (phase, by) = (Phase::Runs, "me@here".into());
        Rolling { targets, done: 0, before: None, phase, drain_ms: 1000, by, revision: 7 }
    }

    #[test]
    fn it_goes_from_target_to_target_and_what_was_said_later_wins_in_any_order() {
        let steps = [rolling(), rolling().begun(5), rolling().begun(5).advanced()];
        let last = steps[2].begun(6).advanced();
        assert_eq!((last.phase.clone(), last.done, last.target(), last.is_running()), (Phase::Done, 2, None, false));
        assert_eq!(steps[2].target().map(|(name, _)| name.as_str()), Some("pi2"));
        for order in [[0_usize, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let mut own = None;
            for step in order {
                Rolling::merge(&mut own, &steps[step]);
            }
            assert_eq!(own.as_ref(), Some(&steps[2]));
            assert!(Rolling::merge(&mut own, &last) && !Rolling::merge(&mut own, &last));
        }
    }

    #[test]
    fn what_is_out_of_bounds_is_refused() {
        assert_eq!(rolling().check(), Ok(()));
        assert!(Rolling { targets: Vec::new(), ..rolling() }.check().is_err());
        assert!(Rolling { done: 3, ..rolling() }.check().is_err());
        assert!(Rolling { by: "two\nlines".into(), ..rolling() }.check().is_err());
        assert!(rolling().in_phase(Phase::Paused("x".repeat(REASON_LENGTH_MAX + 1))).check().is_err());
    }
}
