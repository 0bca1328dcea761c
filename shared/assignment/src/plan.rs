//! Reads the sizes of a model from a node, and plans on a separate thread, because many nodes have many layouts.
use std::time::Duration;

use common::fault::{Fault, FaultKind};
use protocol::session::Session;
use tokio::time::timeout;

use crate::{
    identify::identify,
    planner_query::{PlannerAnswer, PlannerQuery},
};

/// Time limit of the planner.
const PATIENCE: Duration = Duration::from_secs(60);

/// The candidate layouts for the nodes of the query.
///
/// # Errors
/// The node lacks the model, the model's sizes are invalid, or planning takes too long.
pub async fn plan(session: &Session, ask: PlannerQuery) -> Result<PlannerAnswer, Fault> {
    let card = identify(session, &ask.model).await?;
    let malformed =
        |reason: &str| Fault::new(&session.identity.name, FaultKind::Malformed { reason: reason.to_owned() });
    let sizes = card.sizes().map_err(|kind| Fault::new(&session.identity.name, kind))?;
    let work = tokio::task::spawn_blocking(move || PlannerAnswer::new(ask, sizes));
    match timeout(PATIENCE, work).await {
        Ok(Ok(planned)) => Ok(planned),
        Ok(Err(_)) => Err(malformed("cannot plan with the reported sizes of the model")),
        Err(_) => Err(malformed("planning takes longer than a minute; use console topology plan with fewer nodes")),
    }
}
