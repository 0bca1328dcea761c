//! Structured output: computes which tokens may follow in each constrained sequence, on every rank of the last stage.
//! Each rank derives the same mask from the sequence's own tokens and applies it to its vocabulary slice. Vocabulary
//! and grammars are compiled on threads of the daemon, never on the engine's; the head has validated each schema in a
//! separate process before any rank receives it. A panic of the library ends one answer only.
mod calls;
mod compile;
mod schema;
mod vocabulary;

use std::{
    fmt,
    ops::Range,
    sync::{
        Arc, OnceLock,
        mpsc::{Receiver, TryRecvError, sync_channel},
    },
};

use common::{
    ids::Slot,
    limits::SLOTS_MAX,
    tool_use::{AnswerGrammar, CallGrammar},
};
use llguidance::{
    Matcher, ParserFactory,
    toktrie::{SimpleVob, TokTrie},
};

use self::calls::{CallScan, TokenPieces};
use super::plan::Plan;
use crate::plan::Constraint;

pub use compile::{TRIAL_CONTROLS, check, check_calls, check_parameters};
pub use vocabulary::{Job, TokenBytes, TokenText, VocabularySource};

/// The parser factory once the vocabulary is read, or the reason why that failed.
type SharedFactory = Arc<OnceLock<Result<ParserFactory, String>>>;

/// The constrained sequences on a rank of the last stage, and the tokens that may follow in each.
#[derive(Default)]
pub struct TokenMasks {
    source: Option<VocabularySource>,
    factory: SharedFactory,
    /// Whether reading the vocabulary has been attempted.
    is_prepared: bool,
    /// By slot; only as long as needed.
    slots: Vec<Option<Constrained>>,
}

/// The matcher of a sequence.
enum MatcherState {
    /// Being compiled on another thread, which always terminates: the library's work is bounded.
    Compiling(Receiver<Result<Matcher, String>>),
    /// Compiled.
    Ready(Box<Matcher>),
    /// Compilation failed: no token is allowed.
    Failed,
}

/// A constrained sequence.
struct Constrained {
    matcher: MatcherState,
    begin: usize,
    calls: Option<CallState>,
    /// Tokens that the matcher has consumed.
    tokens: Vec<u32>,
    /// Allowed next tokens, one bit each.
    mask: SimpleVob,
}

/// A sequence of which only calls are constrained.
enum CallState {
    /// Until the vocabulary is read.
    Rules(Box<CallGrammar>),
    Scan {
        scan: Box<CallScan>,
        is_required: bool,
    },
}

impl TokenPieces for TokTrie {
    fn bytes(&self, token: u32) -> &[u8] {
        if (token as usize) < self.vocab_size() { self.token(token) } else { &[] }
    }
}

impl fmt::Debug for TokenMasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenMasks").field("is_read", &self.factory.get().is_some()).finish_non_exhaustive()
    }
}

impl TokenMasks {
    /// Creates an empty set; `source` is read when the first constrained sequence arrives.
    pub fn new(source: Option<VocabularySource>) -> Self {
        Self { source, ..Self::default() }
    }

    /// Starts reading the vocabulary on another thread, unless that has been attempted already.
    pub fn prepare(&mut self) {
        let Some(source) = self.source.as_ref().filter(|_| !self.is_prepared) else { return };
        self.is_prepared = true;
        let (read, factory) = (Arc::clone(&source.read), Arc::clone(&self.factory));
        let job = Box::new(move || {
            factory.get_or_init(|| read()?.factory());
        });
        if !(source.spawn)(job) {
            // Set already if a sequence was faster.
            let _ = self.factory.set(Err(NO_THREAD.into()));
        }
    }

    /// Whether a constrained sequence may begin now: the vocabulary is read, or this rank needs none.
    pub fn is_ready(&self) -> bool {
        self.source.is_none() || self.factory.get().is_some()
    }

    /// Whether the next mask of a slot needs no wait for another thread.
    pub fn is_compiled(&mut self, slot: Slot) -> bool {
        let constrained = self.slots.get_mut(slot.index()).and_then(Option::as_mut);
        let is_read = self.factory.get().is_some();
        constrained.is_none_or(|constrained| match &constrained.calls {
            Some(calls) if is_read && !calls.is_required() => true,
            _ => constrained.matcher.poll(),
        })
    }

    /// Applies the closed and opened sequences of a plan, which must have been validated.
    pub fn apply(&mut self, plan: &Plan) {
        for slot in &plan.closed {
            if let Some(place) = self.slots.get_mut(slot.index()) {
                *place = None;
            }
        }
        for opened in &plan.opened {
            let Some(Constraint { grammar, begin }) = &opened.grammar else { continue };
            let matcher = self.begin(grammar);
            if self.slots.is_empty() {
                self.slots.resize_with(usize::from(SLOTS_MAX), || None);
            }
            let begin = *begin as usize;
            let calls = match grammar {
                AnswerGrammar::Calls(rules) => Some(CallState::Rules(rules.clone())),
                AnswerGrammar::Whole(_) => None,
            };
            let constrained = Constrained { matcher, begin, calls, tokens: Vec::new(), mask: SimpleVob::new() };
            if let Some(place) = self.slots.get_mut(opened.slot.index()) {
                *place = Some(constrained);
            }
        }
    }

    /// Whether the sequence in a slot is constrained.
    pub fn holds(&self, slot: Slot) -> bool {
        self.slots.get(slot.index()).is_some_and(Option::is_some)
    }

    /// Allowed next tokens of a sequence, one bit each from id 0 on; ids beyond the end are not allowed. `None`: all
    /// are allowed.
    pub fn mask(&mut self, slot: Slot, history: &[u32]) -> Option<&[u32]> {
        let constrained = self.slots.get_mut(slot.index())?.as_mut()?;
        let is_held = constrained.follow(history, &self.factory);
        is_held.then_some(constrained.mask.as_slice())
    }

    /// Starts to compile a grammar on another thread.
    fn begin(&self, grammar: &AnswerGrammar) -> MatcherState {
        let Some(source) = &self.source else { return MatcherState::of(Err("this rank has no vocabulary".into())) };
        let (sender, receiver) = sync_channel(1);
        let (read, factory, grammar) = (Arc::clone(&source.read), Arc::clone(&self.factory), grammar.clone());
        let job = Box::new(move || {
            // Waits if another thread is reading the vocabulary already.
            let factory = factory.get_or_init(|| read()?.factory()).as_ref();
            let matcher = factory.map_err(Clone::clone).and_then(|factory| compile::matcher(factory, &grammar));
            // If the answer has ended meanwhile, the receiver is gone.
            let _ = sender.send(matcher);
        });
        if (source.spawn)(job) { MatcherState::Compiling(receiver) } else { MatcherState::of(Err(NO_THREAD.into())) }
    }
}

/// The reason of a failure without a thread.
const NO_THREAD: &str = "no thread could be started to compile its grammar";

impl MatcherState {
    fn of(compiled: Result<Matcher, String>) -> Self {
        match compiled {
            Ok(matcher) => Self::Ready(Box::new(matcher)),
            Err(reason) => {
                tracing::error!("cannot constrain an answer, which therefore ends: {reason}");
                Self::Failed
            }
        }
    }

    /// Whether compilation has ended.
    fn poll(&mut self) -> bool {
        if let Self::Compiling(receiver) = self {
            match receiver.try_recv() {
                Ok(compiled) => *self = Self::of(compiled),
                Err(TryRecvError::Disconnected) => *self = Self::of(Err(ENDED.into())),
                Err(TryRecvError::Empty) => return false,
            }
        }
        true
    }

    /// The matcher, once it is compiled.
    fn wait(&mut self) -> Option<&mut Matcher> {
        if let Self::Compiling(receiver) = self {
            *self = Self::of(receiver.recv().unwrap_or_else(|_| Err(ENDED.into())));
        }
        if let Self::Ready(matcher) = self { Some(matcher) } else { None }
    }
}

/// The reason of a failure of the compiling thread.
const ENDED: &str = "the thread that compiles its grammar ended";

impl CallState {
    fn is_required(&self) -> bool {
        match self {
            Self::Rules(rules) => rules.is_required,
            Self::Scan { is_required, .. } => *is_required,
        }
    }
}

impl Constrained {
    /// Advances the matcher to the end of the sequence and computes the mask, which is empty if nothing may follow.
    /// Returns false, without a mask, if anything may.
    fn follow(&mut self, history: &[u32], factory: &SharedFactory) -> bool {
        let answer = history.get(self.begin..).unwrap_or_default();
        let Some(calls) = &mut self.calls else {
            self.mask = self.advance(answer).unwrap_or_default();
            return true;
        };
        let is_free = !calls.is_required();
        if factory.get().is_none() {
            self.matcher.wait();
        }
        let Some(Ok(factory)) = factory.get() else {
            self.mask = SimpleVob::new();
            return !is_free;
        };
        let trie = factory.tok_env().tok_trie();
        let Some([before, from]) = calls.follow(answer, trie) else { return false };
        let taken = [&answer[before], &answer[from]].concat();
        let mask = self.advance(&taken);
        // A grammar that cannot be compiled or continued constrains only answers that need it.
        let is_held = mask.is_some() || !is_free;
        self.mask = mask.unwrap_or_default();
        is_held
    }

    fn advance(&mut self, answer: &[u32]) -> Option<SimpleVob> {
        let matcher = self.matcher.wait()?;
        // Speculative tokens that were rejected are rolled back.
        let common = self.tokens.iter().zip(answer).take_while(|(known, token)| known == token).count();
        matcher.rollback(self.tokens.len() - common).ok()?;
        self.tokens.truncate(common);
        let taken = matcher.try_consume_tokens(&answer[common..]).ok()?;
        self.tokens.extend_from_slice(&answer[common..common + taken]);
        if self.tokens.len() < answer.len() {
            return None;
        }
        matcher.compute_mask_or_eos().ok()
    }
}

impl CallState {
    /// The tokens of an answer that the grammar takes; `None`: any token may follow.
    fn follow(&mut self, answer: &[u32], trie: &TokTrie) -> Option<[Range<usize>; 2]> {
        if let Self::Rules(rules) = self {
            let (scan, is_required) = (Box::new(CallScan::new(rules, trie)), rules.is_required);
            *self = Self::Scan { scan, is_required };
        }
        let Self::Scan { scan, .. } = self else { return None };
        scan.follow(answer, trie)
    }
}

#[cfg(test)]
mod tests;
