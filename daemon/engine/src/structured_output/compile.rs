//! Compiles grammars with the constraint library, within limits on its time and memory; a panic of the library is an
//! error.
use std::panic::{AssertUnwindSafe, catch_unwind};

use common::chat::Grammar;
use llguidance::{
    Matcher, ParserFactory,
    api::{ParserLimits, TopLevelGrammar},
    toktrie::{ApproximateTokEnv, TokEnv},
};
use serde_json::{Value, json};

use super::schema;

/// First byte of the text of a token that no grammar allows.
pub(super) const SPECIAL: u8 = 0xff;
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
pub(super) fn matcher(factory: &ParserFactory, grammar: &Grammar) -> Result<Matcher, String> {
    caught(|| {
        let matcher = Matcher::new(factory.create_parser(compile(grammar)?));
        matcher.get_error().map_or(Ok(matcher), |error| Err(first_line(&error)))
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_the_library_is_an_error() {
        assert!(caught(|| -> Result<(), String> { panic!("like the library") }).is_err());
    }
}
