//! Refusals before any work, and caching of repeated work.
use std::path::Path;

use common::{changes::TemplateChanges, chat::Thinking, sampling::SamplingParameters, tool_use::CallGrammar};
use engine::plan::Limits;
use gguf::GgufFile;
use serde_json::json;
use tokenizer::{Tokenizer, template::TemplateSource};
use topology::{KvBlocks, StateCount};

use super::*;

const CONTEXT: usize = 64;

/// The demo model with a template that renders the contents of messages only.
pub(in crate::text) fn model() -> ModelText {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/demo/bard-q8_0.gguf"));
    let file = GgufFile::open(path).expect("the demo model is there");
    let tokenizer = Arc::new(Tokenizer::from_metadata(file.metadata()).expect("it has a vocabulary"));
    let vocabulary_length = tokenizer.vocabulary_length();
    let limits = Limits {
        slots: 1,
        blocks: KvBlocks::alike(1),
        window: None,
        context_length: CONTEXT,
        vocabulary_length,
        states: StateCount::NONE,
    };
    let mut model = ModelText::new("m".into(), path.into(), &file, tokenizer, limits);
    let plain = "{% for m in messages %}{{ m.content }}{% endfor %}".to_owned();
    model.template = Ok(Some(TemplateSource { plain, tool_use: None, bos: String::new(), eos: String::new() }));
    model
}

/// Counts its calls.
#[derive(Debug, Default)]
struct Counting {
    rendered: usize,
    checked: usize,
    /// Bytes.
    encoded: usize,
}

impl TextWork for Counting {
    fn render(&mut self, chat: &Chat, _: u64) -> Result<Rendered, Unprepared> {
        self.rendered += 1;
        Ok(Rendered { text: chat.messages.clone(), changes: TemplateChanges::CALLS_AS_TEXT })
    }

    fn check(&mut self, _: &Grammar) -> Result<(), Unprepared> {
        self.checked += 1;
        Err(FaultKind::PromptEmpty.into())
    }

    fn check_calls(&mut self, _: &CallGrammar) -> Result<(), Unprepared> {
        self.checked += 1;
        Ok(())
    }

    fn encode(&mut self, text: &str, _: bool, _: bool) -> Result<Vec<u32>, Unprepared> {
        self.encoded += text.len();
        Ok(vec![7; text.len()])
    }
}

fn preparer(model: ModelText) -> Preparer<Counting> {
    Preparer::new(Arc::new(model), Counting::default())
}

fn generate(prompt: impl Into<Prompt>) -> Generate {
    Generate::new(prompt, 1, SamplingParameters::default(), Vec::new())
}

fn chat(text: &str) -> Prompt {
    Prompt::Chat(Box::new(Chat { messages: text.into(), ..Chat::default() }))
}

fn is_too_long(prepared: &Result<PromptTokens, Unprepared>) -> bool {
    matches!(prepared, Err(Unprepared::Refused(FaultKind::PromptTooLong { tokens, context })) if tokens > context)
}

fn message(role: &str, content: &str) -> Prompt {
    chat(&json!([{"role": "system", "content": "Be brief."}, {"role": role, "content": content}]).to_string())
}

#[test]
fn oversized_prompt_is_refused_before_any_work() {
    let mut preparer = preparer(model());
    let long = "x\n".repeat(1 << 20);
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": long}]}]).to_string();
    let prompts = [
        long.as_str().into(),
        Prompt::Tokens(vec![1; CONTEXT + 1]),
        message("user", &long),
        message("tool", &long),
        chat(&parts),
    ];
    for prompt in prompts {
        let refused = preparer.prepare(&generate(prompt), 0);
        assert!(is_too_long(&refused), "{refused:?}");
        assert_eq!((preparer.work.encoded, preparer.work.rendered), (0, 0));
    }
    let short = preparer.prepare(&generate("But soft!"), 0).expect("it is short");
    assert_eq!(short.ids, preparer.model.tokenizer.encode("But soft!", true, true));
    assert_eq!(preparer.work.encoded, 0, "a short text is tokenized at once");
}

#[test]
fn beginning_of_a_far_too_long_text_decides() {
    let mut deep = model();
    // A vocabulary with such long tokens that the number of bytes decides nothing.
    (deep.context_length, deep.longest) = (SMALL_BYTES_MAX, 1 << 20);
    let mut preparer = preparer(deep);
    let long = "é".repeat(1 << 20);
    assert!(is_too_long(&preparer.prepare(&generate(long.as_str()), 0)));
    assert!(is_too_long(&preparer.prepare(&generate(message("user", &long)), 0)));
    // One of the beginnings would end within a character.
    assert_eq!(preparer.work.encoded, 2 * 8 * SMALL_BYTES_MAX - 1, "the beginnings only");
    let fits = "x".repeat(2 * 8 * SMALL_BYTES_MAX);
    assert!(preparer.prepare(&generate(fits.as_str()), 0).is_ok(), "it is not much longer than the context");
}

#[test]
fn content_that_a_template_may_drop_is_rendered_first() {
    let mut preparer = preparer(model());
    let long = "x".repeat(2 << 20);
    for (number, prompt) in [message("assistant", &long), chat(&long), chat("[{}]")].into_iter().enumerate() {
        let prepared = preparer.prepare(&generate(prompt), 0);
        assert_eq!((is_too_long(&prepared), preparer.work.rendered), (number < 2, number + 1), "{prepared:?}");
    }
    // Spaces around a content are often removed.
    let _ = preparer.prepare(&generate(message("user", &" ".repeat(2 << 20))), 0);
    assert_eq!(preparer.work.rendered, 4);
}

#[test]
fn choices_of_an_answer_are_prepared_once() {
    let mut roomy = model();
    roomy.context_length = 1 << 20;
    let mut preparer = preparer(roomy);
    let long = "y".repeat(SMALL_BYTES_MAX + 1);
    for _ in 0..16 {
        assert_eq!(preparer.prepare(&generate(long.as_str()), 0).map(|prompt| prompt.ids.len()), Ok(long.len()));
        let prompt = preparer.prepare(&generate(chat("[1]")), 0).expect("it is short");
        assert_eq!(prompt.changes, TemplateChanges::CALLS_AS_TEXT);
    }
    assert_eq!((preparer.work.encoded, preparer.work.rendered), (long.len(), 1));
    assert!(preparer.prepare(&generate(chat("[2]")), 0).is_ok());
    assert_eq!(preparer.work.rendered, 2, "another conversation is rendered separately");
    let schema = |text: &str| Generate { grammar: Some(Grammar::JsonSchema(text.into())), ..generate("a") };
    for _ in 0..16 {
        let refused = preparer.prepare(&schema(r#"{"enum": [1]}"#), 0);
        assert_eq!(refused, Err(Unprepared::Refused(FaultKind::PromptEmpty)));
    }
    assert_eq!(preparer.work.checked, 1);
    assert!(preparer.knows_form(&schema(r#"{"enum": [1]}"#)) && !preparer.knows_form(&schema("{}")));
}

#[test]
fn a_conversation_whose_last_message_is_continued_is_another_prompt() {
    let mut preparer = preparer(model());
    let messages = r#"[{"role": "assistant", "content": "a"}]"#;
    for is_continued in [false, true, false, true] {
        let chat = Chat { messages: messages.into(), is_continued, ..Chat::default() };
        assert!(preparer.prepare(&generate(Prompt::Chat(Box::new(chat))), 0).is_ok());
    }
    assert_eq!(preparer.work.rendered, 2);
}

#[test]
fn a_continued_message_thinks_only_if_it_has_begun_a_thought() {
    let mut model = model();
    model.thinks = true;
    let end = model.end_tokens()[0];
    let form = |prompt: &[&str]| {
        let parts: Vec<Vec<u32>> = prompt.iter().map(|text| model.tokenizer.encode(text, false, true)).collect();
        let chat = Chat { is_continued: true, ..Chat::default() };
        model.form(&generate(Prompt::Chat(Box::new(chat))), &parts.join(&end)).thinking
    };
    assert_eq!(form(&["What does <think> do?", "It begins"]), Thinking::None);
    assert_eq!(form(&["What does it do?", "<think>They ask"]), Thinking::Open);
    assert_eq!(form(&["What does it do?", "<think>They ask</think>It"]), Thinking::None);
}

#[test]
fn without_a_template_conversations_are_refused() {
    let mut bare = model();
    bare.template = Ok(None);
    let mut preparer = preparer(bare);
    assert_eq!(preparer.prepare(&generate(chat("[]")), 0), Err(Unprepared::Refused(FaultKind::NoTemplate)));
}
