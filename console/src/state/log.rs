//! The latest log lines of the selected node, kept while its page is open.
use std::{collections::VecDeque, time::Duration};

use common::fault::Fault;
use protocol::inspect::{LogLine, LogLines};

/// Maximum number of lines.
pub const LINES_MAX: usize = 200;
/// Pause between an answer and the next query.
const LOOK: Duration = Duration::from_secs(1);

/// A node's log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeLog {
    /// List index of the node.
    pub node: Option<usize>,
    /// Oldest first.
    pub lines: VecDeque<LogLine>,
    /// Why the log cannot be read.
    pub fault: Option<Fault>,
    /// The next query returns only lines after this number.
    after: u64,
    /// Whether a query is pending.
    is_asked: bool,
    answered: Option<Duration>,
}

impl NodeLog {
    /// The line number to query after, if a query for the selected node is due.
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

    /// Adds an answer; returns whether the visible content changed.
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
                    // A restarted daemon numbers its lines from the beginning.
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
    use common::fault::FaultKind;
    use protocol::inspect::LogLevel;

    use super::*;
    use crate::{
        fixtures::Story,
        state::{Focus, Page},
        update::effect::Effect,
        update::event::Event,
    };

    fn lines(from: u64, to: u64) -> LogLines {
        LogLines {
            lines: (from..=to)
                .map(|number| LogLine { number, unix_ms: 0, level: LogLevel::Info, text: "x".into() })
                .collect(),
            next: to,
            ..LogLines::default()
        }
    }

    #[test]
    fn one_query_is_pending_at_a_time_and_last_lines_are_kept() {
        let (mut log, second) = (NodeLog::default(), Duration::from_secs);
        assert_eq!((log.ask(2, second(5)), log.ask(2, second(9))), (Some(0), None));
        assert!(!log.answer(1, second(9), Ok(lines(1, 3))), "answer of another node");
        assert!(log.answer(2, second(9), Ok(lines(1, 500))));
        assert_eq!((log.lines.len(), log.lines[0].number), (LINES_MAX, 301));
        assert_eq!((log.ask(2, second(9)), log.ask(2, second(10))), (None, Some(500)));
        assert!(!log.answer(2, second(10), Ok(lines(501, 500))), "no new lines, no change");
        // The daemon was restarted.
        assert_eq!(log.ask(2, second(11)), Some(500));
        assert!(log.answer(2, second(11), Ok(lines(7, 7))) && log.lines.is_empty());
        assert_eq!(log.ask(2, second(11)), Some(0));
        let fault = Fault::new("pi2", FaultKind::Internal { reason: "away".into() });
        assert!(log.answer(2, second(12), Err(fault)) && log.fault.is_some());
        assert_eq!((log.ask(3, second(12)), log.lines.len(), log.fault.is_none()), (Some(0), 0, true));
    }

    #[test]
    fn log_is_read_only_while_its_page_is_open() {
        let mut story = Story::ready();
        let asked = |story: &Story| story.effects.iter().filter(|effect| matches!(effect, Effect::Log { .. })).count();
        story.on(Event::Tick { now: Duration::from_secs(60) });
        assert_eq!(asked(&story), 0);
        story.state.screen.focus = Focus::first_of(Page::Node);
        story.on(Event::Tick { now: Duration::from_secs(61) }).on(Event::Tick { now: Duration::from_secs(62) });
        assert_eq!(asked(&story), 1);
        assert_eq!(story.effects.last(), Some(&Effect::Log { node: 0, after: 0 }));
    }
}
