//! The filter `tojson` as chat templates expect it: Python's `json.dumps`, without escaping for HTML.
use minijinja::{
    Error, ErrorKind, Value,
    value::{Kwargs, Serde, ValueKind},
};
use serde::Serialize;
use serde_json::ser::{PrettyFormatter, Serializer};

use crate::one_line::OneLine;

/// Widest indentation.
const INDENT_MAX: usize = 16;

/// `tojson(indent=, sort_keys=, ensure_ascii=, separators=)`.
pub(super) fn tojson(value: &Value, options: Kwargs) -> Result<Value, Error> {
    if holds_undefined(value) {
        return Err(Error::new(ErrorKind::UndefinedError, "tojson of an undefined value"));
    }
    let failed = |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    let mut json = serde_json::to_value(value).map_err(failed)?;
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Serde<(String, String)>> = options.get("separators")?;
    let is_ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    if options.get::<Option<bool>>("sort_keys")?.unwrap_or(false) {
        json.sort_all_objects();
    }
    options.assert_all_used()?;
    let Some(indent) = indent else {
        let mut form = OneLine { is_ascii, ..OneLine::JSON };
        if let Some(Serde((items, values))) = &separators {
            form = OneLine { items, values, ..form };
        }
        return Ok(Value::from(form.text(&json)));
    };
    let (mut out, indent) = (Vec::new(), " ".repeat(indent.min(INDENT_MAX)));
    let formatter = PrettyFormatter::with_indent(indent.as_bytes());
    json.serialize(&mut Serializer::with_formatter(&mut out, formatter)).map_err(failed)?;
    Ok(Value::from(String::from_utf8_lossy(&out).into_owned()))
}

/// Whether the value is undefined, or a list or object that has such a value; Python refuses to serialise it.
fn holds_undefined(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Undefined => true,
        ValueKind::Seq => value.try_iter().is_ok_and(|mut items| items.any(|item| holds_undefined(&item))),
        ValueKind::Map => value
            .try_iter()
            .is_ok_and(|mut keys| keys.any(|key| value.get_item(&key).is_ok_and(|item| holds_undefined(&item)))),
        _ => false,
    }
}
