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
    /// The run of the daemon: each run numbers its lines from 1.
    instance: u64,
    /// The next query returns only lines after this number.
    after: u64,
    /// Whether a query is pending.
    is_asked: bool,
    /// Whether the daemon was restarted since that query: either run may answer it.
    is_outdated: bool,
    answered: Option<Duration>,
}

impl NodeLog {
    /// The line number to query after, if a query for the selected node is due. `instance` is that of its daemon; if it
    /// has changed, the log begins again.
    pub fn ask(&mut self, node: usize, instance: u64, now: Duration) -> Option<u64> {
        if self.node != Some(node) {
            *self = Self { node: Some(node), instance, ..Self::default() };
        }
        if self.instance != instance {
            let is_asked = self.is_asked;
            *self = Self { node: Some(node), instance, is_asked, is_outdated: is_asked, ..Self::default() };
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
        self.is_asked = false;
        if std::mem::take(&mut self.is_outdated) {
            // The lines of the previous run may still be on the screen.
            return true;
        }
        self.answered = Some(now);
        let before = (self.lines.back().map(|line| line.number), self.fault.is_some());
        match answer {
            Ok(found) => {
                self.fault = None;
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
    use telemetry::{NodeReport, NodeState};

    use super::*;
    use crate::{
        fixtures::{Story, running},
        state::{Focus, Page},
        update::effect::Effect,
        update::event::{ClientEvent, Event},
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
        assert_eq!((log.ask(2, 1, second(5)), log.ask(2, 1, second(9))), (Some(0), None));
        assert!(!log.answer(1, second(9), Ok(lines(1, 3))), "answer of another node");
        assert!(log.answer(2, second(9), Ok(lines(1, 500))));
        assert_eq!((log.lines.len(), log.lines[0].number), (LINES_MAX, 301));
        assert_eq!((log.ask(2, 1, second(9)), log.ask(2, 1, second(10))), (None, Some(500)));
        assert!(!log.answer(2, second(10), Ok(lines(501, 500))), "no new lines, no change");
        let fault = Fault::new("pi2", FaultKind::Internal { reason: "away".into() });
        assert!(log.answer(2, second(12), Err(fault)) && log.fault.is_some());
        assert_eq!((log.ask(3, 1, second(12)), log.lines.len(), log.fault.is_none()), (Some(0), 0, true));
    }

    #[test]
    fn log_begins_again_after_a_restart_of_the_daemon() {
        let (mut log, second) = (NodeLog::default(), Duration::from_secs);
        assert_eq!(log.ask(2, 1, second(1)), Some(0));
        assert!(log.answer(2, second(1), Ok(lines(1, 4))));
        // The new run has more lines than the previous one when it is read first.
        assert_eq!((log.ask(2, 9, second(2)), log.lines.len()), (Some(0), 0));
        assert!(log.answer(2, second(2), Ok(lines(1, 7))));
        assert_eq!((log.lines.len(), log.ask(2, 9, second(3))), (7, Some(7)));
        // The pending query names a line of the previous run: its answer is ignored.
        assert_eq!((log.ask(2, 10, second(4)), log.lines.len()), (None, 0));
        assert!(log.answer(2, second(4), Ok(lines(8, 9))) && log.lines.is_empty());
        assert_eq!(log.ask(2, 10, second(4)), Some(0));
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
        story.arrives(ClientEvent::Log { node: 0, answer: Ok(lines(1, 4)) });
        story.report(0, NodeReport { instance: 9, ..running(0, NodeState::Ready, false) });
        story.on(Event::Tick { now: Duration::from_secs(63) });
        assert_eq!((asked(&story), story.effects.last()), (2, Some(&Effect::Log { node: 0, after: 0 })));
    }
}
