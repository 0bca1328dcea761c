//! Converts a body to requests for heads: a `Generate` for each prompt, shared by its choices, and the format of the
//! answer. Pure.
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use common::{
    chat::Grammar,
    sampling::{LOGIT_BIAS_MAX, LOGPROBS_MAX, SamplingParameters, TOP_K_MAX},
};
use protocol::message::{Generate, Prompt, STOP_BYTES_MAX, STOP_STRINGS_MAX};
use serde_json::Value;

use super::{
    conversation,
    error::ApiError,
    outline::{Bounds, Outline},
    typed_json::{Fields, brief},
};
use crate::gateway::outline::CHOICES_MAX;

/// Default token limit of a completion, as in OpenAI's API.
const COMPLETION_TOKENS: u64 = 16;
/// Default token limit of a chat answer.
const CHAT_TOKENS: u64 = 1024;
/// Largest token limit that can be requested; the context limits it further.
const TOKENS_MAX: u64 = 1 << 20;
/// Bytes of a prompt's beginning whose hash identifies the replica that may have it cached.
const PREFIX_BYTES: usize = 512;

/// All fields that are used except `prompt`; others are not even built.
const FIELDS: [&str; 29] = [
    "best_of",
    "echo",
    "frequency_penalty",
    "ignore_eos",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "min_p",
    "model",
    "n",
    "parallel_tool_calls",
    "presence_penalty",
    "repeat_penalty",
    "repetition_penalty",
    "response_format",
    "seed",
    "speculative.n_max",
    "stop",
    "stream",
    "stream_options",
    "suffix",
    "temperature",
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

/// A valid request.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) kind: Kind,
    /// The client's name for the model.
    pub(super) model: Option<String>,
    /// One for each choice.
    pub(super) choices: Vec<Wish>,
    pub(super) is_streamed: bool,
    /// Whether the last chunk contains the usage.
    pub(super) includes_usage: bool,
    /// Number of most probable tokens to show for each token; `None`: no logprobs.
    pub(super) logprobs: Option<usize>,
    /// Which tool calls to look for.
    pub(super) tools: Tools,
}

/// One choice of an answer.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    /// The request to a head except for the seed; shared by all choices of one prompt.
    pub(super) generate: Arc<Generate>,
    pub(super) seed: u64,
    /// Hash of the prompt's beginning.
    pub(super) prefix: u64,
}

impl Wish {
    /// The request to a head. To resume an answer, it contains the prompt's ids and the tokens so far.
    pub(super) fn generate(&self, begun: Option<(&[u32], &[u32])>) -> Generate {
        let Generate { prompt, sampling, stop, grammar, .. } = &*self.generate;
        let (prompt, resumed) = match begun {
            Some((ids, tokens)) => (Prompt::Tokens(ids.to_vec()), tokens.to_vec()),
            None => (prompt.clone(), Vec::new()),
        };
        let sampling = SamplingParameters { seed: self.seed, ..sampling.clone() };
        let mut generate = Generate::new(prompt, self.generate.max_tokens, sampling, stop.clone());
        generate.resumed = resumed;
        generate.grammar.clone_from(grammar);
        generate.drafts_max = self.generate.drafts_max;
        generate.ignores_end = self.generate.ignores_end;
        generate
    }
}

impl Asked {
    /// Bytes that the prompts take until heads have them: once here, and for each choice once more and as a message.
    pub(super) fn bytes(&self) -> usize {
        let mut bytes = 0;
        let mut latest: Option<&Arc<Generate>> = None;
        for Wish { generate, .. } in &self.choices {
            let own = generate.prompt.byte_count();
            let is_shared = latest.is_some_and(|latest| Arc::ptr_eq(latest, generate));
            bytes += if is_shared { 2 * own } else { 3 * own };
            latest = Some(generate);
        }
        bytes
    }
}

/// Parses a body. `seed` is used if the request has none.
///
/// # Errors
/// The first invalid field.
pub(super) fn read(kind: Kind, body: &[u8], seed: u64, bounds: Bounds) -> Result<Asked, ApiError> {
    let outline = Outline::read(body)?;
    let mut object = outline.values(&FIELDS)?;
    let (mut tools, mut forced) = (Tools::default(), None);
    let prompts = match kind {
        Kind::Completion => outline.prompts(bounds)?,
        Kind::Chat => {
            let (chat, force) = conversation::read(&mut object)?;
            (tools.are_given, tools.are_forced) = (chat.tools.is_some(), force.is_some());
            forced = force;
            vec![Prompt::Chat(Box::new(chat))]
        }
    };
    let fields = Fields(&object);
    tools.is_one = tools.are_forced || fields.get("parallel_tool_calls") == Some(&Value::Bool(false));
    refuse_unsupported(fields)?;
    let n = fields.whole("n", 1, CHOICES_MAX as u64)?.unwrap_or(1);
    if prompts.len() * n as usize > CHOICES_MAX {
        let message =
            format!("{} prompts with n = {n} are more than {CHOICES_MAX} answers; request fewer", prompts.len());
        return Err(ApiError::invalid("n", message));
    }
    let logprobs = logprobs(kind, fields)?;
    let sampling = sampling(fields, logprobs, seed)?;
    let (stop, grammar, max_tokens) = (stop(fields)?, forced.or(grammar(fields)?), max_tokens(kind, fields)?);
    // Field names of llama-server.
    let drafts_max = fields.whole("speculative.n_max", 0, u64::from(u16::MAX))?.map(|count| count as u16);
    let ignores_end = fields.flag("ignore_eos")?;
    let options = fields.object("stream_options")?;
    let mut choices = Vec::new();
    for prompt in prompts {
        let prefix = prefix(&prompt);
        let mut generate = Generate::new(prompt, max_tokens, sampling.clone(), stop.clone());
        generate.grammar.clone_from(&grammar);
        generate.drafts_max = drafts_max.unwrap_or(generate.drafts_max);
        generate.ignores_end = ignores_end;
        let generate = Arc::new(generate);
        choices.extend((0..n).map(|index| Wish {
            generate: Arc::clone(&generate),
            seed: sampling.seed.wrapping_add(index),
            prefix,
        }));
    }
    Ok(Asked {
        kind,
        model: fields.text("model")?.map(Into::into),
        is_streamed: fields.flag("stream")?,
        includes_usage: options.map_or(Ok(false), |options| options.flag("include_usage"))?,
        logprobs: logprobs.map(|count| count as usize),
        tools,
        choices,
    })
}

fn refuse_unsupported(fields: Fields<'_>) -> Result<(), ApiError> {
    if fields.flag("echo")? {
        return Err(ApiError::invalid(
            "echo",
            "echo is not supported; leave it out and put the prompt before the answer",
        ));
    }
    if fields.whole("best_of", 1, u64::MAX)?.is_some_and(|count| count > 1) {
        return Err(ApiError::invalid("best_of", "best_of is not supported; request n answers and choose"));
    }
    if fields.get("suffix").is_some() {
        return Err(ApiError::invalid("suffix", "suffix is not supported; leave it out"));
    }
    Ok(())
}

fn logprobs(kind: Kind, fields: Fields<'_>) -> Result<Option<u32>, ApiError> {
    let most = u64::from(LOGPROBS_MAX);
    if kind == Kind::Completion {
        return Ok(fields.whole("logprobs", 0, most)?.map(|count| count as u32));
    }
    let top = fields.whole("top_logprobs", 0, most)?;
    match (fields.flag("logprobs")?, top) {
        (true, top) => Ok(Some(top.unwrap_or(0) as u32)),
        (false, Some(1..)) => Err(ApiError::invalid("top_logprobs", "top_logprobs needs logprobs: true; set it")),
        (false, _) => Ok(None),
    }
}

fn sampling(fields: Fields<'_>, logprobs: Option<u32>, seed: u64) -> Result<SamplingParameters, ApiError> {
    let default = SamplingParameters::default();
    // Negative seeds are valid integers, too.
    let given = fields.get("seed").map(|value| value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned)));
    let seed = match given {
        None => seed,
        Some(Some(seed)) => seed,
        Some(None) => return Err(ApiError::invalid("seed", "seed must be a whole number; give one or leave it out")),
    };
    let sampling = SamplingParameters {
        temperature: fields.number("temperature", 1.0)?,
        top_k: fields.whole("top_k", 0, u64::from(TOP_K_MAX))?.unwrap_or(0) as u32,
        top_p: fields.number("top_p", 1.0)?,
        min_p: fields.number("min_p", 0.0)?,
        repeat_penalty: fields.number(
            if fields.get("repeat_penalty").is_some() { "repeat_penalty" } else { "repetition_penalty" },
            1.0,
        )?,
        presence_penalty: fields.number("presence_penalty", 0.0)?,
        frequency_penalty: fields.number("frequency_penalty", 0.0)?,
        penalty_last_n: default.penalty_last_n,
        logit_bias: logit_bias(fields)?,
        seed,
        // The sampled token's own logprob is included if at least one is requested.
        logprobs: logprobs.map_or(0, |count| count.max(1)),
    };
    sampling.check().map_err(|error| {
        let message = error.to_string();
        let param = message.split(' ').next().unwrap_or_default().to_owned();
        ApiError::invalid(&param, format!("{message}; correct it"))
    })?;
    Ok(sampling)
}

/// `{"ID": BIAS}`.
fn logit_bias(fields: Fields<'_>) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(Fields(biases)) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    if biases.len() > LOGIT_BIAS_MAX {
        let message = format!("logit_bias names {} tokens, at most {LOGIT_BIAS_MAX}; name fewer", biases.len());
        return Err(ApiError::invalid("logit_bias", message));
    }
    biases.iter().map(|(id, bias)| Some((id.parse().ok()?, bias.as_f64()? as f32))).collect::<Option<_>>().ok_or_else(
        || ApiError::invalid("logit_bias", "logit_bias must map token ids to numbers, for example {\"50\": -100}"),
    )
}

fn stop(fields: Fields<'_>) -> Result<Vec<String>, ApiError> {
    let refusal = || {
        let message = format!(
            "stop must be a string or a list of at most {STOP_STRINGS_MAX} strings of 1 to {STOP_BYTES_MAX} bytes; correct it"
        );
        ApiError::invalid("stop", message)
    };
    let texts = match fields.get("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(list)) => list
            .iter()
            .map(|text| text.as_str().map(Into::into))
            .collect::<Option<Vec<String>>>()
            .ok_or_else(refusal)?,
        Some(_) => return Err(refusal()),
    };
    let is_good =
        texts.len() <= STOP_STRINGS_MAX && texts.iter().all(|text| (1..=STOP_BYTES_MAX).contains(&text.len()));
    if is_good { Ok(texts) } else { Err(refusal()) }
}

fn grammar(fields: Fields<'_>) -> Result<Option<Grammar>, ApiError> {
    let Some(format) = fields.object("response_format")? else { return Ok(None) };
    match format.text("type")? {
        None | Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Grammar::Json)),
        Some("json_schema") => {
            let schema = format.object("json_schema")?.and_then(|wrapped| wrapped.get("schema"));
            Ok(Some(Grammar::JsonSchema(
                schema
                    .ok_or_else(|| {
                        let message =
                            "response_format.json_schema.schema is missing; give the JSON schema of the answer";
                        ApiError::invalid("response_format", message)
                    })?
                    .to_string(),
            )))
        }
        Some(other) => {
            let message =
                format!("response_format {:?} is unknown; use text, json_object or json_schema", brief(&other.into()));
            Err(ApiError::invalid("response_format", message))
        }
    }
}

fn max_tokens(kind: Kind, fields: Fields<'_>) -> Result<u32, ApiError> {
    let newer = fields.whole("max_completion_tokens", 1, TOKENS_MAX)?;
    let older = fields.whole("max_tokens", 1, TOKENS_MAX)?;
    let default = if kind == Kind::Chat { CHAT_TOKENS } else { COMPLETION_TOKENS };
    Ok(newer.or(older).unwrap_or(default) as u32)
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

/// Which tool calls to look for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tools {
    /// Whether the request has tools.
    pub(super) are_given: bool,
    /// Whether the answer is a tool call and nothing else: a grammar enforces this, regardless of the model's own
    /// format of calls.
    pub(super) are_forced: bool,
    /// Whether at most one call is allowed.
    pub(super) is_one: bool,
}

#[cfg(test)]
mod tests {
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
            (generate.grammar.clone(), chat.tools.clone().map(|tools| tools.contains("sum")), asked.tools)
        };
        assert_eq!(grammar(json!("auto")).0, None);
        assert_eq!(grammar(json!("none")), (None, None, Tools::default()));
        let (Some(Grammar::JsonSchema(schema)), Some(true), tools) = grammar(json!("required")) else {
            panic!("a schema")
        };
        assert!(schema.contains("anyOf") && schema.contains("\"add\"") && tools.are_forced && tools.is_one);
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
            (asked.logprobs, asked.choices[0].generate.sampling.logprobs),
            (Some(0), 1),
            "the token's own logprob is included"
        );
        assert!(chat_with(json!({"top_logprobs": 3})).is_err());
    }

    #[test]
    fn every_field_that_is_read_is_listed() {
        let source = include_str!("request.rs").split("#[cfg(test)]").next().expect("there is a beginning");
        let code: String =
            source.split_whitespace().chain(include_str!("conversation.rs").split_whitespace()).collect();
        let mut count = 0;
        for reader in ["get(\"", "number(\"", "whole(\"", "flag(\"", "text(\"", "object(\"", "remove(\""] {
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
                    "function_call",
                    "json_schema",
                    "schema",
                    "include_usage",
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
