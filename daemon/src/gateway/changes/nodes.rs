//! Sessions with the nodes that a change may use.
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use assignment::{assign::report, files, identify::REPORT};
use common::fault::Fault;
use protocol::{
    message::{RequestBody, ResponseBody},
    models::{FileState, ModelFile, files_of, is_named},
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
    /// The name of its complete model that a client's name means; of a split model, that of the first file.
    pub(super) fn file(&self, asked: &str) -> Option<&str> {
        let complete = self.files.iter().filter(|file| file.state == FileState::Complete && file.identity.is_some());
        complete.map(|file| file.model.as_str()).find(|name| is_named(asked, name))
    }
}

/// The names of those files, complete or not, that belong to the model that a client's name means.
pub(super) fn belonging<'f>(files: &'f [ModelFile], asked: &str) -> Vec<&'f str> {
    let wanted = if asked.ends_with(".gguf") { files_of(asked) } else { files_of(&format!("{asked}.gguf")) };
    let names = files.iter().map(|file| file.model.as_str());
    let mut names: Vec<&str> = names.filter(|name| wanted.iter().any(|one| one.as_str() == *name)).collect();
    // A file and an unfinished copy of it have the same name and are listed one after the other.
    names.dedup();
    names
}

/// The nodes, each once: one that listens on all interfaces may be known by several addresses.
pub(super) fn each_once(holders: BTreeMap<String, FileHolder>) -> Vec<FileHolder> {
    let mut seen = BTreeSet::new();
    holders.into_values().filter(|holder| seen.insert(holder.session.identity.name.clone())).collect()
}

impl Gateway {
    /// All known nodes that answer within seconds, by address.
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
                Ok((Err(fault), address)) => tracing::warn!(address, "a node is left out of a change: {fault}"),
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
    let answer = reply.next("its standing", REPORT).await?;
    Ok(match answer {
        ResponseBody::Recovery(RecoveryAnswer::Standing(standing)) => standing.committed.is_none(),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use common::units::Bytes;

    use super::*;

    #[test]
    fn name_means_all_files_of_a_split_model_that_are_there() {
        let [first, second, third] = [1, 2, 3].map(|part| format!("big-0000{part}-of-00003.gguf"));
        let file = |model: &str, state: FileState| ModelFile {
            model: model.into(),
            folder: "/models".into(),
            size: Bytes(9),
            state,
            identity: None,
            sha256: None,
            content: None,
        };
        let files = [
            file(&second, FileState::Complete),
            file(&third, FileState::Complete),
            file(&third, FileState::Partial),
            file("big.gguf", FileState::Broken("it is cut off".into())),
        ];
        // Later files have no identity, and remain when the first one is gone.
        for asked in [first.as_str(), second.as_str(), "big-00003-of-00003"] {
            assert_eq!(belonging(&files, asked), [&second, &third], "{asked}");
        }
        assert_eq!(belonging(&files, "big"), ["big.gguf"]);
        assert!(belonging(&files, "big-00001-of-00002").is_empty());
        assert!(belonging(&files, "../big.gguf").is_empty());
    }
}
