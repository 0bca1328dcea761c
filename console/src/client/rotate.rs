//! Gives nodes a new cluster key over sessions under the previous one. A node that has it already is skipped. The new secret travels
//! wrapped under the old one, so an impostor of a node learns nothing.
use std::{sync::Arc, time::Duration};

use shared::protocol::{
    error::{Fault, FaultKind},
    message::{RequestBody, ResponseBody},
    noise::{
        key::{Key, Role},
        keyring::{Held, Keyring},
    },
    pairing::WrappedKey,
};

use super::{assign::unexpected, session};

/// A key must be on the disk within this.
const KEEP: Duration = Duration::from_secs(10);

/// Gives the node at `address` the key `new`; its name.
///
/// # Errors
/// It is away, has no key or another than both, is too old for a wrapped key, or cannot keep the new one.
pub async fn rekey(address: &str, old: &Key, new: &Key, grace_seconds: u32) -> Result<String, Fault> {
    let with = |key: &Key| Keyring::with(Role::Owner, vec![Held { key: key.clone(), until: None }]);
    let session = match session::open_with(address, &with(old)).await {
        Ok(session) => Arc::new(session),
        // It has the new one from a rotation that was broken off.
        Err(Fault { kind: FaultKind::KeyDiffers, .. }) => {
            return session::open_with(address, &with(new)).await.map(|session| session.identity.name.clone());
        }
        Err(fault) => return Err(fault),
    };
    let refused = |reason: &str| Fault::new(&session.identity.name, FaultKind::KeyRefused { reason: reason.into() });
    if session.role != Some(Role::Owner) {
        return Err(refused(
            "it speaks wire version 4, which takes a key only unwrapped; upgrade brambled there, then rotate again",
        ));
    }
    let wrapped = WrappedKey::new(old, new, grace_seconds).map_err(refused)?;
    let mut reply = session.ask(RequestBody::RekeyWrapped(Box::new(wrapped))).await?;
    match reply.next("a new key", KEEP).await? {
        ResponseBody::Rekeyed { fingerprint } if fingerprint == new.fingerprint() => Ok(session.identity.name.clone()),
        ResponseBody::Rekeyed { .. } => Err(refused("it answers that it has another key than it was given")),
        other => Err(unexpected(&session, &other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::fake_node::{FakeNode, Script};

    #[tokio::test]
    async fn listener_without_key_is_told_no_secret() {
        let node = FakeNode::start("pi1", Script::default()).await;
        let (old, new) = (Key::Secret([1; 32]), Key::Secret([2; 32]));
        let refused = rekey(&node.address, &old, &new, 60).await.expect_err("it has no key");
        assert_eq!(refused.kind, FaultKind::Unclaimed);
        assert_eq!(node.asked(), [""; 0]);
    }
}
