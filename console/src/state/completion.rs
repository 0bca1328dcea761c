//! The candidates between which Tab steps in the command line.

/// The candidates that Tab steps through, while it does.
#[derive(Clone, Debug, PartialEq)]
pub struct Cycle {
    /// The text before the completed word.
    before: String,
    /// The candidates.
    pub words: Vec<String>,
    /// Index of the one in the command line.
    pub at: usize,
}

impl Cycle {
    /// The candidates for the text behind `before`, the first one chosen.
    pub fn new(before: &str, words: Vec<String>) -> Self {
        Self { before: before.to_owned(), words, at: 0 }
    }

    /// Steps to the next candidate, or back.
    pub fn step(&mut self, back: bool) {
        let count = self.words.len().max(1);
        self.at = (self.at + if back { count - 1 } else { 1 }) % count;
    }

    /// The command line with the current candidate.
    pub fn text(&self) -> String {
        format!("{}{}", self.before, self.words.get(self.at).map_or("", String::as_str))
    }
}
