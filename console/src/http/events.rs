//! Parses server-sent events from the bytes of a body, with bounds. Pure (WHATWG HTML, 9.2 Server-sent events).

/// Maximum size of an event in bytes.
pub const EVENT_BYTES_MAX: usize = 4 << 20;

/// Parses a stream of events incrementally.
#[derive(Clone, Debug, Default)]
pub struct EventStreamReader {
    /// Bytes of the incomplete line.
    line: Vec<u8>,
    /// Data of the incomplete event.
    data: Vec<u8>,
    has_data: bool,
    /// The last byte was a CR: a LF after it belongs to the same line end.
    after_return: bool,
}

impl EventStreamReader {
    /// Processes bytes and passes the data of every complete event to `take`. Comments and other fields are ignored.
    ///
    /// # Errors
    /// An event is too long or not valid UTF-8.
    pub fn feed(&mut self, bytes: &[u8], mut take: impl FnMut(&str)) -> Result<(), String> {
        for byte in bytes {
            let follows_return = std::mem::replace(&mut self.after_return, *byte == b'\r');
            match byte {
                b'\n' if follows_return => {}
                b'\n' | b'\r' => self.end_line(&mut take)?,
                _ => {
                    self.line.push(*byte);
                    if self.line.len() + self.data.len() > EVENT_BYTES_MAX {
                        return Err(format!("an event has more than {EVENT_BYTES_MAX} bytes"));
                    }
                }
            }
        }
        Ok(())
    }

    fn end_line(&mut self, take: &mut impl FnMut(&str)) -> Result<(), String> {
        if self.line.is_empty() {
            if std::mem::take(&mut self.has_data) {
                take(std::str::from_utf8(&self.data).map_err(|_| "an event is not valid UTF-8".to_owned())?);
            }
            self.data.clear();
        } else if let Some(value) = self.line.strip_prefix(b"data")
            && (value.is_empty() || value[0] == b':')
        {
            if self.has_data {
                self.data.push(b'\n');
            }
            let value = value.strip_prefix(b":").unwrap_or(value);
            self.data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
            self.has_data = true;
        }
        self.line.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8], piece: usize) -> Result<Vec<String>, String> {
        let (mut events, mut found) = (EventStreamReader::default(), Vec::new());
        for bytes in bytes.chunks(piece) {
            events.feed(bytes, |data| found.push(data.to_owned()))?;
        }
        Ok(found)
    }

    #[test]
    fn events_do_not_depend_on_the_split_of_their_bytes() {
        let text = ": keep-alive\n\ndata: {\"a\":\"\u{e9}\"}\r\n\r\nevent: x\ndata:one\rdata: two\r\rid: 7\n\ndata\n\ndatum: no\n\ndata: [DONE]\n\ndata: cut";
        for piece in 1..=text.len() {
            assert_eq!(
                read(text.as_bytes(), piece).expect("it is right"),
                ["{\"a\":\"\u{e9}\"}", "one\ntwo", "", "[DONE]"],
                "{piece}"
            );
        }
    }

    #[test]
    fn endless_event_and_invalid_utf8_are_errors() {
        let endless = [b"data: ".to_vec(), vec![b'x'; EVENT_BYTES_MAX]].concat();
        assert!(read(&endless, 4096).is_err_and(|reason| reason.contains("more than")));
        let lines = b"data: 0123456789abcdef\n".repeat(EVENT_BYTES_MAX / 16 + 1);
        assert!(read(&lines, 4096).is_err_and(|reason| reason.contains("more than")));
        assert!(read(b"data: \xff\n\n", 4).is_err_and(|reason| reason.contains("UTF-8")));
    }
}
