//! Converts a body to requests for heads: a `Generate` for each prompt, shared by its choices, and the format of the
//! answer. Pure.
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use common::{
    sampling::{LOGPROBS_MAX, SamplingParameters},
    tool_use::ToolUse,
};
use protocol::message::{Generate, Prompt};
use serde_json::{Map, Value};
use tokenizer::answer::ToolSchemas;

use super::{
    constraint, conversation,
    error::ApiError,
    outline::{Bounds, Outline},
    reading::{Reading, Tools},
    sampling::{drafts_max, open, sampling, stop},
    schemas::Unenforced,
    thoughts::{self, are_apart},
    typed_json::Fields,
};
use crate::gateway::outline::CHOICES_MAX;

/// Default token limit of a completion, as in OpenAI's API.
const COMPLETION_TOKENS: u64 = 16;
/// Largest token limit, and the default of chats; the context limits it further.
const TOKENS_MAX: u64 = 1 << 20;
/// Most choices of one request that run at a time; the others wait for their turn.
pub(super) const RUNNING_MAX: usize = 16;
/// Bytes of a prompt's beginning whose hash identifies the replica that may have it cached.
const PREFIX_BYTES: usize = 512;

/// All fields that are used except `prompt`; others are not even built.
pub(super) const FIELDS: [&str; 53] = [
    "best_of",
    "add_generation_prompt",
    "chat_template_kwargs",
    "continue_final_message",
    "ebnf",
    "echo",
    "enable_thinking",
    "frequency_penalty",
    "function_call",
    "functions",
    "grammar",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "ignore_eos",
    "json_schema",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "min_p",
    "modalities",
    "model",
    "n",
    "parallel_tool_calls",
    "presence_penalty",
    "reasoning_budget",
    "reasoning_effort",
    "reasoning_format",
    "regex",
    "repeat_penalty",
    "repetition_penalty",
    "response_format",
    "seed",
    "speculative",
    "speculative.n_max",
    "stop",
    "stream",
    "stream_options",
    "structural_tag",
    "structured_outputs",
    "suffix",
    "temperature",
    "thinking_budget",
    "thinking_budget_tokens",
    "thinking_token_budget",
    "tool_choice",
    "tools",
    "top_k",
    "top_logprobs",
    "top_p",
];

/// API endpoint of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// /v1/completions.
    Completion,
    /// /v1/chat/completions.
    Chat,
}

impl Kind {
    /// The field that holds the prompt.
    pub(super) fn prompt_field(self) -> &'static str {
        match self {
            Self::Completion => "prompt",
            Self::Chat => "messages",
        }
    }
}

/// A valid request.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// The client's name for the model.
    pub(super) model: Option<String>,
    /// One for each choice.
    pub(super) choices: Vec<Wish>,
    pub(super) is_streamed: bool,
    /// Whether the last chunk contains the usage.
    pub(super) includes_usage: bool,
    /// Which parts of the answers to separate.
    pub(super) reading: Reading,
    /// Whether calls are written as in OpenAI's older `function_call`.
    pub(super) is_legacy: bool,
    /// What of the schemas is not enforced.
    pub(super) unenforced: Unenforced,
    /// Whether answers begin with their prompts.
    pub(super) echoes: bool,
}

/// One choice of an answer.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    /// The request to a head except for the seed; shared by all choices of one prompt.
    pub(super) generate: Arc<Generate>,
    pub(super) seed: u64,
    /// Hash of the prompt's beginning.
    pub(super) prefix: u64,
    /// Most tokens of thoughts; `None`: no limit.
    pub(super) thought_tokens_max: Option<u32>,
}

impl Wish {
    /// The request to a head. To resume an answer, it contains the prompt's ids and the tokens so far.
    pub(super) fn generate(&self, begun: Option<(&[u32], &[u32])>) -> Generate {
        let Generate { prompt, sampling, stop, grammar, .. } = &*self.generate;
        let (prompt, resumed) = match begun {
            Some((ids, tokens)) => (Prompt::Tokens(ids.to_vec()), tokens.to_vec()),
            None => (prompt.clone(), Vec::new()),
        };
        // A prompt has been scored before the first token of its answer.
        let scores_prompt = sampling.scores_prompt && resumed.is_empty();
        let sampling = SamplingParameters { seed: self.seed, scores_prompt, ..sampling.clone() };
        let mut generate = Generate::new(prompt, self.generate.max_tokens, sampling, stop.clone());
        generate.resumed = resumed;
        generate.grammar.clone_from(grammar);
        generate.drafts_max = self.generate.drafts_max;
        generate.ignores_end = self.generate.ignores_end;
        generate.shows_marks = self.generate.shows_marks;
        generate.open.clone_from(&self.generate.open);
        generate.tool_use.clone_from(&self.generate.tool_use);
        generate
    }
}

impl Asked {
    /// Bytes that the prompts take until heads have them: once here, and for each choice that runs once more and as a
    /// message.
    pub(super) fn bytes(&self) -> usize {
        let mut of_choices: Vec<usize> = self.choices.iter().map(|wish| byte_count(&wish.generate)).collect();
        of_choices.sort_unstable_by_key(|bytes| std::cmp::Reverse(*bytes));
        let running: usize = of_choices.iter().take(RUNNING_MAX).sum();
        let shared = self.choices.windows(2).filter(|two| Arc::ptr_eq(&two[0].generate, &two[1].generate));
        let shared: usize = shared.map(|two| byte_count(&two[1].generate)).sum();
        of_choices.iter().sum::<usize>() - shared + 2 * running
    }
}

/// Bytes of a prompt, and of the tools that travel with it.
fn byte_count(generate: &Generate) -> usize {
    generate.prompt.byte_count() + generate.tool_use.as_ref().map_or(0, |tool_use| tool_use.tools.len())
}

/// Parses a body. `seed` is used if the request has none.
///
/// # Errors
/// The first invalid field.
pub(super) fn read(kind: Kind, body: &[u8], seed: u64, bounds: Bounds) -> Result<Asked, ApiError> {
    let outline = Outline::read(body)?;
    let object = outline.values(&FIELDS)?;
    let prompts = if kind == Kind::Completion { outline.prompts("prompt", bounds)? } else { Vec::new() };
    build(kind, object, prompts, seed)
}

/// Builds a request from the fields of a body; a chat takes its prompt from `messages`.
///
/// # Errors
/// The first invalid field.
pub(super) fn build(
    kind: Kind,
    mut object: Map<String, Value>,
    mut prompts: Vec<Prompt>,
    seed: u64,
) -> Result<Asked, ApiError> {
    let (mut tools, mut forced, mut is_legacy, mut unenforced) = (Tools::default(), None, false, Unenforced::new());
    let (mut schemas, mut tool_use) = (ToolSchemas::default(), None);
    if kind == Kind::Chat {
        let read = conversation::read(&mut object)?;
        schemas = read.schemas;
        (tools.are_given, tools.are_forced) = (read.chat.tools.is_some(), read.forced.is_some());
        (forced, is_legacy, unenforced, tool_use) = (read.forced, read.is_legacy, read.unenforced, read.tool_use);
        prompts = vec![Prompt::Chat(Box::new(read.chat))];
    }
    let fields = Fields(&object);
    tools.is_one = fields.get("parallel_tool_calls") == Some(&Value::Bool(false))
        || tool_use.as_ref().map_or(is_legacy, |tool_use| tool_use.is_one);
    refuse_unsupported(fields)?;
    let n = fields.whole("n", 1, CHOICES_MAX as u64)?.unwrap_or(1);
    if prompts.len() * n as usize > CHOICES_MAX {
        let message =
            format!("{} prompts with n = {n} are more than {CHOICES_MAX} answers; request fewer", prompts.len());
        return Err(ApiError::invalid("n", message));
    }
    let logprobs = logprobs(kind, fields)?;
    let echoes = echoes(kind, fields)?;
    let mut sampling = sampling(fields, logprobs, seed)?;
    sampling.scores_prompt = echoes && logprobs.is_some();
    let (stop, grammar, max_tokens) =
        (stop(fields)?, forced.or(constraint::read(fields, &mut unenforced)?), max_tokens(kind, fields, echoes)?);
    // Next to a response format, a head leaves room for calls, and for thoughts only with these.
    let is_formatted = grammar.is_some() && !tools.are_forced;
    let tool_use = tool_use.map(|tool_use| Box::new(ToolUse { is_one: tools.is_one, ..tool_use }));
    let open = open(fields);
    let thought_tokens_max = thoughts::budget(fields)?;
    let drafts_max = drafts_max(fields)?;
    // A field name of llama-server.
    let ignores_end = fields.flag("ignore_eos")?;
    let options = fields.object("stream_options")?;
    let mut choices = Vec::new();
    for prompt in prompts {
        let prefix = prefix(&prompt);
        // A head samples at least one token.
        let mut generate = Generate::new(prompt, max_tokens.max(1), sampling.clone(), stop.clone());
        generate.grammar.clone_from(&grammar);
        generate.drafts_max = drafts_max.unwrap_or(generate.drafts_max);
        generate.ignores_end = ignores_end;
        generate.shows_marks = kind == Kind::Chat;
        generate.open.clone_from(&open);
        generate.tool_use.clone_from(&tool_use);
        let generate = Arc::new(generate);
        choices.extend((0..n).map(|index| Wish {
            generate: Arc::clone(&generate),
            seed: sampling.seed.wrapping_add(index),
            prefix,
            thought_tokens_max,
        }));
    }
    Ok(Asked {
        model: fields.text("model")?.map(Into::into),
        is_streamed: fields.flag("stream")?,
        includes_usage: options.map_or(Ok(false), |options| options.flag("include_usage"))?,
        is_legacy,
        unenforced,
        echoes,
        reading: Reading {
            tools,
            schemas: Arc::new(schemas),
            has_thoughts: kind == Kind::Chat && (!is_formatted || tool_use.is_some()) && are_apart(fields)?,
            is_formatted,
            logprobs: logprobs.map(|count| count as usize),
            shows_ids: false,
            is_prompt_only: max_tokens == 0,
        },
        choices,
    })
}

/// Whether the answer begins with its prompt.
fn echoes(kind: Kind, fields: Fields<'_>) -> Result<bool, ApiError> {
    let echoes = fields.flag("echo")?;
    if echoes && kind == Kind::Chat {
        let message = "echo is not supported for conversations; use /v1/completions or /apply-template";
        return Err(ApiError::invalid("echo", message));
    }
    if echoes && fields.flag("stream")? && fields.get("logprobs").is_some_and(|logprobs| *logprobs != false) {
        let message = "echo with logprobs is not streamed; leave stream out";
        return Err(ApiError::invalid("stream", message));
    }
    Ok(echoes)
}

fn refuse_unsupported(fields: Fields<'_>) -> Result<(), ApiError> {
    if fields.whole("best_of", 1, u64::MAX)?.is_some_and(|count| count > 1) {
        return Err(ApiError::invalid("best_of", "best_of is not supported; request n answers and choose"));
    }
    if fields.get("suffix").is_some_and(|suffix| suffix != "") {
        return Err(ApiError::invalid("suffix", "suffix is not supported; leave it out"));
    }
    let modalities = fields.get("modalities").and_then(Value::as_array);
    if modalities.is_some_and(|list| list.iter().any(|modality| modality != "text")) {
        return Err(ApiError::invalid("modalities", "modalities may only be [\"text\"]: the model writes only text"));
    }
    Ok(())
}

/// Number of most probable tokens to show for each token.
fn logprobs(kind: Kind, fields: Fields<'_>) -> Result<Option<u32>, ApiError> {
    let most = u64::from(LOGPROBS_MAX);
    if kind == Kind::Completion {
        if fields.get("logprobs") == Some(&Value::Bool(false)) {
            return Ok(None);
        }
        return Ok(fields.whole("logprobs", 0, most)?.map(|count| count as u32));
    }
    let top = fields.whole("top_logprobs", 0, most)?;
    match (fields.flag("logprobs")?, top) {
        (true, top) => Ok(Some(top.unwrap_or(0) as u32)),
        (false, Some(1..)) => Err(ApiError::invalid("top_logprobs", "top_logprobs needs logprobs: true; set it")),
        (false, _) => Ok(None),
    }
}

fn max_tokens(kind: Kind, fields: Fields<'_>, echoes: bool) -> Result<u32, ApiError> {
    let names = ["max_completion_tokens", "max_tokens"];
    let Some(name) = names.into_iter().find(|name| fields.get(name).is_some()) else {
        return Ok(if kind == Kind::Chat { TOKENS_MAX } else { COMPLETION_TOKENS } as u32);
    };
    // -1 is llama-server's "unlimited".
    // With an echo there may be no answer.
    Ok(fields.limit(name, u64::from(!echoes), u64::MAX)?.map_or(TOKENS_MAX, |most| most.min(TOKENS_MAX)) as u32)
}

/// Hash of a prompt's first bytes.
fn prefix(prompt: &Prompt) -> u64 {
    let mut hasher = DefaultHasher::new();
    let head = |bytes: &[u8]| bytes[..bytes.len().min(PREFIX_BYTES)].to_vec();
    match prompt {
        Prompt::Text(text) => head(text.as_bytes()).hash(&mut hasher),
        Prompt::Tokens(tokens) => tokens[..tokens.len().min(PREFIX_BYTES / 4)].hash(&mut hasher),
        Prompt::Chat(chat) => head(chat.messages.as_bytes()).hash(&mut hasher),
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use common::chat::{GRAMMAR_BYTES_MAX, Grammar};
    use serde_json::json;

    use super::*;

    fn chat_with(more: Value) -> Result<Asked, ApiError> {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        let fields = more.as_object().expect("an object").clone();
        body.as_object_mut().expect("an object").extend(fields);
        read(Kind::Chat, body.to_string().as_bytes(), 1, Bounds { context: None })
    }

    fn tool(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}})
    }

    #[test]
    fn only_required_tool_calls_have_a_grammar() {
        let grammar = |choice: Value| {
            let asked =
                chat_with(json!({"tools": [tool("add"), tool("sum")], "tool_choice": choice})).expect("it is good");
            let generate = &asked.choices[0].generate;
            let Prompt::Chat(chat) = &generate.prompt else { panic!("a conversation") };
            (generate.grammar.clone(), chat.tools.clone().map(|tools| tools.contains("sum")), asked.reading.tools)
        };
        assert_eq!(grammar(json!("auto")).0, None);
        assert_eq!(grammar(json!("none")), (None, None, Tools::default()));
        let (Some(Grammar::JsonSchema(schema)), Some(true), tools) = grammar(json!("required")) else {
            panic!("a schema")
        };
        assert!(schema.contains("anyOf") && schema.contains("\"add\"") && tools.are_forced && !tools.is_one);
        let named = grammar(json!({"type": "function", "function": {"name": "add"}}));
        assert!(matches!(&named.0, Some(Grammar::JsonSchema(schema)) if !schema.contains("sum")));
        assert_eq!(named.1, Some(false), "the model receives no other tool");
        for bad in [
            json!({"tool_choice": "required"}),
            json!({"tools": [tool("add")], "tool_choice": tool("sub")}),
            json!({"tools": [{}]}),
        ] {
            assert!(chat_with(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn heads_receive_tools_and_choice_also_next_to_a_format() {
        let tool_use = |more: Value| {
            let body = json!({"tools": [tool("add"), tool("sum")]});
            let Value::Object(more) = more else { panic!("an object") };
            let mut body = body.as_object().expect("an object").clone();
            body.extend(more);
            let asked = chat_with(body.into()).expect("it is good");
            let resumed = asked.choices[0].generate(Some((&[1], &[2])));
            assert_eq!(resumed.tool_use, asked.choices[0].generate.tool_use, "also where the prompt is tokens");
            resumed.tool_use
        };
        let how =
            |more: Value| tool_use(more).map(|found| (found.is_required, found.is_one, found.tools.contains("sum")));
        assert_eq!(how(json!({})), Some((false, false, true)));
        assert_eq!(how(json!({"tool_choice": "required"})), Some((true, false, true)));
        assert_eq!(how(json!({"tool_choice": "required", "parallel_tool_calls": false})), Some((true, true, true)));
        assert_eq!(how(json!({"tool_choice": tool("add")})), Some((true, true, false)));
        assert_eq!(how(json!({"tool_choice": "none"})), None);
        assert_eq!(how(json!({"response_format": {"type": "json_object"}})), Some((false, false, true)));
        let large = json!({"type": "object", "description": "x".repeat(GRAMMAR_BYTES_MAX)});
        let large = json!([{"type": "function", "function": {"name": "sum", "parameters": large}}]);
        let found = tool_use(json!({ "tools": large })).expect("its name");
        assert_eq!(found.tools, "[{\"name\":\"sum\"}]", "schemas that are too large are left out");
    }

    #[test]
    fn choices_have_consecutive_seeds_and_share_the_prompt() {
        let asked =
            chat_with(json!({"n": 3, "seed": -1, "max_tokens": 5, "max_completion_tokens": 7})).expect("it is good");
        let seeds: Vec<u64> = asked.choices.iter().map(|wish| wish.generate(None).sampling.seed).collect();
        assert_eq!(seeds, [u64::MAX, 0, 1]);
        let first = &asked.choices[0];
        assert!(asked.choices.iter().all(|wish| wish.generate.max_tokens == 7 && wish.prefix == first.prefix));
        assert!(asked.choices.iter().all(|wish| Arc::ptr_eq(&wish.generate, &first.generate)), "one prompt in memory");
        assert_eq!(asked.bytes(), 7 * first.generate.prompt.byte_count());
        let resumed = first.generate(Some((&[1, 2], &[3])));
        assert_eq!((resumed.prompt, resumed.resumed), (Prompt::Tokens(vec![1, 2]), vec![3]));
        let asked = chat_with(json!({"logprobs": true, "top_logprobs": 0})).expect("it is good");
        assert_eq!(
            (asked.reading.logprobs, asked.choices[0].generate.sampling.logprobs),
            (Some(0), 1),
            "the token's own logprob is included"
        );
        assert!(chat_with(json!({"top_logprobs": 3})).is_err());
    }

    #[test]
    fn every_field_that_is_read_is_listed() {
        let source = include_str!("request.rs").split("#[cfg(test)]").next().expect("there is a beginning");
        assert!(constraint::REFUSED.iter().all(|name| FIELDS.contains(name)));
        let others = [
            include_str!("calls.rs"),
            include_str!("constraint.rs"),
            include_str!("conversation.rs"),
            include_str!("sampling.rs"),
            include_str!("thoughts.rs"),
        ];
        let others = others.map(|text| text.split("#[cfg(test)]").next().expect("there is a beginning"));
        let others = others.iter().flat_map(|text| text.split_whitespace());
        let code: String = source.split_whitespace().chain(others).collect();
        let mut count = 0;
        for reader in ["get(\"", "number(\"", "limit(\"", "whole(\"", "flag(\"", "text(\"", "object(\"", "remove(\""] {
            for call in code.split(reader).skip(1) {
                let name = call.split('"').next().expect("a name ends");
                // Fields of nested objects.
                if ![
                    "role",
                    "content",
                    "type",
                    "function",
                    "name",
                    "parameters",
                    "tool_calls",
                    "refusal",
                    "json",
                    "json_object",
                    "strict",
                    "schema",
                    "include_usage",
                    "text",
                    "tool_call_id",
                ]
                .contains(&name)
                {
                    assert!(FIELDS.contains(&name), "{name} is not listed");
                    count += 1;
                }
            }
        }
        assert!(count >= 25, "only {count} fields were found");
    }

    #[test]
    fn deeply_nested_or_truncated_body_is_malformed() {
        let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        let read = |body: &[u8]| read(Kind::Completion, body, 1, Bounds { context: None });
        assert!(read(deep.as_bytes()).is_err());
        let good =
            json!({"prompt": "a", "stop": ["b"], "logit_bias": {"1": 2.0}, "response_format": {"type": "json_object"}})
                .to_string();
        assert!(read(good.as_bytes()).is_ok());
        (0..good.len()).for_each(|end| assert!(read(&good.as_bytes()[..end]).is_err(), "cut at {end}"));
    }
}
