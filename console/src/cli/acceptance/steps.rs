//! Runs the steps one after another, and stores what each found.
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{Acceptance, answers, bed::TestBed, links, llama, load, nodes, recovery};
use crate::{
    cli::{Failure, shared::output},
    operator::acceptance::{AcceptanceStep, StepOutcome},
};

/// Longest duration of a step, to which the length of the load is added.
const STEP: Duration = Duration::from_secs(600);

/// Runs the steps. A step that fails is stored with its reason, and the next one follows. Returns those that failed.
///
/// # Errors
/// The report cannot be written.
pub(super) async fn run(
    bed: &mut TestBed,
    options: &Acceptance,
    steps: &[AcceptanceStep],
) -> Result<Vec<AcceptanceStep>, Failure> {
    let mut failed = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        output::note(&format!("step {} of {}, {step}: {}", number + 1, steps.len(), step.deed()));
        let begun = Instant::now();
        let limit = STEP + Duration::from_secs(options.load_seconds);
        let ended = timeout(limit, Box::pin(measure(bed, options, *step, begun))).await;
        let failure = match ended {
            Ok(Ok(())) => None,
            Ok(Err(failure)) => Some(failure.to_string()),
            Err(_) => Some(format!("not finished within {} minutes", limit.as_secs() / 60)),
        };
        if let Some(reason) = failure {
            let reason = bed.anonymous(&reason);
            output::note(&output::clean(&format!("{step} failed: {reason}")));
            bed.report.give_up(*step, begun.elapsed().as_secs_f64(), reason);
            failed.push(*step);
        }
        bed.write()?;
    }
    Ok(failed)
}

async fn measure(bed: &mut TestBed, options: &Acceptance, step: AcceptanceStep, begun: Instant) -> Result<(), Failure> {
    fn done<T>(begun: Instant, found: T) -> StepOutcome<T> {
        StepOutcome::new(begun.elapsed().as_secs_f64(), Ok(found))
    }
    match step {
        AcceptanceStep::Machines => bed.report.steps.machines = done(begun, nodes::machines(bed).await?),
        AcceptanceStep::Links => bed.report.steps.links = done(begun, links::measure_links(bed).await?),
        AcceptanceStep::Nodes => bed.report.steps.nodes = done(begun, nodes::alone(bed).await?),
        AcceptanceStep::Load => {
            let length = Duration::from_secs(options.load_seconds);
            bed.report.steps.load = done(begun, load::load(bed, length).await?);
        }
        AcceptanceStep::Single => bed.report.steps.single = done(begun, answers::answer(bed, 1).await?),
        AcceptanceStep::Pair => bed.report.steps.pair = done(begun, answers::answer(bed, 2).await?),
        AcceptanceStep::All => {
            let count = bed.nodes.len();
            bed.report.steps.all = done(begun, answers::answer(bed, count).await?);
        }
        AcceptanceStep::Llama => bed.report.steps.llama = done(begun, llama::compare(bed, options).await?),
        AcceptanceStep::Recovery => bed.report.steps.recovery = done(begun, recovery::lose(bed, options).await?),
    }
    Ok(())
}
