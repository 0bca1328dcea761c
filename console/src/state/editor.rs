//! The prompt box: a text, a cursor that moves by what people see as one character, and the prompts sent before.
use unicode_segmentation::{GraphemeCursor, UnicodeSegmentation};

use crate::state::clean::clean;

/// Longest text in the prompt box, in bytes. Longer prompts are for `console generate`.
pub const PROMPT_BOX_BYTES_MAX: usize = 64 << 10;
/// Most prompts that are remembered.
pub const HISTORY_MAX: usize = 100;

/// Text under edit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Editor {
    text: String,
    /// Byte index in `text`, always where a grapheme ends.
    cursor: usize,
    history: Vec<String>,
    /// Place in the history, and the text that was there before looking back.
    looking_back: Option<(usize, String)>,
}

impl Editor {
    /// An editor with a text in it, the cursor at its end.
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

    /// Inserts text at the cursor, without control characters; whole characters beyond the bound are left out.
    /// Returns whether all of it fitted.
    pub fn insert(&mut self, text: &str) -> bool {
        let text = clean(text);
        let room = PROMPT_BOX_BYTES_MAX.saturating_sub(self.text.len());
        let fitting = &text[..text.floor_char_boundary(room)];
        self.text.insert_str(self.cursor, fitting);
        self.cursor += fitting.len();
        // What was inserted may join with what follows: the cursor never stays inside a character.
        self.cursor = self.boundary_at_or_after(self.cursor);
        fitting.len() == text.len()
    }

    /// Puts another text in its place, the cursor at its end.
    pub fn replace(&mut self, text: &str) {
        self.text.clear();
        self.cursor = 0;
        self.looking_back = None;
        self.insert(text);
    }

    /// Takes the text out, remembers it, and leaves the box empty.
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

    /// One character left.
    pub fn left(&mut self) {
        self.cursor = self.previous();
    }

    /// One character right.
    pub fn right(&mut self) {
        self.cursor = self.next();
    }

    /// To the start of the word before the cursor.
    pub fn word_left(&mut self) {
        self.cursor = self.word_start();
    }

    /// To the end of the word after the cursor.
    pub fn word_right(&mut self) {
        let words = self.text.unicode_word_indices().map(|(at, word)| at + word.len());
        self.cursor = words.into_iter().find(|end| *end > self.cursor).unwrap_or(self.text.len());
    }

    /// To the start of the line.
    pub fn line_start(&mut self) {
        self.cursor = self.start_of_line();
    }

    /// To the end of the line.
    pub fn line_end(&mut self) {
        self.cursor = self.end_of_line();
    }

    /// To the line above; in the first line to the prompt before.
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

    /// To the line below; in the last line to the prompt after.
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

/// Byte index of a line's character number `column`, or the line's end.
fn column_at(line: &str, column: usize) -> usize {
    line.grapheme_indices(true).nth(column).map_or(line.len(), |(at, _)| at)
}

#[cfg(test)]
#[path = "editor_tests.rs"]
mod tests;
