//! The vocabulary is read once, and nothing is compiled on the calling thread.
use std::cell::RefCell;

use common::{chat::Grammar, sampling::SamplingParameters};

use super::*;
use crate::plan::Opened;

thread_local! {
    /// Jobs for other threads.
    static JOBS: RefCell<Vec<Job>> = const { RefCell::new(Vec::new()) };
}

const SLOT: Slot = Slot(2);

/// One token for each byte, and one that ends an answer.
fn tokens() -> TokenBytes {
    let bytes = (0..=254).map(|byte| TokenText::Text(vec![byte]));
    TokenBytes::new(bytes.chain([TokenText::Control(b"</s>".to_vec())]), vec![255])
}

fn source() -> VocabularySource {
    fn spawn(job: Job) -> bool {
        JOBS.with_borrow_mut(|jobs| jobs.push(job));
        true
    }
    VocabularySource { spawn, read: Arc::new(|| Ok(tokens())) }
}

fn open(masks: &mut TokenMasks) {
    let grammar = Some(Constraint { grammar: Grammar::Json.into(), begin: 1 });
    let opened = Opened { slot: SLOT, sampling: SamplingParameters::default(), cached: 0, prompt: vec![7], grammar };
    masks.apply(&Plan { opened: vec![opened], ..Plan::default() });
}

#[test]
fn vocabulary_and_grammars_are_compiled_on_other_threads() {
    let mut masks = TokenMasks::new(Some(source()));
    assert!(!masks.is_ready());
    (0..2).for_each(|_| masks.prepare());
    let mut jobs: Vec<Job> = JOBS.take();
    assert!(jobs.len() == 1 && !masks.is_ready(), "it is read once, and not here");
    jobs.pop().expect("there is one")();
    assert!(masks.is_ready());
    let read = masks.factory.get().map(std::ptr::from_ref);
    open(&mut masks);
    assert!(!masks.is_compiled(SLOT) && masks.is_compiled(Slot(0)), "only the constrained sequence waits");
    let mut jobs: Vec<Job> = JOBS.take();
    assert_eq!(jobs.len(), 1);
    jobs.pop().expect("there is one")();
    assert!(masks.is_compiled(SLOT));
    let allowed = masks.mask(SLOT, &[7]).expect("it is constrained");
    assert_eq!(allowed[usize::from(b'{') / 32] >> (b'{' % 32) & 1, 1, "an object begins");
    assert_eq!(masks.factory.get().map(std::ptr::from_ref), read);
}

#[test]
fn answer_without_a_compiling_thread_ends() {
    let mut masks = TokenMasks::new(Some(VocabularySource { spawn: |_| false, ..source() }));
    masks.prepare();
    assert!(masks.is_ready(), "no request waits for a vocabulary that is not in use");
    open(&mut masks);
    assert!(masks.is_compiled(SLOT));
    assert!(masks.mask(SLOT, &[7]).is_some_and(|allowed| allowed.iter().all(|word| *word == 0)));
    assert!(TokenMasks::new(None).is_ready());
}
