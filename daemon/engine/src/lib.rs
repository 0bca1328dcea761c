//! The engine: synchronous Rust on its own thread. The head schedules and samples; the other ranks follow its plans.
pub mod block_pool;
pub mod collective;
pub mod error;
pub mod follower;
pub mod head;
pub mod kv_store;
pub mod model;
pub mod plan;
pub mod port;
pub mod sample;
pub mod sampler;
pub mod scheduler;
pub mod speculation;
pub mod step_latency;
pub mod structured_output;
pub mod transfer;
mod variant;
pub mod worker;

use std::{
    fmt,
    sync::{Arc, mpsc::Receiver},
};

use collectives::table::TableRow;
use kernels::Compute;
use topology::{Place, Role};

pub use scheduler::RequestKey;
pub use variant::Variant;

use self::{
    follower::Follower,
    head::Head,
    kv_store::{KvStore, Space, port::Disk},
    plan::Limits,
    port::{EngineEvent, EngineOrder, ReplicaEvent},
    structured_output::{TokenMasks, VocabularySource},
    transfer::{Partners, RemotePrefill, Transfers},
    worker::Worker,
};
use crate::error::EngineError;
use crate::{
    collective::{Abort, Group},
    model::Model,
};

/// Builds a draft model on the engine's thread, with the threads of the target model.
pub type DraftBuilder = Box<dyn FnOnce(&Compute) -> Model + Send>;

/// Everything an engine is built from.
pub struct Setup {
    /// Node name, for fault messages.
    pub node: String,
    /// Position of the rank in its replica.
    pub place: Place,
    /// Limits on its plans.
    pub limits: Limits,
    /// Builds the model on the engine's thread.
    pub model: Box<dyn FnOnce() -> Model + Send>,
    /// The draft model; `None`: there is none.
    pub draft: Option<DraftBuilder>,
    /// Links to the other ranks.
    pub group: Group,
    /// KV transfers between groups, if the topology's groups have roles.
    pub transfers: Option<(Transfers, Partners)>,
    /// Where the rank stores keys and values, and under which names; `None`: nowhere.
    pub store: Option<(Disk, Space)>,
    /// Deviations for benchmarks.
    pub variant: Variant,
    /// Tokens that end an answer; used by the head.
    pub end_tokens: Vec<u32>,
    /// On the ranks of the last stage only.
    pub vocabulary: Option<VocabularySource>,
    /// State shared with the watchers of this engine.
    pub abort: Arc<Abort>,
}

impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup").field("node", &self.node).field("place", &self.place).finish_non_exhaustive()
    }
}

/// Benchmarks the all-reduce algorithms on this stage's links and logs the winner for each batch size.
fn tune(group: &mut Group) -> Result<(), EngineError> {
    group.tune()?;
    if group.links().is_some_and(|links| links.stage().len() > 1) {
        group.timing.publish(group.table());
        tracing::info!("all-reduce algorithms, by tokens: {}", chosen(&group.table().rows));
        for row in &group.table().rows {
            tracing::debug!("{}", decided(row));
        }
    }
    Ok(())
}

/// The chosen algorithms in one line; rows with the same one are joined: `up to 8 direct, up to 512 rs-ag`.
fn chosen(rows: &[TableRow]) -> String {
    let runs = rows.chunk_by(|row, next| row.algorithm == next.algorithm).filter_map(<[TableRow]>::last);
    let parts: Vec<String> = runs.map(|last| format!("up to {} {}", last.tokens, last.algorithm)).collect();
    parts.join(", ")
}

/// The log line for a row of the algorithm table: the chosen algorithm and the measured times. An algorithm replaces
/// the default only if it is faster by a margin.
fn decided(row: &TableRow) -> String {
    let timed: Vec<String> = row.timed.iter().map(|(name, time)| format!("{name} {time}")).collect();
    let (tokens, algorithm, timed) = (row.tokens, row.algorithm, timed.join(", "));
    format!(
        "all-reduces of up to {tokens} tokens: {algorithm} \
            (measured: {timed}; another must be 15 % faster than the default)"
    )
}

/// Runs an engine until a stop order or a fatal error. Links stay open until then: a rank that fails because a peer was
/// lost must not look lost itself.
pub fn run(setup: Setup, orders: &Receiver<EngineOrder>, sink: &dyn Fn(EngineEvent)) {
    let mut model = (setup.model)();
    model.report_to(setup.abort.work());
    setup.abort.watch(model.compute().pool.progress());
    let mut group = setup.group.watched_by(Arc::clone(&setup.abort));
    if setup.variant.omits_exchange {
        tracing::warn!("all-reduces are omitted: the results of this node are meaningless");
        group.omit_exchange();
    }
    let mut worker = Worker::new(setup.place, model, group, setup.limits);
    if let Some(draft) = setup.draft {
        let mut draft = draft(worker.model.compute());
        draft.report_to(setup.abort.work());
        worker = worker.with_draft(draft);
    }
    worker.masks = TokenMasks::new(setup.vocabulary);
    let (transfers, partners) = setup.transfers.unzip();
    worker.transfers = transfers.unwrap_or_default();
    // Where all-reduces are omitted, keys and values have the names of correct ones.
    if let Some((disk, space)) = setup.store.filter(|_| !setup.variant.is_plain && !setup.variant.omits_exchange) {
        worker.store = KvStore::new(disk, space, &mut worker.model, &setup.limits);
    }
    let asks = worker.place.role == Role::Decode;
    let remote_prefill = partners.map_or_else(RemotePrefill::default, |partners| RemotePrefill::new(&partners, asks));
    let tuned = tune(&mut worker.group);
    let (result, mut worker) = match worker.place.is_head() {
        _ if tuned.is_err() => (tuned, Some(worker)),
        true => {
            let head =
                Head::new(setup.node, setup.limits, setup.end_tokens, worker, sink).with_remote_prefill(remote_prefill);
            let mut head = if setup.variant.is_plain { head.plain() } else { head };
            (head.serve(orders), Some(head.into_worker()))
        }
        false => {
            setup.abort.set_busy(true);
            let mut follower = Follower::new(worker);
            (follower.follow(), Some(follower.into_worker()))
        }
    };
    let Err(error) = result else { return };
    setup.abort.set_busy(false);
    // The other groups continue without this one.
    worker.iter_mut().for_each(|worker| worker.transfers = Transfers::default());
    let reason = error.to_string();
    sink(EngineEvent::Replica(match &error {
        EngineError::Collective(error) => ReplicaEvent::Broken { rank: error.lost(), reason },
        EngineError::Model(_) => ReplicaEvent::Unreadable(reason),
        _ => ReplicaEvent::Broken { rank: None, reason },
    }));
    while !matches!(orders.recv(), Ok(EngineOrder::Stop) | Err(_)) {}
}

#[cfg(test)]
mod tests {
    use collectives::Algorithm;
    use common::units::Nanoseconds;

    use super::*;

    #[test]
    fn log_names_the_algorithms_in_one_line() {
        let algorithms = [Algorithm::Direct, Algorithm::Direct, Algorithm::ReduceScatter];
        let rows = algorithms.into_iter().enumerate();
        let rows = rows.map(|(index, algorithm)| TableRow { tokens: 1 << index, algorithm, timed: Vec::new() });
        assert_eq!(chosen(&rows.collect::<Vec<_>>()), "up to 2 direct, up to 4 rs-ag");
    }

    #[test]
    fn log_line_explains_choice_that_is_not_fastest() {
        let times = [(Algorithm::Direct, 128), (Algorithm::ReduceScatter, 139)];
        let timed = times.map(|(algorithm, us)| (algorithm, Nanoseconds(us * 1000))).to_vec();
        let said = decided(&TableRow { tokens: 64, algorithm: Algorithm::ReduceScatter, timed });
        assert!(said.starts_with("all-reduces of up to 64 tokens: rs-ag (measured: direct 128"), "{said}");
        assert!(said.ends_with("another must be 15 % faster than the default)"), "{said}");
    }
}
