//! The latest lines of the selected node's log, kept while its page is looked at.
use std::{collections::VecDeque, time::Duration};

use shared::protocol::{
    error::Fault,
    inspect::{LogLine, LogLines},
};

/// Most lines that are kept.
pub const LINES_MAX: usize = 200;
/// Between an answer and the next question.
const LOOK: Duration = Duration::from_secs(1);

/// A node's log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Log {
    /// Whose; its place in the list of nodes.
    pub node: Option<usize>,
    /// Oldest first.
    pub lines: VecDeque<LogLine>,
    /// Why there is none.
    pub fault: Option<Fault>,
    /// Lines after this number are asked for.
    after: u64,
    /// Whether an answer is on its way.
    is_asked: bool,
    answered: Option<Duration>,
}

impl Log {
    /// The question for the node that is looked at, if it is time for one: after which line.
    pub fn ask(&mut self, node: usize, now: Duration) -> Option<u64> {
        if self.node != Some(node) {
            *self = Self { node: Some(node), ..Self::default() };
        }
        let is_time = self.answered.is_none_or(|at| now.saturating_sub(at) >= LOOK);
        if self.is_asked || !is_time {
            return None;
        }
        self.is_asked = true;
        Some(self.after)
    }

    /// Takes an answer in; whether there is something to see.
    pub fn answer(&mut self, node: usize, now: Duration, answer: Result<LogLines, Fault>) -> bool {
        if self.node != Some(node) {
            return false;
        }
        (self.is_asked, self.answered) = (false, Some(now));
        let before = (self.lines.back().map(|line| line.number), self.fault.is_some());
        match answer {
            Ok(found) => {
                self.fault = None;
                if found.next < self.after {
                    // A daemon that was started again counts from the beginning.
                    (self.after, self.answered) = (0, None);
                    self.lines.clear();
                    return true;
                }
                self.after = found.next;
                self.lines.extend(found.lines);
                let extra = self.lines.len().saturating_sub(LINES_MAX);
                self.lines.drain(..extra);
            }
            Err(fault) => self.fault = Some(fault),
        }
        before != (self.lines.back().map(|line| line.number), self.fault.is_some())
    }
}

#[cfg(test)]
mod tests {
    use shared::protocol::{error::FaultKind, inspect::LogLevel};

    use super::*;
    use crate::{
        effect::Effect,
        event::Event,
        fixtures::Story,
        state::{Page, Spot},
    };

    fn lines(from: u64, to: u64) -> LogLines {
        let line = |number| LogLine { number, unix_ms: 0, level: LogLevel::Info, text: "x".into() };
        LogLines { lines: (from..=to).map(line).collect(), next: to, ..LogLines::default() }
    }

    #[test]
    fn one_question_is_under_way_at_a_time_and_the_last_lines_are_kept() {
        let (mut log, second) = (Log::default(), Duration::from_secs);
        assert_eq!((log.ask(2, second(5)), log.ask(2, second(9))), (Some(0), None));
        assert!(!log.answer(1, second(9), Ok(lines(1, 3))), "of another node");
        assert!(log.answer(2, second(9), Ok(lines(1, 500))));
        assert_eq!((log.lines.len(), log.lines[0].number), (LINES_MAX, 301));
        assert_eq!((log.ask(2, second(9)), log.ask(2, second(10))), (None, Some(500)));
        assert!(!log.answer(2, second(10), Ok(lines(501, 500))), "nothing new is nothing to see");
        // The daemon was started again.
        assert_eq!(log.ask(2, second(11)), Some(500));
        assert!(log.answer(2, second(11), Ok(lines(7, 7))) && log.lines.is_empty());
        assert_eq!(log.ask(2, second(11)), Some(0));
        let fault = Fault::new("pi2", FaultKind::Internal { reason: "away".into() });
        assert!(log.answer(2, second(12), Err(fault)) && log.fault.is_some());
        assert_eq!((log.ask(3, second(12)), log.lines.len(), log.fault.is_none()), (Some(0), 0, true));
    }

    #[test]
    fn a_log_is_read_while_the_page_of_its_node_is_looked_at_and_not_else() {
        let mut story = Story::ready();
        let asked = |story: &Story| story.effects.iter().filter(|effect| matches!(effect, Effect::Log { .. })).count();
        story.on(Event::Tick { now: Duration::from_secs(60) });
        assert_eq!(asked(&story), 0);
        story.state.spot = Spot::first_of(Page::Node);
        story.on(Event::Tick { now: Duration::from_secs(61) }).on(Event::Tick { now: Duration::from_secs(62) });
        assert_eq!(asked(&story), 1);
        assert_eq!(story.effects.last(), Some(&Effect::Log { node: 0, after: 0 }));
    }
}
