//! Wire versions. Version 4 is what release 0.1 speaks; its messages never change. What a later version adds to a message is a field that
//! an older peer neither receives nor sends: `#[serde(default, with = "version::since_5")]`. A later enum variant stands behind all
//! others and is never sent to an older peer.
use std::cell::Cell;

/// Lowest wire version that this build speaks.
pub const WIRE_LOWEST: u16 = 4;
/// Highest wire version that this build speaks.
pub const WIRE_HIGHEST: u16 = 5;

thread_local! {
    /// Version of the message that this thread encodes or decodes now. Files and recordings have the highest.
    static SPOKEN: Cell<u16> = const { Cell::new(WIRE_HIGHEST) };
}

/// Encodes or decodes messages as a peer of this version does.
pub fn speaking<T>(version: u16, work: impl FnOnce() -> T) -> T {
    struct Restore(u16);
    impl Drop for Restore {
        fn drop(&mut self) {
            SPOKEN.set(self.0);
        }
    }
    let _restore = Restore(SPOKEN.replace(version));
    work()
}

/// The version that is spoken on this thread now.
pub fn spoken() -> u16 {
    SPOKEN.get()
}

/// A field that version 5 added: no bytes for an older peer, the default from one.
pub mod since_5 {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Writes the value where the peer knows the field.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<T: Serialize, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        if super::spoken() >= 5 { value.serialize(serializer) } else { ().serialize(serializer) }
    }

    /// Reads the value where the peer knows the field.
    ///
    /// # Errors
    /// The deserializer's.
    pub fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: Default + Deserialize<'de>,
        D: Deserializer<'de>,
    {
        if super::spoken() >= 5 { T::deserialize(deserializer) } else { Ok(T::default()) }
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::protocol::message::{decode, encode};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Later {
        first: u8,
        #[serde(default, with = "since_5")]
        added: Option<String>,
        last: u8,
    }

    #[test]
    fn a_later_field_has_no_bytes_for_an_older_peer() {
        let later = Later { first: 1, added: Some("x".into()), last: 2 };
        assert_eq!(speaking(4, || encode(&later)), [1, 2]);
        assert_eq!(speaking(4, || decode(&[1, 2])), Ok(Later { added: None, ..later }));
        let later = Later { first: 1, added: Some("x".into()), last: 2 };
        assert_eq!(decode(&encode(&later)), Ok(later));
        assert_eq!(spoken(), WIRE_HIGHEST);
    }
}
