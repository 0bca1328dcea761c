//! The engine: synchronous Rust on its own thread. The head schedules and samples; the other ranks follow its plans.
mod begin;
pub mod blocks;
pub mod collective;
pub mod costs;
pub mod drafts;
pub mod error;
pub mod follower;
pub mod grammar;
pub mod head;
pub mod model;
pub mod output;
pub mod plan;
pub mod port;
pub mod sample;
pub mod sampler;
pub mod schedule;
mod schema;
pub mod step;
pub mod transfer;
mod variant;

use std::{
    fmt,
    sync::{Arc, mpsc::Receiver},
};

use collectives::table::TableRow;
use tokenizer::Tokenizer;
use topology::{Place, Role};

pub use schedule::RequestKey;
pub use variant::Variant;

use self::{
    follower::Follower,
    grammar::{Grammars, PieceSource},
    head::Head,
    plan::Limits,
    port::EngineOrder,
    step::Stepper,
    transfer::{Elsewhere, Partners, Transfers},
};
use crate::error::EngineError;
use crate::{
    collective::{Abort, Group},
    model::Model,
    port::Progress,
};

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
    /// Links to the other ranks.
    pub group: Group,
    /// KV transfers between groups, if the topology's groups have roles.
    pub transfers: Option<(Transfers, Partners)>,
    /// Deviations for benchmarks.
    pub variant: Variant,
    /// On the head only.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// On the ranks of the last stage only.
    pub pieces: Option<PieceSource>,
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
        group.accounting.publish(group.table());
        for row in &group.table().rows {
            tracing::info!("{}", decided(row));
        }
    }
    Ok(())
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
pub fn run(setup: Setup, orders: &Receiver<EngineOrder>, sink: &dyn Fn(Progress)) {
    let model = (setup.model)();
    let mut group = setup.group;
    if setup.variant.omits_exchange {
        tracing::warn!("all-reduces are omitted: the results of this node are meaningless");
        group.omit_exchange();
    }
    let mut stepper = Stepper::new(setup.place, model, group, setup.limits);
    stepper.grammars = Grammars::new(setup.pieces);
    let (transfers, partners) = setup.transfers.unzip();
    stepper.transfers = transfers;
    let asks = stepper.place.role == Role::Decode;
    let elsewhere = partners.map(|partners| Elsewhere::new(&partners, asks));
    let tuned = tune(&mut stepper.group);
    let (result, mut stepper) = match setup.tokenizer {
        _ if tuned.is_err() => (tuned, Some(stepper)),
        Some(tokenizer) if stepper.place.is_head() => {
            let head = Head::new((setup.node, setup.limits), tokenizer, stepper, sink).beside(elsewhere);
            let mut head = if setup.variant.is_plain { head.plain() } else { head };
            (head.serve(orders), Some(head.into_stepper()))
        }
        _ => {
            setup.abort.set_busy(true);
            let mut follower = Follower::new(stepper);
            (follower.follow(), Some(follower.into_stepper()))
        }
    };
    let Err(error) = result else { return };
    setup.abort.set_busy(false);
    // The other groups continue without this one.
    stepper.iter_mut().for_each(|stepper| stepper.transfers = None);
    let reason = error.to_string();
    sink(match &error {
        EngineError::Collective(error) => Progress::Broken { rank: error.lost(), reason },
        EngineError::Model(_) => Progress::Unreadable(reason),
        _ => Progress::Broken { rank: None, reason },
    });
    while !matches!(orders.recv(), Ok(EngineOrder::Stop) | Err(_)) {}
}

#[cfg(test)]
mod tests {
    use collectives::Algorithm;
    use common::units::Nanoseconds;

    use super::*;

    #[test]
    fn log_line_explains_choice_that_is_not_fastest() {
        let times = [(Algorithm::Direct, 128), (Algorithm::ReduceScatter, 139)];
        let timed = times.map(|(algorithm, us)| (algorithm, Nanoseconds(us * 1000))).to_vec();
        let said = decided(&TableRow { tokens: 64, algorithm: Algorithm::ReduceScatter, timed });
        assert!(said.starts_with("all-reduces of up to 64 tokens: rs-ag (measured: direct 128"), "{said}");
        assert!(said.ends_with("another must be 15 % faster than the default)"), "{said}");
    }
}
