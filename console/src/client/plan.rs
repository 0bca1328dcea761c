//! Reads the sizes of a model from a node, and plans on a separate thread, because many nodes have many layouts.
use std::time::Duration;

use common::fault::{Fault, FaultKind};
use tokio::time::timeout;

use super::{identify::identify, session::Session};
use crate::operator::planner_query::{PlannerAnswer, PlannerQuery};

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

#[cfg(test)]
mod tests {
    use collectives::Choice;
    use common::precision::{Exchange, KvFormat};
    use planner::search::Goal;

    use super::*;
    use crate::client::{
        fake_node::{FakeNode, Script},
        session,
    };
    use crate::operator::planner_query::PlannerNode;

    #[tokio::test]
    async fn layouts_are_ranked_by_the_sizes_that_a_node_reports() {
        let node = FakeNode::start("pi1", Script::default()).await;
        let session = session::open(&node.address).await.expect("it answers");
        let ask = PlannerQuery {
            model: "m.gguf".to_owned(),
            nodes: (0..2)
                .map(|place: usize| PlannerNode {
                    place,
                    name: format!("pi{place}"),
                    machine: format!("boot {place}"),
                    cores: 4,
                    kernels: "neon-dotprod".to_owned(),
                    memory: 4 << 30,
                    measured: Default::default(),
                })
                .collect(),
            goal: Goal::Balanced,
            context: None,
            slots: 1,
            kv: KvFormat::F16,
            exchange: Exchange::F32,
            choice: Choice::Auto,
            now_unix_ms: 0,
        };
        let planned = plan(&session, ask).await.expect("it fits");
        let layouts: Vec<String> = planned.plan.ranked.iter().map(|candidate| candidate.layout.to_string()).collect();
        assert!(layouts.contains(&"tp2".to_owned()) && layouts.contains(&"tp1".to_owned()), "{layouts:?}");
        let tp2 = planned.candidate("tp2").expect("it is ranked");
        assert_eq!(planned.members(tp2), [0, 1]);
        assert_eq!((planned.context, planned.wanted(tp2).context_length), (4096, Some(4096)));
    }
}
