//! Gives a node the cluster's key, by the code that it shows.
use std::time::Duration;

use shared::protocol::{
    WIRE_LOWEST,
    connection::{self, dial_pairing, read_short, write_short},
    error::{Fault, FaultKind},
    noise::{
        Initiator,
        pake::{Code, Pake},
    },
    pairing::{Adopt, Adopted},
    seal::Cipher,
};
use tokio::time::timeout;

use super::session::own_name;

/// The whole conversation must be done within this.
const PATIENCE: Duration = Duration::from_secs(10);

/// Adopts the node at `address`.
///
/// # Errors
/// It is away, has a key, shows no code or another one, or cannot keep the key.
pub async fn adopt(address: &str, code: &Code, secret: &[u8; 32]) -> Result<Adopted, Fault> {
    let (mut stream, prologue) = dial_pairing(address).await?;
    let named = |kind| Fault::new(address, kind);
    let talk = async {
        let (pake, element) = Pake::dialler(code);
        write_short(&mut stream, &element).await.map_err(named)?;
        let theirs = read_short(&mut stream).await.map_err(named)??;
        let no_element = || named(FaultKind::Malformed { reason: "no element of a code".into() });
        let psk = pake.finish(&theirs).ok_or_else(no_element)?;
        let (initiator, message) = Initiator::begin(&psk, &prologue, &[]).map_err(named)?;
        write_short(&mut stream, &message).await.map_err(named)?;
        let reply = read_short(&mut stream).await.map_err(named)??;
        let mut seals = initiator.finish(&reply, Cipher::ChaChaPoly).map_err(named)?;
        let adopt = Adopt { by: own_name(), secret: *secret };
        connection::write(&mut stream, &mut seals.out, WIRE_LOWEST, &adopt).await.map_err(named)?;
        connection::read::<Result<Adopted, Fault>>(&mut stream, &mut seals.input, WIRE_LOWEST).await.map_err(named)?
    };
    timeout(PATIENCE, talk).await.unwrap_or_else(|_| {
        let (what, seconds) = ("adopting".into(), PATIENCE.as_secs() as u32);
        Err(named(FaultKind::Timeout { what, seconds }))
    })
}
