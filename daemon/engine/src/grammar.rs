//! Structured output: computes which tokens may follow in each constrained sequence, on every rank of the last stage.
//! Each rank derives the same mask from the sequence's own tokens and applies it to its vocabulary slice. Vocabulary
//! and schemas are compiled when the first constrained request arrives, on threads of the driver; a panic of the
//! library ends one answer only. The head has validated each schema in a separate process before any rank receives it
//! (`text`).
use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, OnceLock,
        mpsc::{Receiver, sync_channel},
    },
};

use common::{chat::Grammar, ids::Slot, limits::SLOTS_MAX};
use gguf::GgufFile;
use llguidance::{
    Matcher, ParserFactory,
    api::{ParserLimits, TopLevelGrammar},
    toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie},
};
use serde_json::{Value, json};
use tokenizer::Tokenizer;

use super::{plan::Plan, schema};
use crate::plan::Constraint;

/// Longest token in bytes that the library's vocabulary trie can hold.
const TOKEN_BYTES_MAX: usize = 1024;
/// Exclusive limit on the number of trie nodes: one for each token prefix.
const TREE_NODES_END: usize = 1 << 22;
/// Steps of the trial that detects grammars that are too large.
const TRIAL_STEPS: usize = 64;
/// White space between two parts of an answer, at most a new line with its indentation: without this limit, a model
/// that is unsure how to continue would write nothing but white space.
const WHITE_SPACE: &str = r"(\n[ \t]{0,16}| {1,2})";
/// First byte of the text of a token that no grammar allows.
const SPECIAL: u8 = 0xff;

/// A job too slow for the engine thread.
pub type Job = Box<dyn FnOnce() + Send>;

/// Where to read the vocabulary from when it is needed; most engines never need it.
#[derive(Clone, Debug)]
pub struct PieceSource {
    /// Runs a job off the engine thread; false if it cannot.
    pub aside: fn(Job) -> bool,
    /// The model.
    pub file: Arc<GgufFile>,
    /// Number of logits per token.
    pub vocabulary_length: usize,
}

/// The bytes of all tokens, and the tokens that end an answer.
#[derive(Debug)]
struct Pieces {
    /// `[vocabulary]`; an empty entry is never part of an answer.
    words: Vec<Vec<u8>>,
    ends: Vec<u32>,
}

impl Pieces {
    /// Reads the token bytes from a file's tokenizer.
    fn read(PieceSource { file, vocabulary_length, .. }: &PieceSource) -> Result<Self, String> {
        let tokenizer = Tokenizer::from_metadata(file.metadata()).map_err(|error| error.to_string())?;
        let pieces = Self::of(&tokenizer, *vocabulary_length);
        pieces.check().map(|()| pieces)
    }

    fn of(tokenizer: &Tokenizer, vocabulary_length: usize) -> Self {
        let word = |id: u32| match tokenizer.piece(id, false) {
            piece if piece.is_empty() => [&[SPECIAL], tokenizer.piece(id, true).as_slice()].concat(),
            piece => piece,
        };
        let ids = 0..vocabulary_length as u32;
        let ends = ids.clone().filter(|id| tokenizer.is_end(*id)).collect();
        let is_token = |id: &u32| (*id as usize) < tokenizer.vocabulary_length();
        let words = ids.map(|id| if is_token(&id) { word(id) } else { Vec::new() }).collect();
        Self { words, ends }
    }

    /// Refuses a vocabulary that would make the library's trie panic.
    fn check(&self) -> Result<(), String> {
        let refuse = |reason: String| Err(format!("no structured output with this model's vocabulary: {reason}"));
        if let Some((id, word)) = self.words.iter().enumerate().find(|(_, word)| word.len() > TOKEN_BYTES_MAX) {
            return refuse(format!("token {id} has {} bytes, at most {TOKEN_BYTES_MAX} are supported", word.len()));
        }
        let mut sorted: Vec<&[u8]> = self.words.iter().map(Vec::as_slice).collect();
        sorted.sort_unstable();
        let shared = |pair: &[&[u8]]| pair[0].iter().zip(pair[1]).take_while(|(a, b)| a == b).count();
        let new = sorted.windows(2).map(|pair| pair[1].len() - shared(pair)).sum::<usize>();
        let nodes = 1 + new + sorted.first().map_or(0, |first| first.len());
        if nodes >= TREE_NODES_END {
            return refuse(format!(
                "its tokens have {nodes} distinct prefixes, at most {TREE_NODES_END} are supported"
            ));
        }
        Ok(())
    }
}

/// Checks whether structured output works with a vocabulary of `vocabulary_length` logits.
///
/// # Errors
/// The reason why it does not.
pub fn check_vocabulary(tokenizer: &Tokenizer, vocabulary_length: usize) -> Result<(), String> {
    Pieces::of(tokenizer, vocabulary_length).check()
}

/// Turns a panic of the library into an error.
fn caught<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    // Any state that the panic left half-updated is dropped with it.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err("the constraint library panicked".into()))
}

/// Limits on time and memory: at most about 10 ms a token on a Pi, 20 MB a sequence.
fn limits() -> ParserLimits {
    ParserLimits {
        initial_lexer_fuel: 200_000,
        step_lexer_fuel: 50_000,
        max_lexer_states: 20_000,
        max_grammar_size: 50_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

fn factory(vocabulary: &TokEnv) -> Result<ParserFactory, String> {
    let mut factory =
        ParserFactory::new(vocabulary, Default::default(), &[]).map_err(|error| first_line(&error.to_string()))?;
    factory.quiet();
    *factory.limits_mut() = limits();
    Ok(factory)
}

/// The first line of a library error, without backtraces and parser states.
fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(300).collect()
}

/// Compiles a schema within the size limits into the library's form.
fn compile(grammar: &Grammar) -> Result<TopLevelGrammar, String> {
    let mut schema = match grammar {
        Grammar::Json => json!({"type": "object"}),
        Grammar::JsonSchema(text) => {
            serde_json::from_str(text).map_err(|error| format!("the schema is not valid JSON: {error}"))?
        }
    };
    schema::check(&schema)?;
    let Value::Object(root) = &mut schema else { return Err("the schema is not an object".into()) };
    root.insert("x-guidance".into(), json!({ "whitespace_pattern": WHITE_SPACE }));
    Ok(TopLevelGrammar::from_json_schema(schema))
}

/// Checks whether a grammar is supported by a trial on single bytes, which needs no vocabulary. May abort the process:
/// run it in a separate one.
///
/// # Errors
/// The reason why it is not, worded for the author of the schema.
pub fn check(grammar: &Grammar) -> Result<(), String> {
    caught(|| tried(grammar))
}

fn tried(grammar: &Grammar) -> Result<(), String> {
    let refuse = |reason: String| format!("response format: {}", first_line(&reason));
    let factory = factory(&ApproximateTokEnv::single_byte_env()).map_err(refuse)?;
    let mut matcher = Matcher::new(factory.create_parser(compile(grammar).map_err(refuse)?));
    if let Some(error) = matcher.get_error() {
        return Err(refuse(error));
    }
    for _ in 0..TRIAL_STEPS {
        let mask = matcher.compute_mask_or_eos();
        let mask = mask.map_err(|error| match first_line(&error.to_string()) {
            reason if reason == "NoExtensionBias" => refuse("no value satisfies the schema".into()),
            reason => refuse(reason),
        })?;
        // Closing and separating characters come late in the ASCII order: choosing the first allowed byte goes as deep
        // into the schema as possible.
        let Some(next) =
            mask.iter().filter(|id| *id < u32::from(SPECIAL)).find(|id| !b" \t\r\n".contains(&(*id as u8)))
        else {
            break;
        };
        matcher.consume_token(next).map_err(|error| refuse(error.to_string()))?;
    }
    Ok(())
}

/// Constrained sequences on a rank of the last stage.
#[derive(Default)]
pub struct Grammars {
    source: Option<PieceSource>,
    /// The parser factory once the vocabulary is read, or the reason why that failed.
    factory: Arc<OnceLock<Result<ParserFactory, String>>>,
    /// `Some(true)` once a background build has started, `Some(false)` if none could.
    is_prepared: Option<bool>,
    /// By slot; only as long as needed.
    slots: Vec<Option<Followed>>,
}

/// Matcher of a sequence, possibly still being compiled.
enum Following {
    /// Being compiled on another thread, which always terminates: the library's work is bounded.
    Coming(Receiver<Result<Matcher, String>>),
    /// `None` if compilation failed: then no token is allowed.
    Here(Box<Option<Matcher>>),
}

/// A constrained sequence.
struct Followed {
    matcher: Following,
    begin: usize,
    /// Tokens that the matcher has consumed.
    tokens: Vec<u32>,
    /// Allowed next tokens, one bit each.
    mask: SimpleVob,
}

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammars").field("is_read", &self.factory.get().is_some()).finish_non_exhaustive()
    }
}

impl Grammars {
    /// Creates an empty set; `source` is read when the first constrained sequence arrives.
    pub fn new(source: Option<PieceSource>) -> Self {
        Self { source, ..Self::default() }
    }

    /// Starts reading the vocabulary off the engine thread, unless that has been attempted already.
    pub fn prepare(&mut self) {
        let Some(source) = self.source.as_ref().filter(|_| self.is_prepared.is_none()) else { return };
        let (own, place) = (source.clone(), Arc::clone(&self.factory));
        let job = Box::new(move || {
            place.get_or_init(|| read(&own));
        });
        self.is_prepared = Some((source.aside)(job));
    }

    /// Whether a constrained sequence may begin now: the vocabulary is read, or no other thread can read it.
    pub fn is_ready(&self) -> bool {
        self.source.is_none() || self.is_prepared == Some(false) || self.factory.get().is_some()
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
            let followed = Followed { matcher, begin: *begin as usize, tokens: Vec::new(), mask: SimpleVob::new() };
            if let Some(place) = self.slots.get_mut(opened.slot.index()) {
                *place = Some(followed);
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
        let followed = self.slots.get_mut(slot.index())?.as_mut()?;
        followed.follow(history);
        Some(followed.mask.as_slice())
    }

    /// Compiles a grammar off the engine thread or, if that is not possible, on it.
    fn begin(&self, grammar: &Grammar) -> Following {
        let Some(source) = self.source.clone() else {
            return Following::Here(Box::new(told(Err("this rank has no vocabulary".into()))));
        };
        let (sender, receiver) = sync_channel(1);
        let (own, place, wanted) = (source.clone(), Arc::clone(&self.factory), grammar.clone());
        // If the answer has ended meanwhile, the send fails and is ignored.
        let job = Box::new(move || drop(sender.send(matcher(&own, &place, &wanted))));
        match (source.aside)(job) {
            true => Following::Coming(receiver),
            false => Following::Here(Box::new(told(matcher(&source, &self.factory, grammar)))),
        }
    }
}

/// The matcher; if compilation failed, logs the reason.
fn told(found: Result<Matcher, String>) -> Option<Matcher> {
    found.map_err(|reason| tracing::error!("cannot constrain an answer, which therefore ends: {reason}")).ok()
}

/// Builds the parser factory of a vocabulary; slow.
fn read(source: &PieceSource) -> Result<ParserFactory, String> {
    caught(|| vocabulary(source).and_then(|vocabulary| factory(&vocabulary)))
}

/// Builds the matcher of a grammar; slow.
fn matcher(
    source: &PieceSource,
    place: &OnceLock<Result<ParserFactory, String>>,
    grammar: &Grammar,
) -> Result<Matcher, String> {
    // Waits if another thread is reading it already.
    let factory = place.get_or_init(|| read(source)).as_ref()?;
    caught(|| {
        let matcher = Matcher::new(factory.create_parser(compile(grammar)?));
        matcher.get_error().map_or(Ok(matcher), |error| Err(first_line(&error)))
    })
}

fn vocabulary(source: &PieceSource) -> Result<TokEnv, String> {
    let Pieces { words, ends } = Pieces::read(source)?;
    let length = words.len() as u32;
    let info = TokRxInfo::new(length, ends.first().copied().unwrap_or(u32::MAX));
    let trie = TokTrie::from(&info, &words);
    let trie = if ends.len() > 1 { trie.with_eos_tokens(&ends) } else { trie };
    Ok(Arc::new(ApproximateTokEnv::new(trie)))
}

impl Following {
    fn here(&mut self) -> Option<&mut Matcher> {
        if let Self::Coming(receiver) = self {
            let found = receiver.recv().unwrap_or_else(|_| Err("the compiling thread ended".into()));
            *self = Self::Here(Box::new(told(found)));
        }
        if let Self::Here(matcher) = self { matcher.as_mut().as_mut() } else { None }
    }
}

impl Followed {
    /// Advances the matcher to the end of the sequence and computes the mask, which is empty if nothing may follow.
    fn follow(&mut self, history: &[u32]) {
        let answer = history.get(self.begin..).unwrap_or_default();
        self.mask = self.advance(answer).unwrap_or_default();
    }

    fn advance(&mut self, answer: &[u32]) -> Option<SimpleVob> {
        let matcher = self.matcher.here()?;
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

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, path::Path};

    use super::*;

    thread_local! {
        /// Jobs queued to run off the engine thread.
        static ASIDE: RefCell<Vec<Job>> = const { RefCell::new(Vec::new()) };
    }

    fn aside(job: Job) -> bool {
        ASIDE.with_borrow_mut(|jobs| jobs.push(job));
        true
    }

    #[test]
    fn vocabulary_is_read_once_in_background_or_on_first_use() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/demo/bard-q8_0.gguf"));
        let file = Arc::new(GgufFile::open(path).expect("the demo model is there"));
        let tokenizer = Tokenizer::from_metadata(file.metadata()).expect("it has a vocabulary");
        let source = PieceSource { aside, file, vocabulary_length: tokenizer.vocabulary_length() };
        let mut grammars = Grammars::new(Some(source.clone()));
        assert!(!grammars.is_ready());
        (0..2).for_each(|_| grammars.prepare());
        let mut jobs: Vec<Job> = ASIDE.take();
        assert!(jobs.len() == 1 && !grammars.is_ready(), "it is not read on the engine thread");
        jobs.pop().expect("there is one")();
        assert!(grammars.is_ready());
        let read = grammars.factory.get().map(std::ptr::from_ref);
        let mut following = grammars.begin(&Grammar::Json);
        let mut jobs: Vec<Job> = ASIDE.take();
        assert!(jobs.len() == 1, "it is compiled off the engine thread, too");
        jobs.pop().expect("there is one")();
        assert!(following.here().is_some());
        assert_eq!(grammars.factory.get().map(std::ptr::from_ref), read);
        let mut alone = Grammars::new(Some(PieceSource { aside: |_| false, ..source }));
        alone.prepare();
        assert!(alone.is_ready(), "no other thread reads it");
        assert!(alone.begin(&Grammar::Json).here().is_some(), "it is read when the first answer needs it");
        assert!(alone.factory.get().is_some() && Grammars::new(None).is_ready());
    }

    #[test]
    fn a_vocabulary_that_the_library_cannot_hold_is_refused() {
        let check = |words: Vec<Vec<u8>>| Pieces { words, ends: vec![0] }.check();
        let tree = |words: Vec<Vec<u8>>| {
            let info = TokRxInfo::new(words.len() as u32, 0);
            caught(|| Ok(TokTrie::from(&info, &words).vocab_size()))
        };
        let longest = |length: usize| vec![b"</s>".to_vec(), vec![b'x'; length], b"y".to_vec()];
        assert_eq!((check(longest(1024)), tree(longest(1024))), (Ok(()), Ok(3)));
        assert!(check(longest(1025)).is_err_and(|reason| reason.contains("token 1 has 1025 bytes")));
        assert!(tree(longest(4096)).is_err(), "the library fails above the limit");
        // Tokens of 1000 bytes with almost no common prefixes.
        let word = |index: u32| [&index.to_be_bytes()[..], &[7; 996]].concat();
        assert!(check((0..4300).map(word).collect()).is_err_and(|reason| reason.contains("distinct prefixes")));
        assert_eq!(check((0..4000).map(word).collect()), Ok(()));
        assert_eq!(check(vec![Vec::new(), b"ab".to_vec(), b"ab".to_vec(), b"abc".to_vec()]), Ok(()));
    }

    #[test]
    fn a_panic_of_the_library_is_an_error() {
        assert!(caught(|| -> Result<(), String> { panic!("like the library") }).is_err());
    }
}
