//! Admission of a request on the head: a request that exceeds the limits is refused, one whose answer was already
//! complete before a failure finishes at once, and all others join the scheduler's queue.
use common::{
    chat::{FinishReason, Grammar},
    fault::{Fault, FaultKind},
    latency::RequestTimes,
    units::Nanoseconds,
};
use protocol::message::{Finished, Generate};
use telemetry::RankTotals;

use super::{
    RequestKey,
    head::{Head, Request},
    output::Output,
    plan::{Constraint, Limits},
    port::Prepared,
    schedule::Admitted,
};
use crate::{collective::clocks, port::Progress};

/// The reason to refuse a request that exceeds the limits; `None` if it fits.
fn refusal(limits: &Limits, prompt: &[u32], resumed: &[u32]) -> Option<FaultKind> {
    let (context, most) = (limits.context_length, limits.vocabulary_length);
    if prompt.is_empty() {
        return Some(FaultKind::PromptEmpty);
    }
    // A complete answer whose end was lost is one token longer than the context: its last token was never fed.
    let is_full = !resumed.is_empty() && prompt.len() + resumed.len() == context + 1;
    let tokens = if is_full { context } else { prompt.len() + resumed.len() };
    if tokens > context {
        return Some(FaultKind::PromptTooLong { tokens: tokens as u32, context: context as u32 });
    }
    let is_known = |id: &u32| (*id as usize) < most;
    if !prompt.iter().chain(resumed).all(is_known) {
        return Some(FaultKind::ParameterInvalid { reason: format!("a token id is beyond the vocabulary of {most}") });
    }
    None
}

impl Head<'_> {
    /// Admits a request.
    pub(super) fn begin(&mut self, key: RequestKey, prepared: Prepared) {
        let Prepared { received, generate, prompt, tool_format } = prepared;
        if let Some(kind) = refusal(&self.limits, &prompt, &generate.resumed) {
            return (self.sink)(Progress::Refused(key, Fault::new(&self.node, kind)));
        }
        let (context, prompt_length) = (self.limits.context_length, prompt.len());
        let max_tokens = (generate.max_tokens as usize).min(context);
        let by_clock = clocks::now().0.saturating_sub(received.elapsed().as_nanos() as u64).max(1);
        let times = RequestTimes {
            prompt_tokens: prompt_length as u32,
            received: Nanoseconds(by_clock),
            ..RequestTimes::default()
        };
        let (output, over) = self.replay(&generate, prompt_length, max_tokens);
        let request = Request {
            output,
            prompt_length,
            resumed: generate.resumed.len(),
            max_tokens,
            ignores_end: generate.ignores_end,
            received,
            times,
            ranks: vec![RankTotals::default(); self.world()],
            sampling_rounds: 0,
        };
        self.requests.insert(key, request);
        (self.sink)(Progress::Started(key, prompt.clone(), tool_format));
        if let Some(reason) = over {
            return self.finish(key, reason);
        }
        let mut tokens = prompt;
        tokens.extend_from_slice(&generate.resumed);
        let max_tokens = max_tokens - generate.resumed.len();
        let constraint = |grammar: &Grammar| Constraint { grammar: grammar.clone(), begin: prompt_length as u32 };
        let (sampling, grammar) = (generate.sampling.clone(), generate.grammar.as_ref().map(constraint));
        let drafts_max = if self.drafts && grammar.is_none() { generate.drafts_max.into() } else { 0 };
        let goes_elsewhere = self.elsewhere.as_ref().is_some_and(|elsewhere| elsewhere.takes(tokens.len()));
        let admitted = Admitted { key, prompt: tokens, max_tokens, sampling, drafts_max, grammar };
        if goes_elsewhere { self.scheduler.submit_elsewhere(admitted) } else { self.scheduler.submit(admitted) }
    }

    /// Rebuilds the output of a resumed request from the tokens that came with it, and the finish reason if they are
    /// the complete answer (then only its end was lost, and the client has all of the text). Otherwise the client has
    /// the text that these tokens do not hold back; the same text is held back here.
    fn replay(&self, generate: &Generate, prompt: usize, max_tokens: usize) -> (Output, Option<FinishReason>) {
        let mut output = Output::new(&self.tokenizer, generate.stop.clone());
        let ends = |id: u32| !generate.ignores_end && self.tokenizer.is_end(id);
        let is_stopped = generate.resumed.iter().any(|id| ends(*id) || output.push(&self.tokenizer, *id).1);
        let resumed = generate.resumed.len();
        let over = match () {
            () if is_stopped => Some(FinishReason::Stop),
            () if resumed == 0 => None,
            () if resumed >= max_tokens => Some(FinishReason::Length),
            () if prompt + resumed >= self.limits.context_length => Some(FinishReason::Context),
            () => None,
        };
        if over.is_some() {
            _ = output.finish();
        }
        (output, over)
    }

    /// Handles a request that was cancelled before it reached the engine.
    pub(super) fn withdrawn(&mut self, key: RequestKey) {
        let ranks = vec![RankTotals::default(); self.world()];
        let (reason, times) = (FinishReason::Cancelled, RequestTimes::default());
        (self.sink)(Progress::Finished(key, Box::new(Finished { reason, times, ranks, sampling_rounds: 0 })));
    }

    /// Fails a request whose logits are not finite; the others continue.
    pub(super) fn fail(&mut self, key: RequestKey) {
        self.forget_transfer(key);
        self.scheduler.end(key);
        if self.requests.remove(&key).is_some() {
            let reason = "the logits of its next token are not finite: \
                the weights are damaged, or this prompt makes the computation overflow";
            let kind = FaultKind::Internal { reason: reason.into() };
            (self.sink)(Progress::Refused(key, Fault::new(&self.node, kind)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { slots: 1, blocks: 1, context_length: 32, vocabulary_length: 10 };

    #[test]
    fn only_complete_answer_may_exceed_context_by_one_token() {
        let is_refused = |prompt: usize, resumed: usize| {
            matches!(refusal(&LIMITS, &vec![1; prompt], &vec![1; resumed]), Some(FaultKind::PromptTooLong { .. }))
        };
        assert!(!is_refused(32, 0) && is_refused(33, 0));
        assert!(!is_refused(30, 2) && !is_refused(30, 3) && is_refused(30, 4));
        assert!(!is_refused(32, 1) && is_refused(32, 2));
    }

    #[test]
    fn empty_prompts_and_unknown_tokens_are_refused() {
        assert_eq!(refusal(&LIMITS, &[], &[1]), Some(FaultKind::PromptEmpty));
        assert!(matches!(refusal(&LIMITS, &[1], &[10]), Some(FaultKind::ParameterInvalid { .. })));
        assert!(matches!(refusal(&LIMITS, &[10], &[]), Some(FaultKind::ParameterInvalid { .. })));
    }
}
