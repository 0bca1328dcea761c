//! The report of an acceptance test: what each step found, or why it found nothing. It is also the record of a test that
//! was interrupted. It contains no addresses, keys or prompts of users.
use assignment::desired::DesiredTopology;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    LayoutFacts, LinkFacts, LlamaFacts, LoadFacts, MachineFacts, NodeFacts, RecoveryFacts, step::AcceptanceStep,
};

/// The form of the file. A file of a later form is refused.
pub const FORM: u32 = 1;
/// Most bytes of a file.
pub const REPORT_BYTES_MAX: u64 = 16 << 20;

/// The state of a step, and what it found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepOutcome<T> {
    /// Its duration in seconds.
    pub seconds: f64,
    /// What it found.
    pub found: Option<T>,
    /// Why it found nothing.
    pub reason: Option<String>,
}

impl<T> Default for StepOutcome<T> {
    fn default() -> Self {
        Self { seconds: 0.0, found: None, reason: None }
    }
}

impl<T> StepOutcome<T> {
    /// The outcome of a step that took so long.
    pub fn new(seconds: f64, found: Result<T, String>) -> Self {
        match found {
            Ok(found) => Self { seconds, found: Some(found), reason: None },
            Err(reason) => Self { seconds, found: None, reason: Some(reason) },
        }
    }
}

/// A step's outcome without its type.
trait Recorded {
    fn is_finished(&self) -> bool;
    fn seconds(&self) -> f64;
    fn reason(&self) -> Option<&str>;
    fn give_up(&mut self, seconds: f64, reason: String);
}

impl<T> Recorded for StepOutcome<T> {
    fn is_finished(&self) -> bool {
        self.found.is_some()
    }

    fn seconds(&self) -> f64 {
        self.seconds
    }

    fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    fn give_up(&mut self, seconds: f64, reason: String) {
        *self = Self::new(seconds, Err(reason));
    }
}

/// A topology that the test replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplacedTopology {
    /// The request that restores it.
    pub wanted: DesiredTopology,
    /// Names of its members, by rank.
    pub members: Vec<String>,
}

/// What each step found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepOutcomes {
    /// [`AcceptanceStep::Machines`].
    pub machines: StepOutcome<Vec<MachineFacts>>,
    /// [`AcceptanceStep::Links`].
    pub links: StepOutcome<Vec<LinkFacts>>,
    /// [`AcceptanceStep::Nodes`].
    pub nodes: StepOutcome<Vec<NodeFacts>>,
    /// [`AcceptanceStep::Load`].
    pub load: StepOutcome<Vec<LoadFacts>>,
    /// [`AcceptanceStep::Single`].
    pub single: StepOutcome<LayoutFacts>,
    /// [`AcceptanceStep::Pair`].
    pub pair: StepOutcome<LayoutFacts>,
    /// [`AcceptanceStep::All`].
    pub all: StepOutcome<LayoutFacts>,
    /// [`AcceptanceStep::Llama`].
    pub llama: StepOutcome<LlamaFacts>,
    /// [`AcceptanceStep::Recovery`].
    pub recovery: StepOutcome<RecoveryFacts>,
}

impl StepOutcomes {
    fn of(&self, step: AcceptanceStep) -> &dyn Recorded {
        match step {
            AcceptanceStep::Machines => &self.machines,
            AcceptanceStep::Links => &self.links,
            AcceptanceStep::Nodes => &self.nodes,
            AcceptanceStep::Load => &self.load,
            AcceptanceStep::Single => &self.single,
            AcceptanceStep::Pair => &self.pair,
            AcceptanceStep::All => &self.all,
            AcceptanceStep::Llama => &self.llama,
            AcceptanceStep::Recovery => &self.recovery,
        }
    }

    fn of_mut(&mut self, step: AcceptanceStep) -> &mut dyn Recorded {
        match step {
            AcceptanceStep::Machines => &mut self.machines,
            AcceptanceStep::Links => &mut self.links,
            AcceptanceStep::Nodes => &mut self.nodes,
            AcceptanceStep::Load => &mut self.load,
            AcceptanceStep::Single => &mut self.single,
            AcceptanceStep::Pair => &mut self.pair,
            AcceptanceStep::All => &mut self.all,
            AcceptanceStep::Llama => &mut self.llama,
            AcceptanceStep::Recovery => &mut self.recovery,
        }
    }
}

/// The report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AcceptanceReport {
    /// See [`FORM`].
    pub form: u32,
    /// Release of the console.
    pub console: String,
    /// Start of the test: milliseconds since 1970.
    pub unix_ms: u64,
    /// File name of the model.
    pub model: String,
    /// Names of the nodes, in the order in which they were given.
    pub nodes: Vec<String>,
    /// Topologies that the test replaced and has not restored yet.
    #[serde(default)]
    pub replaced: Vec<ReplacedTopology>,
    /// What each step found.
    #[serde(default)]
    pub steps: StepOutcomes,
}

impl AcceptanceReport {
    /// A report without results.
    pub fn new(model: &str, nodes: Vec<String>, unix_ms: u64) -> Self {
        let console = env!("CARGO_PKG_VERSION").to_owned();
        Self { form: FORM, console, unix_ms, model: model.to_owned(), nodes, ..Self::default() }
    }

    /// Whether a step is finished, so that an interrupted test continues after it.
    pub fn is_finished(&self, step: AcceptanceStep) -> bool {
        self.steps.of(step).is_finished()
    }

    /// How long a step took.
    pub fn seconds(&self, step: AcceptanceStep) -> f64 {
        self.steps.of(step).seconds()
    }

    /// Why a step found nothing, if it was tried.
    pub fn reason(&self, step: AcceptanceStep) -> Option<&str> {
        self.steps.of(step).reason()
    }

    /// The steps that were not run, in order.
    pub fn not_run(&self) -> Vec<AcceptanceStep> {
        let steps = AcceptanceStep::ALL.into_iter();
        steps.filter(|step| !self.is_finished(*step) && self.reason(*step).is_none()).collect()
    }

    /// Stores that a step found nothing.
    pub fn give_up(&mut self, step: AcceptanceStep, seconds: f64, reason: String) {
        self.steps.of_mut(step).give_up(seconds, reason);
    }

    /// The answers of a topology, by step.
    pub fn layout(&self, step: AcceptanceStep) -> Option<&LayoutFacts> {
        match step {
            AcceptanceStep::Single => self.steps.single.found.as_ref(),
            AcceptanceStep::Pair => self.steps.pair.found.as_ref(),
            AcceptanceStep::All => self.steps.all.found.as_ref(),
            _ => None,
        }
    }

    /// The tokens with which answers to a prompt are compared: those of the fewest nodes that answered.
    pub fn expected(&self, prompt: &str) -> Option<&[u32]> {
        let layouts = [AcceptanceStep::Single, AcceptanceStep::Pair, AcceptanceStep::All];
        let layout = layouts.into_iter().find_map(|step| self.layout(step))?;
        let answer = layout.answers.iter().find(|answer| answer.prompt == prompt)?;
        Some(&answer.ids)
    }

    /// Reads a report from JSON. The verdicts in it are ignored: they follow from the rest.
    ///
    /// # Errors
    /// It is no report, or one of a later release.
    pub fn read(text: &str) -> Result<Self, String> {
        let object: Value = serde_json::from_str(text).map_err(|error| format!("not valid JSON: {error}"))?;
        match object["form"].as_u64() {
            Some(form) if form <= u64::from(FORM) => {}
            Some(form) => {
                return Err(format!("a report of form {form}, expected at most {FORM}: use the console that wrote it"));
            }
            None => return Err("not a report of console acceptance".into()),
        }
        let report: Self = serde_json::from_value(object).map_err(|error| format!("a damaged report: {error}"))?;
        if report.nodes.is_empty() || report.model.is_empty() {
            return Err("a damaged report: it has no nodes or no model".into());
        }
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_report_is_read_again() {
        let mut report = AcceptanceReport::new("m.gguf", vec!["pi1".into()], 5);
        report.steps.machines = StepOutcome::new(0.5, Ok(vec![MachineFacts::default()]));
        report.give_up(AcceptanceStep::Links, 0.0, "one node has no links".into());
        let text = serde_json::to_string(&report).expect("a report is JSON");
        assert_eq!(AcceptanceReport::read(&text), Ok(report.clone()));
        assert!(report.is_finished(AcceptanceStep::Machines) && !report.is_finished(AcceptanceStep::Links));
        assert_eq!(report.reason(AcceptanceStep::Links), Some("one node has no links"));
        assert_eq!(report.reason(AcceptanceStep::Load), None);
    }

    #[test]
    fn other_files_and_later_forms_are_refused() {
        for (text, part) in [
            ("{", "not valid JSON"),
            ("{}", "not a report"),
            ("[1]", "not a report"),
            (r#"{"form": 99}"#, "form 99"),
            (r#"{"form": 1, "console": "x", "unix_ms": 1, "model": "", "nodes": []}"#, "damaged"),
            (r#"{"form": 1, "steps": 7}"#, "damaged"),
        ] {
            let error = AcceptanceReport::read(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
