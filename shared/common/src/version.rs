//! Wire versions. Version 4 is that of release 0.1; its messages never change. A field added by a later version is
//! neither sent to nor expected from an older peer: `#[serde(default, with = "version::since_6")]`. A later enum
//! variant comes after all others and is never sent to an older peer.
use std::cell::Cell;

/// Lowest wire version that this build speaks.
pub const WIRE_LOWEST: u16 = 4;
/// Highest wire version that this build speaks.
pub const WIRE_HIGHEST: u16 = 16;

thread_local! {
    /// Version of the message that this thread encodes or decodes. Files and recordings use the highest.
    static SPOKEN: Cell<u16> = const { Cell::new(WIRE_HIGHEST) };
}

/// Encodes or decodes messages like a peer of this version.
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

/// The current version on this thread.
pub fn spoken() -> u16 {
    SPOKEN.get()
}

macro_rules! since {
    ($($name:ident: $version:literal),*) => {
        $(#[doc = concat!("A field added by version ", $version, ": absent for an older peer, and the default when received from one.")]
        pub mod $name {
            use serde::{Deserialize, Deserializer, Serialize, Serializer};

            /// Serializes the value if the peer supports the field.
            ///
            /// # Errors
            /// The errors of the serializer.
            pub fn serialize<T: Serialize, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
                if super::spoken() >= $version { value.serialize(serializer) } else { ().serialize(serializer) }
            }

            /// Deserializes the value if the peer supports the field.
            ///
            /// # Errors
            /// The errors of the deserializer.
            pub fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
            where
                T: Default + Deserialize<'de>,
                D: Deserializer<'de>,
            {
                if super::spoken() >= $version { T::deserialize(deserializer) } else { Ok(T::default()) }
            }
        })*
    };
}

since!(
    since_5: 5, since_6: 6, since_10: 10, since_11: 11, since_12: 12, since_13: 13, since_14: 14, since_15: 15,
    since_16: 16
);

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;

    fn encode(message: &Later) -> Vec<u8> {
        postcard::to_stdvec(message).expect("a vector takes every message")
    }

    fn decode(bytes: &[u8]) -> Result<Later, postcard::Error> {
        postcard::from_bytes(bytes)
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Later {
        first: u8,
        #[serde(default, with = "since_5")]
        added: Option<String>,
        last: u8,
    }

    #[test]
    fn later_field_has_no_bytes_for_an_older_peer() {
        let later = Later { first: 1, added: Some("x".into()), last: 2 };
        assert_eq!(speaking(4, || encode(&later)), [1, 2]);
        assert_eq!(speaking(4, || decode(&[1, 2])), Ok(Later { added: None, ..later }));
        let later = Later { first: 1, added: Some("x".into()), last: 2 };
        assert_eq!(decode(&encode(&later)), Ok(later));
        assert_eq!(spoken(), WIRE_HIGHEST);
    }
}
