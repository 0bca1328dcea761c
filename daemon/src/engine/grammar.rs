//! What answers must look like: which tokens may follow, for each constrained sequence, on every rank of the last stage. Ranks come to
//! the same mask each for itself, from the sequence's own tokens; each applies it to its slice of the vocabulary.
//! Vocabulary and schemas are read when the first constrained request comes, on threads of the driver; a panic of the library ends one
//! answer. The head has tried each schema in a process of its own before any rank hears of it (`text`).
use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, OnceLock,
        mpsc::{Receiver, sync_channel},
    },
};

use llguidance::{
    Matcher, ParserFactory,
    api::{ParserLimits, TopLevelGrammar},
    toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use shared::{gguf::GgufFile, ids::Slot, protocol::message::Grammar, tokenizer::Tokenizer, topology::spec::SLOTS_MAX};

use super::{plan::Plan, schema};

/// Longest token that the library's tree of the vocabulary holds, in bytes.
const TOKEN_BYTES_MAX: usize = 1024;
/// Nodes that the tree can have: one for each beginning of a token.
const TREE_NODES_END: usize = 1 << 22;
/// Steps of the trial that shows whether a grammar is too large to be followed.
const TRIAL_STEPS: usize = 64;
/// White space between two parts of an answer, a new line with its indentation at most: models without an idea of what follows would
/// write nothing else.
const WHITE_SPACE: &str = r"(\n[ \t]{0,16}| {1,2})";
/// Begins the text of a token that no grammar allows.
const SPECIAL: u8 = 0xff;

/// What a sequence's answer must look like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constraint {
    /// Form of the answer.
    pub grammar: Grammar,
    /// Position of the answer's first token.
    pub begin: u32,
}

/// Something that takes long.
pub type Job = Box<dyn FnOnce() + Send>;

/// Where the vocabulary is, until it is needed: most engines never need it.
#[derive(Clone, Debug)]
pub struct PieceSource {
    /// Has a job done beside the engine; false where it cannot.
    pub aside: fn(Job) -> bool,
    /// The model.
    pub file: Arc<GgufFile>,
    /// Its rows of logits.
    pub vocabulary_length: usize,
}

/// The bytes of all tokens, and those that end an answer.
#[derive(Debug)]
struct Pieces {
    /// `[vocabulary]`; empty: never part of an answer.
    words: Vec<Vec<u8>>,
    ends: Vec<u32>,
}

impl Pieces {
    /// The pieces of a file's tokenizer.
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

    /// Refuses what the library's tree of the vocabulary cannot hold: it would panic.
    fn check(&self) -> Result<(), String> {
        let refuse = |reason: String| Err(format!("no constrained answers with this model's vocabulary: {reason}"));
        if let Some((id, word)) = self.words.iter().enumerate().find(|(_, word)| word.len() > TOKEN_BYTES_MAX) {
            return refuse(format!("token {id} has {} bytes, at most {TOKEN_BYTES_MAX} are followed", word.len()));
        }
        let mut sorted: Vec<&[u8]> = self.words.iter().map(Vec::as_slice).collect();
        sorted.sort_unstable();
        let shared = |pair: &[&[u8]]| pair[0].iter().zip(pair[1]).take_while(|(a, b)| a == b).count();
        let new = sorted.windows(2).map(|pair| pair[1].len() - shared(pair)).sum::<usize>();
        let nodes = 1 + new + sorted.first().map_or(0, |first| first.len());
        if nodes >= TREE_NODES_END {
            return refuse(format!(
                "its tokens have {nodes} different beginnings, at most {TREE_NODES_END} are followed"
            ));
        }
        Ok(())
    }
}

/// Whether answers can be constrained with a vocabulary of so many rows of logits.
///
/// # Errors
/// Why not.
pub fn check_vocabulary(tokenizer: &Tokenizer, vocabulary_length: usize) -> Result<(), String> {
    Pieces::of(tokenizer, vocabulary_length).check()
}

/// A panic of the library as an error.
fn caught<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    // What it may leave half done is dropped with it.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err("the constraint library panicked".into()))
}

/// Bounds of time and memory: about 10 ms a token on a Pi at most, 20 MB a sequence.
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

/// Errors of the library carry backtraces and states.
fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(300).collect()
}

/// A schema that is small enough to be compiled, as the library wants it.
fn compile(grammar: &Grammar) -> Result<TopLevelGrammar, String> {
    let mut schema = match grammar {
        Grammar::Json => json!({"type": "object"}),
        Grammar::JsonSchema(text) => {
            serde_json::from_str(text).map_err(|error| format!("the schema is no JSON: {error}"))?
        }
    };
    schema::check(&schema)?;
    let Value::Object(root) = &mut schema else { return Err("the schema is no object".into()) };
    root.insert("x-guidance".into(), json!({ "whitespace_pattern": WHITE_SPACE }));
    Ok(TopLevelGrammar::from_json_schema(schema))
}

/// Whether a grammar can be followed, tried on single bytes: no vocabulary is needed. May break the process: for one of its own.
///
/// # Errors
/// Why it cannot, in words for the author of the schema.
pub fn check(grammar: &Grammar) -> Result<(), String> {
    caught(|| tried(grammar))
}

fn tried(grammar: &Grammar) -> Result<(), String> {
    let refuse = |reason: String| format!("the answer's form: {}", first_line(&reason));
    let factory = factory(&ApproximateTokEnv::single_byte_env()).map_err(refuse)?;
    let mut matcher = Matcher::new(factory.create_parser(compile(grammar).map_err(refuse)?));
    if let Some(error) = matcher.get_error() {
        return Err(refuse(error));
    }
    for _ in 0..TRIAL_STEPS {
        let mask = matcher.compute_mask_or_eos();
        let mask = mask.map_err(|error| match first_line(&error.to_string()) {
            reason if reason == "NoExtensionBias" => refuse("nothing fits the schema".into()),
            reason => refuse(reason),
        })?;
        // What closes or separates comes late in the alphabet: the trial goes into the schema as far as it can.
        let Some(next) =
            mask.iter().filter(|id| *id < u32::from(SPECIAL)).find(|id| !b" \t\r\n".contains(&(*id as u8)))
        else {
            break;
        };
        matcher.consume_token(next).map_err(|error| refuse(error.to_string()))?;
    }
    Ok(())
}

/// The constrained sequences of a rank of the last stage.
#[derive(Default)]
pub struct Grammars {
    source: Option<PieceSource>,
    /// What knows the vocabulary as soon as somebody read it, or why it cannot be.
    factory: Arc<OnceLock<Result<ParserFactory, String>>>,
    /// Whether somebody does; false: nobody can.
    is_prepared: Option<bool>,
    /// By slot; no longer than needed.
    slots: Vec<Option<Followed>>,
}

/// What follows a sequence.
enum Following {
    /// It is compiled on another thread, which always ends: the library's work is bounded.
    Coming(Receiver<Result<Matcher, String>>),
    /// `None` where it could not be followed: nothing is allowed then.
    Here(Box<Option<Matcher>>),
}

/// A constrained sequence.
struct Followed {
    matcher: Following,
    begin: usize,
    /// Tokens that the matcher knows.
    tokens: Vec<u32>,
    /// Which tokens may follow, a bit each.
    mask: SimpleVob,
}

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammars").field("is_read", &self.factory.get().is_some()).finish_non_exhaustive()
    }
}

impl Grammars {
    /// No constrained sequences; `source` is read when the first one comes.
    pub fn new(source: Option<PieceSource>) -> Self {
        Self { source, ..Self::default() }
    }

    /// Has the vocabulary read beside the engine, if nobody did.
    pub fn prepare(&mut self) {
        let Some(source) = self.source.as_ref().filter(|_| self.is_prepared.is_none()) else { return };
        let (own, place) = (source.clone(), Arc::clone(&self.factory));
        let job = Box::new(move || {
            place.get_or_init(|| read(&own));
        });
        self.is_prepared = Some((source.aside)(job));
    }

    /// Whether there is nothing to wait for before a constrained sequence begins: the vocabulary is read, or nobody but the engine will.
    pub fn is_ready(&self) -> bool {
        self.source.is_none() || self.is_prepared == Some(false) || self.factory.get().is_some()
    }

    /// Takes over the sequences that a plan closes and opens; the plan must have been found good.
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

    /// Which tokens may follow the tokens of a sequence, a bit each from id 0 on; those beyond the end may not. `None`: all may.
    pub fn mask(&mut self, slot: Slot, history: &[u32]) -> Option<&[u32]> {
        let followed = self.slots.get_mut(slot.index())?.as_mut()?;
        followed.follow(history);
        Some(followed.mask.as_slice())
    }

    /// Has a grammar compiled beside the engine, or compiles it here where it cannot.
    fn begin(&self, grammar: &Grammar) -> Following {
        let Some(source) = self.source.clone() else {
            return Following::Here(Box::new(told(Err("this rank does not know the vocabulary".into()))));
        };
        let (sender, receiver) = sync_channel(1);
        let (own, place, wanted) = (source.clone(), Arc::clone(&self.factory), grammar.clone());
        // An answer that ended meanwhile does not receive it.
        let job = Box::new(move || drop(sender.send(matcher(&own, &place, &wanted))));
        match (source.aside)(job) {
            true => Following::Coming(receiver),
            false => Following::Here(Box::new(told(matcher(&source, &self.factory, grammar)))),
        }
    }
}

/// What can be followed; else the log tells why not.
fn told(found: Result<Matcher, String>) -> Option<Matcher> {
    found.map_err(|reason| tracing::error!("an answer cannot be constrained: {reason}")).ok()
}

/// The factory of a vocabulary; takes long.
fn read(source: &PieceSource) -> Result<ParserFactory, String> {
    caught(|| vocabulary(source).and_then(|vocabulary| factory(&vocabulary)))
}

/// What follows a grammar; takes long.
fn matcher(
    source: &PieceSource,
    place: &OnceLock<Result<ParserFactory, String>>,
    grammar: &Grammar,
) -> Result<Matcher, String> {
    // Waits for another thread that reads it already.
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
            let found = receiver.recv().unwrap_or_else(|_| Err("its thread ended".into()));
            *self = Self::Here(Box::new(told(found)));
        }
        if let Self::Here(matcher) = self { matcher.as_mut().as_mut() } else { None }
    }
}

impl Followed {
    /// Brings the matcher to the end of a sequence and computes the mask; an empty one where nothing may follow.
    fn follow(&mut self, history: &[u32]) {
        let answer = history.get(self.begin..).unwrap_or_default();
        self.mask = self.advance(answer).unwrap_or_default();
    }

    fn advance(&mut self, answer: &[u32]) -> Option<SimpleVob> {
        let matcher = self.matcher.here()?;
        // Tokens that were proposed and not taken are taken back.
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
        /// What was to be done beside the engine.
        static ASIDE: RefCell<Vec<Job>> = const { RefCell::new(Vec::new()) };
    }

    fn aside(job: Job) -> bool {
        ASIDE.with_borrow_mut(|jobs| jobs.push(job));
        true
    }

    #[test]
    fn the_vocabulary_is_read_once_where_the_driver_wants_it_or_at_the_latest_when_it_is_needed() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/demo/bard-q8_0.gguf"));
        let file = Arc::new(GgufFile::open(path).expect("the demo model is there"));
        let tokenizer = Tokenizer::from_metadata(file.metadata()).expect("it has a vocabulary");
        let source = PieceSource { aside, file, vocabulary_length: tokenizer.vocabulary_length() };
        let mut grammars = Grammars::new(Some(source.clone()));
        assert!(!grammars.is_ready());
        (0..2).for_each(|_| grammars.prepare());
        let mut jobs: Vec<Job> = ASIDE.take();
        assert!(jobs.len() == 1 && !grammars.is_ready(), "it is not read here");
        jobs.pop().expect("there is one")();
        assert!(grammars.is_ready());
        let read = grammars.factory.get().map(std::ptr::from_ref);
        let mut following = grammars.begin(&Grammar::Json);
        let mut jobs: Vec<Job> = ASIDE.take();
        assert!(jobs.len() == 1, "it is compiled beside the engine, too");
        jobs.pop().expect("there is one")();
        assert!(following.here().is_some());
        assert_eq!(grammars.factory.get().map(std::ptr::from_ref), read);
        let mut alone = Grammars::new(Some(PieceSource { aside: |_| false, ..source }));
        alone.prepare();
        assert!(alone.is_ready(), "nobody else reads it");
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
        assert!(tree(longest(4096)).is_err(), "the bound is there for a reason");
        // Tokens of 1000 bytes that share next to nothing.
        let word = |index: u32| [&index.to_be_bytes()[..], &[7; 996]].concat();
        assert!(check((0..4300).map(word).collect()).is_err_and(|reason| reason.contains("beginnings")));
        assert_eq!(check((0..4000).map(word).collect()), Ok(()));
        assert_eq!(check(vec![Vec::new(), b"ab".to_vec(), b"ab".to_vec(), b"abc".to_vec()]), Ok(()));
    }

    #[test]
    fn a_panic_of_the_library_is_an_error() {
        assert!(caught(|| -> Result<(), String> { panic!("as the library does") }).is_err());
    }
}
