//! The bytes of the vocabulary's tokens, which the constraint library needs as a trie. Read once, in the background,
//! when the first constrained request arrives.
use std::{fmt, sync::Arc};

use llguidance::{
    ParserFactory,
    toktrie::{ApproximateTokEnv, TokRxInfo, TokTrie},
};

use super::compile::{SPECIAL, caught, factory};

/// Longest token in bytes that the library's vocabulary trie can hold.
const TOKEN_BYTES_MAX: usize = 1024;
/// Exclusive limit on the number of trie nodes: one for each token prefix.
const TREE_NODES_END: usize = 1 << 22;

/// A job too slow for the engine's thread.
pub type Job = Box<dyn FnOnce() + Send>;

/// Where to read the vocabulary from when it is needed; most engines never need it.
#[derive(Clone)]
pub struct VocabularySource {
    /// Runs a job on another thread; false if it cannot.
    pub spawn: fn(Job) -> bool,
    /// Reads the tokens; the error states the reason.
    pub read: Arc<dyn Fn() -> Result<TokenBytes, String> + Send + Sync>,
}

impl fmt::Debug for VocabularySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VocabularySource").finish_non_exhaustive()
    }
}

/// What a token adds to a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenText {
    /// These bytes.
    Text(Vec<u8>),
    /// Nothing: it is a control token with this name, which no grammar allows.
    Control(Vec<u8>),
    /// It is no token of the vocabulary.
    Unused,
}

/// The bytes of all tokens, and the tokens that end an answer.
#[derive(Clone, Debug)]
pub struct TokenBytes {
    /// `[vocabulary]`; an empty entry is never part of an answer.
    words: Vec<Vec<u8>>,
    ends: Vec<u32>,
}

impl TokenBytes {
    /// Of the tokens by id, and the ids of those that end an answer.
    pub fn new(tokens: impl Iterator<Item = TokenText>, ends: Vec<u32>) -> Self {
        let words = tokens.map(|token| match token {
            TokenText::Text(bytes) => bytes,
            TokenText::Control(name) => [&[SPECIAL], name.as_slice()].concat(),
            TokenText::Unused => Vec::new(),
        });
        Self { words: words.collect(), ends }
    }

    /// Checks whether structured output works with this vocabulary: the library's trie panics where it is too large.
    ///
    /// # Errors
    /// The reason why it does not.
    pub fn check(&self) -> Result<(), String> {
        let refuse = |reason: String| Err(format!("no structured output with this model's vocabulary: {reason}"));
        if let Some((id, word)) = self.words.iter().enumerate().find(|(_, word)| word.len() > TOKEN_BYTES_MAX) {
            return refuse(format!("token {id} has {} bytes, at most {TOKEN_BYTES_MAX} are supported", word.len()));
        }
        let mut sorted: Vec<&[u8]> = self.words.iter().map(Vec::as_slice).collect();
        sorted.sort_unstable();
        let new = sorted.windows(2).map(|pair| {
            let shared = pair[0].iter().zip(pair[1]).take_while(|(a, b)| a == b).count();
            pair[1].len() - shared
        });
        let nodes = 1 + new.sum::<usize>() + sorted.first().map_or(0, |first| first.len());
        if nodes >= TREE_NODES_END {
            return refuse(format!(
                "its tokens have {nodes} distinct prefixes, at most {TREE_NODES_END} are supported"
            ));
        }
        Ok(())
    }

    /// Builds the parser factory of this vocabulary; slow.
    pub(super) fn factory(self) -> Result<ParserFactory, String> {
        self.check()?;
        let Self { words, ends } = self;
        caught(|| {
            let info = TokRxInfo::new(words.len() as u32, ends.first().copied().unwrap_or(u32::MAX));
            let trie = TokTrie::from(&info, &words);
            let trie = if ends.len() > 1 { trie.with_eos_tokens(&ends) } else { trie };
            factory(&(Arc::new(ApproximateTokEnv::new(trie)) as _))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vocabulary_that_the_library_cannot_hold_is_refused() {
        let check = |words: Vec<Vec<u8>>| TokenBytes { words, ends: vec![0] }.check();
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
}
