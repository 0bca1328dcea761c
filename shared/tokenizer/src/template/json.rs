//! The filter `tojson` as chat templates expect it: Python's `json.dumps`, without escaping for HTML.
use std::io;

use minijinja::{
    Error, ErrorKind, Value,
    value::{Kwargs, Serde, ValueKind},
};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use super::python;

/// Widest indentation.
const INDENT_MAX: usize = 16;

/// Formats JSON on one line like Python.
struct OneLine {
    /// The separators between items, and between key and value.
    separators: (String, String),
    is_ascii: bool,
}

impl Formatter for OneLine {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(self.separators.0.as_bytes()) }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.begin_array_value(writer, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.separators.1.as_bytes())
    }

    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(python::float(value).as_bytes())
    }

    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        if !self.is_ascii {
            return writer.write_all(fragment.as_bytes());
        }
        for unit in fragment.encode_utf16() {
            match u8::try_from(unit) {
                Ok(byte) if byte.is_ascii() => writer.write_all(&[byte])?,
                _ => write!(writer, "\\u{unit:04x}")?,
            }
        }
        Ok(())
    }
}

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
    let mut out = Vec::new();
    match indent {
        Some(indent) => {
            let indent = " ".repeat(indent.min(INDENT_MAX));
            let formatter = PrettyFormatter::with_indent(indent.as_bytes());
            json.serialize(&mut Serializer::with_formatter(&mut out, formatter)).map_err(failed)?;
        }
        None => {
            let separators = separators.map_or_else(|| (", ".into(), ": ".into()), |Serde(pair)| pair);
            let formatter = OneLine { separators, is_ascii };
            json.serialize(&mut Serializer::with_formatter(&mut out, formatter)).map_err(failed)?;
        }
    }
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
