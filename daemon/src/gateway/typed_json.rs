//! Reads a request's JSON field by field: a value of a wrong type or out of range is refused with the field's name;
//! unknown fields are ignored, and null counts as absent.
use serde_json::{Map, Value};

use super::error::ApiError;

/// The fields of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a>(pub(super) &'a Map<String, Value>);

impl<'a> Fields<'a> {
    /// A field that is present and not null.
    pub(super) fn get(self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// A finite number.
    pub(super) fn number(self, name: &str, default: f32) -> Result<f32, ApiError> {
        let Some(value) = self.get(name) else { return Ok(default) };
        let number = value.as_f64().map(|number| number as f32).filter(|number| number.is_finite());
        number.ok_or_else(|| ApiError::invalid(name, format!("{name} is {}, it must be a number", brief(value))))
    }

    /// An integer from `least` to `most`.
    pub(super) fn whole(self, name: &str, least: u64, most: u64) -> Result<Option<u64>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = value.as_u64().filter(|number| (least..=most).contains(number));
        number.map(Some).ok_or_else(|| {
            let message = format!("{name} is {}, it must be a whole number from {least} to {most}", brief(value));
            ApiError::invalid(name, message)
        })
    }

    /// True or false.
    pub(super) fn flag(self, name: &str) -> Result<bool, ApiError> {
        let Some(value) = self.get(name) else { return Ok(false) };
        value
            .as_bool()
            .ok_or_else(|| ApiError::invalid(name, format!("{name} is {}, it must be true or false", brief(value))))
    }

    /// A text.
    pub(super) fn text(self, name: &str) -> Result<Option<&'a str>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value
            .as_str()
            .map(Some)
            .ok_or_else(|| ApiError::invalid(name, format!("{name} is {}, it must be a string", brief(value))))
    }

    /// An object.
    pub(super) fn object(self, name: &str) -> Result<Option<Fields<'a>>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value
            .as_object()
            .map(|object| Some(Fields(object)))
            .ok_or_else(|| ApiError::invalid(name, format!("{name} is {}, it must be an object", brief(value))))
    }
}

/// A short description of a value for a message.
pub(super) fn brief(value: &Value) -> String {
    match value {
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Object(_) => "an object".into(),
        Value::String(text) if text.len() > 40 => format!("a string of {} bytes", text.len()),
        other => other.to_string(),
    }
}
