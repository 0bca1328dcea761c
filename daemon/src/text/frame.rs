//! Messages between a node and its child: a length and a message, over a socket pair. Bounded on both sides.
use std::{
    io::{self, ErrorKind, Read, Write},
    path::PathBuf,
};

use common::{
    chat::{Chat, Grammar},
    fault::FaultKind,
    tool_use::CallGrammar,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokenizer::template::{Rendered, TemplateSource};

use crate::priority::Priority;

/// Longest message: the tokens of the longest conversation, at five bytes each.
const FRAME_BYTES_MAX: usize = 32 << 20;

/// Parameters of a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Beginning {
    /// The model's templates.
    pub(super) source: Option<TemplateSource>,
    /// The model's file.
    pub(super) path: PathBuf,
    /// Bytes that it may allocate in addition to its initial memory.
    pub(super) memory: u64,
    pub(super) priority: Priority,
}

/// A job for a child, with its limit on processor time in seconds.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ask {
    pub(super) seconds: u64,
    pub(super) job: Job,
}

/// Kinds of work.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Job {
    /// Compile the templates.
    Compile,
    Render(Chat, u64),
    Check(Grammar),
    CheckCalls(Box<CallGrammar>),
    /// A text, whether BOS may come first, and whether special tokens are parsed.
    Encode(String, bool, bool),
}

/// Outcome of a job.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Outcome {
    Good,
    Text(Rendered),
    Tokens(Vec<u32>),
    Refused(FaultKind),
}

/// Writes a message. If a write of the socket times out, the error is `WouldBlock`, and a part may have been written.
pub(super) fn write(mut socket: impl Write, message: &impl Serialize) -> io::Result<()> {
    let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
    socket.write_all(&(bytes.len() as u32).to_le_bytes())?;
    socket.write_all(&bytes)
}

/// Reads a message; `goes_on` is called whenever a read of the socket times out, and returns false to give up.
pub(super) fn read<T: DeserializeOwned>(mut socket: impl Read, mut goes_on: impl FnMut() -> bool) -> io::Result<T> {
    let mut length = [0; 4];
    fill(&mut socket, &mut length, &mut goes_on)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length];
    fill(&mut socket, &mut bytes, &mut goes_on)?;
    postcard::from_bytes(&bytes).map_err(io::Error::other)
}

fn fill(socket: &mut impl Read, mut bytes: &mut [u8], goes_on: &mut impl FnMut() -> bool) -> io::Result<()> {
    while !bytes.is_empty() {
        match socket.read(bytes) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if !goes_on() {
                    return Err(ErrorKind::TimedOut.into());
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
