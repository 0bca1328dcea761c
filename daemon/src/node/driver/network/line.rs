//! A measuring connection between two nodes: length-prefixed messages of bounded size, protected like the data links of
//! ranks, in buffers that are allocated once.
use std::io;

use common::fault::FaultKind;
use protocol::{
    connection::Connection,
    network::CHUNK_BYTES,
    seal::{Seal, Seals},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Bytes of the length prefix.
const LENGTH_BYTES: usize = 4;

/// One end.
#[derive(Debug)]
pub(super) struct ProbeLink {
    stream: TcpStream,
    seals: Seals,
    /// Buffer of the message being sent.
    out: Vec<u8>,
    /// Buffer of the received message.
    input: Vec<u8>,
}

impl ProbeLink {
    /// On a connection after its handshake.
    pub(super) fn new(connection: Connection) -> Self {
        let (stream, seals) = connection.into_data_link();
        let room = LENGTH_BYTES + CHUNK_BYTES + Seal::OVERHEAD;
        Self { stream, seals, out: Vec::with_capacity(room), input: vec![0; room] }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The peer is gone.
    pub(super) async fn send(&mut self, body: &[u8]) -> Result<(), FaultKind> {
        let length = (body.len() + self.seals.out.overhead()) as u32;
        self.out.clear();
        self.out.extend_from_slice(&length.to_le_bytes());
        self.out.extend_from_slice(body);
        self.seals.out.seal(&mut self.out, LENGTH_BYTES);
        self.stream.write_all(&self.out).await.map_err(|error| broke(&error))
    }

    /// The body of the next message.
    ///
    /// # Errors
    /// The connection broke, or the message is too long or fails its integrity check.
    pub(super) async fn receive(&mut self) -> Result<&[u8], FaultKind> {
        self.stream.read_exact(&mut self.input[..LENGTH_BYTES]).await.map_err(|error| broke(&error))?;
        let length = self.input.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes) as usize);
        let end = LENGTH_BYTES.saturating_add(length);
        let Some(rest) = self.input.get_mut(LENGTH_BYTES..end) else {
            return Err(FaultKind::Malformed {
                reason: format!("a message of {length} bytes on a measuring link, at most {CHUNK_BYTES} expected"),
            });
        };
        self.stream.read_exact(rest).await.map_err(|error| broke(&error))?;
        let inside = self.seals.input.open(&mut self.input[..end], LENGTH_BYTES)?;
        Ok(&self.input[LENGTH_BYTES..inside])
    }
}

fn broke(error: &io::Error) -> FaultKind {
    FaultKind::SessionLost { reason: error.to_string() }
}
