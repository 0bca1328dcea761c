//! Cache of recent preparations, by content: a few prompts for some seconds, because the choices of an answer arrive
//! together, and schemas that were found valid, because clients reuse them. Bounded in entries and in tokens.
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use common::fault::FaultKind;
use sha2::{Digest, Sha256};
use tokenizer::answer::GrammarTool;

use super::{PromptTokens, Unprepared};

/// Most prompts in the cache.
const PROMPTS_MAX: usize = 4;
/// Longest cached prompt, in tokens: 1 MiB.
const PROMPT_TOKENS_MAX: usize = 256 << 10;
/// Most schemas in the cache.
const SCHEMAS_MAX: usize = 64;
/// Most lists of tools in the cache.
const TOOLS_MAX: usize = 16;
/// Lifetime of prompts and refusals: a template may include the time, and a refusal may be due to a busy machine.
const AGE_MAX: Duration = Duration::from_secs(10);

/// Hash of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key([u8; 32]);

impl Key {
    /// Hashes parts in order.
    pub(super) fn of(parts: &[&str]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        Self(hash.finalize().into())
    }
}

/// The latest results, oldest first.
#[derive(Debug)]
struct Latest<T> {
    list: VecDeque<(Key, Instant, Result<T, FaultKind>)>,
    most: usize,
}

impl<T: Clone> Latest<T> {
    fn new(most: usize) -> Self {
        Self { list: VecDeque::with_capacity(most), most }
    }

    fn get(&self, key: &Key, is_kept: impl Fn(Duration, bool) -> bool) -> Option<Result<T, FaultKind>> {
        let (_, kept, found) = self.list.iter().rev().find(|(known, ..)| known == key)?;
        is_kept(kept.elapsed(), found.is_ok()).then(|| found.clone())
    }

    fn keep(&mut self, key: Key, found: Result<T, FaultKind>) {
        self.list.retain(|(known, ..)| *known != key);
        if self.list.len() >= self.most {
            self.list.pop_front();
        }
        self.list.push_back((key, Instant::now(), found));
    }
}

/// The cache, shared by all threads that prepare requests for an engine.
#[derive(Debug)]
pub(super) struct Memory {
    prompts: Mutex<Latest<Arc<PromptTokens>>>,
    schemas: Mutex<Latest<()>>,
    tools: Mutex<Latest<KnownTools>>,
}

/// Tools as a grammar can have them; `None` if it cannot.
pub(super) type KnownTools = Option<Arc<[GrammarTool]>>;

impl Default for Memory {
    fn default() -> Self {
        let (prompts, schemas) = (Latest::new(PROMPTS_MAX), Latest::new(SCHEMAS_MAX));
        Self { prompts: Mutex::new(prompts), schemas: Mutex::new(schemas), tools: Mutex::new(Latest::new(TOOLS_MAX)) }
    }
}

fn lock<T>(place: &Mutex<T>) -> MutexGuard<'_, T> {
    // No holder of the lock panics.
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    pub(super) fn prompt(&self, key: &Key) -> Option<Result<Arc<PromptTokens>, FaultKind>> {
        lock(&self.prompts).get(key, |age, _| age < AGE_MAX)
    }

    pub(super) fn keep_prompt(&self, key: Key, found: &Result<PromptTokens, Unprepared>) {
        let found = match found {
            Ok(prompt) if prompt.ids.len() > PROMPT_TOKENS_MAX => return,
            Ok(prompt) => Ok(Arc::new(prompt.clone())),
            Err(Unprepared::Refused(kind)) => Err(kind.clone()),
            Err(Unprepared::Elsewhere) => return,
        };
        lock(&self.prompts).keep(key, found);
    }

    pub(super) fn tools(&self, key: &Key) -> Option<KnownTools> {
        lock(&self.tools).get(key, |_, _| true)?.ok()
    }

    pub(super) fn keep_tools(&self, key: Key, tools: KnownTools) {
        lock(&self.tools).keep(key, Ok(tools));
    }

    pub(super) fn schema(&self, key: &Key) -> Option<Result<(), FaultKind>> {
        lock(&self.schemas).get(key, |age, is_good| is_good || age < AGE_MAX)
    }

    pub(super) fn keep_schema(&self, key: Key, found: &Result<(), Unprepared>) {
        let found = match found {
            Ok(()) => Ok(()),
            Err(Unprepared::Refused(kind)) => Err(kind.clone()),
            Err(Unprepared::Elsewhere) => return,
        };
        lock(&self.schemas).keep(key, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latest_entries_are_found_and_older_ones_evicted() {
        let memory = Memory::default();
        let key = |number: usize| Key::of(&["text", &number.to_string()]);
        (0..=PROMPTS_MAX).for_each(|number| memory.keep_prompt(key(number), &Ok(vec![number as u32].into())));
        assert_eq!(memory.prompt(&key(0)), None);
        assert_eq!(memory.prompt(&key(PROMPTS_MAX)), Some(Ok(Arc::new(vec![PROMPTS_MAX as u32].into()))));
        memory.keep_prompt(key(9), &Ok(vec![0_u32; PROMPT_TOKENS_MAX + 1].into()));
        memory.keep_prompt(key(10), &Err(Unprepared::Elsewhere));
        assert_eq!((memory.prompt(&key(9)), memory.prompt(&key(10))), (None, None));
        assert_ne!(Key::of(&["ab", "c"]), Key::of(&["a", "bc"]), "parts are distinguished");
    }

    #[test]
    fn refusal_expires_after_seconds_but_valid_schema_stays() {
        let mut latest: Latest<()> = Latest::new(2);
        let (good, bad) = (Key::of(&["good"]), Key::of(&["bad"]));
        latest.keep(good, Ok(()));
        latest.keep(bad, Err(FaultKind::PromptEmpty));
        let late = |_: Duration, is_good: bool| is_good;
        assert_eq!(latest.get(&good, late), Some(Ok(())));
        assert_eq!((latest.get(&bad, late), latest.get(&bad, |_, _| true)), (None, Some(Err(FaultKind::PromptEmpty))));
    }
}
