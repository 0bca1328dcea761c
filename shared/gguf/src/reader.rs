//! Reads numbers and names at offsets of a file's header; every length is checked before it is used.
use crate::error::GgufError;

/// Most bytes of metadata and tensor table together: several times those of a model with 256 000 tokens. Offsets in it have
/// 32 bits.
pub const HEADER_MAX: usize = 128 << 20;

/// Deepest nesting of arrays.
pub const ARRAY_DEPTH_MAX: usize = 4;

/// The error of a header that ends at byte `end`, beyond [`HEADER_MAX`].
pub(super) fn header_too_long(end: usize) -> GgufError {
    let what = "the length of metadata and tensor table";
    GgufError::Bound { what, value: end as u64, min: 0, max: HEADER_MAX as u64, at: end }
}

/// The name at the start of a checked entry.
pub(super) fn name_at(bytes: &[u8], at: u32) -> &[u8] {
    Reader::from(bytes, at).text("a name", u64::MAX).unwrap_or_default()
}

/// A bounds-checked cursor over the bytes.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Reader<'a> {
    /// A cursor at the start of `bytes`.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// A cursor at an offset of an index.
    pub(super) fn from(bytes: &'a [u8], at: u32) -> Self {
        Self { bytes, at: at as usize }
    }

    /// The current offset.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// How many of `count` entries of at least `smallest` bytes fit into the remaining bytes.
    pub(super) fn fits(&self, count: u64, smallest: usize) -> usize {
        let most = self.bytes.len().saturating_sub(self.at) / smallest;
        usize::try_from(count).unwrap_or(usize::MAX).min(most)
    }

    /// The current offset, as the index stores it.
    pub(super) fn offset(&self) -> Result<u32, GgufError> {
        if self.at > HEADER_MAX {
            return Err(header_too_long(self.at));
        }
        Ok(self.at as u32)
    }

    /// The next `length` bytes.
    pub(super) fn take(&mut self, length: u64, what: &'static str) -> Result<&'a [u8], GgufError> {
        let end = self.at.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
        let Some(bytes) = self.bytes.get(self.at..end) else {
            return Err(GgufError::Truncated { what, at: self.at, end, length: self.bytes.len() });
        };
        self.at = end;
        Ok(bytes)
    }

    /// The next bytes as an array.
    pub(super) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    /// The next 4 bytes as a number.
    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        self.array(what).map(u32::from_le_bytes)
    }

    /// The next 8 bytes as a number.
    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// As `u64`, rejected outside `min..=max`.
    pub(super) fn u64_within(&mut self, what: &'static str, min: u64, max: u64) -> Result<u64, GgufError> {
        let at = self.at;
        let value = self.u64(what)?;
        if !(min..=max).contains(&value) {
            return Err(GgufError::Bound { what, value, min, max, at });
        }
        Ok(value)
    }

    /// A length and that many bytes.
    pub(super) fn text(&mut self, what: &'static str, max: u64) -> Result<&'a [u8], GgufError> {
        let length = self.u64_within(what, 0, max)?;
        self.take(length, what)
    }

    /// A non-empty UTF-8 text.
    pub(super) fn name(&mut self, what: &'static str, max: u64) -> Result<&'a str, GgufError> {
        let at = self.at;
        match std::str::from_utf8(self.text(what, max)?) {
            Ok(name) if !name.is_empty() => Ok(name),
            _ => Err(GgufError::Name { what, at }),
        }
    }
}
