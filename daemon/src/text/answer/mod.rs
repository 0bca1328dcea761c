//! Turns the tokens of an engine into the text of answers: detokenizing, stop strings, and the text that a resumed
//! answer held back. A stop string is found here, outside the engine: the caller cancels the request, and tokens that
//! the engine computed meanwhile are dropped.
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use common::{
    changes::TemplateChanges,
    chat::{AnswerForm, FinishReason},
    fault::Fault,
    latency::RequestTimes,
    tool_use::{AnswerGrammar, CallGrammar},
};
use engine::{
    RequestKey,
    port::{Prepared, RequestEvent, SampledToken, ScoredToken},
};
use protocol::message::{Finished, Generate, TokenEvent, TokenLogprob};
use smallvec::{SmallVec, smallvec};
use telemetry::{LinkBench, RankTotals};
use tokenizer::Tokenizer;

use super::{ModelText, PromptTokens, output::Output};

/// Added to the logits of tokens that the model must not generate: more than any bias of a client can outweigh.
const SUPPRESSION: f32 = -1e9;

/// Events of a request as the node's state machine receives them.
#[derive(Clone, Debug, PartialEq)]
pub enum AnswerEvent {
    /// The engine accepted it.
    Started {
        /// The tokens of its prompt.
        prompt: Vec<u32>,
        /// How to read its answer.
        form: AnswerForm,
        /// How its conversation was changed for the chat template.
        changes: TemplateChanges,
    },
    /// It has a slot and KV memory for its tokens, and starts to compute.
    Dispatched,
    /// The next tokens of its prompt with their log probabilities.
    Scored(Vec<TokenEvent>),
    /// The embedding of its prompt.
    Embedded(Vec<f32>),
    /// A token with its text, or the rest of the text.
    Token(TokenEvent),
    /// It ended.
    Finished(Box<Finished>),
    /// It was a benchmark: all-reduces were timed.
    LinksBenched(LinkBench),
    /// It cannot be run.
    Refused(Fault),
}

/// The outcome of an engine event.
#[derive(Clone, Debug, PartialEq)]
pub struct Translated {
    /// The events for the node, in order.
    pub events: SmallVec<[AnswerEvent; 2]>,
    /// Whether a stop string ended the answer: the engine must cancel the request.
    pub is_stopped: bool,
}

/// The text of all answers of an engine. A request is added by the threads that prepare it, before the engine has it.
#[derive(Debug)]
pub struct Answers {
    model: Arc<ModelText>,
    open: Mutex<BTreeMap<RequestKey, TextAnswer>>,
}

/// Statistics of a request up to a token.
#[derive(Clone, Copy, Debug)]
struct Statistics {
    times: RequestTimes,
    sampling_rounds: u32,
}

/// The text of one answer.
#[derive(Debug)]
struct TextAnswer {
    output: Output,
    /// The tokens of its prompt, and how to read the answer, until the engine accepts the request.
    prompt: Option<(PromptTokens, AnswerForm)>,
    /// Whether the log probabilities of its prompt are wanted.
    scores_prompt: bool,
    /// The statistics up to the token that completed a stop string.
    stopped: Option<Statistics>,
}

impl Answers {
    /// Creates an empty set.
    pub fn new(model: &Arc<ModelText>) -> Self {
        Self { model: Arc::clone(model), open: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<RequestKey, TextAnswer>> {
        // No holder of the lock panics.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request, and returns what the engine receives of it. A resumed answer is replayed: its client has the
    /// text that the resumed tokens do not hold back; the same text is held back here.
    pub fn begin(
        &self,
        key: RequestKey,
        received: Instant,
        generate: &Generate,
        prompt: impl Into<PromptTokens>,
    ) -> Prepared {
        self.begin_with(key, received, generate, prompt, None)
    }

    /// The same for a request whose calls this grammar constrains, instead of its own.
    pub fn begin_with(
        &self,
        key: RequestKey,
        received: Instant,
        generate: &Generate,
        prompt: impl Into<PromptTokens>,
        calls: Option<CallGrammar>,
    ) -> Prepared {
        let prompt = prompt.into();
        let tokenizer = &self.model.tokenizer;
        let marks = if generate.shows_marks { self.model.marks.clone() } else { Vec::new() };
        let mut output = Output::new(tokenizer, generate.stop.clone()).showing(marks);
        let is_stopped = generate.resumed.iter().any(|id| {
            let is_end = !generate.ignores_end && tokenizer.is_end(*id);
            is_end || output.push(tokenizer, *id).1
        });
        let mut form = self.model.form(generate, &prompt.ids);
        form.has_own_calls = calls.is_some();
        let scores_prompt = generate.sampling.scores_prompt && generate.resumed.is_empty();
        let ids = prompt.ids.clone();
        let answer = TextAnswer { output, prompt: Some((prompt, form)), scores_prompt, stopped: None };
        self.lock().insert(key, answer);
        let mut prepared = Prepared::new(received, generate, ids, is_stopped);
        if let Some(calls) = calls {
            prepared.grammar = Some(AnswerGrammar::Calls(Box::new(calls)));
        }
        self.model.sampling.fill(&mut prepared.sampling, &generate.open);
        prepared.sampling.settle();
        prepared.sampling.logit_bias.extend(tokenizer.suppressed().iter().map(|&id| (id, SUPPRESSION)));
        prepared
    }

    /// Removes a request that the engine does not receive.
    pub fn forget(&self, key: RequestKey) {
        self.lock().remove(&key);
    }

    /// Translates an event of the engine. Takes microseconds, and allocates nothing for a short text.
    pub fn translate(&self, key: RequestKey, event: RequestEvent) -> Translated {
        let mut open = self.lock();
        let mut is_stopped = false;
        let events = match event {
            RequestEvent::Started => {
                let answer = open.get_mut(&key);
                let scores_prompt = answer.as_ref().is_some_and(|answer| answer.scores_prompt);
                let (prompt, form) = answer.and_then(|answer| answer.prompt.take()).unwrap_or_default();
                let PromptTokens { ids: prompt, changes } = prompt;
                let first = prompt.first().copied().filter(|_| scores_prompt);
                let mut events = smallvec![AnswerEvent::Started { prompt, form, changes }];
                // Nothing is before the first token that could make it probable.
                events.extend(first.map(|id| {
                    let first = ScoredToken { id, top_logprobs: Vec::new() };
                    AnswerEvent::Scored(vec![scored(&self.model.tokenizer, first)])
                }));
                events
            }
            RequestEvent::Scored(tokens) => {
                let tokens = tokens.into_iter().map(|token| scored(&self.model.tokenizer, token));
                smallvec![AnswerEvent::Scored(tokens.collect())]
            }
            RequestEvent::Embedded(values) => smallvec![AnswerEvent::Embedded(values)],
            RequestEvent::Dispatched => smallvec![AnswerEvent::Dispatched],
            RequestEvent::Token(token) => match open.get_mut(&key).filter(|answer| answer.stopped.is_none()) {
                Some(answer) => {
                    let is_last = token.is_last;
                    let event = answer.token(&self.model.tokenizer, token);
                    is_stopped = answer.stopped.is_some() && !is_last;
                    smallvec![AnswerEvent::Token(event)]
                }
                // The engine computed it before it was cancelled.
                None => SmallVec::new(),
            },
            RequestEvent::Finished(finished) => match open.remove(&key) {
                Some(answer) => answer.finish(*finished),
                None => smallvec![AnswerEvent::Finished(finished)],
            },
            RequestEvent::LinksBenched(found) => smallvec![AnswerEvent::LinksBenched(found)],
            RequestEvent::Refused(fault) => match open.remove(&key).and_then(|answer| answer.stopped) {
                // The engine failed at a token after the end of the answer.
                Some(stopped) => smallvec![AnswerEvent::Finished(Box::new(stopped.finish(Vec::new())))],
                None => smallvec![AnswerEvent::Refused(fault)],
            },
        };
        Translated { events, is_stopped }
    }
}

/// A token with its text and log probability.
fn named(tokenizer: &Tokenizer, id: u32, logprob: f32) -> TokenLogprob {
    let (text, bytes) = match String::from_utf8(tokenizer.piece(id, true)) {
        Ok(text) => (text, Vec::new()),
        Err(error) => (String::from_utf8_lossy(error.as_bytes()).into_owned(), error.into_bytes()),
    };
    TokenLogprob { id, text, logprob, bytes }
}

/// A token of a prompt with its log probability and those of others.
fn scored(tokenizer: &Tokenizer, token: ScoredToken) -> TokenEvent {
    let ScoredToken { id, top_logprobs } = token;
    let text = String::from_utf8_lossy(&tokenizer.piece(id, true)).into();
    let logprobs = top_logprobs.into_iter().map(|(id, logprob)| named(tokenizer, id, logprob));
    TokenEvent { id: Some(id), text, logprobs: logprobs.collect() }
}

impl TextAnswer {
    /// The event of a token; notes the end of the answer if the token completes a stop string.
    fn token(&mut self, tokenizer: &Tokenizer, token: SampledToken) -> TokenEvent {
        let (mut text, is_stopped) = self.output.push(tokenizer, token.id);
        if is_stopped {
            self.stopped = Some(Statistics { times: token.times, sampling_rounds: token.sampling_rounds });
        }
        if is_stopped || token.is_last {
            // All text is out with the last token: if the head is lost now, only the end is lost with it.
            text.push_str(&self.output.finish());
        }
        let logprobs = token.top_logprobs.iter().map(|&(id, logprob)| named(tokenizer, id, logprob));
        TokenEvent { id: Some(token.id), text, logprobs: logprobs.collect() }
    }

    /// The last events: text that was held back, then the statistics.
    fn finish(mut self, end: Finished) -> SmallVec<[AnswerEvent; 2]> {
        if let Some(stopped) = self.stopped {
            return smallvec![AnswerEvent::Finished(Box::new(stopped.finish(end.ranks)))];
        }
        let mut events = SmallVec::new();
        // A request that never started has no text. If no token was needed, the resumed ones are the complete answer,
        // and the client has all of its text.
        let was_complete = end.times.sampled_tokens == 0 && end.reason != FinishReason::Cancelled;
        let text = self.output.finish();
        if self.prompt.is_none() && !was_complete && !text.is_empty() {
            events.push(AnswerEvent::Token(TokenEvent { id: None, text: text.into(), logprobs: Vec::new() }));
        }
        events.push(AnswerEvent::Finished(Box::new(end)));
        events
    }
}

impl Statistics {
    /// The end of an answer at a stop string. The times of the ranks include the steps that ran until the engine was
    /// cancelled.
    fn finish(self, ranks: Vec<RankTotals>) -> Finished {
        Finished { reason: FinishReason::Stop, times: self.times, ranks, sampling_rounds: self.sampling_rounds }
    }
}

#[cfg(test)]
mod tests;
