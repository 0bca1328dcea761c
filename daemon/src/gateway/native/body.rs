//! The body of llama-server's /completion as one of OpenAI's completions with other defaults. Pure.
use std::sync::Arc;

use protocol::message::Generate;
use serde_json::{Map, Value, json};

use crate::gateway::{
    error::ApiError,
    outline::{Bounds, Outline},
    request::{self, Asked, Kind, Wish},
    typed_json::Fields,
};

/// Fields with the same name and meaning.
const SAME: [&str; 18] = [
    "frequency_penalty",
    "grammar",
    "json_schema",
    "logit_bias",
    "min_p",
    "model",
    "presence_penalty",
    "prompt",
    "repeat_penalty",
    "response_format",
    "seed",
    "speculative",
    "speculative.n_max",
    "stop",
    "stream",
    "temperature",
    "top_k",
    "top_p",
];
/// Fields with other names there.
const OWN: [&str; 6] = ["ignore_eos", "logit_bias", "n_predict", "n_probs", "return_tokens", "seed"];

/// The form of the answer.
#[derive(Clone, Debug, Default)]
pub(super) struct NativeForm {
    /// Whether the whole answer has the ids of its tokens.
    pub(super) with_tokens: bool,
    /// Whether no token of an answer is wanted.
    pub(super) is_prompt_only: bool,
    /// Whether stop strings may end the answer.
    pub(super) has_stops: bool,
    /// Most probable tokens at each position; `None`: no log probabilities.
    pub(super) probabilities: Option<usize>,
    /// The settings that apply, in the form of llama-server.
    pub(super) settings: Value,
}

/// Reads a body; `seed` is used if it has none.
///
/// # Errors
/// The first invalid field.
pub(super) fn read(body: &[u8], seed: u64, bounds: Bounds) -> Result<(Asked, NativeForm), ApiError> {
    let outline = Outline::read(body)?;
    let object = outline.values(&OWN)?;
    let fields = Fields(&object);
    let most = fields.whole("n_probs", 0, u64::MAX)?.filter(|most| *most > 0);
    // Negative numbers mean no limit, or all of the context.
    let predicted = fields.get("n_predict").filter(|count| count.as_f64().is_none_or(|count| count >= 0.0));
    let is_prompt_only = predicted.and_then(Value::as_f64) == Some(0.0);
    let mut others = Map::new();
    others.insert("max_tokens".into(), predicted.cloned().unwrap_or_else(|| (-1).into()));
    others.insert("echo".into(), is_prompt_only.into());
    others.insert("ignore_eos".into(), fields.flag("ignore_eos")?.into());
    others.insert("logprobs".into(), most.map_or(Value::Null, Value::from));
    if fields.get("seed").and_then(Value::as_i64) == Some(-1) {
        others.insert("seed".into(), seed.into());
    }
    for (name, default) in [("temperature", 0.8), ("top_p", 0.95), ("min_p", 0.05)] {
        if !outline.has(name) {
            others.insert(name.into(), default.into());
        }
    }
    if !outline.has("top_k") {
        others.insert("top_k".into(), 40.into());
    }
    if let Some(Value::Array(pairs)) = fields.get("logit_bias") {
        others.insert("logit_bias".into(), biases(pairs)?);
    }
    let mut asked = request::read(Kind::Completion, outline.renamed(&SAME, &others).as_bytes(), seed, bounds)?;
    let [wish] = &mut asked.choices[..] else {
        return Err(ApiError::invalid("prompt", "prompt must be one prompt; send a request for each"));
    };
    if is_prompt_only {
        // Neither the prompt's text nor its logits are asked for.
        asked.echoes = false;
        Arc::make_mut(&mut wish.generate).sampling.scores_prompt = false;
    }
    asked.reading.shows_ids = true;
    let form = NativeForm {
        with_tokens: fields.flag("return_tokens")?,
        is_prompt_only,
        has_stops: !wish.generate.stop.is_empty(),
        probabilities: asked.reading.logprobs,
        settings: settings(wish, asked.is_streamed, asked.reading.logprobs),
    };
    Ok((asked, form))
}

/// The settings that apply to a request.
fn settings(wish: &Wish, is_streamed: bool, probabilities: Option<usize>) -> Value {
    let Generate { max_tokens, sampling, stop, ignores_end, .. } = &*wish.generate;
    json!({
        "n_predict": max_tokens,
        "seed": wish.seed,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repeat_penalty,
        "repeat_last_n": sampling.penalty_last_n,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "stop": stop,
        "ignore_eos": ignores_end,
        "stream": is_streamed,
        "n_probs": probabilities.unwrap_or_default(),
    })
}

/// `[[ID, BIAS], ..]` as an object; `false` bans a token.
fn biases(pairs: &[Value]) -> Result<Value, ApiError> {
    let biases = pairs.iter().map(|pair| {
        let id = pair.get(0)?.as_u64()?;
        let bias = match pair.get(1)? {
            Value::Bool(false) => json!(-1000),
            bias => json!(bias.as_f64()?),
        };
        Some((id.to_string(), bias))
    });
    let biases: Option<Map<String, Value>> = biases.collect();
    biases.map(Value::Object).ok_or_else(|| {
        ApiError::invalid("logit_bias", "logit_bias must be pairs of token ids and numbers, for example [[50, -100]]")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(body: Value) -> Result<(Asked, NativeForm), ApiError> {
        read(body.to_string().as_bytes(), 77, Bounds { context: None })
    }

    #[test]
    fn defaults_are_those_of_llama_server() {
        let (plain, form) = asked(json!({"prompt": "a"})).expect("it is good");
        let sampling = &plain.choices[0].generate.sampling;
        assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p), (0.8, 40, 0.95, 0.05));
        assert_eq!((plain.choices[0].seed, form.probabilities, form.is_prompt_only), (77, None, false));
        assert!(plain.choices[0].generate.max_tokens > 1 << 16, "no limit");
        let (random, _) = asked(json!({"prompt": "a", "seed": -1})).expect("it is good");
        assert_eq!(random.choices[0].seed, 77);
        let set = json!({
            "prompt": [1, 2], "n_predict": 7, "temperature": 0, "top_k": 1, "seed": 9, "stop": ["b"], "n_probs": 3,
            "return_tokens": true, "logit_bias": [[5, false], [6, 1.5]], "cache_prompt": true, "samplers": ["top_k"],
        });
        let (set, form) = asked(set).expect("it is good");
        let wish = &set.choices[0];
        assert_eq!((wish.generate.max_tokens, wish.generate.sampling.top_k, wish.seed), (7, 1, 9));
        assert_eq!((form.probabilities, form.with_tokens, form.has_stops), (Some(3), true, true));
        assert_eq!(wish.generate.sampling.logit_bias, [(5, -1000.0), (6, 1.5)]);
    }

    #[test]
    fn prompt_alone_is_evaluated_and_invalid_fields_are_named() {
        let (only, form) = asked(json!({"prompt": "a", "n_predict": 0, "n_probs": 1})).expect("it is good");
        assert!(form.is_prompt_only && !only.echoes && !only.choices[0].generate.sampling.scores_prompt);
        for wrong in [
            json!({}),
            json!({"prompt": ["a", "b"]}),
            json!({"prompt": "a", "n_predict": "x"}),
            json!({"prompt": "a", "logit_bias": [[1]]}),
            json!({"prompt": "a", "grammar": "root ::= \"a\""}),
            json!({"prompt": "a", "n_probs": 1000}),
        ] {
            assert!(asked(wrong.clone()).is_err_and(|error| error.status.as_u16() == 400), "{wrong}");
        }
    }
}
