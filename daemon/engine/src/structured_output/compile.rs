//! Compiles grammars with the constraint library, within limits on its time and memory; a panic of the library is an
//! error.
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use common::{
    chat::Grammar,
    tool_use::{AnswerGrammar, CallGrammar},
};
use llguidance::{
    Matcher, ParserFactory,
    api::{ParserLimits, TopLevelGrammar},
    toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie},
};
use serde_json::{Value, json};

use super::schema;

/// First byte of the text of a token that no grammar allows.
pub(super) const SPECIAL: u8 = 0xff;
/// The first control token of a trial, behind those of single bytes.
pub const TRIAL_CONTROLS: u32 = 256;
/// Most control tokens of a trial.
const CONTROLS_MAX: u32 = 64;
/// Steps of the trial that detects grammars that are too large.
const TRIAL_STEPS: usize = 64;
/// White space between two parts of an answer, at most a new line with its indentation: without this limit, a model
/// that is unsure how to continue would write nothing but white space.
const WHITE_SPACE: &str = r"(\n[ \t]{0,16}| {1,2})";

/// Turns a panic of the library into an error.
pub(super) fn caught<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
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

/// A parser factory with these limits.
pub(super) fn factory(vocabulary: &TokEnv) -> Result<ParserFactory, String> {
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

/// The matcher of a grammar; slow.
pub(super) fn matcher(factory: &ParserFactory, grammar: &AnswerGrammar) -> Result<Matcher, String> {
    caught(|| {
        let matcher = Matcher::new(factory.create_parser(compile(grammar)?));
        matcher.get_error().map_or(Ok(matcher), |error| Err(first_line(&error)))
    })
}

/// Compiles a grammar within the size limits into the library's form.
fn compile(grammar: &AnswerGrammar) -> Result<TopLevelGrammar, String> {
    let mut schema = match grammar {
        AnswerGrammar::Calls(calls) => return Ok(TopLevelGrammar::from_lark(calls.lark.clone())),
        AnswerGrammar::Whole(Grammar::Json) => json!({"type": "object"}),
        AnswerGrammar::Whole(Grammar::JsonSchema(text)) => {
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
    let grammar = AnswerGrammar::Whole(grammar.clone());
    caught(|| {
        tried(&grammar, &ApproximateTokEnv::single_byte_env())
            .map_err(|reason| format!("response format: {}", first_line(&reason)))
    })
}

/// Checks in the same way the grammar of calls, whose control tokens are numbered from [`TRIAL_CONTROLS`] on. It must
/// begin with a call.
///
/// # Errors
/// The reason why it is not supported.
pub fn check_calls(calls: &CallGrammar) -> Result<(), String> {
    let numbered = TRIAL_CONTROLS..TRIAL_CONTROLS + CONTROLS_MAX;
    if calls.controls.iter().any(|id| !numbered.contains(id)) {
        return Err("its control tokens are not numbered for a trial".into());
    }
    let words: Vec<Vec<u8>> = (0..numbered.end)
        .map(|id| match u8::try_from(id) {
            Ok(byte) if byte < SPECIAL => vec![byte],
            _ => [&[SPECIAL][..], id.to_string().as_bytes()].concat(),
        })
        .collect();
    let grammar = AnswerGrammar::Calls(Box::new(calls.clone()));
    caught(|| {
        let info = TokRxInfo::new(words.len() as u32, SPECIAL.into());
        let vocabulary: TokEnv = Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words)));
        tried(&grammar, &vocabulary).map_err(|reason| first_line(&reason))
    })
}

/// Checks whether a schema may be part of a grammar of calls.
///
/// # Errors
/// The reason why it may not.
pub fn check_parameters(schema: &Value) -> Result<(), String> {
    schema::check(schema)
}

fn tried(grammar: &AnswerGrammar, vocabulary: &TokEnv) -> Result<(), String> {
    let factory = factory(vocabulary)?;
    let mut matcher = Matcher::new(factory.create_parser(compile(grammar)?));
    if let Some(error) = matcher.get_error() {
        return Err(error);
    }
    for _ in 0..TRIAL_STEPS {
        let mask = matcher.compute_mask_or_eos();
        let mask = mask.map_err(|error| match first_line(&error.to_string()) {
            reason if reason == "NoExtensionBias" => "no value satisfies the schema".into(),
            reason => reason,
        })?;
        // Closing and separating characters come late in the ASCII order: choosing the first allowed byte goes as deep
        // into the schema as possible.
        let end = vocabulary.tok_trie().eos_token();
        let mut allowed = mask.iter().filter(|id| ![u32::from(SPECIAL), end].contains(id));
        let Some(next) = allowed.find(|id| !u8::try_from(*id).is_ok_and(|byte| b" \t\r\n".contains(&byte))) else {
            break;
        };
        matcher.consume_token(next).map_err(|error| error.to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_the_library_is_an_error() {
        assert!(caught(|| -> Result<(), String> { panic!("like the library") }).is_err());
    }
}
