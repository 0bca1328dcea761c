//! Converts the bytes of tokens to whole characters: a token may end in the middle of a character. Holds back at most
//! three bytes of an incomplete character; never blocks, never fails.

use super::Tokenizer;

/// Incremental text of a token stream. Owns its state, so that a request can carry it. The concatenation of all output
/// is the lossy UTF-8 decoding of all bytes: invalid UTF-8 becomes U+FFFD. Every space is kept, because the stream
/// continues a prompt; `Tokenizer::decode` is for a text from its beginning.
#[derive(Clone, Debug, Default)]
pub struct Detokenizer {
    pending: Vec<u8>,
}

impl Detokenizer {
    /// Appends the characters that this token completes; control tokens render to nothing unless `special` is set.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, special: bool, text: &mut String) {
        tokenizer.append_piece(id, special, &mut self.pending);
        self.release(text);
    }

    /// The remaining text: U+FFFD if the bytes end within a character.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }

    /// Moves whole characters from the pending bytes to the text.
    fn release(&mut self, text: &mut String) {
        let mut used = 0;
        loop {
            let rest = &self.pending[used..];
            let error = match std::str::from_utf8(rest) {
                Ok(rest) => {
                    text.push_str(rest);
                    used = self.pending.len();
                    break;
                }
                Err(error) => error,
            };
            let (valid, _) = rest.split_at(error.valid_up_to());
            text.push_str(std::str::from_utf8(valid).expect("valid up to here"));
            used += valid.len();
            match error.error_len() {
                Some(bad) => {
                    text.push(char::REPLACEMENT_CHARACTER);
                    used += bad;
                }
                None => break,
            }
        }
        self.pending.drain(..used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(stream: &mut Detokenizer, bytes: &[u8]) -> String {
        let mut text = String::new();
        stream.pending.extend_from_slice(bytes);
        stream.release(&mut text);
        text
    }

    #[track_caller]
    fn check(bytes: &[u8], cuts: &[usize]) {
        let mut stream = Detokenizer::default();
        let mut text = String::new();
        let mut from = 0;
        for &cut in cuts.iter().chain([&bytes.len()]) {
            text += &push(&mut stream, &bytes[from..cut]);
            assert!(stream.pending.len() < 4, "{bytes:?} held {:?}", stream.pending);
            from = cut;
        }
        text += &stream.finish();
        assert_eq!(text, String::from_utf8_lossy(bytes), "{bytes:?} cut at {cuts:?}");
    }

    const TEXTS: [&[u8]; 9] = [
        b"",
        "aé中🦙 ▁ z".as_bytes(),
        "😶‍🌫️✅".as_bytes(),
        b"\xff\xfe",
        b"\xe4\xb8",
        b"\xf0\x9f\xa6a\xf0\x9f",
        b"\xed\xa0\x80b\xc0\x80\x80",
        b"\xf4\x90\x80\x80",
        b"\xf0\x9f\xf0\x9f\xa6\x99\xe4",
    ];

    #[test]
    fn every_cut_into_three_parts_gives_the_text_of_the_whole() {
        for bytes in TEXTS {
            for first in 0..=bytes.len() {
                for second in first..=bytes.len() {
                    check(bytes, &[first, second]);
                }
            }
        }
    }

    #[test]
    fn byte_by_byte_gives_the_text_of_the_whole() {
        for bytes in TEXTS {
            check(bytes, &(0..bytes.len()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn character_is_emitted_with_its_last_byte() {
        let mut stream = Detokenizer::default();
        let llama = "🦙".as_bytes();
        assert_eq!(push(&mut stream, &llama[..1]), "");
        assert_eq!(push(&mut stream, &llama[1..3]), "");
        assert_eq!(push(&mut stream, &llama[3..]), "🦙");
        assert_eq!(stream.finish(), "");
    }
}
