//! Extracts a body from the bytes of a connection: by length, in chunks, or until the connection closes. Pure.
use super::head::Length;

/// Maximum length in bytes of the line before a chunk (size and extensions), and of a trailer line.
const LINE_BYTES_MAX: usize = 1 << 10;

/// The position of the next byte in a body.
#[derive(Clone, Debug, PartialEq, Eq)]
enum BodyState {
    /// This many bytes of data follow, and after a chunk a line end.
    Data { left: u64, in_chunk: bool },
    /// In the line with the size of a chunk, or in the line end after a chunk.
    Line { line: Vec<u8>, is_after_chunk: bool },
    /// In the trailer lines after the last chunk, up to an empty line.
    Trailer { line: Vec<u8>, total: usize },
    /// Data until the connection closes.
    Open,
    /// The body is complete.
    End,
}

/// Decodes a body incrementally.
#[derive(Clone, Debug)]
pub(crate) struct BodyReader {
    place: BodyState,
}

impl BodyReader {
    pub(crate) fn new(length: Length) -> Self {
        let place = match length {
            Length::Bytes(0) => BodyState::End,
            Length::Bytes(left) => BodyState::Data { left, in_chunk: false },
            Length::Chunked => BodyState::Line { line: Vec::new(), is_after_chunk: false },
            Length::UntilClosed => BodyState::Open,
        };
        Self { place }
    }

    /// Whether the body is complete.
    pub(crate) fn is_done(&self) -> bool {
        self.place == BodyState::End
    }

    /// Whether the body is complete if the connection closes now.
    pub(super) fn may_close(&self) -> bool {
        matches!(self.place, BodyState::Open | BodyState::End)
    }

    /// Processes bytes of the connection and appends those of the body to `out`. Returns the number of processed bytes:
    /// all, unless the body ends before.
    ///
    /// # Errors
    /// The chunks are malformed.
    pub(crate) fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<usize, String> {
        let mut taken = 0;
        while taken < bytes.len() && self.place != BodyState::End {
            let rest = &bytes[taken..];
            match &mut self.place {
                BodyState::Data { left, in_chunk } => {
                    let count = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    out.extend_from_slice(&rest[..count]);
                    *left -= count as u64;
                    taken += count;
                    if *left == 0 {
                        self.place = if *in_chunk {
                            BodyState::Line { line: Vec::new(), is_after_chunk: true }
                        } else {
                            BodyState::End
                        };
                    }
                }
                BodyState::Open => {
                    out.extend_from_slice(rest);
                    taken += rest.len();
                }
                BodyState::Line { .. } | BodyState::Trailer { .. } => {
                    taken += 1;
                    self.line_byte(rest[0])?;
                }
                BodyState::End => {}
            }
        }
        Ok(taken)
    }

    fn line_byte(&mut self, byte: u8) -> Result<(), String> {
        let (BodyState::Line { line, .. } | BodyState::Trailer { line, .. }) = &mut self.place else { return Ok(()) };
        if line.len() >= LINE_BYTES_MAX {
            return Err(format!("a line between chunks is longer than {LINE_BYTES_MAX} bytes"));
        }
        line.push(byte);
        let Some(line) = line.strip_suffix(b"\r\n").map(<[u8]>::to_vec) else { return Ok(()) };
        self.place = match &self.place {
            BodyState::Line { is_after_chunk: true, .. } if line.is_empty() => {
                BodyState::Line { line: Vec::new(), is_after_chunk: false }
            }
            BodyState::Line { is_after_chunk: true, .. } => return Err("a chunk is longer than its size".into()),
            BodyState::Line { .. } => match size(&line)? {
                0 => BodyState::Trailer { line: Vec::new(), total: 0 },
                left => BodyState::Data { left, in_chunk: true },
            },
            BodyState::Trailer { .. } if line.is_empty() => BodyState::End,
            BodyState::Trailer { total, .. } if total + line.len() > 8 * LINE_BYTES_MAX => {
                return Err("the trailer is too long".into());
            }
            BodyState::Trailer { total, .. } => BodyState::Trailer { line: Vec::new(), total: total + line.len() + 2 },
            other => other.clone(),
        };
        Ok(())
    }
}

/// The size in the line of a chunk; extensions after a semicolon are ignored.
fn size(line: &[u8]) -> Result<u64, String> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let text = std::str::from_utf8(digits).ok().filter(|text| !text.starts_with('+') && text.len() <= 15);
    text.and_then(|text| u64::from_str_radix(text, 16).ok()).ok_or_else(|| "a chunk has no valid size".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds pieces of `piece` bytes. Returns the body, the number of remaining bytes, and whether the body is
    /// complete.
    fn read(length: Length, bytes: &[u8], piece: usize) -> Result<(Vec<u8>, usize, bool), String> {
        let (mut reader, mut out, mut taken) = (BodyReader::new(length), Vec::new(), 0);
        for bytes in bytes.chunks(piece) {
            taken += reader.feed(bytes, &mut out)?;
        }
        Ok((out, bytes.len() - taken, reader.is_done()))
    }

    #[test]
    fn body_does_not_depend_on_the_split_of_its_bytes() {
        let chunked = b"5\r\nhello\r\nA;x=y\r\n, world, 0\r\n0\r\nX-Sum: 1\r\n\r\nHTTP";
        for piece in 1..=chunked.len() {
            let read = |length, bytes: &[u8]| read(length, bytes, piece).expect("it is right");
            assert_eq!(read(Length::Chunked, chunked), (b"hello, world, 0".to_vec(), 4, true), "{piece}");
            assert_eq!(read(Length::Bytes(5), b"hello!!"), (b"hello".to_vec(), 2, true), "{piece}");
            assert_eq!(read(Length::UntilClosed, b"hello"), (b"hello".to_vec(), 0, false), "{piece}");
            assert_eq!(read(Length::Bytes(6), b"hello"), (b"hello".to_vec(), 0, false), "{piece}");
            assert_eq!(read(Length::Bytes(0), b"x"), (Vec::new(), 1, true), "{piece}");
        }
    }

    #[test]
    fn malformed_chunks_are_errors_and_allocate_nothing() {
        let endless = [b'1'; 4 * LINE_BYTES_MAX];
        for wrong in [&b"x\r\n"[..], b"\r\n", b"+5\r\nhello\r\n", b"2\r\nhello\r\n", b"ffffffffffffffff\r\n", &endless]
        {
            assert!(read(Length::Chunked, wrong, 7).is_err(), "{wrong:?}");
        }
        let (out, ..) = read(Length::Chunked, b"fffffffffffffff\r\nhello", 3).expect("a large chunk may come");
        assert_eq!(out, b"hello");
        assert!(out.capacity() < 1 << 10, "{} bytes for 5", out.capacity());
    }
}
