//! Keys: the secret of a cluster, and the keys derived from it for nodes, operators and viewers. A viewer's key does
//! not give access to operator requests, and neither role gives access to the protocol between nodes.
use std::fmt;

use super::{Psk, derive, random_bytes};

/// Prefix of a secret that is authenticated by the holder of another.
const REKEY: &[u8] = b"bramble rekey 1";
/// Prefix of the nonce of a secret that is wrapped under another.
const WRAP: &[u8] = b"bramble rekey wrap 1";

/// The role that a key grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Read the reports of nodes.
    Viewer = 1,
    /// Use all functions of a console.
    Operator = 2,
    /// Act as a node.
    Node = 3,
    /// An operator that holds the cluster's secret. An operator's key cannot authenticate a node to it, so no operator
    /// can impersonate a node.
    Owner = 4,
}

impl Role {
    /// Its byte in the preamble. Peers of wire version 4 do not support owners; they see an operator.
    pub fn byte(self) -> u8 {
        if self == Self::Owner { Self::Operator as u8 } else { self as u8 }
    }

    /// Decodes the byte of the preamble.
    pub fn of_byte(byte: u8) -> Option<Self> {
        [Self::Viewer, Self::Operator, Self::Node].into_iter().find(|role| role.byte() == byte)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Node => "node",
            Self::Owner => "owner",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A key as stored in a key file.
#[derive(Clone, PartialEq, Eq)]
pub enum Key {
    /// The cluster's secret, from which all other keys are derived.
    Secret([u8; 32]),
    /// The key of a single role.
    Role(Role, Psk),
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.name())
    }
}

impl Key {
    /// A new secret.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn random() -> Result<Self, &'static str> {
        random_bytes().map(Self::Secret)
    }

    /// The name of its kind in a key file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Secret(_) => "secret",
            Self::Role(role, _) => role.name(),
        }
    }

    /// Its 32 bytes.
    pub fn bytes(&self) -> &[u8; 32] {
        match self {
            Self::Secret(bytes) | Self::Role(_, bytes) => bytes,
        }
    }

    /// Creates a key from the kind and bytes in a key file.
    pub fn named(name: &str, bytes: [u8; 32]) -> Option<Self> {
        match name {
            "secret" => Some(Self::Secret(bytes)),
            "operator" => Some(Self::Role(Role::Operator, bytes)),
            "viewer" => Some(Self::Role(Role::Viewer, bytes)),
            _ => None,
        }
    }

    /// The pre-shared key for a role, if this key grants it.
    pub fn psk(&self, role: Role) -> Option<Psk> {
        match self {
            Self::Secret(secret) => Some(derive(secret, &[b"bramble role 1 ", role.name().as_bytes()])),
            Self::Role(own, psk) => (*own == role).then_some(*psk),
        }
    }

    /// The key of a role, to hand out; only a secret contains the keys of other roles.
    pub fn for_role(&self, role: Role) -> Option<Self> {
        self.psk(role).map(|psk| Self::Role(role, psk))
    }

    /// The key that wraps another secret under this one; `None` unless this key is a secret.
    pub(crate) fn wrapping(&self, nonce: &[u8; 32]) -> Option<[u8; 32]> {
        matches!(self, Self::Secret(_)).then(|| derive(self.bytes(), &[WRAP, nonce]))
    }

    /// Authentication code of another secret, which only a holder of this key can compute.
    pub(crate) fn vouch(&self, secret: &[u8; 32]) -> [u8; 32] {
        derive(self.bytes(), &[REKEY, secret])
    }

    /// Whether a holder of this key computed the code for a secret; constant-time.
    pub(crate) fn has_vouched(&self, secret: &[u8; 32], proof: &[u8; 32]) -> bool {
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, self.bytes());
        ring::hmac::verify(&key, &[REKEY, secret].concat(), proof).is_ok()
    }

    /// Sixteen digits that identify the key without revealing it.
    pub fn fingerprint(&self) -> String {
        let hash = derive(self.bytes(), &[b"bramble fingerprint 1"]);
        hash[..8]
            .as_chunks::<2>()
            .0
            .iter()
            .map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]))
            .collect::<Vec<_>>()
            .join("-")
    }
}

/// 64 hexadecimal digits.
pub fn hexadecimal(bytes: &[u8; 32]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses 64 hexadecimal digits.
pub fn of_hexadecimal(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    if pairs.len() != bytes.len() {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn role_key_grants_only_its_own_role() {
        let secret = Key::Secret([5; 32]);
        let all = [Role::Viewer, Role::Operator, Role::Node, Role::Owner];
        for role in all {
            let key = secret.for_role(role).expect("a secret has all roles");
            for other in all {
                assert_eq!(key.psk(other).is_some(), role == other);
            }
            assert_eq!(key.psk(role), secret.psk(role));
            assert_ne!(key.bytes(), secret.bytes());
        }
        let psks = std::collections::BTreeSet::from(all.map(|role| secret.psk(role)));
        assert_eq!(psks.len(), all.len());
    }

    #[test]
    fn derived_keys_have_their_golden_bytes() {
        // HMAC-SHA256 of "bramble role 1 viewer" under 32 zeros; of "bramble fingerprint 1".
        let secret = Key::Secret([0; 32]);
        let viewer = secret.psk(Role::Viewer).expect("a secret has all roles");
        assert_eq!(hexadecimal(&viewer), "2d8440dc128c6e8e5b0206655e00aa7f340180e4da232eb734cf661a4b6339d4");
        assert_eq!(secret.fingerprint(), "f548-7a92-991a-376e");
    }

    #[test]
    fn digits_are_read_back_and_nothing_else_is() {
        let bytes = std::array::from_fn(|index| index as u8 * 7);
        let text = hexadecimal(&bytes);
        assert_eq!(of_hexadecimal(&text), Some(bytes));
        for wrong in
            ["", &text[1..], &text[2..], &text.replace('7', "g"), &format!("{text}00"), &text.replace('0', "é")]
        {
            assert_eq!(of_hexadecimal(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_key_is_not_printed_by_chance() {
        let text = format!("{:?}", Key::Secret([0xab; 32]));
        assert_eq!(text, "Key(secret)");
    }
}
