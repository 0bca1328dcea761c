//! Sockets of sessions: dialling, the handshake on both sides, and whole messages. With `session.rs` the only file of `shared` with tokio.
use std::{io, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::timeout,
};

use crate::protocol::{
    error::{Fault, FaultKind},
    handshake::{self, Hello, Identity, PREAMBLE_BYTES, Preamble, Welcome},
    message::{self, MESSAGE_BYTES_MAX},
    seal::Seal,
};

/// Time that a dial and its handshake may take.
pub const DIAL_SECONDS: u64 = 5;

/// Dials `address`, shakes hands and returns the socket with the identity of who answered.
///
/// # Errors
/// A fault that names the address: unreachable, no Bramble, another version, or what the node refused with.
pub async fn dial(address: &str, hello: &Hello) -> Result<(TcpStream, Identity), Fault> {
    let unreachable = |reason: String| {
        let kind = FaultKind::Unreachable { address: address.into(), reason };
        Fault::new(address, kind)
    };
    let attempt = timeout(Duration::from_secs(DIAL_SECONDS), async {
        let mut stream = TcpStream::connect(address).await.map_err(|error| unreachable(error.to_string()))?;
        stream.set_nodelay(true).map_err(|error| unreachable(error.to_string()))?;
        let identity = introduce(&mut stream, address, hello).await?;
        Ok((stream, identity))
    });
    attempt.await.unwrap_or_else(|_| Err(unreachable(format!("no answer within {DIAL_SECONDS} s"))))
}

async fn introduce(stream: &mut TcpStream, address: &str, hello: &Hello) -> Result<Identity, Fault> {
    let fault = |kind| Fault::new(address, kind);
    let broke = |error: io::Error| fault(FaultKind::SessionLost { reason: error.to_string() });
    let mut opening = Preamble::OWN.encode().to_vec();
    opening.extend_from_slice(&handshake::encode(hello));
    stream.write_all(&opening).await.map_err(broke)?;
    let mut preamble = [0; PREAMBLE_BYTES];
    stream.read_exact(&mut preamble).await.map_err(|_| fault(FaultKind::NotBramble { address: address.into() }))?;
    let preamble =
        Preamble::decode(preamble).ok_or_else(|| fault(FaultKind::NotBramble { address: address.into() }))?;
    preamble.agree().map_err(fault)?;
    match read_handshake(stream).await.map_err(fault)? {
        Welcome::Accepted(identity) => Ok(identity),
        Welcome::Refused(refusal) => Err(refusal),
    }
}

/// The accepting side, first half: sends the own preamble, reads the peer's and its Hello.
///
/// # Errors
/// What the peer did wrong; the caller closes the connection.
pub async fn receive_hello(stream: &mut TcpStream) -> Result<Hello, FaultKind> {
    let broke = |error: io::Error| FaultKind::SessionLost { reason: error.to_string() };
    let mut preamble = [0; PREAMBLE_BYTES];
    stream.read_exact(&mut preamble).await.map_err(broke)?;
    let Some(preamble) = Preamble::decode(preamble) else {
        return Err(FaultKind::NotBramble { address: "the peer".into() });
    };
    stream.write_all(&Preamble::OWN.encode()).await.map_err(broke)?;
    preamble.agree()?;
    read_handshake(stream).await
}

/// The accepting side, second half.
///
/// # Errors
/// The peer is gone.
pub async fn send_welcome(stream: &mut TcpStream, welcome: &Welcome) -> io::Result<()> {
    stream.write_all(&handshake::encode(welcome)).await
}

async fn read_handshake<T: DeserializeOwned>(stream: &mut TcpStream) -> Result<T, FaultKind> {
    let broke = |error: io::Error| FaultKind::SessionLost { reason: error.to_string() };
    let mut length = [0; 4];
    stream.read_exact(&mut length).await.map_err(broke)?;
    let mut body = vec![0; handshake::body_length(length)?];
    stream.read_exact(&mut body).await.map_err(broke)?;
    handshake::decode(&body)
}

/// Splits a socket after the handshake into whole-message ends.
pub fn split(stream: TcpStream) -> (MessageReader, MessageWriter) {
    let (read, write) = stream.into_split();
    (MessageReader { half: read, buffer: Vec::new(), seal: Seal }, MessageWriter { half: write, seal: Seal })
}

/// Reads whole messages; cancelling a read loses nothing.
#[derive(Debug)]
pub struct MessageReader {
    half: OwnedReadHalf,
    buffer: Vec<u8>,
    seal: Seal,
}

impl MessageReader {
    /// The next message; `None` when the peer closed between two messages.
    ///
    /// # Errors
    /// A broken connection, a message too long, or bytes that are no such message.
    pub async fn receive<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FaultKind> {
        loop {
            if let Some(end) = self.message_end()? {
                let inside = self.seal.open(&mut self.buffer[4..end])?;
                let message = message::decode(&self.buffer[4..4 + inside]);
                self.buffer.drain(..end);
                return message.map(Some);
            }
            match self.half.read_buf(&mut self.buffer).await {
                Ok(0) if self.buffer.is_empty() => return Ok(None),
                Ok(0) => return Err(FaultKind::SessionLost { reason: "closed in the middle of a message".into() }),
                Ok(_) => {}
                Err(error) => return Err(FaultKind::SessionLost { reason: error.to_string() }),
            }
        }
    }

    /// Where the first message in the buffer ends, once it is whole.
    fn message_end(&self) -> Result<Option<usize>, FaultKind> {
        let Some(length) = self.buffer.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MESSAGE_BYTES_MAX + Seal::OVERHEAD {
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
}

impl MessageWriter {
    /// Sends one message with one write.
    ///
    /// # Errors
    /// A broken connection.
    pub async fn send<T: Serialize>(&mut self, message: &T) -> Result<(), FaultKind> {
        let mut body = message::encode(message);
        self.seal.seal(&mut body);
        let mut bytes = Vec::with_capacity(4 + body.len());
        bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&body);
        let sent = self.half.write_all(&bytes).await;
        sent.map_err(|error| FaultKind::SessionLost { reason: error.to_string() })
    }
}
