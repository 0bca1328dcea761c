//! Before the test: its nodes, its model, the report to continue, and the operator's consent.
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::{Acceptance, bed::TestBed, earlier, file::ReportFiles, llama, nodes::share_a_machine, recovery};
use crate::{
    cli::{Failure, model::provide::Supply, shared::output, topology::ensure::Reached},
    operator::acceptance::{
        AcceptanceReport, AcceptanceStep,
        plan::{Selection, StepPlan, lines, plan, running, total_seconds},
    },
    operator::transfer::duration,
};

/// A test that may begin.
pub(super) struct Prepared {
    pub(super) bed: TestBed,
    /// The steps to run, in order.
    pub(super) steps: Vec<AcceptanceStep>,
}

/// Shows what the test does and asks for consent. `None` after a dry run.
///
/// # Errors
/// Nodes do not answer, there is no model, the file of an earlier run is of another test, or the operator declined.
pub(super) async fn prepare(options: &Acceptance, files: &ReportFiles) -> Result<Option<Prepared>, Failure> {
    let nodes = options.nodes.nodes.clone();
    let mut reached = Reached::dial(&nodes).await?;
    reached.usable(nodes.len())?;
    let earlier = files.earlier()?;
    let supply = model(options, earlier.as_ref(), &reached, nodes.len()).await?;
    if !supply.is_settled() {
        let has_brought = supply.bring_asked(options.consent, options.json).await?;
        if options.consent.dry_run {
            return Ok(None);
        }
        if has_brought {
            reached = Reached::dial(&nodes).await?;
        }
    }
    let sessions = reached.usable(nodes.len())?;
    let named: Vec<(String, String)> =
        sessions.iter().map(|session| (session.identity.name.clone(), session.address.clone())).collect();
    let names: Vec<String> = named.iter().map(|(name, _)| name.clone()).collect();
    let report = match earlier {
        Some(report) if (&report.model, &report.nodes) == (&supply.model, &names) => report,
        Some(report) => return Err(other(files, &report)),
        None => AcceptanceReport::new(&supply.model, names, now()),
    };
    let mut selection = Selection {
        only: options.only.clone(),
        again: options.again.clone(),
        nodes: sessions.len(),
        shares_machines: share_a_machine(sessions),
        load_seconds: options.load_seconds,
        no_llama: llama::obstacle(options, &supply.model),
        no_recovery: recovery::obstacle(options, &reached.cluster),
    };
    let mut planned = plan(&selection, &report);
    if options.ssh && running(&planned).contains(&AcceptanceStep::Recovery) {
        selection.no_recovery = recovery::ssh_obstacle(&named).await;
        planned = plan(&selection, &report);
    }
    let steps = running(&planned);
    let mut bed = TestBed::new(named, report, files.clone());
    for (step, what) in &planned {
        // The earlier reason may no longer hold, or be replaced by this one.
        if let StepPlan::Skipped(reason) = what {
            let reason = bed.anonymous(reason);
            bed.report.give_up(*step, 0.0, reason);
        }
    }
    earlier::settle(options, &reached, &mut bed).await?;
    if !consent(options, &reached, &bed, &planned).await? {
        return Ok(None);
    }
    reached.spread().await;
    bed.write()?;
    Ok(Some(Prepared { bed, steps }))
}

/// The model of the test: the one named, else that of the earlier run, else the running one or the only one.
async fn model(
    options: &Acceptance,
    earlier: Option<&AcceptanceReport>,
    reached: &Reached,
    count: usize,
) -> Result<Supply, Failure> {
    let held = reached.files(count).await?;
    let running = reached.cluster.topology().map(|(topology, _)| topology.model.clone());
    let earlier = earlier.map(|report| report.model.as_str());
    let typed = options.model.as_deref().or(earlier).unwrap_or_default();
    Supply::of(typed, running.as_deref(), &held)
}

fn other(files: &ReportFiles, report: &AcceptanceReport) -> Failure {
    let (path, model, nodes) = (files.json(), &report.model, report.nodes.join(", "));
    let message = output::clean(&format!("{} is a report of {model} on {nodes}", path.display()));
    Failure::State { message, next: "write this report to another file with --out PATH, or move that one away" }
}

/// Shows the plan, and asks.
async fn consent(
    options: &Acceptance,
    reached: &Reached,
    bed: &TestBed,
    planned: &[(AcceptanceStep, StepPlan)],
) -> Result<bool, Failure> {
    let (steps, seconds) = (running(planned), total_seconds(planned));
    let model = output::clean(&bed.report.model);
    output::note(&format!("acceptance test of {} nodes with {model}:", bed.nodes.len()));
    lines(planned).iter().for_each(|line| output::note(&output::clean(line)));
    if steps.is_empty() && !options.consent.dry_run {
        output::note("no step is left to run; repeat finished steps with --again STEP");
        return Ok(true);
    }
    let replaces = steps.iter().any(|step| step.replaces_topology());
    let restored = earlier::words(&bed.report.replaced);
    let losses = reached.losses(None).filter(|_| replaces || restored.is_some());
    let interrupts = match (&losses, restored) {
        (Some((lost, _)), Some(restored)) => {
            format!("unloads {lost}, ends its running requests, and restores {restored} afterwards")
        }
        (Some((lost, _)), None) => {
            format!("replaces {lost} during the test, ends its running requests, and restores it afterwards")
        }
        (None, Some(restored)) => format!("restores {restored} afterwards, which an earlier run replaced"),
        (None, None) if replaces => "leaves the nodes idle, as they are now".into(),
        (None, None) => "interrupts nothing".into(),
    };
    let question = format!("Run {} steps, about {}? This {interrupts}.", steps.len(), duration(seconds as f64));
    options.consent.obtain(&question, &object(planned, seconds, losses.map(|(_, object)| object)), options.json).await
}

fn object(planned: &[(AcceptanceStep, StepPlan)], seconds: u64, replaces: Option<Value>) -> Value {
    let steps = planned.iter().filter(|(_, what)| *what != StepPlan::NotChosen).map(|(step, what)| {
        let (state, seconds, reason) = match what {
            StepPlan::Runs(seconds) => ("runs", Some(seconds), None),
            StepPlan::Finished => ("finished", None, None),
            StepPlan::Skipped(reason) => ("skipped", None, Some(reason)),
            StepPlan::NotChosen => ("not chosen", None, None),
        };
        json!({"step": step, "does": step.deed(), "state": state, "seconds": seconds, "reason": reason})
    });
    let steps: Vec<Value> = steps.collect();
    json!({"steps": steps, "seconds": seconds, "replaces": replaces.unwrap_or_else(|| json!([]))})
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
