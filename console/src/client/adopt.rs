//! Adopts a node: gives it the cluster key, using the pairing code that the node displays.
use std::time::Duration;

use common::{
    fault::{Fault, FaultKind},
    version::WIRE_LOWEST,
};
use protocol::{
    connection::{self, dial_pairing, read_short, write_short},
    noise::{
        Initiator,
        pake::{Code, Pake},
    },
    pairing::{Adopt, Adopted},
    seal::Cipher,
};
use tokio::time::timeout;

use super::session::own_name;

/// Time limit for the whole exchange.
const PATIENCE: Duration = Duration::from_secs(10);

/// Adopts the node at `address`.
///
/// # Errors
/// The node is unreachable, already has a key, displays no code or a different one, or cannot store the key.
pub async fn adopt(address: &str, code: &Code, secret: &[u8; 32]) -> Result<Adopted, Fault> {
    let (mut stream, prologue) = dial_pairing(address).await?;
    let named = |kind| Fault::new(address, kind);
    let talk = async {
        let (pake, element) = Pake::dialler(code);
        write_short(&mut stream, &element).await.map_err(named)?;
        let theirs = read_short(&mut stream).await.map_err(named)??;
        let psk = pake
            .finish(&theirs)
            .ok_or_else(|| named(FaultKind::Malformed { reason: "the message has no valid pairing element".into() }))?;
        let (initiator, message) = Initiator::begin(&psk, &prologue, &[]).map_err(named)?;
        write_short(&mut stream, &message).await.map_err(named)?;
        let reply = read_short(&mut stream).await.map_err(named)??;
        let mut seals = initiator.finish(&reply, Cipher::ChaChaPoly).map_err(named)?;
        let adopt = Adopt { by: own_name(), secret: *secret };
        connection::write(&mut stream, &mut seals.out, WIRE_LOWEST, &adopt).await.map_err(named)?;
        connection::read::<Result<Adopted, Fault>>(&mut stream, &mut seals.input, WIRE_LOWEST).await.map_err(named)?
    };
    timeout(PATIENCE, talk).await.unwrap_or_else(|_| {
        let (what, seconds) = ("adoption".into(), PATIENCE.as_secs() as u32);
        Err(named(FaultKind::Timeout { what, seconds }))
    })
}
