//! The state of a rolling restart, which every node stores: if the node that drives it is lost, another one continues.
//! Pure.
use common::limits::{NAME_LENGTH_MAX, NODES_MAX};
use serde::{Deserialize, Serialize};

/// Longest reason of a pause in bytes.
const REASON_LENGTH_MAX: usize = 500;

/// The phase of a rolling restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// In progress.
    Runs,
    /// Paused after a failure or by an operator; the reason.
    Paused(String),
    /// Aborted before completion.
    Aborted,
    /// All targets were restarted.
    Done,
}

/// A rolling restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rolling {
    /// Nodes to restart, by name and address, in their order.
    pub targets: Vec<(String, String)>,
    /// Number of completed targets.
    pub done: u16,
    /// The instance of the target's daemon that is to be stopped; `None` before the next step begins.
    pub before: Option<u64>,
    /// Its phase.
    pub phase: Phase,
    /// Longest drain of a node in milliseconds.
    pub drain_ms: u32,
    /// The operator who requested it (`user@host`).
    pub by: String,
    /// Increases with every change, also across restarts: the later state wins.
    pub revision: u64,
}

impl Rolling {
    /// The node to restart next.
    pub fn target(&self) -> Option<&(String, String)> {
        self.targets.get(usize::from(self.done))
    }

    /// Whether it is in progress.
    pub fn is_running(&self) -> bool {
        self.phase == Phase::Runs && self.target().is_some()
    }

    /// The state once the target's daemon is about to be stopped; `instance` identifies its current run.
    pub fn begun(&self, instance: u64) -> Self {
        Self { before: Some(instance), revision: self.revision.saturating_add(1), ..self.clone() }
    }

    /// The state after the target has returned and serves.
    pub fn advanced(&self) -> Self {
        let done = self.done + 1;
        let phase = if usize::from(done) >= self.targets.len() { Phase::Done } else { self.phase.clone() };
        Self { done, before: None, phase, revision: self.revision.saturating_add(1), ..self.clone() }
    }

    /// A copy in another phase with the next revision.
    pub fn in_phase(&self, phase: Phase) -> Self {
        Self { phase, revision: self.revision.saturating_add(1), ..self.clone() }
    }

    /// Checks a state from another node or a console.
    ///
    /// # Errors
    /// The value that is out of bounds.
    pub fn check(&self) -> Result<(), String> {
        let is_line = |text: &str, most: usize| (1..=most).contains(&text.len()) && !text.chars().any(char::is_control);
        if !(1..=NODES_MAX).contains(&self.targets.len())
            || !self
                .targets
                .iter()
                .all(|(name, address)| is_line(name, NAME_LENGTH_MAX) && is_line(address, NAME_LENGTH_MAX))
        {
            return Err(format!(
                "a rolling restart of {} nodes; give 1 to {NODES_MAX} nodes with names",
                self.targets.len()
            ));
        }
        let reason = if let Phase::Paused(reason) = &self.phase { reason.len() } else { 0 };
        if usize::from(self.done) > self.targets.len()
            || reason > REASON_LENGTH_MAX
            || !is_line(&self.by, NAME_LENGTH_MAX)
        {
            return Err("a number or text of the rolling restart is out of bounds".into());
        }
        Ok(())
    }

    /// Merges a received state; returns whether it was newer.
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
    fn advances_by_target_and_later_state_wins_in_any_order() {
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
