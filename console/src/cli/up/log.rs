//! The steps of `console up`, as they are displayed: the action, the command that does the same, and the result.
use serde_json::{Value, json};

use crate::cli::shared::{output, paint};

/// All steps of the setup. Steps are counted so that the operator sees how many follow.
const STEPS: usize = 8;

/// Displays the steps, and collects them for `--json`.
#[derive(Debug)]
pub(super) struct SetupLog {
    is_json: bool,
    is_dry: bool,
    steps: Vec<Value>,
}

impl SetupLog {
    pub(super) fn new(is_json: bool, is_dry: bool) -> Self {
        Self { is_json, is_dry, steps: Vec::new() }
    }

    /// Whether nothing may be changed.
    pub(super) fn is_rehearsal(&self) -> bool {
        self.is_dry
    }

    /// A step that is done now; [`Self::done`] ends it.
    pub(super) fn begin(&mut self, what: &str, command: &str) {
        self.enter(what, command, "failed");
    }

    /// The current step succeeded.
    pub(super) fn done(&mut self, result: &str) {
        self.end("done", result);
    }

    /// A step that is not necessary.
    pub(super) fn skip(&mut self, what: &str, command: &str, reason: &str) {
        self.enter(what, command, "skipped");
        self.end("skipped", reason);
    }

    /// A step of a dry run.
    pub(super) fn plan(&mut self, what: &str, command: &str) {
        self.enter(what, command, "planned");
    }

    /// Prints the object of `--json`.
    pub(super) fn print(&self) {
        if self.is_json {
            output::line(&self.object().to_string());
        }
    }

    /// A step that was begun and has no result has failed.
    fn object(&self) -> Value {
        json!({"dry_run": self.is_dry, "steps": self.steps})
    }

    fn enter(&mut self, what: &str, command: &str, state: &str) {
        self.steps.push(json!({"step": what, "command": command, "state": state, "result": null}));
        let number = self.steps.len();
        let mark = if state == "planned" { "would do: " } else { "" };
        let number = paint::advice(&format!("[{number}/{STEPS}]"));
        self.tell(&format!("{number} {mark}{what}: {}", output::clean(command)));
    }

    fn end(&mut self, state: &str, result: &str) {
        if let Some(step) = self.steps.last_mut() {
            step["state"] = json!(state);
            step["result"] = json!(result);
        }
        let mark = if state == "skipped" { "nothing to do: " } else { "" };
        self.tell(&format!("      {mark}{}", output::clean(result)));
    }

    /// A dry run's steps are its result, other steps accompany the answer.
    fn tell(&self, line: &str) {
        match self.is_dry && !self.is_json {
            true => output::line(line),
            false => output::note(line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_without_a_result_has_failed() {
        let mut log = SetupLog::new(true, false);
        log.begin("find the nodes", "console node discover");
        log.done("2 nodes");
        log.skip("create the key", "console key new", "there is one");
        log.begin("adopt the nodes", "console key adopt pi1");
        let states: Vec<Value> = log.steps.iter().map(|step| step["state"].clone()).collect();
        assert_eq!(states, ["done", "skipped", "failed"]);
        assert_eq!(log.object()["dry_run"], false);
    }
}
