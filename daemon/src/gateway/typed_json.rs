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
        let number = whole_number(value).filter(|number| (least..=most).contains(number));
        number.map(Some).ok_or_else(|| {
            let message = format!("{name} is {}, it must be a whole number from {least} to {most}", brief(value));
            ApiError::invalid(name, message)
        })
    }

    /// An integer from `least` to `most`; `None` also for -1, which other servers use for "no limit".
    pub(super) fn limit(self, name: &str, least: u64, most: u64) -> Result<Option<u64>, ApiError> {
        let is_off = self.get(name).and_then(Value::as_f64) == Some(-1.0);
        if is_off { Ok(None) } else { self.whole(name, least, most) }
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

/// Exclusive limit on floats that count as whole numbers: below it, a double is exact.
const EXACT_END: f64 = 9_007_199_254_740_992.0;

/// A whole number that is not negative; languages without integers write 5 as `5.0`.
fn whole_number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| {
        let number = value.as_f64()?;
        (number.fract() == 0.0 && (0.0..EXACT_END).contains(&number)).then_some(number as u64)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whole_numbers_may_be_floats_and_limits_may_be_off() {
        let object = json!({"a": 5.0, "b": -1, "c": -1.0, "d": 5.5, "e": -2, "f": 1e300});
        let fields = Fields(object.as_object().expect("an object"));
        assert_eq!(fields.whole("a", 1, 9), Ok(Some(5)));
        assert_eq!((fields.limit("b", 1, 9), fields.limit("c", 1, 9)), (Ok(None), Ok(None)));
        for wrong in ["b", "d", "e", "f"] {
            assert!(fields.whole(wrong, 0, u64::MAX).is_err(), "{wrong}");
        }
    }
}
