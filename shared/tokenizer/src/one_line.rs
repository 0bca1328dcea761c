//! JSON on one line as Python's `json.dumps` writes it, for templates and for earlier calls; the same as literals of Python.
use std::io;

use serde::Serialize;
use serde_json::{
    Value,
    ser::{Formatter, Serializer},
};

/// How a value is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OneLine<'s> {
    /// Between items.
    pub(crate) items: &'s str,
    /// Between a key and its value.
    pub(crate) values: &'s str,
    /// Whether all letters but those of ASCII are escaped.
    pub(crate) is_ascii: bool,
    /// Whether it has `None`, `True` and `False` of Python. Its texts may have the escapes of JSON.
    pub(crate) is_python: bool,
}

impl OneLine<'static> {
    /// As templates expect it.
    pub(crate) const JSON: Self = Self { items: ", ", values: ": ", is_ascii: false, is_python: false };
    /// As literals of Python.
    pub(crate) const PYTHON: Self = Self { is_python: true, ..Self::JSON };
}

impl OneLine<'_> {
    /// The text of a value.
    pub(crate) fn text(self, value: &Value) -> String {
        let mut out = Vec::new();
        let written = value.serialize(&mut Serializer::with_formatter(&mut out, self));
        written.expect("a vector takes every value");
        String::from_utf8(out).expect("JSON is UTF-8")
    }
}

impl Formatter for OneLine<'_> {
    fn write_null<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(if self.is_python { b"None" } else { b"null" })
    }

    fn write_bool<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: bool) -> io::Result<()> {
        let text = match (self.is_python, value) {
            (true, true) => "True",
            (true, false) => "False",
            (false, true) => "true",
            (false, false) => "false",
        };
        writer.write_all(text.as_bytes())
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(self.items.as_bytes()) }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.begin_array_value(writer, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.values.as_bytes())
    }

    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(float(value).as_bytes())
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

/// A floating-point number as Python writes it: with an exponent of two digits or more below 0.0001 and from 1e16 on.
pub(crate) fn float(number: f64) -> String {
    if number == 0.0 || !number.is_finite() || (1e-4..1e16).contains(&number.abs()) {
        return format!("{number:?}");
    }
    let text = format!("{number:e}");
    let (mantissa, exponent) = text.split_once('e').expect("an exponent is written");
    let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
    format!("{mantissa}e{sign}{digits:0>2}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn floats_are_written_as_in_python() {
        for (number, text) in [
            (0.0, "0.0"),
            (-1.5, "-1.5"),
            (1e-4, "0.0001"),
            (1.5e-5, "1.5e-05"),
            (-1e-200, "-1e-200"),
            (123_456_789.0, "123456789.0"),
            (1e16, "1e+16"),
            (1.25e100, "1.25e+100"),
        ] {
            assert_eq!(float(number), text);
        }
    }

    #[test]
    fn values_have_the_blanks_and_literals_of_their_form() {
        let value = json!({"é": [true, null, -1.5, 2], "b": {"c": false}});
        assert_eq!(OneLine::JSON.text(&value), r#"{"é": [true, null, -1.5, 2], "b": {"c": false}}"#);
        assert_eq!(OneLine::PYTHON.text(&value), r#"{"é": [True, None, -1.5, 2], "b": {"c": False}}"#);
        let narrow = OneLine { items: ",", values: ":", is_ascii: true, is_python: false };
        assert_eq!(narrow.text(&value), r#"{"\u00e9":[true,null,-1.5,2],"b":{"c":false}}"#);
    }
}
