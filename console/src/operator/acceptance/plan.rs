//! Which steps a run executes, and how long they take. Pure.
use super::{report::AcceptanceReport, step::AcceptanceStep};
use crate::operator::transfer::duration;

/// Seconds to assign a topology and to read its shards.
const ASSIGN_SECONDS: u64 = 40;

/// What the operator chose, and what is possible.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Only these steps; empty = all.
    pub only: Vec<AcceptanceStep>,
    /// Finished steps to repeat.
    pub again: Vec<AcceptanceStep>,
    /// Number of nodes.
    pub nodes: usize,
    /// Whether nodes share machines, so that they are measured one after another.
    pub shares_machines: bool,
    /// Length of the load in seconds.
    pub load_seconds: u64,
    /// Why llama.cpp cannot be run.
    pub no_llama: Option<String>,
    /// Why no node can be killed.
    pub no_recovery: Option<String>,
}

/// What happens to a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepPlan {
    /// It runs for about so many seconds.
    Runs(u64),
    /// An earlier run finished it.
    Finished,
    /// It is not measured, for this reason.
    Skipped(String),
    /// It was not chosen.
    NotChosen,
}

/// The plan for every step, in order.
pub fn plan(selection: &Selection, report: &AcceptanceReport) -> Vec<(AcceptanceStep, StepPlan)> {
    AcceptanceStep::ALL.map(|step| (step, plan_step(step, selection, report))).into()
}

fn plan_step(step: AcceptanceStep, selection: &Selection, report: &AcceptanceReport) -> StepPlan {
    if !selection.only.is_empty() && !selection.only.contains(&step) {
        return StepPlan::NotChosen;
    }
    if report.is_finished(step) && !selection.again.contains(&step) {
        return StepPlan::Finished;
    }
    match impossible(step, selection) {
        Some(reason) => StepPlan::Skipped(reason),
        None => StepPlan::Runs(seconds(step, selection)),
    }
}

/// Why a step cannot be run on this cluster.
fn impossible(step: AcceptanceStep, selection: &Selection) -> Option<String> {
    match (step, selection.nodes) {
        (AcceptanceStep::Links, 1) => Some("one node has no links".into()),
        (AcceptanceStep::Pair, 1) => Some("there is only one node".into()),
        (AcceptanceStep::Pair, 2) => Some("two nodes are all nodes".into()),
        (AcceptanceStep::All, 1) => Some("one node is all nodes".into()),
        (AcceptanceStep::Recovery, 1) => Some("no other node can continue the answer".into()),
        (AcceptanceStep::Llama, _) => selection.no_llama.clone(),
        (AcceptanceStep::Recovery, _) => selection.no_recovery.clone(),
        _ => None,
    }
}

/// About how long a step takes, with a model of 1 to 8 billion weights.
fn seconds(step: AcceptanceStep, selection: &Selection) -> u64 {
    let nodes = selection.nodes as u64;
    match step {
        AcceptanceStep::Machines => 1,
        AcceptanceStep::Links => nodes * nodes.saturating_sub(1) / 2 + 1,
        AcceptanceStep::Nodes => 120 * if selection.shares_machines { nodes } else { 1 },
        AcceptanceStep::Load => selection.load_seconds + 50,
        AcceptanceStep::Single => ASSIGN_SECONDS + 60,
        AcceptanceStep::Pair => ASSIGN_SECONDS + 35,
        AcceptanceStep::All => ASSIGN_SECONDS + 40,
        AcceptanceStep::Llama => ASSIGN_SECONDS + 110,
        AcceptanceStep::Recovery => 90,
    }
}

/// The sum of all steps that run, in seconds.
pub fn total_seconds(plan: &[(AcceptanceStep, StepPlan)]) -> u64 {
    plan.iter().map(|(_, step)| if let StepPlan::Runs(seconds) = step { *seconds } else { 0 }).sum()
}

/// The steps that run.
pub fn running(plan: &[(AcceptanceStep, StepPlan)]) -> Vec<AcceptanceStep> {
    plan.iter().filter(|(_, step)| matches!(step, StepPlan::Runs(_))).map(|(step, _)| *step).collect()
}

/// The plan for people, a line for each step that was chosen.
pub fn lines(plan: &[(AcceptanceStep, StepPlan)]) -> Vec<String> {
    let rows = plan.iter().filter_map(|(step, what)| {
        let what = match what {
            StepPlan::Runs(seconds) => format!("about {}", duration(*seconds as f64)),
            StepPlan::Finished => format!("finished earlier (repeat it with --again {step})"),
            StepPlan::Skipped(reason) => format!("not measured: {reason}"),
            StepPlan::NotChosen => return None,
        };
        Some(format!("  {:<9} {}: {what}", step.name(), step.deed()))
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::{super::report::StepOutcome, *};

    fn selection(nodes: usize) -> Selection {
        Selection { nodes, load_seconds: 180, ..Selection::default() }
    }

    fn report() -> AcceptanceReport {
        AcceptanceReport::new("m.gguf", vec!["pi1".into()], 0)
    }

    #[test]
    fn eight_nodes_take_at_most_twenty_minutes() {
        for nodes in 1..=8 {
            let plan = plan(&selection(nodes), &report());
            let total = total_seconds(&plan);
            assert!(total <= 20 * 60, "{nodes} nodes: {total} s");
            assert_eq!(running(&plan).len(), [5, 8, 9][nodes.min(3) - 1], "{nodes}");
        }
    }

    #[test]
    fn finished_steps_are_not_repeated_unless_asked() {
        let mut report = report();
        report.steps.links = StepOutcome::new(1.0, Ok(Vec::new()));
        let of = |selection: Selection| plan(&selection, &report).swap_remove(1).1;
        assert_eq!(of(selection(4)), StepPlan::Finished);
        let again = Selection { again: vec![AcceptanceStep::Links], ..selection(4) };
        assert!(matches!(of(again), StepPlan::Runs(_)));
        let only = Selection { only: vec![AcceptanceStep::Load], ..selection(4) };
        assert_eq!(of(only.clone()), StepPlan::NotChosen);
        assert_eq!(running(&plan(&only, &report)), [AcceptanceStep::Load]);
        assert_eq!(lines(&plan(&only, &report)).len(), 1);
    }

    #[test]
    fn steps_that_a_cluster_cannot_run_have_a_reason() {
        let lacking = Selection { no_llama: Some("no llama-server".into()), ..selection(2) };
        let lines = lines(&plan(&lacking, &report()));
        let text = lines.join("\n");
        assert!(text.contains("not measured: two nodes are all nodes"), "{text}");
        assert!(text.contains("not measured: no llama-server"), "{text}");
        assert!(
            text.contains("load      load all nodes and record temperature, clock and power: about 4 min"),
            "{text}"
        );
    }
}
