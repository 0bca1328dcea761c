//! Hidden states between stages, rank i to rank i: sent while the next step is computed, taken over by the frame's step.
use std::time::Instant;

use shared::{ids::Rank, protocol::frame::FrameKind, schedule::payload_bytes};

use super::{CollectiveError, Group};

impl Group {
    /// Sends `hidden` `[token, embedding_length]` and some bytes behind it to a rank of the next stage. Returns once the message
    /// before has left; what the system does not take at once leaves while this rank goes on.
    ///
    /// # Errors
    /// The peer is lost.
    pub fn hand_over(&mut self, to: Rank, hidden: &[f32], behind: &[u8]) -> Result<(), CollectiveError> {
        let (compute, sent) = self.accounting.enter();
        let (step, format) = (self.step, self.settings().exchange.hand_over());
        let encode = self.settings().kernels.payload.encode;
        let links = self.links().expect("a stage that hands over has links");
        let bytes = links.send(to, (FrameKind::HandOver, step, 0, compute.0), |out| {
            let begin = out.len();
            out.resize(begin + payload_bytes(format, 1, hidden.len()), 0);
            encode(format, hidden, &mut out[begin..]);
            out.extend_from_slice(behind);
        })?;
        self.accounting.sent(bytes, 1);
        self.accounting.close_sending(compute, sent, Instant::now());
        Ok(())
    }

    /// Waits for what a rank of the stage before hands over: fills `hidden` and gives the bytes behind it to `behind`.
    ///
    /// # Errors
    /// The peer is lost, out of step, or sent too few bytes.
    pub fn take_over(
        &mut self,
        from: Rank,
        hidden: &mut [f32],
        behind: impl FnOnce(&[u8]),
    ) -> Result<(), CollectiveError> {
        let (compute, sent) = self.accounting.enter();
        let (step, format) = (self.step, self.settings().exchange.hand_over());
        let load = self.settings().kernels.payload.load;
        let links = self.links().expect("a stage that takes over has links");
        links.wait_for(std::iter::once(from))?;
        let arrived = Instant::now();
        let hop = links.hop(from, step);
        let (_, bytes) = links.front(from, (FrameKind::HandOver, step, 0))?;
        let length = payload_bytes(format, 1, hidden.len());
        let Some((values, rest)) = bytes.split_at_checked(length) else {
            let (got, expected) = (format!("{} bytes", bytes.len()), format!("at least {length}"));
            return Err(CollectiveError::OutOfStep { rank: from, got, expected });
        };
        load(format, values, hidden);
        behind(rest);
        links.consume(from)?;
        self.accounting.close_hop(compute, (sent, arrived), hop);
        Ok(())
    }

    /// Waits for one message of `kind` from every other rank of the replica, none of which sends anything else meanwhile.
    ///
    /// # Errors
    /// A peer is lost or out of step.
    pub fn collect(&mut self, kind: FrameKind, mut take: impl FnMut(&[u8])) -> Result<(), CollectiveError> {
        let step = self.step;
        let Some(links) = self.links() else { return Ok(()) };
        for rank in links.all_others() {
            links.wait_for(std::iter::once(rank))?;
            take(links.front(rank, (kind, step, 0))?.1);
            links.consume(rank)?;
        }
        Ok(())
    }

    /// Waits for the tokens of an earlier step, which the sampler of another stage sends.
    ///
    /// # Errors
    /// The peer is lost or out of step.
    pub fn take_tokens(&mut self, from: Rank, step: u64, take: impl FnOnce(&[u8])) -> Result<(), CollectiveError> {
        let (compute, sent) = self.accounting.enter();
        let links = self.links().expect("a replica of several stages has links");
        links.wait_for(std::iter::once(from))?;
        let arrived = Instant::now();
        let hop = links.hop(from, step);
        let (_, payload) = links.front(from, (FrameKind::Drawn, step, 0))?;
        take(payload);
        links.consume(from)?;
        self.accounting.close_hop(compute, (sent, arrived), hop);
        Ok(())
    }
}
