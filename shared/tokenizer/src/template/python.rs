//! What Python's jinja2 does differently: the texts of floating-point numbers, the values that can be iterated, and
//! `indent`.
use minijinja::{
    Environment, Error, ErrorKind, Output, State, Value,
    value::{Kwargs, ValueKind},
};

use crate::one_line::float;

/// Widest indentation.
const INDENT_MAX: usize = 256;

/// Makes templates behave as in Python.
pub(super) fn adapt(environment: &mut Environment<'_>) {
    environment.set_formatter(format);
    environment.add_test("iterable", |value: &Value| has_length(value) || value.kind() == ValueKind::Iterable);
    environment.add_test("sequence", has_length);
    environment.add_filter("items", items);
    environment.add_filter("indent", indent);
}

/// Whether Python's `len` accepts the value; that of an undefined value is 0.
fn has_length(value: &Value) -> bool {
    use ValueKind as K;
    matches!(value.kind(), K::Undefined | K::String | K::Bytes | K::Seq | K::Map)
}

/// As minijinja's filter, but an undefined value has no items.
fn items(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Ok(Value::from_iter(std::iter::empty::<Value>()));
    }
    minijinja::filters::items(value)
}

/// `indent(width=4, first=False, blank=False)`. Unlike minijinja's filter, keeps a line end at the end.
fn indent(
    text: &str,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let width = width.or(options.get("width")?).unwrap_or(4);
    let first = first.or(options.get("first")?).unwrap_or(false);
    let blank = blank.or(options.get("blank")?).unwrap_or(false);
    options.assert_all_used()?;
    if width > INDENT_MAX {
        let reason = format!("indent is {width} wide, but at most {INDENT_MAX} are supported");
        return Err(Error::new(ErrorKind::InvalidOperation, reason));
    }
    let mut out = String::with_capacity(text.len());
    for (index, line) in text.split('\n').enumerate() {
        let is_indented = if index == 0 { first } else { blank || !line.is_empty() };
        out.push_str(if index == 0 { "" } else { "\n" });
        out.extend(std::iter::repeat_n(' ', if is_indented { width } else { 0 }));
        out.push_str(line.strip_suffix('\r').unwrap_or(line));
    }
    Ok(out)
}

fn format(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match f64::try_from(value.clone()) {
        Ok(number) if value.kind() == ValueKind::Number && !value.is_integer() => {
            out.write_str(&float(number)).map_err(Error::from)
        }
        _ => minijinja::escape_formatter(out, state, value),
    }
}
