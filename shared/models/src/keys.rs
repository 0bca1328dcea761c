//! The keys of a file as families read them, each within its bounds.
use std::ops::RangeInclusive;

use gguf::{GgufError, GgufFile, error::shown};

use crate::limits::HEAD_LENGTH_MAX;

/// The key of the elements of a head.
const KEY_LENGTH: &str = "attention.key_length";

/// Where a family finds its keys: a file, or the table of known models.
pub trait KeySource {
    /// A text.
    ///
    /// # Errors
    /// The value is of another type.
    fn text(&self, key: &str) -> Result<Option<String>, GgufError>;

    /// A non-negative integer.
    ///
    /// # Errors
    /// The value is of another type or negative.
    fn unsigned(&self, key: &str) -> Result<Option<u64>, GgufError>;

    /// A number.
    ///
    /// # Errors
    /// The value is of another type.
    fn float(&self, key: &str) -> Result<Option<f64>, GgufError>;

    /// A flag.
    ///
    /// # Errors
    /// The value is of another type.
    fn flag(&self, _key: &str) -> Result<Option<bool>, GgufError> {
        Ok(None)
    }

    /// A list of integers.
    ///
    /// # Errors
    /// The value is of another type.
    fn integers(&self, _key: &str) -> Result<Option<Vec<i64>>, GgufError> {
        Ok(None)
    }

    /// A list of flags.
    ///
    /// # Errors
    /// The value is of another type.
    fn flags(&self, _key: &str) -> Result<Option<Vec<bool>>, GgufError> {
        Ok(None)
    }

    /// Rows of a tensor; `None` if there is no such tensor.
    fn rows(&self, tensor: &str) -> Option<usize>;
}

impl KeySource for GgufFile {
    fn text(&self, key: &str) -> Result<Option<String>, GgufError> {
        Ok(self.metadata().text(key)?.map(|text| shown(text.as_bytes())))
    }

    fn unsigned(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.metadata().unsigned(key)
    }

    fn float(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.metadata().float(key)
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.metadata().flag(key)
    }

    fn integers(&self, key: &str) -> Result<Option<Vec<i64>>, GgufError> {
        self.metadata().integers(key)
    }

    fn flags(&self, key: &str) -> Result<Option<Vec<bool>>, GgufError> {
        self.metadata().flags(key)
    }

    fn rows(&self, tensor: &str) -> Option<usize> {
        self.tensor(tensor).map(|tensor| tensor.rows())
    }
}

/// The keys of one architecture: `NAME` stands for `ARCHITECTURE.NAME`.
#[derive(Clone, Copy)]
pub struct Keys<'a> {
    /// Where they are.
    pub source: &'a dyn KeySource,
    /// Their prefix.
    pub architecture: &'static str,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// The error of a key whose value cannot be right.
    pub fn refuse(&self, name: &str, value: impl ToString, reason: impl Into<String>) -> GgufError {
        GgufError::Parameter { key: self.key(name), value: value.to_string(), reason: reason.into() }
    }

    /// The error of a key whose value needs something that Bramble lacks.
    pub fn unsupported(&self, name: &str, value: impl ToString, feature: &'static str) -> GgufError {
        GgufError::Unsupported { key: self.key(name), value: value.to_string(), feature }
    }

    fn missing(&self, name: &str) -> GgufError {
        GgufError::MissingKey { key: self.key(name) }
    }

    /// Whether the file has a tensor of this name.
    pub fn has_tensor(&self, name: &str) -> bool {
        self.source.rows(name).is_some()
    }

    /// A text.
    ///
    /// # Errors
    /// The value is of another type.
    pub fn text(&self, name: &str) -> Result<Option<String>, GgufError> {
        self.source.text(&self.key(name))
    }

    /// A flag.
    ///
    /// # Errors
    /// The value is of another type.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, GgufError> {
        self.source.flag(&self.key(name))
    }

    /// A list of integers.
    ///
    /// # Errors
    /// The value is of another type.
    pub fn integers(&self, name: &str) -> Result<Option<Vec<i64>>, GgufError> {
        self.source.integers(&self.key(name))
    }

    /// A list of flags.
    ///
    /// # Errors
    /// The value is of another type.
    pub fn flags(&self, name: &str) -> Result<Option<Vec<bool>>, GgufError> {
        self.source.flags(&self.key(name))
    }

    /// A flag for each of `count` layers. Files may list further blocks behind them.
    ///
    /// # Errors
    /// The key is missing, of another type, or a shorter list.
    pub fn layer_flags(&self, name: &str, count: usize) -> Result<Vec<bool>, GgufError> {
        let mut flags = self.flags(name)?.ok_or_else(|| self.missing(name))?;
        if flags.len() < count {
            return Err(self.too_short(name, flags.len(), count));
        }
        flags.truncate(count);
        Ok(flags)
    }

    /// A length of 1 to `max` for each of `count` layers: a list, or one number for all of them.
    ///
    /// # Errors
    /// The key is missing, of another type or out of bounds, or a shorter list.
    pub fn layer_lengths(&self, name: &str, max: u64, count: usize) -> Result<Vec<usize>, GgufError> {
        self.layer_numbers(name, 1..=max, count)
    }

    /// The same, but each may be 0.
    ///
    /// # Errors
    /// The key is missing, of another type or out of bounds, or a shorter list.
    pub fn layer_counts(&self, name: &str, max: u64, count: usize) -> Result<Vec<usize>, GgufError> {
        self.layer_numbers(name, 0..=max, count)
    }

    fn layer_numbers(&self, name: &str, bounds: RangeInclusive<u64>, count: usize) -> Result<Vec<usize>, GgufError> {
        // Any other value is a number, or is refused as one.
        let Ok(Some(list)) = self.source.integers(&self.key(name)) else {
            return Ok(vec![self.length(name, *bounds.end())?; count]);
        };
        if list.len() < count {
            return Err(self.too_short(name, list.len(), count));
        }
        let lengths = list.into_iter().take(count).map(|length| match u64::try_from(length) {
            Ok(length) if bounds.contains(&length) => Ok(length as usize),
            _ => Err(self.refuse(name, length, format!("it must be {} to {}", bounds.start(), bounds.end()))),
        });
        lengths.collect()
    }

    fn too_short(&self, name: &str, length: usize, count: usize) -> GgufError {
        self.refuse(name, format!("a list of {length}"), format!("the model has {count} layers"))
    }

    /// A number that may be anything.
    ///
    /// # Errors
    /// The value is of another type.
    pub fn float(&self, name: &str) -> Result<Option<f64>, GgufError> {
        self.source.float(&self.key(name))
    }

    /// An integer that may be anything; `None` if the key is missing.
    ///
    /// # Errors
    /// The value is of another type or negative.
    pub fn unsigned(&self, name: &str) -> Result<Option<u64>, GgufError> {
        self.source.unsigned(&self.key(name))
    }

    /// An integer that may be 0.
    ///
    /// # Errors
    /// The value is of another type or negative.
    pub fn count(&self, name: &str) -> Result<u64, GgufError> {
        Ok(self.source.unsigned(&self.key(name))?.unwrap_or(0))
    }

    /// A length of 1 to `max`, if the key is there.
    ///
    /// # Errors
    /// The value is of another type or out of bounds.
    pub fn optional_length(&self, name: &str, max: u64) -> Result<Option<usize>, GgufError> {
        match self.source.unsigned(&self.key(name))? {
            None => Ok(None),
            // The bounds fit 32 bits.
            Some(value) if (1..=max).contains(&value) => Ok(Some(value as usize)),
            Some(value) => Err(self.refuse(name, value, format!("it must be 1 to {max}"))),
        }
    }

    /// A length of 1 to `max`.
    ///
    /// # Errors
    /// The key is missing, of another type or out of bounds.
    pub fn length(&self, name: &str, max: u64) -> Result<usize, GgufError> {
        self.optional_length(name, max)?.ok_or_else(|| self.missing(name))
    }

    /// A number above 0.
    ///
    /// # Errors
    /// The key is missing without a default, of another type, or not above 0.
    pub fn positive(&self, name: &str, default: Option<f32>) -> Result<f32, GgufError> {
        let Some(value) = self.float(name)? else {
            return default.ok_or_else(|| self.missing(name));
        };
        let value = value as f32;
        if value.is_normal() && value > 0.0 {
            return Ok(value);
        }
        Err(self.refuse(name, value, "it must be a number above 0"))
    }

    /// Elements of a head, even: `attention.key_length`, or those that the hidden state has for each head.
    ///
    /// # Errors
    /// They contradict each other or are out of bounds.
    pub fn head_length(&self, embedding_length: usize, head_count: usize) -> Result<usize, GgufError> {
        if self.optional_length(KEY_LENGTH, HEAD_LENGTH_MAX)?.is_none() && !embedding_length.is_multiple_of(head_count)
        {
            let reason = format!("which does not divide embedding_length {embedding_length}");
            return Err(self.refuse("attention.head_count", head_count, reason));
        }
        self.checked_head_length("", Some(embedding_length / head_count))
    }

    /// Elements of a head, even, in layers of a kind, which is the end of their keys.
    ///
    /// # Errors
    /// They are missing, contradict each other or are out of bounds.
    pub fn head_length_of(&self, kind: &str) -> Result<usize, GgufError> {
        self.checked_head_length(kind, None)
    }

    fn checked_head_length(&self, kind: &str, default: Option<usize>) -> Result<usize, GgufError> {
        let (key, value) = (format!("{KEY_LENGTH}{kind}"), format!("attention.value_length{kind}"));
        let named = self.optional_length(&key, HEAD_LENGTH_MAX)?;
        let head_length = named.or(default).ok_or_else(|| self.missing(&key))?;
        if !head_length.is_multiple_of(2) || head_length as u64 > HEAD_LENGTH_MAX {
            let reason = format!("heads must be of even length and at most {HEAD_LENGTH_MAX}");
            return Err(self.refuse(&key, head_length, reason));
        }
        let value_length = self.optional_length(&value, HEAD_LENGTH_MAX)?.unwrap_or(head_length);
        if value_length != head_length {
            let reason = format!("only heads whose values are as long as their keys ({head_length}) are supported");
            return Err(self.refuse(&value, value_length, reason));
        }
        Ok(head_length)
    }
}
