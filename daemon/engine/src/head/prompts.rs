//! Results of a step for the prompts themselves: log probabilities of their tokens, and their embeddings.
use std::time::Instant;

use common::{chat::FinishReason, ids::Slot};

use super::{Head, InFlightStep, since};
use crate::{
    RequestKey,
    port::{RequestEvent, ScoredToken},
    sample::Chosen,
};

impl Head<'_> {
    /// Ends the requests whose prompts have their embeddings.
    pub(super) fn process_embeddings(&mut self, in_flight: &InFlightStep) {
        for (slot, values) in std::mem::take(&mut self.sampler.sampled.embeddings) {
            let Some((_, key, _)) = in_flight.wanted.iter().find(|(of, ..)| *of == slot) else { continue };
            let is_it = self.scheduler.key(slot) == Some(*key);
            let Some(request) = self.requests.get_mut(key).filter(|request| is_it && request.embeds) else { continue };
            let now = since(request.received, Instant::now());
            (request.times.first_token, request.times.last_token, request.times.prefilled) = (now, now, now);
            if values.iter().any(|value| !value.is_finite()) {
                self.fail(*key);
            } else {
                self.report(*key, RequestEvent::Embedded(values));
                self.finish(*key, FinishReason::Stop);
            }
        }
    }

    /// Reports the log probabilities of a prompt's tokens, with which the rows of a slot begin. Returns their number.
    pub(super) fn score(&mut self, slot: Slot, key: RequestKey, run: &[(Slot, Chosen)]) -> usize {
        if self.scheduler.key(slot) != Some(key) {
            return 0;
        }
        let Some(request) = self.requests.get_mut(&key).filter(|request| request.scores_prompt) else { return 0 };
        let count = run.len().min(request.unscored);
        request.unscored -= count;
        self.scheduler.scored(slot, run.len());
        let scored = &run[..count];
        if scored.iter().any(|(_, chosen)| chosen.id == Chosen::BROKEN) {
            self.fail(key);
        } else if count > 0 {
            let tokens = scored.iter().map(|(_, Chosen { id, top_logprobs, .. })| ScoredToken {
                id: *id,
                top_logprobs: top_logprobs.to_vec(),
            });
            self.report(key, RequestEvent::Scored(tokens.collect()));
        }
        count
    }
}
