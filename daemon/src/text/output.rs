//! Converts token ids to the text of an answer; holds back text that may turn out to be a stop string.
use compact_str::CompactString;
use tokenizer::{Detokenizer, Tokenizer, overlap};

/// The text of one answer.
#[derive(Debug)]
pub(super) struct Output {
    detokenizer: Detokenizer,
    /// Control tokens that become text, sorted.
    marks: Vec<u32>,
    stop: Vec<String>,
    held: String,
}

impl Output {
    /// Creates the output of an answer that ends at any of the `stop` strings.
    pub(super) fn new(tokenizer: &Tokenizer, stop: Vec<String>) -> Self {
        let stop = stop.into_iter().filter(|stop| !stop.is_empty()).collect();
        Self { detokenizer: tokenizer.stream(), marks: Vec::new(), stop, held: String::new() }
    }

    /// With these control tokens as text; they are sorted.
    pub(super) fn showing(self, marks: Vec<u32>) -> Self {
        Self { marks, ..self }
    }

    /// Adds a token; returns the text that can be sent and whether a stop string ended the answer.
    pub(super) fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> (CompactString, bool) {
        let is_mark = self.marks.binary_search(&id).is_ok();
        self.detokenizer.push(tokenizer, id, is_mark, &mut self.held);
        self.release()
    }

    /// Returns the text that is still held back, once.
    pub(super) fn finish(&mut self) -> String {
        let rest = self.detokenizer.finish();
        self.held.push_str(&rest);
        std::mem::take(&mut self.held)
    }

    fn release(&mut self) -> (CompactString, bool) {
        if let Some(at) = self.stop.iter().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.held.truncate(at);
            // Behind the stop string, the token may have begun a character.
            drop(self.detokenizer.finish());
            return (CompactString::from(std::mem::take(&mut self.held)), true);
        }
        let keep = self.stop.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let certain = self.held.len() - keep;
        let text = CompactString::from(&self.held[..certain]);
        self.held.drain(..certain);
        (text, false)
    }
}

#[cfg(test)]
mod tests {
    use gguf::GgufFile;

    use super::*;

    fn put_text(file: &mut Vec<u8>, text: &str) {
        file.extend((text.len() as u64).to_le_bytes());
        file.extend(text.as_bytes());
    }

    /// A vocabulary of bytes and their merges, from a GGUF file without tensors.
    fn tokenizer(tokens: &[&str]) -> Tokenizer {
        let mut file = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0".to_vec();
        file.extend(4_u64.to_le_bytes());
        for (key, text) in [("model", "gpt2"), ("pre", "gpt-2")] {
            put_text(&mut file, &format!("tokenizer.ggml.{key}"));
            file.extend(8_u32.to_le_bytes());
            put_text(&mut file, text);
        }
        for (key, texts) in [("tokens", tokens), ("merges", &[])] {
            put_text(&mut file, &format!("tokenizer.ggml.{key}"));
            file.extend([9, 8].into_iter().flat_map(u32::to_le_bytes));
            file.extend((texts.len() as u64).to_le_bytes());
            texts.iter().for_each(|text| put_text(&mut file, text));
        }
        let file = GgufFile::from_bytes(vec![file]).expect("it is a file");
        Tokenizer::from_metadata(file.metadata()).expect("it has a vocabulary")
    }

    #[test]
    fn nothing_follows_a_stop_string_whose_token_begins_another_character() {
        // In this vocabulary, Ġ is a blank, and ðŁĺ are the first three bytes of an emoji.
        let tokenizer = tokenizer(&["a", "ĠðŁĺ", "Ģ"]);
        let mut output = Output::new(&tokenizer, vec![" ".to_owned()]);
        assert_eq!(output.push(&tokenizer, 0), ("a".into(), false));
        assert_eq!(output.push(&tokenizer, 1), ("".into(), true));
        assert_eq!(output.finish(), "");
        let mut output = Output::new(&tokenizer, Vec::new());
        let whole: String = [0, 1, 2].map(|id| output.push(&tokenizer, id).0.to_string()).concat();
        assert_eq!(whole, "a 😀");
    }
}
