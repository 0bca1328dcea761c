//! Sampling parameters of a request, which of them it leaves to the model's file, and the texts that end its answers. Pure.
use common::sampling::{LOGIT_BIAS_MAX, OpenParameter, SamplingParameters, TOP_K_MAX};
use protocol::message::{STOP_BYTES_MAX, STOP_STRINGS_MAX};
use serde_json::Value;

use super::{
    error::ApiError,
    typed_json::{Fields, brief},
};

/// The sampling parameters.
///
/// # Errors
/// The first that is out of its bounds.
pub(super) fn sampling(fields: Fields<'_>, logprobs: Option<u32>, seed: u64) -> Result<SamplingParameters, ApiError> {
    let default = SamplingParameters::default();
    // Negative seeds are valid integers, too.
    let negative = fields.get("seed").and_then(Value::as_i64).map(i64::cast_unsigned);
    let seed = match negative {
        Some(seed) => seed,
        None => fields.whole("seed", 0, u64::MAX)?.unwrap_or(seed),
    };
    let sampling = SamplingParameters {
        temperature: fields.number("temperature", 1.0)?,
        top_k: fields.limit("top_k", 0, u64::from(TOP_K_MAX))?.unwrap_or(0) as u32,
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
        scores_prompt: false,
        embeds: false,
    };
    sampling.check().map_err(|error| {
        let message = error.to_string();
        let param = message.split(' ').next().unwrap_or_default().to_owned();
        ApiError::invalid(&param, format!("{message}; correct it"))
    })?;
    Ok(sampling)
}

/// The parameters that the client leaves to the model's file.
pub(super) fn open(fields: Fields<'_>) -> Vec<OpenParameter> {
    [
        (OpenParameter::Temperature, &["temperature"][..]),
        (OpenParameter::TopK, &["top_k"]),
        (OpenParameter::TopP, &["top_p"]),
        (OpenParameter::MinP, &["min_p"]),
        (OpenParameter::RepeatPenalty, &["repeat_penalty", "repetition_penalty"]),
    ]
    .into_iter()
    .filter(|(_, names)| names.iter().all(|name| fields.get(name).is_none()))
    .map(|(parameter, _)| parameter)
    .collect()
}

/// Most speculative tokens in a step: `speculative` is true, false or `{"max_tokens": N}`, and llama-server has a field of
/// its own. `None` leaves it to the model.
///
/// # Errors
/// Another value.
pub(super) fn drafts_max(fields: Fields<'_>) -> Result<Option<u16>, ApiError> {
    let most = u64::from(u16::MAX);
    let count = match fields.get("speculative") {
        Some(Value::Bool(false)) => Some(0),
        Some(Value::Object(object)) => Fields(object).whole("max_tokens", 0, most)?,
        Some(Value::Bool(true)) | None => fields.whole("speculative.n_max", 0, most)?,
        Some(other) => {
            let message = format!("speculative is {}, it must be true, false or {{\"max_tokens\": N}}", brief(other));
            return Err(ApiError::invalid("speculative", message));
        }
    };
    Ok(count.map(|count| count as u16))
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

/// The texts that end an answer.
///
/// # Errors
/// There are too many, or they are too long.
pub(super) fn stop(fields: Fields<'_>) -> Result<Vec<String>, ApiError> {
    let refusal = || {
        let message = format!(
            "stop must be a string or a list of at most {STOP_STRINGS_MAX} strings of 1 to {STOP_BYTES_MAX} bytes; correct it"
        );
        ApiError::invalid("stop", message)
    };
    let texts = match fields.get("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) if text.is_empty() => return Ok(Vec::new()),
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parameters_without_a_value_are_left_to_the_file() {
        let given = json!({"temperature": 1.0, "top_k": -1, "repetition_penalty": 1.1, "top_p": null});
        let of = |fields: &Value| open(Fields(fields.as_object().expect("an object")));
        assert_eq!(of(&json!({})).len(), 5);
        assert_eq!(of(&given), [OpenParameter::TopP, OpenParameter::MinP]);
    }

    #[test]
    fn speculation_is_limited_or_turned_off_by_a_request() {
        let of = |fields: &Value| drafts_max(Fields(fields.as_object().expect("an object")));
        for (given, expected) in [
            (json!({}), None),
            (json!({"speculative": true}), None),
            (json!({"speculative": {}}), None),
            (json!({"speculative": false, "speculative.n_max": 3}), Some(0)),
            (json!({"speculative": {"max_tokens": 2}}), Some(2)),
            (json!({"speculative.n_max": 3}), Some(3)),
        ] {
            assert_eq!(of(&given), Ok(expected), "{given}");
        }
        for given in [json!({"speculative": "no"}), json!({"speculative": {"max_tokens": -1}})] {
            assert!(of(&given).is_err(), "{given}");
        }
    }
}
