//! How a head changes a conversation so that the model's chat template accepts it and writes all of it.
use std::fmt;

use serde::{Deserialize, Serialize};

/// A set of changes. Those that only a later version has are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "u32", into = "u32")]
pub struct TemplateChanges(u32);

/// All changes with their names for clients.
const NAMED: [(TemplateChanges, &str); 6] = [
    (TemplateChanges::SYSTEMS_JOINED, "system messages joined"),
    (TemplateChanges::SYSTEMS_OF_USER, "system messages in messages of the user"),
    (TemplateChanges::IDS_SHORTENED, "call ids shortened"),
    (TemplateChanges::CALLS_DIVIDED, "parallel calls divided"),
    (TemplateChanges::CALLS_AS_TEXT, "calls written as text"),
    (TemplateChanges::CALLS_LEFT_OUT, "calls left out"),
];

impl TemplateChanges {
    /// System messages at the beginning are one; later ones are a part of a neighbouring message of the user.
    pub const SYSTEMS_JOINED: Self = Self(1);
    /// All system messages are a part of a message of the user.
    pub const SYSTEMS_OF_USER: Self = Self(1 << 1);
    /// Ids of calls have nine letters and digits.
    pub const IDS_SHORTENED: Self = Self(1 << 2);
    /// Each message has one call.
    pub const CALLS_DIVIDED: Self = Self(1 << 3);
    /// Calls are a part of the content, because the template writes only that.
    pub const CALLS_AS_TEXT: Self = Self(1 << 4);
    /// Neither the template nor the head writes the calls.
    pub const CALLS_LEFT_OUT: Self = Self(1 << 5);

    /// Whether the conversation is unchanged.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// The changes of both sets.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The changes that both sets have.
    fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl From<u32> for TemplateChanges {
    fn from(bits: u32) -> Self {
        let known = NAMED.iter().fold(Self::default(), |known, named| known.union(named.0));
        Self(bits).intersection(known)
    }
}

impl From<TemplateChanges> for u32 {
    fn from(changes: TemplateChanges) -> Self {
        changes.0
    }
}

/// The names, separated by a comma and a space.
impl fmt::Display for TemplateChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = NAMED.iter().filter(|named| !self.intersection(named.0).is_empty());
        f.write_str(&named.map(|named| named.1).collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_names_its_changes_and_ignores_later_ones() {
        let two = TemplateChanges::CALLS_AS_TEXT.union(TemplateChanges::SYSTEMS_JOINED);
        assert_eq!(two.to_string(), "system messages joined, calls written as text");
        assert_eq!(TemplateChanges::default().to_string(), "");
        for bits in 0..32 {
            let one = TemplateChanges::from(1_u32 << bits);
            assert_eq!(one.is_empty(), bits >= NAMED.len(), "{bits}");
            assert_eq!(one.to_string(), NAMED.get(bits).map_or("", |named| named.1));
        }
        let bytes = postcard::to_stdvec(&(u32::from(two) | (1 << 31))).expect("a vector takes every number");
        assert_eq!(postcard::from_bytes::<TemplateChanges>(&bytes), Ok(two));
    }
}
