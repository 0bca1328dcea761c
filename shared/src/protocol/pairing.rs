//! How nodes get their key: from a console that knows the code which the node shows, and later from one that knows the key before.
use serde::{Deserialize, Serialize};

use super::noise::key::Key;

/// Longest time that the key before counts beside a new one.
pub const GRACE_SECONDS_MAX: u32 = 30 * 24 * 3600;

/// The console's message.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopt {
    /// Who adopts: `user@host`.
    pub by: String,
    /// The cluster's secret.
    pub secret: [u8; 32],
}

impl std::fmt::Debug for Adopt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Adopt(by {})", self.by)
    }
}

/// The node's answer: the key is on its disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopted {
    /// The node's name.
    pub node: String,
    /// The fingerprint of the key that it has now.
    pub fingerprint: String,
}

/// A console gives a node the cluster's next key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rekey {
    /// The new secret.
    pub secret: [u8; 32],
    /// That the console knows the secret before: the key of an operator alone gives nobody the cluster.
    proof: [u8; 32],
    /// How long the key before counts beside it.
    pub grace_seconds: u32,
}

impl std::fmt::Debug for Rekey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rekey(for {} s)", self.grace_seconds)
    }
}

impl Rekey {
    /// From one secret to the next.
    pub fn new(old: &Key, new: &Key, grace_seconds: u32) -> Self {
        let secret = *new.bytes();
        Self { secret, proof: old.vouch(&secret), grace_seconds }
    }

    /// Whether whoever made it knows this secret.
    pub fn is_vouched_by(&self, old: &Key) -> bool {
        matches!(old, Key::Secret(_)) && old.has_vouched(&self.secret, &self.proof)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::noise::key::Role;

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
