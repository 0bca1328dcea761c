//! Asks a node what its model costs, and plans on a thread of its own: many nodes have many layouts.
use std::time::Duration;

use shared::protocol::error::{Fault, FaultKind};
use tokio::time::timeout;

use super::{assign::identify, session::Session};
use crate::planned::{PlanAsk, Planned};

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
    let work = tokio::task::spawn_blocking(move || Planned::new(ask, card.sizes));
    match timeout(PATIENCE, work).await {
        Ok(Ok(planned)) => Ok(planned),
        Ok(Err(_)) => Err(malformed("the sizes of its model cannot be planned with")),
        Err(_) => Err(malformed("planning takes longer than a minute; use console plan with fewer nodes")),
    }
}

#[cfg(test)]
mod tests {
    use shared::{
        schedule::Choice,
        topology::{Exchange, KvFormat, planner::Goal},
    };

    use super::*;
    use crate::client::{
        fake_node::{FakeNode, Script},
        session,
    };
    use crate::planned::AskNode;

    #[tokio::test]
    async fn a_node_says_what_its_model_costs_and_layouts_are_ranked_on_the_nodes_of_the_question() {
        let node = FakeNode::start("pi1", Script::default()).await;
        let session = session::open(&node.address).await.expect("it answers");
        let node = |place: usize| AskNode {
            place,
            name: format!("pi{place}"),
            machine: format!("boot {place}"),
            cores: 4,
            kernels: "neon-dotprod".to_owned(),
            memory: 4 << 30,
            measured: Default::default(),
        };
        let ask = PlanAsk {
            model: "m.gguf".to_owned(),
            nodes: (0..2).map(node).collect(),
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
