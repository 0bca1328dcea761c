//! Gives nodes a new cluster key over sessions under the previous key. A node that already has the new key is
//! skipped. The new secret is wrapped under the old one, so an impostor of a node learns nothing.
use std::{sync::Arc, time::Duration};

use common::fault::{Fault, FaultKind};
use protocol::{
    message::{RequestBody, ResponseBody},
    noise::{
        key::{Key, Role},
        keyring::{Held, Keyring},
    },
    pairing::WrappedKey,
};

use super::{identify::unexpected, session};

/// Time limit for storing a key on disk.
const KEEP: Duration = Duration::from_secs(10);

/// Gives the node at `address` the key `new` and returns the node's name.
///
/// # Errors
/// The node is unreachable, has no key or a third one, is too old for a wrapped key, or cannot store the new key.
pub async fn rekey(address: &str, old: &Key, new: &Key, grace_seconds: u32) -> Result<String, Fault> {
    let with = |key: &Key| Keyring::with(Role::Owner, vec![Held { key: key.clone(), until: None }]);
    let session = match session::open_with(address, &with(old)).await {
        Ok(session) => Arc::new(session),
        // It already has the new key from an interrupted rotation.
        Err(Fault { kind: FaultKind::KeyDiffers, .. }) => {
            return session::open_with(address, &with(new)).await.map(|session| session.identity.name.clone());
        }
        Err(fault) => return Err(fault),
    };
    let refused = |reason: &str| Fault::new(&session.identity.name, FaultKind::KeyRefused { reason: reason.into() });
    if session.role != Some(Role::Owner) {
        return Err(refused(
            "it speaks wire version 4, which cannot receive wrapped keys; upgrade brambled on the node, then \
             rotate again",
        ));
    }
    let wrapped = WrappedKey::new(old, new, grace_seconds).map_err(refused)?;
    let mut reply = session.ask(RequestBody::RekeyWrapped(Box::new(wrapped))).await?;
    match reply.next("storing the new key", KEEP).await? {
        ResponseBody::Rekeyed { fingerprint } if fingerprint == new.fingerprint() => Ok(session.identity.name.clone()),
        ResponseBody::Rekeyed { .. } => Err(refused("it confirmed a different key than the one sent")),
        other => Err(unexpected(&session, &other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::fake_node::{FakeNode, Script};

    #[tokio::test]
    async fn listener_without_key_receives_no_secret() {
        let node = FakeNode::start("pi1", Script::default()).await;
        let (old, new) = (Key::Secret([1; 32]), Key::Secret([2; 32]));
        let refused = rekey(&node.address, &old, &new, 60).await.expect_err("it has no key");
        assert_eq!(refused.kind, FaultKind::Unclaimed);
        assert_eq!(node.asked(), [""; 0]);
    }
}
