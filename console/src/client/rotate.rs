//! Gives nodes a new cluster key over sessions by the one before. A node that has it already is passed over.
use std::{sync::Arc, time::Duration};

use shared::protocol::{
    error::Fault,
    message::{RequestBody, ResponseBody},
    noise::key::Key,
    pairing::Rekey,
};

use super::{assign::unexpected, session};

/// A key must be on the disk within this.
const KEEP: Duration = Duration::from_secs(10);

/// Gives the node at `address` the key `new`; its name and whether it took it just now.
///
/// # Errors
/// It is away, has another key than both, or cannot keep the new one.
pub async fn rekey(address: &str, old: &Key, new: &Key, grace_seconds: u32) -> Result<String, Fault> {
    let session = Arc::new(session::open(address).await?);
    let rekey = Rekey::new(old, new, grace_seconds);
    let mut reply = session.ask(RequestBody::Rekey(Box::new(rekey))).await?;
    match reply.next("a new key", KEEP).await? {
        ResponseBody::Rekeyed { .. } => Ok(session.identity.name.clone()),
        other => Err(unexpected(&session, &other)),
    }
}
