//! Names of what a rank keeps on its disk: a hash of everything that keys and values depend on. Names only find a file;
//! whether it holds the wanted tokens is compared token by token.
use std::{fmt, str::FromStr};

use common::limits::KV_BLOCK_LENGTH;
use sha2::{Digest, Sha256};

/// Bytes of a name.
pub(super) const NAME_BYTES: usize = 16;

/// Identifies a part of the model in the header of a file.
pub type PartHash = [u8; 8];

/// What all keys and values of a rank's shard depend on besides the tokens: the model's weights, the rank's part of the
/// layers, the numbers of this build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space(pub [u8; 32]);

/// Name of a block of tokens together with everything before it, or of the state behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(pub [u8; NAME_BYTES]);

impl Space {
    /// The space of everything that these descriptions state, in this order.
    pub fn of(descriptions: &[&str]) -> Self {
        let mut hash = Sha256::new();
        for description in descriptions {
            hash.update((description.len() as u64).to_le_bytes());
            hash.update(description.as_bytes());
        }
        Self(hash.finalize().into())
    }

    /// Name of the empty beginning of every text.
    pub fn beginning(&self) -> Name {
        Name::first_bytes(&self.0)
    }
}

impl Name {
    fn first_bytes(hash: &[u8]) -> Self {
        let mut name = [0; NAME_BYTES];
        name.copy_from_slice(&hash[..NAME_BYTES]);
        Self(name)
    }

    /// Name of the block behind this one.
    #[must_use]
    pub fn then(&self, tokens: &[u32; KV_BLOCK_LENGTH]) -> Self {
        let mut hash = Sha256::new();
        hash.update(self.0);
        tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
        Self::first_bytes(&hash.finalize())
    }

    /// Name of the state behind this block.
    #[must_use]
    pub fn state(&self) -> Self {
        let mut hash = Sha256::new();
        hash.update(self.0);
        hash.update(b"state");
        Self::first_bytes(&hash.finalize())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Name {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut name = [0; NAME_BYTES];
        if text.len() != 2 * NAME_BYTES
            || !text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
        {
            return Err(());
        }
        for (byte, digits) in name.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(drop)?;
            *byte = u8::from_str_radix(digits, 16).map_err(drop)?;
        }
        Ok(Self(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_by_space_beginning_tokens_and_kind() {
        let [one, other] = [["a", "bc"], ["ab", "c"]].map(|parts| Space::of(&parts).beginning());
        let first = one.then(&[1; KV_BLOCK_LENGTH]);
        let mut last = [1; KV_BLOCK_LENGTH];
        last[KV_BLOCK_LENGTH - 1] = 2;
        let names = [one, other, first, one.then(&last), other.then(&last), first.then(&last), first.state()];
        let distinct: std::collections::BTreeSet<Name> = names.into_iter().collect();
        assert_eq!(distinct.len(), names.len());
        assert_eq!(first.to_string().parse(), Ok(first));
        for text in ["", "12", "G0000000000000000000000000000000", "é000000000000000000000000000000"] {
            assert_eq!(text.parse::<Name>(), Err(()));
        }
    }
}
