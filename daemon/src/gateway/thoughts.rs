//! Fields of a chat request about thinking: variables of the template, and whether thoughts are separate from the
//! content. Pure.
use serde_json::{Map, Value};

use super::{
    error::ApiError,
    typed_json::{Fields, brief},
};

/// The variables of the template: those of `chat_template_kwargs`, and fields of their own that other servers have.
///
/// # Errors
/// A field of a wrong type.
pub(super) fn variables(fields: Fields<'_>) -> Result<Option<String>, ApiError> {
    let mut variables = fields.object("chat_template_kwargs")?.map_or_else(Map::new, |Fields(object)| object.clone());
    if fields.get("enable_thinking").is_some() {
        variables.insert("enable_thinking".into(), fields.flag("enable_thinking")?.into());
    }
    if let Some(effort) = fields.text("reasoning_effort")? {
        variables.insert("reasoning_effort".into(), effort.into());
        if effort == "none" {
            variables.insert("enable_thinking".into(), false.into());
        }
    }
    if budget(fields)? == Some(0) {
        variables.insert("enable_thinking".into(), false.into());
    }
    Ok((!variables.is_empty()).then(|| Value::Object(variables).to_string()))
}

/// Most tokens of thoughts, under the names of llama-server, Qwen, and vLLM; -1 is no limit.
///
/// # Errors
/// It is not a whole number.
pub(super) fn budget(fields: Fields<'_>) -> Result<Option<u32>, ApiError> {
    let names = ["thinking_budget", "thinking_budget_tokens", "thinking_token_budget", "reasoning_budget"];
    let Some(name) = names.into_iter().find(|name| fields.get(name).is_some()) else { return Ok(None) };
    Ok(fields.limit(name, 0, u64::from(u32::MAX))?.map(|most| most as u32))
}

/// Whether thoughts are separate from the content, according to `reasoning_format`.
///
/// # Errors
/// An unknown format.
pub(super) fn are_apart(fields: Fields<'_>) -> Result<bool, ApiError> {
    match fields.text("reasoning_format")? {
        None | Some("auto" | "deepseek") => Ok(true),
        Some("none") => Ok(false),
        Some(other) => {
            let message = format!("reasoning_format {} is unknown; use auto, deepseek or none", brief(&other.into()));
            Err(ApiError::invalid("reasoning_format", message))
        }
    }
}
