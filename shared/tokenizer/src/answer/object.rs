//! The extent of a JSON object whose text is still arriving, without building it.

/// Progress of scanning an object.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ObjectScan {
    depth: usize,
    in_text: bool,
    is_escaped: bool,
}

/// What a byte of an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// White space between its parts.
    Blank,
    /// Part of a string.
    Text,
    /// The end of a string.
    TextEnd,
    /// Anything else within it.
    Part,
    /// Its last byte.
    End,
    /// It is no JSON object.
    Broken,
}

impl ObjectScan {
    /// Open braces and brackets.
    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// Takes the next byte: the object ends where braces and brackets balance.
    pub(super) fn take(&mut self, byte: u8) -> Meaning {
        if self.in_text {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => {
                    self.in_text = false;
                    return Meaning::TextEnd;
                }
                _ => {}
            }
            return Meaning::Text;
        }
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' => return Meaning::Blank,
            b'{' => self.depth += 1,
            _ if self.depth == 0 => return Meaning::Broken,
            b'"' => self.in_text = true,
            b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth -= 1;
                if self.depth == 0 {
                    return Meaning::End;
                }
            }
            b':' | b',' | b'+' | b'-' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'E' => {}
            _ => return Meaning::Broken,
        }
        Meaning::Part
    }
}
