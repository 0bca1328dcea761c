//! Asks a node what its model costs, and plans on a thread of its own: many nodes have many layouts.
use std::time::Duration;

use shared::protocol::error::{Fault, FaultKind};
use tokio::time::timeout;

use super::{assign::identify, session::Session};
use crate::state::plan::{PlanAsk, Planned};

/// Longest wait for the planner.
const PATIENCE: Duration = Duration::from_secs(60);

/// Candidates for the nodes of the question.
///
/// # Errors
/// The node has not the model, what it says of it makes no sense, or planning takes too long.
pub async fn plan(session: &Session, ask: PlanAsk) -> Result<Planned, Fault> {
    let card = identify(session, &ask.model).await?;
    let malformed =
        |reason: &str| Fault::new(&session.identity.name, FaultKind::Malformed { reason: reason.to_owned() });
    if !card.sizes.is_sound() {
        return Err(malformed("the sizes of its model are those of none"));
    }
    let work = tokio::task::spawn_blocking(move || Planned::new(ask, card.sizes));
    match timeout(PATIENCE, work).await {
        Ok(Ok(planned)) => Ok(planned),
        Ok(Err(_)) => Err(malformed("the sizes of its model cannot be planned with")),
        Err(_) => Err(malformed("planning takes longer than a minute; use console plan with fewer nodes")),
    }
}
