//! Chooses the layout of a new topology: the planner's best if the operator gave none. Warns if fewer nodes would
//! answer faster than the given layout. Measures nothing: nodes report their memory, machine and earlier measurements.
use std::sync::Arc;

use common::fault::Fault;
use topology::Layout;

use crate::cli::{Failure, shared::output};
use crate::{
    client::{plan::plan_for, session::Session},
    operator::desired::{DesiredTopology, TopologyRequest},
    operator::planner_query::PlannerAnswer,
};

/// The nodes of a topology, and the topology to assign to them.
#[derive(Debug)]
pub(crate) struct ChosenLayout {
    /// In the order replica, stage, rank.
    pub(crate) sessions: Vec<Arc<Session>>,
    pub(crate) wanted: DesiredTopology,
}

/// Chooses the layout if the operator left it open, and prints the choice on standard error.
///
/// # Errors
/// The layout was left open and a node does not answer, or has no such model.
pub(crate) async fn choose(sessions: &[Arc<Session>], asked: &TopologyRequest) -> Result<ChosenLayout, Failure> {
    let all = asked.wanted(sessions.len());
    let as_asked = |wanted| ChosenLayout { sessions: sessions.to_vec(), wanted };
    let planned = planned(sessions, asked, all.layout).await;
    if !asked.leaves_layout_open() {
        tolerated(planned).and_then(|planned| tell_knee(&planned, all.layout));
        return Ok(as_asked(all));
    }
    let Some(planned) = planned? else { return Ok(as_asked(all)) };
    // If no layout fits, the assignment fails with the missing memory of each node.
    let Some(best) = planned.plan.ranked.first() else { return Ok(as_asked(all)) };
    let members = planned.members(best);
    let links = planned.links_known();
    output::note(&format!("predicted for {}: {}; {links}", asked.goal, PlannerAnswer::figures(best)));
    let unused = planned.ask.nodes.iter().filter(|node| !members.contains(&node.place));
    let unused: Vec<&str> = unused.map(|node| node.name.as_str()).collect();
    if !unused.is_empty() {
        output::note(&output::clean(&format!(
            "not used, because the planner predicts no gain: {}; override with --topology",
            unused.join(", ")
        )));
    }
    let sessions = members.iter().map(|place| Arc::clone(&sessions[*place])).collect();
    // The planner chooses the layout only; other defaults stay.
    let wanted = DesiredTopology { context_length: all.context_length, draft: all.draft, ..planned.wanted(best) };
    Ok(ChosenLayout { sessions, wanted })
}

/// The prediction for a layout.
pub(crate) struct Forecast {
    /// Set if fewer nodes would answer faster.
    pub(crate) warning: Option<String>,
    /// Source of the link figures.
    pub(crate) links: String,
}

/// Warns if fewer nodes would answer faster than a layout. The prediction is only advice: a failure is printed and
/// otherwise ignored.
pub(crate) async fn warn_past_knee(sessions: &[Arc<Session>], wanted: &DesiredTopology) -> Option<Forecast> {
    let planned = tolerated(planned(sessions, &TopologyRequest::from(wanted), wanted.layout).await)?;
    Some(Forecast { warning: tell_knee(&planned, wanted.layout), links: planned.links_known() })
}

/// Prints a failure of a plan that is only needed for a warning.
fn tolerated(planned: Result<Option<PlannerAnswer>, Fault>) -> Option<PlannerAnswer> {
    planned.unwrap_or_else(|fault| {
        output::note(&output::clean(&format!("cannot predict whether fewer nodes are faster: {fault}")));
        None
    })
}

fn tell_knee(planned: &PlannerAnswer, layout: Layout) -> Option<String> {
    let warning = planned.past_knee(layout)?;
    output::note(&output::clean(&format!("warning: {warning}; {}", planned.links_known())));
    Some(warning)
}

/// Plans for these nodes. `None` if there is nothing to choose or predictions are not valid: for a single node, groups with
/// roles, and as in [`plan_for`].
async fn planned(
    sessions: &[Arc<Session>],
    asked: &TopologyRequest,
    layout: Layout,
) -> Result<Option<PlannerAnswer>, Fault> {
    if sessions.len() < 2 || !layout.groups.is_empty() {
        return Ok(None);
    }
    plan_for(sessions, asked).await
}
