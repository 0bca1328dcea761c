//! Admission of a request on the head: a request that exceeds the limits is refused, one whose answer was already
//! complete before a failure finishes at once, and all others join the scheduler's queue.
use common::{
    chat::FinishReason,
    fault::{Fault, FaultKind},
    latency::RequestTimes,
    planted::{Planted, is_planted},
    sampling::{SCORES_MAX, SamplingParameters},
    units::Nanoseconds,
};
use protocol::message::Finished;
use telemetry::RankTotals;

use super::{Head, Request};
use crate::{
    RequestKey,
    collective::clocks,
    plan::{Constraint, Limits},
    port::{Prepared, RequestEvent},
    scheduler::{Admitted, KvSource},
};

/// The reason to refuse a request that exceeds the limits; `None` if it fits.
pub fn refusal(limits: &Limits, prompt: &[u32], resumed: &[u32]) -> Option<FaultKind> {
    let (context, most) = (limits.context_length, limits.vocabulary_length);
    if prompt.is_empty() {
        return Some(FaultKind::PromptEmpty);
    }
    // A complete answer whose end was lost is one token longer than the context: its last token was never fed.
    let is_full = !resumed.is_empty() && prompt.len() + resumed.len() == context + 1;
    let is_full = is_full && !is_planted(Planted::FullAnswerRefused);
    let tokens = if is_full { context } else { prompt.len() + resumed.len() };
    if tokens > context {
        return Some(FaultKind::PromptTooLong { tokens: tokens as u32, context: context as u32 });
    }
    if prompt.iter().chain(resumed).any(|id| *id as usize >= most) {
        return Some(FaultKind::ParameterInvalid { reason: format!("a token id is beyond the vocabulary of {most}") });
    }
    None
}

/// The reason to refuse a request for the log probabilities of a prompt that would be too many to keep.
fn too_many_scores(sampling: &SamplingParameters, prompt: usize) -> Option<FaultKind> {
    let scores = prompt * (sampling.logprobs as usize + 1);
    if !sampling.scores_prompt || scores <= SCORES_MAX {
        return None;
    }
    let reason =
        format!("{scores} log probabilities of the prompt are more than {SCORES_MAX}; ask for fewer at each position");
    Some(FaultKind::ParameterInvalid { reason })
}

impl Head<'_> {
    /// The reason to refuse a request that this model cannot run.
    fn unfit(&self, sampling: &SamplingParameters, prompt: usize) -> Option<FaultKind> {
        if self.worker.model.shard().spec.generates() {
            return None;
        }
        if !sampling.embeds {
            let reason = "this model computes embeddings and cannot continue texts; use /v1/embeddings".into();
            return Some(FaultKind::ParameterInvalid { reason });
        }
        // Its tokens attend to later ones: a text is one step.
        let most = self.worker.place.step_tokens();
        let (tokens, context) = (prompt as u32, most as u32);
        (prompt > most).then_some(FaultKind::PromptTooLong { tokens, context })
    }

    /// Admits a request.
    pub(super) fn begin(&mut self, key: RequestKey, prepared: Prepared) {
        let Prepared { received, prompt, resumed, grammar, mut sampling, .. } = prepared;
        // A continued answer's prompt was scored before.
        sampling.scores_prompt &= resumed.is_empty() && !sampling.embeds;
        let refused = self.unfit(&sampling, prompt.len());
        let refused = refused
            .or_else(|| refusal(&self.limits, &prompt, &resumed))
            .or_else(|| too_many_scores(&sampling, prompt.len()));
        if let Some(kind) = refused {
            return self.report(key, RequestEvent::Refused(Fault::new(&self.node, kind)));
        }
        let (context, prompt_length) = (self.limits.context_length, prompt.len());
        let max_tokens = (prepared.max_tokens as usize).min(context);
        let by_clock = clocks::now().0.saturating_sub(received.elapsed().as_nanos() as u64).max(1);
        let times = RequestTimes {
            prompt_tokens: prompt_length as u32,
            received: Nanoseconds(by_clock),
            ..RequestTimes::default()
        };
        // A resumed answer may be complete: then only its end was lost, and the client has all of it.
        let over = match resumed.len() {
            _ if prepared.is_stopped => Some(FinishReason::Stop),
            0 => None,
            count if count >= max_tokens => Some(FinishReason::Length),
            count if prompt_length + count >= context => Some(FinishReason::Context),
            _ => None,
        };
        let request = Request {
            prompt_length,
            resumed: resumed.len(),
            max_tokens,
            ignores_end: prepared.ignores_end,
            received,
            times,
            ranks: vec![RankTotals::default(); self.world()],
            sampling_rounds: 0,
            embeds: sampling.embeds,
            scores_prompt: sampling.scores_prompt,
            is_loaded: false,
            unscored: if sampling.scores_prompt { prompt_length - 1 } else { 0 },
        };
        self.requests.insert(key, request);
        self.report(key, RequestEvent::Started);
        if let Some(reason) = over {
            return self.finish(key, reason);
        }
        let mut tokens = prompt;
        tokens.extend_from_slice(&resumed);
        let max_tokens = max_tokens - resumed.len();
        let grammar = grammar.map(|grammar| Constraint { grammar, begin: prompt_length as u32 });
        let drafts_max = prepared.drafts_max.into();
        let source = match () {
            () if sampling.needs_whole_prompt() => None,
            () if self.remote_prefill.takes(tokens.len()) => Some(KvSource::Group),
            () => self.stored_beginning(&tokens),
        };
        let admitted = Admitted { key, prompt: tokens, max_tokens, sampling, drafts_max, grammar };
        match source {
            Some(source) => self.scheduler.submit_awaiting(admitted, source),
            None => self.scheduler.submit(admitted),
        }
    }

    /// Handles a request that was cancelled before it reached the engine.
    pub(super) fn withdrawn(&mut self, key: RequestKey) {
        let ranks = vec![RankTotals::default(); self.world()];
        let (reason, times) = (FinishReason::Cancelled, RequestTimes::default());
        self.report(key, RequestEvent::Finished(Box::new(Finished { reason, times, ranks, sampling_rounds: 0 })));
    }

    /// Fails a request whose logits are not finite; the others continue.
    pub(super) fn fail(&mut self, key: RequestKey) {
        self.cancel_transfer(key);
        self.cancel_load(key);
        self.scheduler.end(key);
        if self.requests.remove(&key).is_some() {
            let reason = "the logits of its next token are not finite: \
                the weights are damaged, or this prompt makes the computation overflow";
            let kind = FaultKind::Internal { reason: reason.into() };
            self.report(key, RequestEvent::Refused(Fault::new(&self.node, kind)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::LIMITS;

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
