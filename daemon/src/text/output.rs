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
