//! Divides an input: some parameters in front, then texts or pieces.

/// The bytes of an input that are not used yet.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// The next byte; 0 at the end.
    pub fn byte(&mut self) -> u8 {
        let Some((byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *byte
    }

    /// The next two bytes as a number.
    pub fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// The part before the next zero byte, which is skipped; without one, the rest.
    pub fn part(&mut self) -> &'a [u8] {
        let end = self.0.iter().position(|byte| *byte == 0);
        let (part, rest) = match end {
            Some(end) => (&self.0[..end], &self.0[end + 1..]),
            None => (self.0, &[][..]),
        };
        self.0 = rest;
        part
    }

    /// The next part as text, invalid bytes replaced.
    pub fn text(&mut self) -> String {
        String::from_utf8_lossy(self.part()).into_owned()
    }

    /// All remaining parts as texts.
    pub fn texts(mut self) -> Vec<String> {
        let mut texts = Vec::new();
        while !self.0.is_empty() {
            texts.push(self.text());
        }
        texts
    }
}

/// A text in pieces of pseudo-random lengths, as a stream delivers it.
pub fn pieces(text: &str, seed: u8) -> Vec<&str> {
    let (mut rest, mut state, mut pieces) = (text, u32::from(seed) | 1, Vec::new());
    while !rest.is_empty() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let wanted = if seed == 0 { rest.len() } else { 1 + (state >> 28) as usize };
        let end = (wanted.min(rest.len())..=rest.len()).find(|end| rest.is_char_boundary(*end)).unwrap_or(rest.len());
        let (piece, behind) = rest.split_at(end);
        pieces.push(piece);
        rest = behind;
    }
    pieces
}
