//! The limit on the thoughts of an answer: the part of the answer that reaches it ends there, and the next part begins
//! behind tokens that end the thought. Pure.
use common::chat::AnswerForm;
use tokenizer::answer::ChatFormat;

/// The limit of one answer.
#[derive(Clone, Debug, Default)]
pub(super) struct ThoughtBudget {
    /// Most tokens of thoughts; `None`: no limit, or no thoughts are left.
    most: Option<u32>,
    /// The tokens that end a thought, once the head has reported them.
    end: Vec<u32>,
    /// Their text.
    text: &'static str,
}

impl ThoughtBudget {
    pub(super) fn new(most: Option<u32>) -> Self {
        // A head samples at least one token.
        Self { most: most.map(|most| most.max(1)), ..Self::default() }
    }

    /// Takes the form of the answer; without thoughts, or from a head that does not report their end, there is no limit.
    pub(super) fn begin(&mut self, form: &AnswerForm) {
        self.end.clone_from(&form.thought_end);
        self.text = ChatFormat::of(form.tool_format).thinking.close;
        if self.end.is_empty() {
            self.most = None;
        }
    }

    /// Number of tokens at which a part of the answer ends that would end at `end`.
    pub(super) fn cap(&self, end: u32) -> u32 {
        self.most.map_or(end, |most| end.min(most))
    }

    /// Number of tokens that end a thought of this many tokens; 0: it may be longer.
    pub(super) fn closing(&self, tokens: usize) -> usize {
        self.most.filter(|most| tokens >= *most as usize).map_or(0, |_| self.end.len())
    }

    /// No thoughts follow.
    pub(super) fn answered(&mut self) {
        self.most = None;
    }

    /// The tokens and the text that end a thought of this many tokens, if that reaches the limit.
    pub(super) fn close(&mut self, tokens: usize) -> Option<(&[u32], &'static str)> {
        let is_reached = self.most.take_if(|most| tokens >= *most as usize).is_some();
        is_reached.then_some((&self.end, self.text))
    }
}

#[cfg(test)]
mod tests {
    use common::chat::{Thinking, ToolFormat};

    use super::*;

    fn form(thought_end: Vec<u32>) -> AnswerForm {
        AnswerForm { tool_format: ToolFormat::Hermes, thinking: Thinking::Open, thought_end, ..AnswerForm::default() }
    }

    #[test]
    fn thoughts_end_once_at_the_limit() {
        let mut budget = ThoughtBudget::new(Some(5));
        budget.begin(&form(vec![7, 8]));
        assert_eq!((budget.cap(3), budget.cap(1024)), (3, 5));
        assert_eq!((budget.closing(4), budget.closing(5)), (0, 2));
        assert_eq!(budget.close(4), None);
        assert_eq!(budget.close(5), Some((&[7, 8][..], "\n</think>\n\n")));
        assert_eq!(budget.close(7), None);
        assert_eq!(budget.cap(1024), 1024);
    }

    #[test]
    fn answers_have_no_limit() {
        for (most, end, is_answered) in [(None, vec![7], false), (Some(5), vec![], false), (Some(5), vec![7], true)] {
            let mut budget = ThoughtBudget::new(most);
            budget.begin(&form(end));
            if is_answered {
                budget.answered();
            }
            assert_eq!(budget.cap(1024), 1024);
            assert_eq!(budget.close(9), None);
        }
    }
}
