//! Puts all files of a model on all nodes: this node downloads those that it lacks, and the others copy them from it, a
//! few nodes at a time.
use std::{collections::BTreeMap, sync::Arc};

use assignment::{files, source::url_of_part};
use common::{
    fault::{Fault, FaultKind},
    units::Bytes,
};
use protocol::{
    models::{FileState, ModelFile, ModelsRequest, Step, files_of},
    session::Session,
};
use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, mpsc::Sender},
    task::JoinSet,
};

use super::nodes::{FileHolder, each_once};
use crate::gateway::Gateway;

/// Nodes that copy from this one at a time, as the console has it: each keeps several requests open, and a node serves
/// only a bounded number of them.
const COPIES_MAX: usize = 4;

impl Gateway {
    /// Puts a model on this node and then on the others. Files that a node has are not transferred again, so that a
    /// repeated request completes what an earlier one left.
    ///
    /// # Errors
    /// This node cannot get a file; or other nodes cannot, which the fault names.
    pub(super) async fn pull(&self, url: &str, model: &str, told: &Sender<Value>) -> Result<(), Fault> {
        tell(told, "pulling manifest");
        let own = Session::open(self.cluster.own_address(), self.identity.clone()).await?;
        let names = files_of(model);
        let listed = files::list(&own).await?;
        for name in lacking(&names, &listed) {
            let url = url_of_part(url, model, &name);
            let pulled = ModelsRequest::Pull { url, model: name.clone(), sha256: None };
            files::stored(&own, pulled, &|step, done, total| report(told, &name, step, done, total)).await?;
        }
        check_split(&own, &names).await?;
        let holders = self.holders().await;
        let silent: Vec<String> =
            self.cluster.addresses().into_iter().filter(|address| !holders.contains_key(address)).collect();
        if !silent.is_empty() {
            tell(told, &later("no answer from", &silent.join(", "), model, &self.identity.name));
        }
        let mut others = each_once(holders);
        others.retain(|holder| holder.session.identity.name != self.identity.name);
        match self.cluster.reached_at(&self.identity.name) {
            Some(from) => self.copy_to(others, &names, &from, told).await,
            None => {
                self.tell_others(&others, &names, told);
                Ok(())
            }
        }
    }

    /// Lets other nodes copy what they lack from this one at `from`. If a copy fails, the others still end.
    async fn copy_to(
        &self,
        others: Vec<FileHolder>,
        names: &[String],
        from: &str,
        told: &Sender<Value>,
    ) -> Result<(), Fault> {
        let mut copies = Vec::with_capacity(others.len());
        for FileHolder { session, files, .. } in others {
            let missing = lacking(names, &files);
            for name in &missing {
                tell(told, &format!("copying {name} to {}", session.address));
            }
            copies.push((session.identity.name.clone(), copy(session, names.to_vec(), missing, from.to_owned())));
        }
        let copied = few_at_a_time(copies).await;
        let failed = copied.into_iter().filter_map(|(node, copied)| Some(format!("{node} ({})", copied.err()?.kind)));
        let failed: Vec<String> = failed.collect();
        if failed.is_empty() {
            return Ok(());
        }
        let reason = format!("{} could not be copied to {}", names[0], failed.join(", "));
        Err(Fault::new(&self.identity.name, FaultKind::DownloadFailed { reason }))
    }

    /// Names the other nodes that lack a file, as this one has no address from where they could copy it before it was in
    /// a topology.
    fn tell_others(&self, others: &[FileHolder], names: &[String], told: &Sender<Value>) {
        let without = others.iter().filter(|holder| !lacking(names, &holder.files).is_empty());
        let without: Vec<&str> = without.map(|holder| holder.session.identity.name.as_str()).collect();
        if !without.is_empty() {
            tell(told, &later("not on", &without.join(", "), &names[0], &self.identity.name));
        }
    }
}

/// Which nodes are left without a model, and how they get it.
fn later(why: &str, nodes: &str, model: &str, own: &str) -> String {
    format!("{why} {nodes}: copy it there with console model pull {model} --from {own}")
}

/// Those of a model's files that a node with `files` lacks.
fn lacking(names: &[String], files: &[ModelFile]) -> Vec<String> {
    let lacked = names.iter().filter(|name| {
        !files.iter().any(|file| {
            let is_there = match file.state {
                FileState::Complete => true,
                // The first file of a split model counts as broken as long as a later one is missing.
                FileState::Broken(_) => names.len() > 1,
                FileState::Partial => false,
            };
            is_there && file.model == **name
        })
    });
    lacked.cloned().collect()
}

/// Checks that a split model is usable on a node, which only all of its files together show.
async fn check_split(session: &Session, names: &[String]) -> Result<(), Fault> {
    let [first, _, ..] = names else { return Ok(()) };
    let listed = files::list(session).await?;
    let broken = listed.into_iter().find_map(|file| match file.state {
        FileState::Broken(reason) if file.model == *first => Some(reason),
        _ => None,
    });
    match broken {
        Some(reason) => {
            let kind = FaultKind::ModelInvalid { model: first.clone(), reason };
            Err(Fault::new(&session.identity.name, kind))
        }
        None => Ok(()),
    }
}

/// Copies files to a node from the one at `from`, one after another.
async fn copy(session: Arc<Session>, names: Vec<String>, missing: Vec<String>, from: String) -> Result<(), Fault> {
    for model in missing {
        let request = ModelsRequest::Fetch { model, from: from.clone() };
        files::stored(&session, request, &|_, _, _| {}).await?;
    }
    check_split(&session, &names).await
}

/// Runs the copies to nodes, to [`COPIES_MAX`] at a time. Returns the results by the name of the node.
async fn few_at_a_time<F>(copies: Vec<(String, F)>) -> BTreeMap<String, Result<(), Fault>>
where
    F: Future<Output = Result<(), Fault>> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(COPIES_MAX));
    let mut running = JoinSet::new();
    for (node, copy) in copies {
        let room = Arc::clone(&room);
        running.spawn(async move {
            // The semaphore is never closed.
            let _permit = room.acquire_owned().await;
            (node, copy.await)
        });
    }
    running.join_all().await.into_iter().collect()
}

/// Reports a step; a client that reads too slowly misses some.
fn tell(told: &Sender<Value>, text: &str) {
    drop(told.try_send(json!({"status": text})));
}

/// Reports progress; a client that reads too slowly misses some.
fn report(told: &Sender<Value>, model: &str, step: Step, done: Bytes, total: Option<Bytes>) {
    let status = match step {
        Step::Downloading | Step::Copying | Step::Waiting => format!("pulling {model}"),
        Step::Hashing => "verifying sha256 digest".to_owned(),
    };
    let mut object = json!({"status": status, "digest": model, "completed": done.0});
    if let Some(total) = total {
        object["total"] = total.0.into();
    }
    drop(told.try_send(object));
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use super::*;

    fn file(model: &str, state: FileState) -> ModelFile {
        let (model, folder) = (model.to_owned(), "/models".to_owned());
        ModelFile { model, folder, size: Bytes(9), state, identity: None, sha256: None, content: None }
    }

    #[tokio::test]
    async fn few_nodes_copy_at_a_time_and_every_result_is_returned() {
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut copies = Vec::new();
        for number in 0..9 {
            let (running, most) = (Arc::clone(&running), Arc::clone(&most));
            let copy = async move {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(5)).await;
                running.fetch_sub(1, Ordering::SeqCst);
                if number == 6 { Err(Fault::new("pi6", FaultKind::StoreCancelled)) } else { Ok(()) }
            };
            copies.push((format!("pi{number}"), copy));
        }
        let copied = few_at_a_time(copies).await;
        assert_eq!((copied.len(), most.load(Ordering::SeqCst)), (9, COPIES_MAX));
        let failed: Vec<&String> = copied.iter().filter(|(_, copied)| copied.is_err()).map(|(node, _)| node).collect();
        assert_eq!(failed, ["pi6"]);
    }

    #[test]
    fn files_that_a_node_lacks_are_found_by_their_state() {
        let split = files_of("big-00001-of-00003.gguf");
        let broken = FileState::Broken("part 3 of 3 is missing".into());
        let files = [file(&split[0], broken.clone()), file(&split[1], FileState::Complete)];
        assert_eq!(lacking(&split, &files), split[2..]);
        assert_eq!(lacking(&split, &[file(&split[1], FileState::Partial)]), split);
        let alone = files_of("a.gguf");
        assert!(lacking(&alone, &[file("a.gguf", FileState::Complete)]).is_empty());
        assert_eq!(lacking(&alone, &[file("a.gguf", broken)]), alone, "a broken file is no copy");
    }
}
