//! How far an answer is, and whether another head may continue it after a fault. Pure: the time is an argument.
use std::time::{Duration, Instant};

use common::{
    fault::{Fault, FaultKind},
    planted::{Planted, is_planted},
};
use protocol::losses::Losses;

/// Most tokens of the first part of an answer. A head reserves KV blocks for all tokens that it is asked for, so a long
/// answer is asked for in parts, each at most as long as all before it: otherwise one answer without a limit would
/// reserve the whole context, and the others would wait for its end.
const PART_TOKENS: u32 = 1024;

/// What follows a fault of an answer's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterFault {
    /// The head serves another model than the gateway assumed: the request, which has not begun, takes that one.
    OtherModel,
    /// Another head continues it; whether the failing one is to blame.
    Elsewhere {
        /// Whether the replica was lost.
        is_lost: bool,
    },
}

/// The end of an answer that no head may continue.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerFault {
    /// The fault for the client.
    pub fault: Fault,
    /// Whether the request itself may have ended several heads.
    pub is_its_doing: bool,
}

/// An answer from its first token to its last one, on any number of heads.
#[derive(Debug, Default)]
pub struct Continuation {
    /// Its tokens so far.
    pub tokens: Vec<u32>,
    /// The prompt's tokens, once a head has reported them.
    pub prompt: Option<Vec<u32>>,
    /// Time since which it has no replica, if it had one.
    lost: Option<Instant>,
    losses: Losses,
    /// Number of times it was resumed.
    pub resumed: u32,
}

impl Continuation {
    /// Records that a head has it, which reports the tokens of its prompt; returns whether it is the first one.
    pub fn started(&mut self, prompt: Vec<u32>) -> bool {
        let is_first = self.prompt.is_none();
        self.prompt.get_or_insert(prompt);
        self.lost = None;
        is_first
    }

    /// Records the next token.
    pub fn token(&mut self, id: u32) {
        self.lost = None;
        self.losses.token();
        self.tokens.push(id);
    }

    /// Whether a head refuses only because it serves another model than this gateway assumed, and the answer has not
    /// begun.
    pub fn may_change_model(&self, fault: &Fault) -> bool {
        self.prompt.is_none() && matches!(fault.kind, FaultKind::ModelReplaced { .. })
    }

    /// Records a fault of its head.
    ///
    /// # Errors
    /// No other head may continue it.
    pub fn fail(&mut self, fault: &Fault, now: Instant) -> Result<AfterFault, Box<AnswerFault>> {
        if self.may_change_model(fault) {
            return Ok(AfterFault::OtherModel);
        }
        match self.losses.fail(fault) {
            Ok(is_lost) => {
                self.lost.get_or_insert(now);
                self.resumed += 1;
                Ok(AfterFault::Elsewhere { is_lost })
            }
            Err(end) => Err(Box::new(AnswerFault { is_its_doing: end.kind != fault.kind, fault: end })),
        }
    }

    /// Since when an answer that has begun waits for another replica; `None`: it has not begun, or has one.
    pub fn waits_since(&self) -> Option<Instant> {
        self.lost.filter(|_| self.prompt.is_some())
    }

    /// When it must have a slot. `turn` is when its wait for the first one began.
    pub fn deadline(&self, turn: Instant, queue_wait: Duration, resume_wait: Duration) -> Instant {
        self.waits_since().map_or(turn + queue_wait, |lost| lost + resume_wait)
    }

    /// Prompt and tokens with which a head continues it; `None`: it has no tokens yet.
    pub fn begun(&self) -> Option<(&[u32], &[u32])> {
        let count = self.tokens.len();
        let is_short = self.resumed > 0 && is_planted(Planted::ResumeLosesToken);
        let known = &self.tokens[..count.saturating_sub(usize::from(is_short))];
        self.prompt.as_deref().filter(|_| count > 0).map(|prompt| (prompt, known))
    }

    /// Number of tokens at which its next part ends.
    pub fn part_end(&self) -> u32 {
        PART_TOKENS.max(2 * self.tokens.len() as u32)
    }
}

/// Whether this head would compute another answer, or no head can run the request.
pub fn may_not_begin(kind: &FaultKind) -> bool {
    matches!(
        kind,
        FaultKind::NumericVersion { .. }
            | FaultKind::ModelReplaced { .. }
            | FaultKind::ParameterInvalid { .. }
            | FaultKind::PeerOlder { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_that_has_begun_waits_for_a_replica_from_its_loss_on() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut answer = Continuation::default();
        let drains = Fault::new("a", FaultKind::Draining);
        assert_eq!(answer.fail(&drains, now), Ok(AfterFault::Elsewhere { is_lost: false }));
        assert_eq!(answer.deadline(now, second, 9 * second), now + second, "it has not begun");
        answer.prompt = Some(vec![1]);
        assert_eq!(answer.deadline(now, second, 9 * second), now + 9 * second);
        answer.token(5);
        assert_eq!((answer.waits_since(), answer.begun()), (None, Some((&[1][..], &[5][..]))));
        let other = Fault::new("a", FaultKind::NotServing { state: "idle".into() });
        assert_eq!(answer.fail(&other, now + second), Ok(AfterFault::Elsewhere { is_lost: true }));
        assert_eq!(answer.waits_since(), Some(now + second));
        assert_eq!(answer.part_end(), PART_TOKENS);
        // Another head computes the prompt for long, and is lost.
        assert!(!answer.started(vec![1]));
        assert_eq!(answer.waits_since(), None);
        answer.fail(&other, now + 99 * second).expect("it is resumed again");
        assert_eq!(answer.waits_since(), Some(now + 99 * second));
    }
}
