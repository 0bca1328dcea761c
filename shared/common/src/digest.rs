//! A SHA-256 of a file.
use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// SHA-256 of a whole file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Sha256(pub [u8; 32]);

impl FromStr for Sha256 {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || "give 64 hexadecimal digits, as printed by sha256sum".to_owned();
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(refused());
        }
        let mut bytes = [0; 32];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| refused())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| refused())?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
