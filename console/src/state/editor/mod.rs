//! The prompt box: a text, a cursor that moves by grapheme, and the history of prompts.
use unicode_segmentation::{GraphemeCursor, UnicodeSegmentation};

use crate::state::clean::clean;

/// Maximum length of the text in bytes. Longer prompts are for `console generate`.
pub const PROMPT_BOX_BYTES_MAX: usize = 64 << 10;
/// Maximum number of prompts in the history.
pub const HISTORY_MAX: usize = 100;

/// The text being edited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Editor {
    text: String,
    /// Byte index in `text`, always at a grapheme boundary.
    cursor: usize,
    history: Vec<String>,
    /// Position in the history, and the text that was being edited before.
    looking_back: Option<(usize, String)>,
}

impl Editor {
    /// An editor with this text and the cursor at its end.
    pub fn new(text: &str) -> Self {
        let mut editor = Self::default();
        editor.insert(text);
        editor
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text before the cursor.
    pub fn before_cursor(&self) -> &str {
        &self.text[..self.cursor]
    }

    /// Inserts text at the cursor without control characters; characters beyond the limit are dropped. Returns whether
    /// the whole text fitted.
    pub fn insert(&mut self, text: &str) -> bool {
        let text = clean(text);
        let room = PROMPT_BOX_BYTES_MAX.saturating_sub(self.text.len());
        let fitting = &text[..text.floor_char_boundary(room)];
        self.text.insert_str(self.cursor, fitting);
        self.cursor += fitting.len();
        // Inserted text may combine with the character after it: the cursor must not end inside a grapheme.
        self.cursor = self.boundary_at_or_after(self.cursor);
        fitting.len() == text.len()
    }

    /// Replaces the text and moves the cursor to its end.
    pub fn replace(&mut self, text: &str) {
        self.text.clear();
        self.cursor = 0;
        self.looking_back = None;
        self.insert(text);
    }

    /// Returns the text, adds it to the history and clears the box.
    pub fn take(&mut self) -> String {
        let text = std::mem::take(&mut self.text);
        self.cursor = 0;
        self.looking_back = None;
        if self.history.last() != Some(&text) {
            self.history.push(text.clone());
        }
        if self.history.len() > HISTORY_MAX {
            self.history.remove(0);
        }
        text
    }

    /// Moves one character left.
    pub fn left(&mut self) {
        self.cursor = self.previous();
    }

    /// Moves one character right.
    pub fn right(&mut self) {
        self.cursor = self.next();
    }

    /// Moves to the start of the word before the cursor.
    pub fn word_left(&mut self) {
        self.cursor = self.word_start();
    }

    /// Moves to the end of the word after the cursor.
    pub fn word_right(&mut self) {
        let words = self.text.unicode_word_indices().map(|(at, word)| at + word.len());
        self.cursor = words.into_iter().find(|end| *end > self.cursor).unwrap_or(self.text.len());
    }

    /// Moves to the start of the line.
    pub fn line_start(&mut self) {
        self.cursor = self.start_of_line();
    }

    /// Moves to the end of the line.
    pub fn line_end(&mut self) {
        self.cursor = self.end_of_line();
    }

    /// Moves to the line above; from the first line to the previous prompt in the history.
    pub fn up(&mut self) {
        let start = self.start_of_line();
        if start == 0 {
            self.older();
        } else {
            let column = self.text[start..self.cursor].graphemes(true).count();
            let above = self.text[..start - 1].rfind('\n').map_or(0, |newline| newline + 1);
            self.cursor = above + column_at(&self.text[above..start - 1], column);
        }
    }

    /// Moves to the line below; from the last line to the next prompt in the history.
    pub fn down(&mut self) {
        let end = self.end_of_line();
        if end == self.text.len() {
            self.newer();
        } else {
            let column = self.text[self.start_of_line()..self.cursor].graphemes(true).count();
            let below = &self.text[end + 1..];
            let line = &below[..below.find('\n').unwrap_or(below.len())];
            self.cursor = end + 1 + column_at(line, column);
        }
    }

    /// Erases the character before the cursor.
    pub fn erase_before(&mut self) {
        self.erase(self.previous(), self.cursor);
    }

    /// Erases the character after the cursor.
    pub fn erase_after(&mut self) {
        self.erase(self.cursor, self.next());
    }

    /// Erases the word before the cursor.
    pub fn erase_word(&mut self) {
        self.erase(self.word_start(), self.cursor);
    }

    /// Erases from the start of the line to the cursor.
    pub fn erase_to_start(&mut self) {
        self.erase(self.start_of_line(), self.cursor);
    }

    /// Erases from the cursor to the end of the line.
    pub fn erase_to_end(&mut self) {
        self.erase(self.cursor, self.end_of_line());
    }

    fn older(&mut self) {
        let place = self.looking_back.as_ref().map_or(self.history.len(), |(place, _)| *place);
        let Some(older) = place.checked_sub(1) else { return };
        let draft = self.looking_back.take().map_or_else(|| self.text.clone(), |(_, draft)| draft);
        self.show(self.history[older].clone());
        self.looking_back = Some((older, draft));
    }

    fn newer(&mut self) {
        let Some((place, draft)) = self.looking_back.take() else { return };
        match self.history.get(place + 1) {
            Some(newer) => {
                self.show(newer.clone());
                self.looking_back = Some((place + 1, draft));
            }
            None => self.show(draft),
        }
    }

    fn show(&mut self, text: String) {
        self.cursor = text.len();
        self.text = text;
    }

    fn erase(&mut self, from: usize, to: usize) {
        self.text.replace_range(from..to, "");
        self.cursor = self.boundary_at_or_after(from);
    }

    fn start_of_line(&self) -> usize {
        self.text[..self.cursor].rfind('\n').map_or(0, |newline| newline + 1)
    }

    fn end_of_line(&self) -> usize {
        self.text[self.cursor..].find('\n').map_or(self.text.len(), |newline| self.cursor + newline)
    }

    fn word_start(&self) -> usize {
        let words = self.text.unicode_word_indices().map(|(at, _)| at);
        words.take_while(|at| *at < self.cursor).last().unwrap_or(0)
    }

    fn previous(&self) -> usize {
        let mut cursor = GraphemeCursor::new(self.cursor, self.text.len(), true);
        cursor.prev_boundary(&self.text, 0).ok().flatten().unwrap_or(0)
    }

    fn next(&self) -> usize {
        let mut cursor = GraphemeCursor::new(self.cursor, self.text.len(), true);
        cursor.next_boundary(&self.text, 0).ok().flatten().unwrap_or(self.text.len())
    }

    fn boundary_at_or_after(&self, place: usize) -> usize {
        let mut cursor = GraphemeCursor::new(place, self.text.len(), true);
        if cursor.is_boundary(&self.text, 0) == Ok(true) {
            return place;
        }
        cursor.next_boundary(&self.text, 0).ok().flatten().unwrap_or(self.text.len())
    }
}

/// Byte index of character `column` of a line, or the end of a shorter line.
fn column_at(line: &str, column: usize) -> usize {
    line.grapheme_indices(true).nth(column).map_or(line.len(), |(at, _)| at)
}

#[cfg(test)]
mod tests;
