//! An answer as a list of blocks (thoughts, texts, calls) and how it grows: the APIs that number the blocks of an answer
//! write their objects and events from this. Pure.
use common::chat::FinishReason;

use super::choice::ChoicePart;

/// A block of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Block {
    /// What the model thinks.
    Thought(String),
    /// Text for the client.
    Text(String),
    /// A call of a tool; its arguments are JSON.
    Call { name: String, arguments: String },
}

/// A step in the growth of the list. Blocks are open one after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// An empty block was added.
    Opened,
    /// Text was added to the last block.
    Grew(String),
    /// The last block is complete.
    Closed,
    /// The last block, a call, is none after all: its text follows as text.
    Broke,
}

/// The blocks of one answer.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    list: Vec<Block>,
    is_open: bool,
    /// Positions of calls that are none after all.
    broken: Vec<usize>,
    /// The reason of the end, in OpenAI's words.
    pub(super) finish: Option<&'static str>,
    /// Whether it ended because the context is full, for which OpenAI has no word of its own.
    pub(super) fills_context: bool,
}

impl Block {
    fn text(&mut self) -> &mut String {
        match self {
            Self::Thought(text) | Self::Text(text) | Self::Call { arguments: text, .. } => text,
        }
    }
}

impl Blocks {
    /// All blocks so far with their positions, without calls that are none after all.
    pub(super) fn list(&self) -> impl Iterator<Item = (usize, &Block)> {
        self.list.iter().enumerate().filter(|(index, _)| !self.broken.contains(index))
    }

    /// Takes a part of the answer and reports each step to `report`, with the position of the block and the block after
    /// the step.
    pub(super) fn take(&mut self, part: ChoicePart, mut report: impl FnMut(usize, &Block, Change)) {
        match part {
            // Only completions score their prompts and show ids.
            ChoicePart::Started | ChoicePart::Scored(_) | ChoicePart::Token(_) => {}
            ChoicePart::Thought(text) => {
                if !matches!(self.list.last(), Some(Block::Thought(_))) {
                    self.open(Block::Thought(String::new()), &mut report);
                }
                self.extend(text, &mut report);
            }
            ChoicePart::Content(text, _) if text.is_empty() => {}
            ChoicePart::Content(text, _) => {
                if !matches!(self.list.last(), Some(Block::Text(_))) {
                    self.open(Block::Text(String::new()), &mut report);
                }
                self.extend(text, &mut report);
            }
            ChoicePart::Call { name, .. } => {
                self.open(Block::Call { name, arguments: String::new() }, &mut report);
            }
            ChoicePart::Arguments { text, .. } => self.extend(text, &mut report),
            ChoicePart::Broken => self.close(Change::Broke, &mut report),
            ChoicePart::End(reason, ended) => {
                self.close(Change::Closed, &mut report);
                (self.finish, self.fills_context) = (Some(reason), ended.reason == FinishReason::Context);
            }
        }
    }

    fn open(&mut self, block: Block, report: &mut impl FnMut(usize, &Block, Change)) {
        self.close(Change::Closed, report);
        report(self.list.len(), &block, Change::Opened);
        self.list.push(block);
        self.is_open = true;
    }

    fn extend(&mut self, text: String, report: &mut impl FnMut(usize, &Block, Change)) {
        let Some(last) = self.list.len().checked_sub(1) else { return };
        self.list[last].text().push_str(&text);
        report(last, &self.list[last], Change::Grew(text));
    }

    fn close(&mut self, change: Change, report: &mut impl FnMut(usize, &Block, Change)) {
        if let Some(last) = self.list.len().checked_sub(1).filter(|_| self.is_open) {
            self.is_open = false;
            self.broken.extend((change == Change::Broke).then_some(last));
            report(last, &self.list[last], change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_open_and_close_one_after_another() {
        let mut blocks = Blocks::default();
        let mut steps = Vec::new();
        for part in [
            ChoicePart::Started,
            ChoicePart::Thought("a".into()),
            ChoicePart::Thought("b".into()),
            ChoicePart::Content(String::new(), Vec::new()),
            ChoicePart::Content("c".into(), Vec::new()),
            ChoicePart::Call { index: 0, name: "f".into() },
            ChoicePart::Arguments { index: 0, text: "{".into() },
            ChoicePart::Arguments { index: 0, text: "}".into() },
            ChoicePart::Call { index: 1, name: "g".into() },
            ChoicePart::Broken,
            ChoicePart::Content("d".into(), Vec::new()),
            ChoicePart::End("tool_calls", Box::default()),
        ] {
            blocks.take(part, |index, _, change| steps.push((index, change)));
        }
        let grew = |text: &str| Change::Grew(text.into());
        let expected = [
            (0, vec![Change::Opened, grew("a"), grew("b"), Change::Closed]),
            (1, vec![Change::Opened, grew("c"), Change::Closed]),
            (2, vec![Change::Opened, grew("{"), grew("}"), Change::Closed]),
            (3, vec![Change::Opened, Change::Broke]),
            (4, vec![Change::Opened, grew("d"), Change::Closed]),
        ];
        let expected: Vec<(usize, Change)> = expected
            .into_iter()
            .flat_map(|(index, changes)| changes.into_iter().map(move |change| (index, change)))
            .collect();
        assert_eq!(steps, expected);
        let list: Vec<(usize, Block)> = blocks.list().map(|(index, block)| (index, block.clone())).collect();
        let expected = [
            (0, Block::Thought("ab".into())),
            (1, Block::Text("c".into())),
            (2, Block::Call { name: "f".into(), arguments: "{}".into() }),
            (4, Block::Text("d".into())),
        ];
        assert_eq!(list, expected);
        assert_eq!(blocks.finish, Some("tool_calls"));
    }
}
