//! Hidden states between stages, from rank i to rank i: sent while the next step is computed, matched by the frame's
//! step number.
use std::time::Instant;

use collectives::payload_bytes;
use common::ids::Rank;
use protocol::frame::FrameKind;

use super::{CollectiveError, FrameTag, Group};

impl Group {
    /// Sends `hidden` `[token, embedding_length]` followed by the bytes `behind` to a rank of the next stage. Returns
    /// once the previous message is sent; what the socket does not accept at once is sent while this rank continues.
    ///
    /// # Errors
    /// The peer is lost.
    pub fn hand_over(&mut self, to: Rank, hidden: &[f32], behind: &[u8]) -> Result<(), CollectiveError> {
        let (compute, sent) = self.timing.enter();
        let (step, format) = (self.step, self.state_format());
        let encode = self.settings().kernels.payload.encode;
        let links = self.links().expect("a stage that hands over has links");
        let tag = FrameTag::new(FrameKind::HandOver, step, 0);
        let bytes = links.send(to, tag, compute, |out| {
            let begin = out.len();
            out.resize(begin + payload_bytes(format, 1, hidden.len()), 0);
            encode(format, hidden, &mut out[begin..]);
            out.extend_from_slice(behind);
        })?;
        self.timing.sent(bytes, 1);
        self.timing.close_sending(compute, sent, Instant::now());
        Ok(())
    }

    /// Waits for a hand-over from a rank of the previous stage: fills `hidden` and passes the bytes after it to
    /// `behind`.
    ///
    /// # Errors
    /// The peer is lost, out of step, or sent too few bytes.
    pub fn take_over(
        &mut self,
        from: Rank,
        hidden: &mut [f32],
        behind: impl FnOnce(&[u8]),
    ) -> Result<(), CollectiveError> {
        let (compute, sent) = self.timing.enter();
        let (step, format) = (self.step, self.state_format());
        let load = self.settings().kernels.payload.load;
        let links = self.links().expect("a stage that takes over has links");
        links.wait_for(std::iter::once(from))?;
        let arrived = Instant::now();
        let hop = links.hop(from, step);
        let (_, bytes) = links.front(from, FrameTag::new(FrameKind::HandOver, step, 0))?;
        let length = payload_bytes(format, 1, hidden.len());
        let Some((values, rest)) = bytes.split_at_checked(length) else {
            let (got, expected) = (format!("{} bytes", bytes.len()), format!("at least {length}"));
            return Err(CollectiveError::OutOfStep { rank: from, got, expected });
        };
        load(format, values, hidden);
        behind(rest);
        links.consume(from)?;
        self.timing.close_hop(compute, sent, arrived, hop);
        Ok(())
    }

    /// Waits for one message of `kind` from every other rank of the replica; none of them may send anything else
    /// meanwhile.
    ///
    /// # Errors
    /// A peer is lost or out of step.
    pub fn collect(&mut self, kind: FrameKind, mut take: impl FnMut(&[u8])) -> Result<(), CollectiveError> {
        let step = self.step;
        let Some(links) = self.links() else { return Ok(()) };
        for rank in links.all_others() {
            links.wait_for(std::iter::once(rank))?;
            take(links.front(rank, FrameTag::new(kind, step, 0))?.1);
            links.consume(rank)?;
        }
        Ok(())
    }

    /// Waits for the tokens of an earlier step from the sampler of another stage.
    ///
    /// # Errors
    /// The peer is lost or out of step.
    pub fn take_tokens(&mut self, from: Rank, step: u64, take: impl FnOnce(&[u8])) -> Result<(), CollectiveError> {
        let (compute, sent) = self.timing.enter();
        let links = self.links().expect("a replica of several stages has links");
        links.wait_for(std::iter::once(from))?;
        let arrived = Instant::now();
        let hop = links.hop(from, step);
        let (_, payload) = links.front(from, FrameTag::new(FrameKind::Drawn, step, 0))?;
        take(payload);
        links.consume(from)?;
        self.timing.close_hop(compute, sent, arrived, hop);
        Ok(())
    }
}
