//! The engine: its own thread, plain synchronous Rust. The head schedules and samples; the other ranks follow its plans.
mod begin;
pub mod blocks;
pub mod costs;
pub mod drafts;
pub mod follower;
pub mod grammar;
pub mod head;
pub mod output;
pub mod plan;
pub mod port;
pub mod sample;
pub mod sampler;
pub mod schedule;
mod schema;
pub mod step;
pub mod transfer;

use std::{
    fmt,
    sync::{Arc, mpsc::Receiver},
};

use shared::{
    schedule::table::TableRow,
    tokenizer::Tokenizer,
    topology::{Place, Role},
};

pub use schedule::RequestKey;

use self::{
    follower::Follower,
    grammar::{Grammars, PieceSource},
    head::Head,
    plan::Limits,
    port::EngineOrder,
    step::{EngineError, Stepper},
    transfer::{Elsewhere, Partners, Transfers},
};
use crate::{
    collective::{Abort, Group},
    model::Model,
    node::Progress,
};

/// All that an engine is made of.
pub struct Setup {
    /// The node's name, for faults.
    pub node: String,
    /// Where the rank stands in its replica.
    pub place: Place,
    /// What bounds its plans.
    pub limits: Limits,
    /// Makes the model on the engine's thread.
    pub model: Box<dyn FnOnce() -> Model + Send>,
    /// The other ranks.
    pub group: Group,
    /// In a topology whose groups have roles: what moves between them.
    pub transfers: Option<(Transfers, Partners)>,
    /// For benchmarks: a head drafts no tokens and computes every prompt anew.
    pub plain: bool,
    /// On the head.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// On the ranks of the last stage.
    pub pieces: Option<PieceSource>,
    /// What watchers see.
    pub abort: Arc<Abort>,
}

impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup").field("node", &self.node).field("place", &self.place).finish_non_exhaustive()
    }
}

/// Lets the links decide between collectives before there is work, and shows what they decided.
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

/// The log line for a row of the table: its algorithm and the measured times. The fastest needs a margin to replace the usual one.
fn decided(row: &TableRow) -> String {
    let timed: Vec<String> = row.timed.iter().map(|(name, time)| format!("{name} {time}")).collect();
    let (tokens, algorithm, timed) = (row.tokens, row.algorithm, timed.join(", "));
    format!(
        "all-reduces of up to {tokens} tokens: {algorithm} (measured: {timed}; another one must be 15 % faster than the usual one)"
    )
}

/// Runs an engine until it is told to stop or cannot go on. It holds its links until then: a rank that fails because
/// another was lost must not look lost itself.
pub fn run(setup: Setup, orders: &Receiver<EngineOrder>, sink: &dyn Fn(Progress)) {
    let model = (setup.model)();
    let mut stepper = Stepper::new(setup.place, model, setup.group, setup.limits);
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
            let mut head = if setup.plain { head.plain() } else { head };
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
    // The other groups go on without this one.
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
    use shared::{schedule::Algorithm, units::Nanoseconds};

    use super::*;

    #[test]
    fn a_choice_that_is_not_the_fastest_says_why() {
        let times = [(Algorithm::Direct, 128), (Algorithm::ReduceScatter, 139)];
        let timed = times.map(|(algorithm, us)| (algorithm, Nanoseconds(us * 1000))).to_vec();
        let said = decided(&TableRow { tokens: 64, algorithm: Algorithm::ReduceScatter, timed });
        assert!(said.starts_with("all-reduces of up to 64 tokens: rs-ag (measured: direct 128"), "{said}");
        assert!(said.ends_with("another one must be 15 % faster than the usual one)"), "{said}");
    }
}
