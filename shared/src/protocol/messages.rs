//! The two ends of a session after its handshake: whole messages, bounded in bytes and in the time that the rest of one may take.
use std::{io, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::tcp::{OwnedReadHalf, OwnedWriteHalf},
    time::{Instant, timeout_at},
};

use crate::protocol::{
    connection::{Connection, broke, sealed},
    error::FaultKind,
    message::{self, MESSAGE_BYTES_MAX},
    older,
    seal::{Seal, SealError},
    version::speaking,
};

/// From this wire version on every message has a sum, or a tag.
const SUMMED_FROM: u16 = 5;

/// Splits a connection after the handshake into whole-message ends.
pub fn split(connection: Connection) -> (MessageReader, MessageWriter) {
    let Connection { stream, seals, version, .. } = connection;
    let (read, write) = stream.into_split();
    (
        MessageReader {
            half: read,
            buffer: Vec::new(),
            seal: seals.input,
            version,
            bytes_max: MESSAGE_BYTES_MAX,
            rest: None,
            begun: None,
        },
        MessageWriter { half: write, seal: seals.out, version },
    )
}

/// Reads whole messages; cancelling a read loses nothing.
#[derive(Debug)]
pub struct MessageReader {
    half: OwnedReadHalf,
    buffer: Vec<u8>,
    seal: Seal,
    version: u16,
    bytes_max: usize,
    rest: Option<Duration>,
    /// When the message began that is not yet whole.
    begun: Option<Instant>,
}

impl MessageReader {
    /// With a bound on the bytes of a message, and on the time that the rest of a begun one may take.
    #[must_use]
    pub fn bounded(self, bytes_max: usize, rest: Duration) -> Self {
        Self { bytes_max: bytes_max.min(MESSAGE_BYTES_MAX), rest: Some(rest), ..self }
    }

    /// The next message; `None` when the peer closed between two messages.
    ///
    /// # Errors
    /// A broken connection, a message too long or too slow, or bytes that are no such message.
    pub async fn receive<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FaultKind> {
        loop {
            if let Some(end) = self.message_end()? {
                self.begun = None;
                let inside = self.seal.open(&mut self.buffer[..end], 4)?;
                let message = speaking(self.version, || message::decode(&self.buffer[4..inside]));
                self.buffer.drain(..end);
                return message.map(Some);
            }
            match self.read_more().await? {
                Ok(0) if self.buffer.is_empty() => return Ok(None),
                Ok(0) => return Err(FaultKind::SessionLost { reason: "closed in the middle of a message".into() }),
                Ok(_) => {}
                Err(error) => return Err(FaultKind::SessionLost { reason: error.to_string() }),
            }
        }
    }

    /// Reads what comes next; of a message that has begun only within its time.
    async fn read_more(&mut self) -> Result<io::Result<usize>, FaultKind> {
        let Some(rest) = self.rest.filter(|_| !self.buffer.is_empty()) else {
            return Ok(self.half.read_buf(&mut self.buffer).await);
        };
        let begun = *self.begun.get_or_insert_with(Instant::now);
        let reading = timeout_at(begun + rest, self.half.read_buf(&mut self.buffer)).await;
        let seconds = rest.as_secs() as u32;
        reading.map_err(|_| FaultKind::Timeout { what: "the rest of a message".into(), seconds })
    }

    /// Where the first message in the buffer ends, once it is whole.
    fn message_end(&self) -> Result<Option<usize>, FaultKind> {
        let Some(length) = self.buffer.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        // Nobody sends so much: the length itself was damaged, and its sum stands where it says.
        if self.version >= SUMMED_FROM && length > MESSAGE_BYTES_MAX + Seal::OVERHEAD {
            return Err(SealError::Damaged.into());
        }
        if length > self.bytes_max + Seal::OVERHEAD {
            return Err(FaultKind::Malformed { reason: format!("a message of {length} bytes") });
        }
        Ok((self.buffer.len() >= 4 + length).then_some(4 + length))
    }
}

/// Writes whole messages.
#[derive(Debug)]
pub struct MessageWriter {
    half: OwnedWriteHalf,
    seal: Seal,
    version: u16,
}

impl MessageWriter {
    /// The wire version that both ends speak.
    pub fn version(&self) -> u16 {
        self.version
    }

    /// Sends one message with one write.
    ///
    /// # Errors
    /// A broken connection, or [`FaultKind::PeerOlder`] where the peer does not know such a message: nothing was written then.
    pub async fn send<T: Serialize>(&mut self, message: &T) -> Result<(), FaultKind> {
        if let Some(what) = older::unknown(self.version, message) {
            return Err(FaultKind::PeerOlder { version: self.version, what });
        }
        let bytes = sealed(&mut self.seal, self.version, message);
        self.half.write_all(&bytes).await.map_err(|error| broke(&error))
    }
}
