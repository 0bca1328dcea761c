//! `console events`: one list of the events of all nodes, ordered by time: state changes, losses, health warnings and
//! operator commands. Events are read from the logs of the nodes, so the list includes those from before the console
//! started.
use std::{collections::BTreeMap, time::Duration};

use clap::{Args, ValueEnum};
use common::fault::Fault;
use protocol::inspect::{LogLevel, LogLine, LogLines};
use serde_json::{Value, json};

use crate::cli::{
    Failure,
    logs::{LOOK, ago, away, moment, time},
    shared::{find_node::find, interrupts::Interrupts, options::Nodes, output},
};
use crate::client::{
    cluster::{Cluster, ClusterNode},
    inspect, with_port,
};

/// Severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Severity {
    /// Information
    Note,
    /// Reduces speed now, or soon
    Warning,
    /// Failure
    Error,
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }

    fn level(self) -> LogLevel {
        match self {
            Self::Note => LogLevel::Info,
            Self::Warning => LogLevel::Warn,
            Self::Error => LogLevel::Error,
        }
    }

    fn of(level: LogLevel) -> Self {
        match level {
            LogLevel::Error => Self::Error,
            LogLevel::Warn => Self::Warning,
            LogLevel::Info | LogLevel::Debug | LogLevel::Trace => Self::Note,
        }
    }
}

/// Options of `console events`.
#[derive(Clone, Debug, Args)]
pub(super) struct Events {
    #[command(flatten)]
    pub(super) nodes: Nodes,
    /// Follow new events until Ctrl-C, including nodes that become unreachable and answer again
    #[arg(short, long)]
    follow: bool,
    /// Show only events of at least this severity
    #[arg(long, value_name = "SEVERITY", value_enum, default_value_t = Severity::Note)]
    severity: Severity,
    /// Show only events of this node, by name or address; repeatable
    #[arg(long, value_name = "NODE")]
    node: Vec<String>,
    /// Show only events that are not older than this: 30s, 10m, 2h, 1d
    #[arg(long, value_name = "TIME", value_parser = ago)]
    since: Option<Duration>,
    /// Show at most the N latest events at first
    #[arg(long, value_name = "N", default_value_t = 200)]
    last: usize,
    #[arg(from_global)]
    pub(super) json: bool,
}

/// An event; `unix_ms` in milliseconds since 1970.
#[derive(Clone, Debug)]
struct ClusterEvent {
    unix_ms: u64,
    node: String,
    severity: Severity,
    text: String,
}

impl ClusterEvent {
    fn of(node: &str, line: LogLine) -> Self {
        let LogLine { unix_ms, level, text, .. } = line;
        Self { unix_ms, node: node.into(), severity: Severity::of(level), text: output::clean(&text) }
    }

    fn object(&self) -> Value {
        json!({"unix_ms": self.unix_ms, "time": time(self.unix_ms), "node": self.node, "severity": self.severity.name(), "text": self.text})
    }

    fn line(&self) -> String {
        format!("{}  {:<7}  {:<10}  {}", time(self.unix_ms), self.severity.name(), self.node, self.text)
    }
}

/// Runs the command. Exit code 3 if a node that is not excluded does not answer.
pub(super) async fn run(options: Events) -> Result<u8, Failure> {
    let addresses: Vec<String> = options.nodes.nodes.iter().map(|node| with_port(node)).collect();
    let mut interrupts = Interrupts::listen()?;
    let mut cluster = interrupts.end(async { Ok::<_, Failure>(Cluster::dial(&addresses).await) }).await?;
    let only = options.node.iter().map(|who| find(&cluster, who)).collect::<Result<Vec<usize>, Failure>>()?;
    let mut heard = Heard { severity: options.severity, since: moment(options.since), ..Heard::default() };
    let mut events = interrupts.end(heard.from(&cluster, &only)).await?;
    events.drain(..events.len().saturating_sub(options.last));
    let faults: Vec<Fault> = heard.away.values().cloned().collect();
    if options.json && !options.follow {
        let away: Value = faults.iter().map(Failure::error_object).collect();
        let missed = heard.missed.iter().map(|(node, lines)| json!({"node": node, "lines": lines}));
        let missed: Value = missed.collect();
        let events: Value = events.iter().map(ClusterEvent::object).collect();
        output::line(&json!({"events": events, "away": away, "missed": missed}).to_string());
    } else {
        tell(&events, options.json);
        faults.iter().for_each(|fault| output::note(&away(fault)));
    }
    // Without a beginning, the latest events were asked for, which a node always keeps.
    for (node, lines) in heard.missed.iter().filter(|_| options.since.is_some()) {
        output::note(&format!("{node}: {lines} earlier lines are no longer in memory; see the journal of the node"));
    }
    while options.follow && !output::is_closed() {
        let pause = async {
            tokio::time::sleep(LOOK).await;
            Ok::<_, Failure>(())
        };
        interrupts.end(pause).await?;
        cluster = interrupts.end(async { Ok::<_, Failure>(cluster.again().await) }).await?;
        tell(&interrupts.end(heard.from(&cluster, &only)).await?, options.json);
    }
    Ok(faults.into_iter().next().map_or(0, |fault| Failure::from(fault).code()))
}

fn tell(events: &[ClusterEvent], json: bool) {
    events.iter().for_each(|event| output::line(&if json { event.object().to_string() } else { event.line() }));
}

/// State of a sequence of reads: the filter, the position in each log and the unreachable nodes.
#[derive(Debug)]
struct Heard {
    severity: Severity,
    since: u64,
    /// By node address: the instance of the daemon, and the number of the next log line to read.
    next: BTreeMap<String, (u64, u64)>,
    /// By address: nodes that did not answer the last read and are not excluded.
    away: BTreeMap<String, Fault>,
    /// Nodes whose log began after `since` at the first read, and the number of lines that they had dropped.
    missed: Vec<(String, u64)>,
    is_first: bool,
}

impl Default for Heard {
    fn default() -> Self {
        let (next, away, missed) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        Self { severity: Severity::Note, since: 0, next, away, missed, is_first: true }
    }
}

impl Heard {
    /// Reads the new events of the nodes (only of those with an index in `only`, unless it is empty), oldest first.
    async fn from(&mut self, cluster: &Cluster, only: &[usize]) -> Result<Vec<ClusterEvent>, Failure> {
        let mut events = Vec::new();
        for (_, node) in cluster.nodes.iter().enumerate().filter(|(index, _)| only.is_empty() || only.contains(index)) {
            let name = output::clean(cluster.name(node));
            let found = match self.read(node).await {
                Ok(found) => found,
                Err(fault) => {
                    let text = output::clean(&fault.kind.to_string());
                    if cluster.may_be_member(node)
                        && self.away.insert(node.address.clone(), fault).is_none()
                        && !self.is_first
                    {
                        events.push(here(&name, Severity::Error, text));
                    }
                    continue;
                }
            };
            if self.away.remove(&node.address).is_some() {
                events.push(here(&name, Severity::Note, "answers again".into()));
            }
            match found.missed {
                0 => {}
                missed if self.is_first => {
                    if self.lacks_lines(node).await {
                        self.missed.push((name.clone(), missed));
                    }
                }
                missed => {
                    let text = format!("{missed} log lines were dropped before they were read");
                    events.push(here(&name, Severity::Warning, text));
                }
            }
            events.extend(found.lines.into_iter().map(|line| ClusterEvent::of(&name, line)));
        }
        self.is_first = false;
        events.retain(|event| event.unix_ms >= self.since && event.severity >= self.severity);
        events.sort_by_key(|event| event.unix_ms);
        Ok(events)
    }

    /// Whether lines that a node has dropped may be later than `since`. Its oldest line may have another severity than
    /// the lines that were read.
    async fn lacks_lines(&self, node: &ClusterNode) -> bool {
        match node.session() {
            Ok(session) if self.since > 0 => {
                let begin = inspect::log_begin(&session).await.ok().flatten();
                begin.is_none_or(|begin| begin >= self.since)
            }
            _ => true,
        }
    }

    /// The lines of a node that were not read yet.
    async fn read(&mut self, node: &ClusterNode) -> Result<LogLines, Fault> {
        let (session, report) = node.answer.as_ref().map_err(Clone::clone)?;
        let before = self.next.get(&node.address).filter(|(run, _)| *run == report.instance);
        let found = inspect::whole_log(session, before.map_or(0, |(_, next)| *next), self.severity.level()).await?;
        self.next.insert(node.address.clone(), (report.instance, found.next));
        Ok(found)
    }
}

/// An event that this console observed, with the time of its own clock.
fn here(node: &str, severity: Severity, text: String) -> ClusterEvent {
    ClusterEvent { unix_ms: moment(Some(Duration::ZERO)), node: node.into(), severity, text }
}

#[cfg(test)]
mod tests {
    use protocol::message::RequestBody;

    use super::*;
    use crate::client::fake_node::{FakeNode, Script};

    #[tokio::test]
    async fn events_are_ordered_and_reported_once_and_lost_node_is_one() {
        let one = FakeNode::start("pi1", Script::default()).await;
        let two = FakeNode::start("pi2", Script::default()).await;
        let cluster = Cluster::dial(&[one.address.clone(), two.address.clone()]).await;
        let mut heard = Heard::default();
        let events = heard.from(&cluster, &[]).await.expect("both answer");
        let seen: Vec<(u64, &str, Severity)> =
            events.iter().map(|event| (event.unix_ms, event.node.as_str(), event.severity)).collect();
        let (note, warning) = (Severity::Note, Severity::Warning);
        assert_eq!(seen, [(1000, "pi1", note), (1000, "pi2", note), (2000, "pi1", warning), (2000, "pi2", warning)]);
        assert!(heard.from(&cluster, &[]).await.expect("both answer").is_empty(), "no event is reported twice");
        let mut bad = Heard { severity: Severity::Warning, ..Heard::default() };
        assert_eq!(bad.from(&cluster, &[1]).await.expect("it answers").len(), 1);
        // Its daemon ends between the report and the log.
        let (session, _) = cluster.nodes[1].answer.as_ref().expect("it answers");
        let mut reply = session.ask(RequestBody::Restart).await.expect("it answers");
        reply.next("a restart", Duration::from_secs(10)).await.expect("it restarts");
        let mut first = Heard::default();
        assert_eq!(first.from(&cluster, &[]).await.expect("one answers").len(), 2);
        assert_eq!(first.away.keys().collect::<Vec<_>>(), [&two.address]);
        drop(two);
        let mut gone = Cluster::dial(&[one.address.clone(), "127.0.0.1:1".into()]).await;
        gone.exclusions.cordon("pi2", "127.0.0.1:1", "fan", "me@here");
        let events = heard.from(&gone, &[]).await.expect("one answers");
        assert!(matches!(&events[..], [event] if event.severity == Severity::Error), "it may still serve: {events:?}");
        assert!(heard.away.contains_key("127.0.0.1:1"));
        gone.exclusions.say("pi2", "127.0.0.1:1", Some("dead"), "me@here");
        let mut later = Heard { is_first: false, ..Heard::default() };
        let events = later.from(&gone, &[]).await.expect("one answers");
        assert!(events.iter().all(|event| event.severity < Severity::Error), "it is excluded: {events:?}");
        assert!(later.away.is_empty());
    }

    #[tokio::test]
    async fn dropped_lines_are_reported_only_if_they_may_be_recent_enough() {
        let node = FakeNode::start("pi1", Script { lines_dropped: 9, ..Script::default() }).await;
        let cluster = Cluster::dial(std::slice::from_ref(&node.address)).await;
        let missed = async |since: u64, severity: Severity| {
            let mut heard = Heard { since, severity, ..Heard::default() };
            heard.from(&cluster, &[]).await.expect("it answers");
            heard.missed
        };
        let all = vec![("pi1".to_owned(), 9)];
        assert_eq!(missed(0, Severity::Note).await, all);
        assert_eq!(missed(500, Severity::Warning).await, all);
        // The oldest line, of 1000, is a note.
        assert!(missed(1500, Severity::Warning).await.is_empty());
    }
}
