//! Sessions with the nodes that a change may use.
use std::{collections::BTreeMap, sync::Arc};

use assignment::{assign::report, files};
use common::fault::Fault;
use protocol::{
    message::{RequestBody, ResponseBody},
    models::{FileState, ModelFile, is_named},
    recovery::{RecoveryAnswer, RecoveryAsk},
    session::Session,
};
use telemetry::{NodeReport, NodeState};
use tokio::task::JoinSet;

use crate::gateway::Gateway;

/// A node that answers, with its model files.
pub(super) struct FileHolder {
    pub(super) session: Arc<Session>,
    pub(super) files: Vec<ModelFile>,
    /// Whether it holds no topology, not even one that recovery is about to bring back.
    pub(super) is_free: bool,
}

impl FileHolder {
    /// The name of its complete file that a client's name means.
    pub(super) fn file(&self, asked: &str) -> Option<&str> {
        let complete = self.files.iter().filter(|file| file.state == FileState::Complete && file.identity.is_some());
        complete.map(|file| file.model.as_str()).find(|name| is_named(asked, name))
    }
}

impl Gateway {
    /// All known nodes that answer, by address.
    pub(super) async fn holders(&self) -> BTreeMap<String, FileHolder> {
        let mut asked = JoinSet::new();
        for address in self.cluster.addresses() {
            let own = self.identity.clone();
            asked.spawn(async move {
                let holder = async {
                    let session = Arc::new(Session::open(&address, own).await?);
                    let is_free = is_unused(&report(&session).await?) && holds_nothing(&session).await?;
                    let files = files::list(&session).await?;
                    Ok::<_, Fault>(FileHolder { session, files, is_free })
                };
                (holder.await, address)
            });
        }
        let mut holders = BTreeMap::new();
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok((Ok(holder), address)) => drop(holders.insert(address, holder)),
                Ok((Err(fault), address)) => tracing::debug!(address, "a node is left out of a change: {fault}"),
                Err(_) => {}
            }
        }
        holders
    }
}

/// Whether a node reports that it holds nothing and may be used.
fn is_unused(report: &NodeReport) -> bool {
    let is_excluded = report.exclusions.0.iter().any(|entry| entry.is_out() && entry.node == report.name);
    report.state == NodeState::Idle && report.topology.is_none() && !report.is_paced() && !is_excluded
}

/// Whether recovery brings nothing back on a node.
async fn holds_nothing(session: &Session) -> Result<bool, Fault> {
    let mut reply = session.ask(RequestBody::Recovery(Box::new(RecoveryAsk::Standing(None)))).await?;
    let answer = reply.next("its standing", assignment::identify::REPORT).await?;
    Ok(match answer {
        ResponseBody::Recovery(RecoveryAnswer::Standing(standing)) => standing.committed.is_none(),
        _ => false,
    })
}
