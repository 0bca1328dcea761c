//! The two ends of a session after its handshake: whole messages, with a limit on their bytes and on the time to
//! receive the rest of a message.
use std::{io, time::Duration};

use common::{
    fault::{FaultKind, SealError},
    older,
    version::speaking,
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::tcp::{OwnedReadHalf, OwnedWriteHalf},
    time::{Instant, timeout_at},
};

use crate::{
    connection::{Connection, broke, sealed},
    message::{self, MESSAGE_BYTES_MAX},
    seal::Seal,
};

/// Since this wire version every message has a checksum or a tag.
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

/// Reads whole messages; cancelling a read loses no data.
#[derive(Debug)]
pub struct MessageReader {
    half: OwnedReadHalf,
    buffer: Vec<u8>,
    seal: Seal,
    version: u16,
    bytes_max: usize,
    rest: Option<Duration>,
    /// Start time of a partially received message.
    begun: Option<Instant>,
}

impl MessageReader {
    /// Sets limits on the bytes of a message and on the time to receive the rest of a message.
    #[must_use]
    pub fn bounded(self, bytes_max: usize, rest: Duration) -> Self {
        Self { bytes_max: bytes_max.min(MESSAGE_BYTES_MAX), rest: Some(rest), ..self }
    }

    /// The next message; `None` if the peer closed the connection between two messages.
    ///
    /// # Errors
    /// A broken connection, a message that is too long or too slow, or bytes that are not such a message.
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
                Ok(0) => {
                    return Err(FaultKind::SessionLost {
                        reason: "connection closed in the middle of a message".into(),
                    });
                }
                Ok(_) => {}
                Err(error) => return Err(FaultKind::SessionLost { reason: error.to_string() }),
            }
        }
    }

    /// Reads more bytes; within the deadline if a message has begun.
    async fn read_more(&mut self) -> Result<io::Result<usize>, FaultKind> {
        let Some(rest) = self.rest.filter(|_| !self.buffer.is_empty()) else {
            return Ok(self.half.read_buf(&mut self.buffer).await);
        };
        let begun = *self.begun.get_or_insert_with(Instant::now);
        let reading = timeout_at(begun + rest, self.half.read_buf(&mut self.buffer)).await;
        let seconds = rest.as_secs() as u32;
        reading.map_err(|_| FaultKind::Timeout { what: "the rest of a message".into(), seconds })
    }

    /// The end of the first message in the buffer, once it is complete.
    fn message_end(&self) -> Result<Option<usize>, FaultKind> {
        let Some(length) = self.buffer.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        // No peer sends this much: the length itself was damaged, and the checksum lies beyond it.
        if self.version >= SUMMED_FROM && length > MESSAGE_BYTES_MAX + Seal::OVERHEAD {
            return Err(SealError::Damaged.into());
        }
        if length > self.bytes_max + Seal::OVERHEAD {
            return Err(FaultKind::Malformed { reason: format!("invalid message length {length}") });
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
    /// The agreed wire version.
    pub fn version(&self) -> u16 {
        self.version
    }

    /// Sends one message with one write.
    ///
    /// # Errors
    /// A broken connection, or [`FaultKind::PeerOlder`] if the peer does not support such a message; nothing is written
    /// then.
    pub async fn send<T: Serialize>(&mut self, message: &T) -> Result<(), FaultKind> {
        if let Some(what) = older::unknown(self.version, message) {
            return Err(FaultKind::PeerOlder { version: self.version, what });
        }
        let bytes = sealed(&mut self.seal, self.version, message);
        self.half.write_all(&bytes).await.map_err(|error| broke(&error))
    }
}
