//! How nodes receive their key: from a console that proves the pairing code, and later from a console that holds the
//! current secret.
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde::{Deserialize, Serialize};

use super::noise::{key::Key, random_bytes};

/// The console's message.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopt {
    /// The adopting operator: `user@host`.
    pub by: String,
    /// The cluster's secret.
    pub secret: [u8; 32],
}

impl std::fmt::Debug for Adopt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Adopt(by {})", self.by)
    }
}

/// The node's response: the key is on its disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopted {
    /// The node's name.
    pub node: String,
    /// The fingerprint of its current key.
    pub fingerprint: String,
}

/// The cluster's next key, as received by a node.
#[derive(Clone, PartialEq, Eq)]
pub struct NextKey {
    /// The new secret.
    pub secret: [u8; 32],
    /// How long the previous key is accepted as well.
    pub grace_seconds: u32,
}

impl std::fmt::Debug for NextKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NextKey(for {} s)", self.grace_seconds)
    }
}

/// The cluster's next key, wrapped under the current one: only holders of the current secret can create or read it,
/// whichever node relays it. Since wire version 5.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrappedKey {
    /// Derives the key that wraps this message.
    nonce: [u8; 32],
    /// Secret and grace period, sealed.
    sealed: Vec<u8>,
}

impl WrappedKey {
    /// Wraps the next key.
    ///
    /// # Errors
    /// The current key is not a secret, or the system has no random numbers.
    pub fn new(old: &Key, new: &Key, grace_seconds: u32) -> Result<Self, &'static str> {
        let nonce = random_bytes()?;
        let key = wrapping(old, &nonce).ok_or("only the cluster's secret can wrap a new key")?;
        let mut sealed = [&new.bytes()[..], &grace_seconds.to_le_bytes()].concat();
        let sealing = key.seal_in_place_append_tag(only_once(), Aad::empty(), &mut sealed);
        sealing.map_err(|_| "the new key cannot be sealed")?;
        Ok(Self { nonce, sealed })
    }

    /// Unwraps the next key with the secret under which it was wrapped.
    pub fn open(&self, old: &Key) -> Option<NextKey> {
        let mut sealed = self.sealed.clone();
        let inside = wrapping(old, &self.nonce)?.open_in_place(only_once(), Aad::empty(), &mut sealed).ok()?;
        let (secret, grace) = inside.split_first_chunk::<32>()?;
        Some(NextKey { secret: *secret, grace_seconds: u32::from_le_bytes(grace.try_into().ok()?) })
    }
}

fn wrapping(old: &Key, nonce: &[u8; 32]) -> Option<LessSafeKey> {
    let key = UnboundKey::new(&CHACHA20_POLY1305, &old.wrapping(nonce)?);
    Some(LessSafeKey::new(key.expect("the cipher takes 32 bytes")))
}

/// The key is used for a single message, so the nonce may be constant.
fn only_once() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

/// The next key as received: wrapped, or unwrapped from a console of wire version 4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rekeying {
    /// Protected only by the session's seal.
    Bare(Box<Rekey>),
    /// Wrapped under the current key.
    Wrapped(Box<WrappedKey>),
}

/// The cluster's next key from a console of wire version 4.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rekey {
    /// The new secret.
    pub secret: [u8; 32],
    /// Proves possession of the current secret: an operator's key alone must not replace the cluster's key.
    proof: [u8; 32],
    /// How long the previous key is accepted as well.
    pub grace_seconds: u32,
}

impl std::fmt::Debug for Rekey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rekey(for {} s)", self.grace_seconds)
    }
}

impl Rekey {
    /// Creates the message that replaces the old secret by the new one.
    pub fn new(old: &Key, new: &Key, grace_seconds: u32) -> Self {
        let secret = *new.bytes();
        Self { secret, proof: old.vouch(&secret), grace_seconds }
    }

    /// Whether the sender knew this secret.
    pub fn is_vouched_by(&self, old: &Key) -> bool {
        matches!(old, Key::Secret(_)) && old.has_vouched(&self.secret, &self.proof)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::key::Role;

    #[test]
    fn only_holders_of_the_secret_wrap_and_unwrap_the_next_one() {
        let (old, new) = (Key::Secret([1; 32]), Key::Secret([2; 32]));
        let wrapped = WrappedKey::new(&old, &new, 60).expect("random numbers");
        assert_eq!(wrapped.open(&old), Some(NextKey { secret: [2; 32], grace_seconds: 60 }));
        let operator = old.for_role(Role::Operator).expect("a secret has all roles");
        for other in [&new, &operator] {
            assert_eq!(wrapped.open(other), None);
        }
        assert!(WrappedKey::new(&operator, &new, 60).is_err());
        assert_ne!(wrapped, WrappedKey::new(&old, &new, 60).expect("random numbers"));
        for byte in 0..wrapped.sealed.len() {
            let mut changed = wrapped.clone();
            changed.sealed[byte] ^= 1;
            assert_eq!(changed.open(&old), None, "byte {byte}");
        }
        let bytes = crate::message::encode(&wrapped);
        assert!(!bytes.windows(32).any(|window| window == [2; 32]), "the secret is not readable");
    }

    #[test]
    fn only_a_holder_of_the_secret_vouches_for_the_next_one() {
        let (old, new) = (Key::Secret([1; 32]), Key::Secret([2; 32]));
        let rekey = Rekey::new(&old, &new, 60);
        assert!(rekey.is_vouched_by(&old) && !rekey.is_vouched_by(&new));
        let operator = old.for_role(Role::Operator).expect("a secret has all roles");
        let forged = Rekey::new(&operator, &new, 60);
        assert!(!forged.is_vouched_by(&old) && !forged.is_vouched_by(&operator));
        assert_eq!(format!("{rekey:?}"), "Rekey(for 60 s)");
    }
}
