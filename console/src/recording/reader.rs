//! Reads a recording line by line, with bounded memory. An incomplete last line is not an error: a console that is
//! killed leaves one.
use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};

use super::{FORMAT, Header, LINE_BYTES_MAX, Moment, NODES_MAX, RecordingError, line::Decoder};

/// A position in a recording from which reading can resume.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    offset: u64,
    line: u64,
    decoder: Decoder,
}

/// An open recording.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    file: BufReader<File>,
    mark: Mark,
    buffer: Vec<u8>,
}

impl Reader {
    /// Opens a recording and reads its header.
    ///
    /// # Errors
    /// The file cannot be read, or is not a recording.
    pub fn open(path: &Path) -> Result<(Self, Header), RecordingError> {
        let file = File::open(path).map_err(|reason| RecordingError::Io { path: path.into(), reason })?;
        let mark = Mark { offset: 0, line: 0, decoder: Decoder::new(0) };
        let mut reader = Self { path: path.into(), file: BufReader::new(file), mark, buffer: Vec::new() };
        let no_recording = |reason: String| RecordingError::NoRecording { path: path.into(), reason };
        if !reader.read_line()? {
            return Err(no_recording("it has no complete line".to_owned()));
        }
        let header: serde_json::Value =
            serde_json::from_slice(&reader.buffer).map_err(|error| no_recording(error.to_string()))?;
        match header.get("bramble_recording").and_then(serde_json::Value::as_u64) {
            Some(format) if format == u64::from(FORMAT) => {}
            Some(format) => {
                return Err(no_recording(format!("unsupported format {format}, expected {FORMAT}")));
            }
            None => return Err(no_recording("the first line has no bramble_recording field".to_owned())),
        }
        let header: Header = serde_json::from_value(header).map_err(|error| no_recording(error.to_string()))?;
        if header.nodes.len() > NODES_MAX {
            return Err(no_recording(format!("it has more than {NODES_MAX} nodes")));
        }
        reader.mark.decoder = Decoder::new(header.nodes.len());
        Ok((reader, header))
    }

    /// The next moment; `None` at the end.
    ///
    /// # Errors
    /// The file cannot be read, or the line is invalid.
    pub fn read(&mut self) -> Result<Option<Moment>, RecordingError> {
        if !self.read_line()? {
            return Ok(None);
        }
        match self.mark.decoder.moment(&self.buffer) {
            Ok(moment) => Ok(Some(moment)),
            Err(reason) => Err(self.error(reason)),
        }
    }

    /// Number of events that the writer dropped in the part read so far.
    pub fn lost(&self) -> u64 {
        self.mark.decoder.lost
    }

    /// The current position.
    pub(super) fn mark(&self) -> Mark {
        self.mark.clone()
    }

    /// Returns to an earlier position.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn return_to(&mut self, mark: &Mark) -> Result<(), RecordingError> {
        self.mark = mark.clone();
        self.file.seek(SeekFrom::Start(mark.offset)).map_err(|reason| self.io(reason))?;
        Ok(())
    }

    /// The time of the last complete line, found from the end of the file. Keeps the current position.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn last_time(&mut self) -> Result<Option<Duration>, RecordingError> {
        let tail = |file: &mut BufReader<File>, from: u64| -> io::Result<Vec<u8>> {
            let end = file.seek(SeekFrom::End(0))?;
            let begin = end.saturating_sub(LINE_BYTES_MAX).max(from);
            file.seek(SeekFrom::Start(begin))?;
            let mut tail = Vec::new();
            file.by_ref().take(LINE_BYTES_MAX).read_to_end(&mut tail)?;
            file.seek(SeekFrom::Start(from))?;
            Ok(tail)
        };
        let from = self.mark.offset;
        let tail = tail(&mut self.file, from).map_err(|reason| self.io(reason))?;
        let lines = tail.split_inclusive(|byte| *byte == b'\n').rev().filter(|line| line.ends_with(b"\n"));
        Ok(lines.take(64).find_map(time_of))
    }

    /// Reads a complete line into the buffer; false at the end of the file.
    fn read_line(&mut self) -> Result<bool, RecordingError> {
        self.buffer.clear();
        let read = self.file.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut self.buffer);
        let read = read.map_err(|reason| self.io(reason))? as u64;
        if read == LINE_BYTES_MAX && !self.buffer.ends_with(b"\n") {
            self.mark.line += 1;
            return Err(self.error(format!("the line is longer than {LINE_BYTES_MAX} bytes")));
        }
        if !self.buffer.ends_with(b"\n") {
            return Ok(false);
        }
        self.mark.offset += read;
        self.mark.line += 1;
        Ok(true)
    }

    fn io(&self, reason: io::Error) -> RecordingError {
        RecordingError::Io { path: self.path.clone(), reason }
    }

    fn error(&self, reason: String) -> RecordingError {
        RecordingError::Line { path: self.path.clone(), line: self.mark.line, reason }
    }
}

/// The time at the beginning of a line.
fn time_of(line: &[u8]) -> Option<Duration> {
    let line = std::str::from_utf8(line).ok()?.strip_prefix("{\"us\":")?;
    let end = line.find(|letter: char| !letter.is_ascii_digit())?;
    line[..end].parse().ok().map(Duration::from_micros)
}
