//! Executes a schedule on links: the all-reduce that the model sees.
use std::time::Instant;

use shared::{
    ids::{LayerIndex, Rank},
    protocol::frame::FrameKind,
    schedule::payload_bytes,
    telemetry::SyncKind,
    topology::Exchange,
    units::Nanoseconds,
};

use super::{Accounting, Collective, CollectiveError, Links, accounting::Span, payload};

/// A rank in its tensor-parallel group: links (none for a replica of one rank), accounting, and the place in the step.
#[derive(Debug)]
pub struct Group {
    links: Option<Links>,
    exchange: Exchange,
    /// Sums and clock of this rank.
    pub accounting: Accounting,
    pub(super) step: u64,
    sequence: u32,
    sum: Vec<f32>,
    own_part: Vec<u8>,
}

impl Group {
    /// The group of a rank's stage; no links for a replica of one rank.
    pub fn new(links: Option<Links>, exchange: Exchange, accounting: Accounting) -> Self {
        Self { links, exchange, accounting, step: 0, sequence: 0, sum: Vec::new(), own_part: Vec::new() }
    }

    /// The links to the other ranks; `None` for a lone rank.
    pub fn links(&mut self) -> Option<&mut Links> {
        self.links.as_mut()
    }

    /// A step begins: frames carry its number, and their own numbers start anew.
    pub fn begin_step(&mut self, step: u64) {
        (self.step, self.sequence) = (step, 0);
    }

    /// The number of the step's next message outside of its all-reduces; all ranks count alike.
    pub fn next_sequence(&mut self) -> u32 {
        self.sequence += 1;
        self.sequence
    }

    /// Sends a message outside of an all-reduce (plan, candidates, query, answer).
    ///
    /// # Errors
    /// The peer is lost.
    pub fn send(&mut self, to: Rank, kind: FrameKind, sequence: u32, payload: &[u8]) -> Result<(), CollectiveError> {
        let compute = self.accounting.compute_so_far();
        let (step, links) = (self.step, self.links.as_mut());
        let links = links.expect("a message to another rank needs a world of two");
        let bytes = links.send(to, (kind, step, sequence, compute.0), |out| out.extend_from_slice(payload))?;
        self.accounting.sent(bytes, 1);
        Ok(())
    }

    /// Sends a message to all other ranks of the stage.
    ///
    /// # Errors
    /// A peer is lost.
    pub fn tell(&mut self, kind: FrameKind, sequence: u32, payload: &[u8]) -> Result<(), CollectiveError> {
        let Some(others) = self.links.as_ref().map(Links::others) else { return Ok(()) };
        for rank in others {
            self.send(rank, kind, sequence, payload)?;
        }
        Ok(())
    }

    /// Waits for one message of `kind` from every other rank of the stage and gives each to `take`, in rank order.
    ///
    /// # Errors
    /// A peer is lost or out of step.
    pub fn gather(
        &mut self,
        kind: FrameKind,
        sequence: u32,
        mut take: impl FnMut(Rank, &[u8]),
    ) -> Result<(), CollectiveError> {
        let Some(links) = self.links.as_mut() else { return Ok(()) };
        let compute = self.accounting.compute_so_far();
        let sent = Instant::now();
        links.wait_for(links.others())?;
        let (arrived, last) = (Instant::now(), links.last_arrival());
        let own = links.own();
        let mut slowest = (Nanoseconds(0), own);
        for rank in links.stage().filter(|rank| *rank != own) {
            let (header, payload) = links.front(rank, (kind, self.step, sequence))?;
            slowest = slowest.max((Nanoseconds(header.compute_ns), rank));
            take(rank, payload);
        }
        for rank in links.others() {
            links.consume(rank)?;
        }
        self.accounting.close(Span { compute, slowest, last, sent, arrived });
        Ok(())
    }

    fn start_sends(&mut self, partial: &[f32], compute: Nanoseconds) -> Result<(), CollectiveError> {
        let (step, sequence, exchange) = (self.step, self.sequence, self.exchange);
        let Some(links) = self.links.as_mut() else { return Ok(()) };
        for to in links.others() {
            let header = (FrameKind::Partial, step, sequence, compute.0);
            let bytes = links.send(to, header, |out| payload::encode(exchange, partial, out))?;
            self.accounting.sent(bytes, 1);
        }
        Ok(())
    }

    /// Sums all parts in rank order into `self.sum`; returns the longest computing reported.
    fn reduce(&mut self, partial: &[f32]) -> Result<(Nanoseconds, Rank), CollectiveError> {
        let (step, sequence, exchange) = (self.step, self.sequence, self.exchange);
        let links = self.links.as_mut().expect("only a world of two or more reduces");
        let own = links.own();
        let mut slowest = (Nanoseconds(0), own);
        self.sum.clear();
        self.sum.resize(partial.len(), 0.0);
        for rank in links.stage() {
            if rank == own {
                // Rounded as the others see it, so that every rank sums the same numbers.
                self.own_part.clear();
                payload::encode(exchange, partial, &mut self.own_part);
                payload::add(exchange, &self.own_part, &mut self.sum);
                continue;
            }
            let (header, bytes) = links.front(rank, (FrameKind::Partial, step, sequence))?;
            let expected = payload_bytes(exchange, 1, partial.len());
            if bytes.len() != expected {
                let (got, expected) = (format!("{} bytes", bytes.len()), format!("{expected} bytes"));
                return Err(CollectiveError::OutOfStep { rank, got, expected });
            }
            slowest = slowest.max((Nanoseconds(header.compute_ns), rank));
            payload::add(exchange, bytes, &mut self.sum);
        }
        for rank in links.others() {
            links.consume(rank)?;
        }
        payload::round(exchange, &mut self.sum, &mut self.own_part);
        Ok(slowest)
    }
}

impl Collective for Group {
    fn all_reduce(
        &mut self,
        layer: LayerIndex,
        kind: SyncKind,
        partial: &[f32],
        hidden: &mut [f32],
    ) -> Result<(), CollectiveError> {
        assert_eq!(partial.len(), hidden.len(), "both are [token, embedding_length]");
        let compute = self.accounting.compute_so_far();
        let sent = Instant::now();
        self.start_sends(partial, compute)?;
        let Some(links) = self.links.as_mut().filter(|links| links.stage().len() > 1) else {
            hidden.iter_mut().zip(partial).for_each(|(hidden, partial)| *hidden += partial);
            // What another stage sends or gets moves on while this one computes.
            return self.links.as_mut().map_or(Ok(()), Links::pump);
        };
        links.wait_for(links.others())?;
        let (arrived, last) = (Instant::now(), links.last_arrival());
        let slowest = self.reduce(partial)?;
        self.accounting.close_layer(layer, kind, Span { compute, slowest, last, sent, arrived });
        hidden.iter_mut().zip(&self.sum).for_each(|(hidden, sum)| *hidden += sum);
        self.sequence += 1;
        self.links.as_mut().map_or(Ok(()), Links::pump)
    }
}
