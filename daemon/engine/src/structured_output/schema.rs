//! Bounded walk that refuses unsupported schemas before the constraint library receives them. The library negates and
//! rounds integers (-2^63 overflows its stack) and walks the strings of an enumeration once for every step.
use serde_json::Value;

/// Most objects and arrays in a schema. Compiling recurses along its references: 1000 need 8 MiB of stack.
const NODES_MAX: usize = 1000;
/// Most values in a schema that are not objects or arrays.
const VALUES_MAX: usize = 20_000;
/// Deepest nesting of arrays and objects.
const DEPTH_MAX: usize = 100;
/// Longest string in `const` and `enum`, longest `pattern` and longest key, in bytes.
const STRING_BYTES_MAX: usize = 4 << 10;
/// Exclusive limit on the magnitude of numbers: below it, a double is exact.
const NUMBER_END: f64 = 9_007_199_254_740_992.0;

#[derive(Default)]
struct SchemaWalk {
    nodes: usize,
    values: usize,
}

/// Refuses a schema that is too large or is known to break the library.
///
/// # Errors
/// The problem, worded for the author of the schema.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    let mut walk = SchemaWalk::default();
    walk.value(schema, DEPTH_MAX, false)?;
    if walk.nodes > NODES_MAX {
        let nodes = walk.nodes;
        return Err(format!("the schema has {nodes} objects and arrays, at most {NODES_MAX} are supported"));
    }
    if walk.values > VALUES_MAX {
        return Err(format!("the schema has {} values, at most {VALUES_MAX} are supported", walk.values));
    }
    Ok(())
}

impl SchemaWalk {
    /// Walks a value. Strings within `const`, `enum` and `pattern` are part of the answer (`is_of_answer`).
    fn value(&mut self, value: &Value, depth: usize, is_of_answer: bool) -> Result<(), String> {
        let Some(below) = depth.checked_sub(1) else {
            return Err(format!("the schema nests objects and arrays more than {DEPTH_MAX} levels deep"));
        };
        match value {
            Value::Object(map) => {
                self.nodes += 1;
                for (key, value) in map {
                    string(key)?;
                    let is_of_answer = is_of_answer || matches!(key.as_str(), "const" | "enum" | "pattern");
                    self.value(value, below, is_of_answer)?;
                }
            }
            Value::Array(list) => {
                self.nodes += 1;
                list.iter().try_for_each(|value| self.value(value, below, is_of_answer))?;
            }
            Value::Number(number) => {
                self.values += 1;
                // Also if it is a 64-bit integer that a double cannot represent.
                if number.as_f64().is_none_or(|number| number.is_nan() || number.abs() >= NUMBER_END) {
                    return Err(format!("the schema has the number {number}; only numbers below 2^53 are supported"));
                }
            }
            Value::String(text) => {
                self.values += 1;
                if is_of_answer {
                    string(text)?;
                }
            }
            Value::Bool(_) | Value::Null => self.values += 1,
        }
        Ok(())
    }
}

fn string(text: &str) -> Result<(), String> {
    if text.len() > STRING_BYTES_MAX {
        let length = text.len();
        return Err(format!("the schema has a string of {length} bytes, at most {STRING_BYTES_MAX} are supported"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<(), String> {
        super::check(&serde_json::from_str(text).expect("it is JSON"))
    }

    #[test]
    fn numbers_from_2_pow_53_on_are_refused_everywhere() {
        for number in
            ["-9223372036854775808", "-9223372036854775807", "9007199254740992", "1e300", "18446744073709551615"]
        {
            for schema in [
                format!(r#"{{"const": {number}}}"#),
                format!(r#"{{"enum": [1, {number}]}}"#),
                format!(r#"{{"type": "integer", "minimum": {number}}}"#),
                format!(r#"{{"properties": {{"a": {{"items": [{{"maximum": {number}}}]}}}}}}"#),
            ] {
                assert!(check(&schema).is_err_and(|reason| reason.contains("2^53")), "{schema}");
            }
        }
        assert_eq!(check(r#"{"minimum": -9007199254740991, "maximum": 9007199254740991, "multipleOf": 0.5}"#), Ok(()));
    }

    #[test]
    fn long_strings_are_refused_where_part_of_answer() {
        let long = "v".repeat(STRING_BYTES_MAX + 1);
        for schema in [
            format!(r#"{{"enum": ["{long}"]}}"#),
            format!(r#"{{"const": {{"a": ["{long}"]}}}}"#),
            format!(r#"{{"pattern": "{long}"}}"#),
            format!(r#"{{"properties": {{"{long}": true}}}}"#),
        ] {
            assert!(check(&schema).is_err_and(|reason| reason.contains("4097 bytes")), "{}", &schema[..40]);
        }
        assert_eq!(check(&format!(r#"{{"description": "{long}", "enum": ["{}"]}}"#, &long[1..])), Ok(()));
    }

    #[test]
    fn size_and_depth_are_bounded() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(check(&nested(DEPTH_MAX)).is_ok() && check(&nested(DEPTH_MAX + 1)).is_err());
        let list = |count: usize, of: &str| format!("[{}]", vec![of; count].join(","));
        assert!(check(&list(NODES_MAX - 1, "{}")).is_ok() && check(&list(NODES_MAX, "{}")).is_err());
        assert!(check(&list(VALUES_MAX, "1")).is_ok() && check(&list(VALUES_MAX + 1, "1")).is_err());
    }
}
