//! Finds a head that can continue an answer.
use std::{sync::Arc, time::Duration};

use common::{
    fault::Fault,
    ids::{Epoch, MemberIndex, ModelRoots},
};
use telemetry::NodeReport;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use topology::{Member, Topology};

use super::{
    assign::report,
    session::{self, Session},
};

/// A node that does not answer within this time is asked again in the next round.
const ANSWER: Duration = Duration::from_millis(500);
/// Pause between two rounds.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// The head of a replica that serves.
#[derive(Debug)]
pub(super) struct ServingHead {
    pub(super) session: Arc<Session>,
    pub(super) epoch: Epoch,
    pub(super) topology: Box<Topology>,
    pub(super) member: MemberIndex,
}

/// Asks all nodes until one of them is the head of a replica with this model and numeric version. Nodes whose
/// session broke are dialled again; the node at the address `failed` is asked last. `None` if nodes answer but none of
/// them recovers topologies by itself.
pub(super) async fn head(
    nodes: &[Arc<Session>],
    failed: &str,
    model: &ModelRoots,
    numeric: u32,
) -> Option<ServingHead> {
    let mut sessions = nodes.to_vec();
    loop {
        let mut asked = JoinSet::new();
        for (index, session) in sessions.iter().enumerate() {
            let (mut session, has_failed) = (Arc::clone(session), session.address == failed);
            asked.spawn(async move {
                if has_failed {
                    sleep(PAUSE).await;
                }
                let report = timeout(ANSWER, look(&mut session)).await;
                (index, session, report.ok().and_then(Result::ok))
            });
        }
        let mut recovers = None;
        while let Some(Ok((index, session, report))) = asked.join_next().await {
            sessions[index] = Arc::clone(&session);
            let Some(report) = report else { continue };
            *recovers.get_or_insert(false) |= report.recovers;
            if let Some((epoch, topology, member)) =
                serves(report, model).filter(|_| session.identity.numeric == numeric)
            {
                return Some(ServingHead { session, epoch, topology, member });
            }
        }
        if recovers == Some(false) {
            return None;
        }
        sleep(PAUSE).await;
    }
}

/// A node's report, over a new session if the current one is broken.
async fn look(session: &mut Arc<Session>) -> Result<NodeReport, Fault> {
    if session.is_broken() {
        *session = Arc::new(session::open(&session.address).await?);
    }
    report(session).await
}

/// The topology that a node heads; `None` if it is not a head, serves another model, or a member of its replica is
/// excluded.
fn serves(report: NodeReport, model: &ModelRoots) -> Option<(Epoch, Box<Topology>, MemberIndex)> {
    let is_up = report.fault.is_none() && report.state.serves();
    let (topology, _, member) = report.topology.filter(|_| is_up)?;
    let place = topology.place(member);
    let is_head = place.is_head() && place.role.takes_requests() && !topology.roots().differs(model);
    let is_whole = !topology
        .replica(place.replica)
        .iter()
        .any(|member: &Member| report.exclusions.of(&member.name, &member.address).is_some());
    (is_head && is_whole).then(|| (report.epoch, Box::new(topology), member))
}
