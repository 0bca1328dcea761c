//! Runs the steps one after another, and stores what each found.
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{Acceptance, answers, bed::TestBed, links, llama, load, nodes, recovery};
use crate::{
    cli::{Failure, shared::output},
    operator::acceptance::{AcceptanceStep, StepOutcome},
};

/// Longest duration of a step, besides the load.
const STEP: Duration = Duration::from_secs(600);

/// Runs the steps. A step that fails is stored with its reason, and the next one follows.
///
/// # Errors
/// The report cannot be written.
pub(super) async fn run(bed: &mut TestBed, options: &Acceptance, steps: &[AcceptanceStep]) -> Result<(), Failure> {
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
        }
        bed.write()?;
    }
    Ok(())
}

async fn measure(bed: &mut TestBed, options: &Acceptance, step: AcceptanceStep, begun: Instant) -> Result<(), Failure> {
    fn done<T>(begun: Instant, found: T) -> StepOutcome<T> {
        StepOutcome::new(begun.elapsed().as_secs_f64(), Ok(found))
    }
    match step {
        AcceptanceStep::Machines => {
            let found = nodes::machines(bed).await?;
            bed.report.steps.machines = done(begun, found);
        }
        AcceptanceStep::Links => {
            let found = links::measure_links(bed).await?;
            bed.report.steps.links = done(begun, found);
        }
        AcceptanceStep::Nodes => {
            let found = nodes::alone(bed).await?;
            bed.report.steps.nodes = done(begun, found);
        }
        AcceptanceStep::Load => {
            let found = load::load(bed, Duration::from_secs(options.load_seconds)).await?;
            bed.report.steps.load = done(begun, found);
        }
        AcceptanceStep::Single => {
            let found = answers::answer(bed, 1).await?;
            bed.report.steps.single = done(begun, found);
        }
        AcceptanceStep::Pair => {
            let found = answers::answer(bed, 2).await?;
            bed.report.steps.pair = done(begun, found);
        }
        AcceptanceStep::All => {
            let count = bed.nodes.len();
            let found = answers::answer(bed, count).await?;
            bed.report.steps.all = done(begun, found);
        }
        AcceptanceStep::Llama => {
            let found = llama::compare(bed, options).await?;
            bed.report.steps.llama = done(begun, found);
        }
        AcceptanceStep::Recovery => {
            let found = recovery::lose(bed, options).await?;
            bed.report.steps.recovery = done(begun, found);
        }
    }
    Ok(())
}
