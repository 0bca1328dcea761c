//! What heads of older wire versions lack for a request. Pure.
use protocol::message::Generate;

/// First wire version in which heads report the log probabilities or the embedding of a prompt.
const PROMPTS_SCORED_FROM: u16 = 11;
/// First wire version in which heads constrain calls in the syntax of their model.
const OWN_CALLS_FROM: u16 = 12;
/// First wire version in which an answer may have a format instead of calls. Heads before it constrain only the calls.
const CALLS_OR_FORMAT_FROM: u16 = 16;

/// Leaves the tools out of a request that a head of this version would answer without its format. `has_own_calls`: the
/// answer has begun with a head that constrains its calls.
///
/// # Errors
/// What the request needs and the head lacks.
pub(super) fn adapt(generate: &mut Generate, version: u16, has_own_calls: bool) -> Result<(), &'static str> {
    let is_formatted = generate.grammar.is_some();
    let may_call = generate.tool_use.as_ref().is_some_and(|tool_use| !tool_use.is_required);
    if generate.sampling.needs_whole_prompt() && version < PROMPTS_SCORED_FROM {
        return Err("log probabilities and embeddings of prompts");
    }
    if has_own_calls && is_formatted && version < OWN_CALLS_FROM {
        return Err("calls in the syntax of the model");
    }
    if is_formatted && may_call && version < CALLS_OR_FORMAT_FROM {
        if has_own_calls {
            return Err("calls or a response format");
        }
        generate.tool_use = None;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use common::{chat::Grammar, sampling::SamplingParameters, tool_use::ToolUse};
    use protocol::message::Prompt;

    use super::*;

    /// The tools that remain in a request with or without a format and a required call.
    fn adapted(is_formatted: bool, is_required: bool, version: u16, has_own_calls: bool) -> Result<bool, &'static str> {
        let prompt = Prompt::Tokens(vec![1]);
        let mut generate = Generate::new(prompt, 1, SamplingParameters::default(), Vec::new());
        generate.grammar = is_formatted.then_some(Grammar::Json);
        generate.tool_use = Some(Box::new(ToolUse { is_required, ..ToolUse::default() }));
        adapt(&mut generate, version, has_own_calls).map(|()| generate.tool_use.is_some())
    }

    #[test]
    fn older_heads_get_the_format_without_the_tools() {
        let both = Err("calls or a response format");
        for (is_formatted, is_required, version, has_own_calls, expected) in [
            (true, false, 16, false, Ok(true)),
            (true, false, 16, true, Ok(true)),
            (true, false, 15, false, Ok(false)),
            (true, false, 12, false, Ok(false)),
            (true, false, 15, true, both),
            // A required call has a grammar of its own, and calls alone have none.
            (true, true, 15, true, Ok(true)),
            (false, false, 15, true, Ok(true)),
            (true, true, 11, true, Err("calls in the syntax of the model")),
            (true, true, 11, false, Ok(true)),
        ] {
            let found = adapted(is_formatted, is_required, version, has_own_calls);
            assert_eq!(found, expected, "{is_formatted} {is_required} {version} {has_own_calls}");
        }
    }

    #[test]
    fn prompts_are_scored_from_version_11_on() {
        let sampling = SamplingParameters { embeds: true, ..SamplingParameters::default() };
        let mut generate = Generate::new(Prompt::Tokens(vec![1]), 1, sampling, Vec::new());
        assert_eq!(adapt(&mut generate, 10, false), Err("log probabilities and embeddings of prompts"));
        assert_eq!(adapt(&mut generate, 11, false), Ok(()));
    }
}
