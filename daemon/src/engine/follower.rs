//! A rank that is not the head: follows plans, answers the sampler's questions, waits in between.
use std::time::Instant;

use shared::{
    ids::Rank,
    protocol::frame::{FrameHeader, FrameKind},
    units::Nanoseconds,
};

use super::{
    plan::Plan,
    sample::Query,
    step::{Candidates, EngineError, Stepper},
};
use crate::collective::accounting::Span;

const HEAD: Rank = Rank(0);

/// Follows the head until the wait is aborted.
///
/// # Errors
/// Anything that ends the topology; an abort too.
pub fn follow(stepper: &mut Stepper) -> Result<(), EngineError> {
    loop {
        let compute = stepper.group.accounting.compute_so_far();
        let sent = Instant::now();
        let links = stepper.group.links().expect("a follower has a head");
        links.wait_for(std::iter::once(HEAD))?;
        let arrived = Instant::now();
        let (header, payload) = links.front_any(HEAD);
        let slowest = (Nanoseconds(header.compute_ns), HEAD);
        let span = Span { compute, slowest, last: (HEAD, Nanoseconds(0)), sent, arrived };
        match header.kind {
            FrameKind::Plan => {
                let plan = Plan::decode(payload)?;
                links.consume(HEAD)?;
                stepper.group.begin_step(header.step);
                let tokens = plan.entries.len() as u32;
                if plan.continues {
                    stepper.group.accounting.close(span);
                } else {
                    stepper.group.accounting.idle();
                }
                stepper.group.accounting.begin_step(plan.is_prefill, tokens);
                step(stepper, &plan)?;
            }
            FrameKind::Query => {
                let query = Query::decode(payload)?;
                links.consume(HEAD)?;
                stepper.group.accounting.close(span);
                answer(stepper, header, &query)?;
            }
            kind => return Err(EngineError::Message(kind)),
        }
    }
}

fn step(stepper: &mut Stepper, plan: &Plan) -> Result<(), EngineError> {
    let summaries = stepper.step(plan)?;
    if summaries.is_empty() {
        return Ok(());
    }
    let totals = stepper.group.accounting.take_totals();
    let payload = Candidates { totals, summaries }.encode();
    let sequence = stepper.group.next_sequence();
    stepper.group.send(HEAD, FrameKind::Candidates, sequence, &payload)?;
    Ok(())
}

fn answer(stepper: &mut Stepper, header: FrameHeader, query: &Query) -> Result<(), EngineError> {
    let broken = EngineError::Message(FrameKind::Query);
    let answer = stepper.slice(query.place()).ok_or(broken)?.answer(query)?;
    let mut payload = Vec::new();
    answer.encode(&mut payload);
    stepper.group.send(HEAD, FrameKind::Answer, header.sequence, &payload)?;
    Ok(())
}
