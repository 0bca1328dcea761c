//! `console logs`: prints the log lines that a node keeps in memory; with `--follow` also new lines.
use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use clap::Args;
use common::{calendar, fault::Fault};
use protocol::inspect::{LogLevel, LogLine, LogLines};
use serde_json::json;

use crate::cli::{
    Failure,
    shared::{find_node::find, interrupts::Interrupts, options::Nodes, output},
};
use crate::client::{
    assign,
    cluster::{Cluster, ClusterNode},
    inspect,
    session::{self, Session},
    with_port,
};

/// Polling interval of a followed log.
pub(super) const LOOK: Duration = Duration::from_millis(300);

/// Options of `console logs`.
#[derive(Clone, Debug, Args)]
pub(super) struct Logs {
    /// Name or address of the node
    #[arg(value_name = "NODE")]
    node: String,
    #[command(flatten)]
    pub(super) nodes: Nodes,
    /// Follow new lines until Ctrl-C, reconnecting to the node if necessary; begins with the last 10 lines
    #[arg(short, long)]
    follow: bool,
    /// Begin with the last N lines [default: all; with --follow 10, unless --since is given]
    #[arg(short = 'n', long, value_name = "N")]
    tail: Option<usize>,
    /// Show only lines that are not older than this: 30s, 10m, 2h, 1d
    #[arg(long, value_name = "TIME", value_parser = ago)]
    since: Option<Duration>,
    /// Show only lines of at least this level: trace, debug, info, warn, error; RUST_LOG of the node limits them
    #[arg(long, value_name = "LEVEL", default_value = "trace", value_parser = <LogLevel as std::str::FromStr>::from_str)]
    level: LogLevel,
    #[arg(from_global)]
    pub(super) json: bool,
}

/// Lines with which a followed log begins.
const FOLLOW_LINES: usize = 10;

impl Logs {
    /// The number of lines to begin with; `None` means all.
    fn first_lines(&self) -> Option<usize> {
        self.tail.or((self.follow && self.since.is_none()).then_some(FOLLOW_LINES))
    }
}

/// Keeps the last `count` lines that are not older than `since`. Older lines are then not missed.
fn keep_last(found: &mut LogLines, since: u64, count: usize) {
    found.lines.retain(|line| line.unix_ms >= since);
    let older = found.lines.len().saturating_sub(count);
    found.lines.drain(..older);
    if found.lines.len() == count {
        found.missed = 0;
    }
}

/// Parses a duration such as `10m`.
pub(super) fn ago(text: &str) -> Result<Duration, String> {
    let split = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err("expected a number with s, m, h or d, for example 10m".into()),
    };
    let number: u64 = number.parse().map_err(|_| "expected a number with s, m, h or d, for example 10m".to_owned())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(|| "too long ago".into())
}

/// The time `since` ago in milliseconds since 1970 by this machine's clock; 0 if `None`.
pub(super) fn moment(since: Option<Duration>) -> u64 {
    let Some(since) = since else { return 0 };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.saturating_sub(since).as_millis()).unwrap_or(u64::MAX)
}

/// Formats a time as UTC: `2026-11-22 08:30:01.250`.
pub(super) fn time(unix_ms: u64) -> String {
    let (seconds, ms) = (unix_ms / 1000, unix_ms % 1000);
    let (year, month, day) = calendar::civil(seconds / calendar::DAY_SECONDS);
    format!("{year:04}-{month:02}-{day:02} {}.{ms:03}", calendar::time_of_day(seconds))
}

/// Runs the command.
pub(super) async fn run(options: Logs) -> Result<u8, Failure> {
    let addresses: Vec<String> = options.nodes.nodes.iter().map(|node| with_port(node)).collect();
    let mut interrupts = Interrupts::listen()?;
    let cluster = interrupts.end(async { Ok::<_, Failure>(Cluster::dial(&addresses).await) }).await?;
    let node = &cluster.nodes[find(&cluster, &options.node)?];
    let (address, name) = (node.address.clone(), output::clean(cluster.name(node)));
    let mut reader = LogReader::of(node)?;
    let since = moment(options.since);
    let mut found = interrupts.end(reader.read(options.level)).await?;
    if let Some(count) = options.first_lines() {
        keep_last(&mut found, since, count);
    }
    tell(&name, &found, since, &options);
    while options.follow && !output::is_closed() {
        interrupts.end(pause()).await?;
        match interrupts.end(async { Ok::<_, Failure>(reader.read(options.level).await) }).await? {
            Ok(found) => tell(&name, &found, since, &options),
            Err(fault) => {
                output::note(&format!(
                    "console: {}; reconnecting until the node answers",
                    output::clean(&fault.to_string())
                ));
                let is_restarted = interrupts.end(async { Ok::<_, Failure>(reader.reconnect(&address).await) }).await?;
                let cause = if is_restarted { " after a restart of its daemon" } else { "" };
                output::note(&format!("{name} answers again{cause}"));
            }
        }
    }
    Ok(0)
}

/// A position in the log of a node.
struct LogReader {
    session: Arc<Session>,
    /// The run of the daemon: each run numbers its lines from 1.
    instance: u64,
    /// The next read returns only lines after this number.
    after: u64,
}

impl LogReader {
    /// Starts at the first line.
    fn of(node: &ClusterNode) -> Result<Self, Fault> {
        let (session, report) = node.answer.as_ref().map_err(Clone::clone)?;
        Ok(Self { session: Arc::clone(session), instance: report.instance, after: 0 })
    }

    /// The lines that were not read yet.
    async fn read(&mut self, level: LogLevel) -> Result<LogLines, Fault> {
        let found = inspect::whole_log(&self.session, self.after, level).await?;
        self.after = found.next;
        Ok(found)
    }

    /// Reconnects until the node answers; starts at the first line if the daemon was restarted, and returns whether it
    /// was. The position alone is not enough: a new run may already have more lines than the previous one.
    async fn reconnect(&mut self, address: &str) -> bool {
        loop {
            if let Ok((session, instance)) = dial(address).await {
                let is_restarted = instance != self.instance;
                let after = if is_restarted { 0 } else { self.after };
                *self = Self { session: Arc::new(session), instance, after };
                return is_restarted;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// A new session with a node, and the instance of its daemon.
async fn dial(address: &str) -> Result<(Session, u64), Fault> {
    let session = session::open(address).await?;
    let instance = assign::report(&session).await?.instance;
    Ok((session, instance))
}

async fn pause() -> Result<(), Failure> {
    tokio::time::sleep(LOOK).await;
    Ok(())
}

fn tell(name: &str, found: &LogLines, since: u64, options: &Logs) {
    if found.missed > 0 && options.json {
        output::line(&json!({"node": name, "missed": found.missed}).to_string());
    } else if found.missed > 0 {
        output::note(&format!("{} earlier lines are no longer in memory; see the journal of the node", found.missed));
    }
    for line in found.lines.iter().filter(|line| line.unix_ms >= since) {
        if options.json {
            output::line(&object(name, line).to_string());
        } else {
            output::line(&text(line));
        }
    }
}

/// A line as a JSON object.
pub(super) fn object(name: &str, line: &LogLine) -> serde_json::Value {
    json!({"node": name, "number": line.number, "unix_ms": line.unix_ms, "time": time(line.unix_ms),
        "level": line.level.name(), "text": line.text})
}

/// A line as text.
pub(super) fn text(line: &LogLine) -> String {
    output::clean(&format!("{} {:<5} {}", time(line.unix_ms), line.level.name().to_uppercase(), line.text))
}

/// The message about a node that does not answer, with the next step.
pub(super) fn away(fault: &Fault) -> String {
    output::clean(&format!("{fault}; {}", fault.next()))
}

#[cfg(test)]
mod tests {
    use protocol::message::RequestBody;

    use super::*;
    use crate::client::fake_node::{FakeNode, Script};

    #[tokio::test]
    async fn log_begins_again_only_after_a_restart_of_the_daemon() {
        let node = FakeNode::start("pi1", Script::default()).await;
        let cluster = Cluster::dial(std::slice::from_ref(&node.address)).await;
        let mut reader = LogReader::of(&cluster.nodes[0]).expect("it answers");
        assert_eq!(reader.read(LogLevel::Trace).await.expect("it answers").lines.len(), 2);
        assert!(!reader.reconnect(&node.address).await, "only the connection was lost");
        assert_eq!(reader.read(LogLevel::Trace).await.expect("it answers").lines, []);
        let mut reply = reader.session.ask(RequestBody::Restart).await.expect("it answers");
        reply.next("a restart", Duration::from_secs(10)).await.expect("it restarts");
        // The new run has as many lines as the previous one, so their numbers do not reveal the restart.
        assert!(reader.reconnect(&node.address).await);
        assert_eq!(reader.read(LogLevel::Trace).await.expect("it answers").lines.len(), 2);
    }

    #[test]
    fn followed_log_begins_with_the_last_lines() {
        let options = |tail, follow, since| {
            let (nodes, level) = (Nodes::default(), LogLevel::Trace);
            Logs { node: "pi1".into(), nodes, follow, tail, since, level, json: false }
        };
        let hour = Some(Duration::from_secs(3600));
        assert_eq!(options(None, false, None).first_lines(), None);
        assert_eq!(options(None, true, None).first_lines(), Some(10));
        assert_eq!(options(None, true, hour).first_lines(), None);
        assert_eq!(options(Some(3), true, hour).first_lines(), Some(3));

        let line = |number| LogLine { number, unix_ms: number, level: LogLevel::Info, text: String::new() };
        let kept = |since, count| {
            let mut found = LogLines { lines: (0..20).map(line).collect(), next: 20, missed: 7, more: false };
            keep_last(&mut found, since, count);
            (found.lines.first().map(|line| line.number), found.lines.len(), found.missed, found.next)
        };
        assert_eq!(kept(0, 10), (Some(10), 10, 0, 20));
        assert_eq!(kept(15, 10), (Some(15), 5, 7, 20));
        assert_eq!(kept(0, 0), (None, 0, 0, 20));
        assert_eq!(kept(0, 50), (Some(0), 20, 7, 20));
    }

    #[test]
    fn durations_are_parsed_and_times_formatted() {
        assert_eq!(ago("90s"), Ok(Duration::from_secs(90)));
        assert_eq!((ago("10m"), ago("2h")), (Ok(Duration::from_secs(600)), Ok(Duration::from_secs(7200))));
        for text in ["", "10", "m", "-1m", "1w", "99999999999999999999s", "18446744073709551615d"] {
            assert!(ago(text).is_err(), "{text}");
        }
        assert_eq!(time(0), "1970-01-01 00:00:00.000");
        assert_eq!(time(951_782_400_000), "2000-02-29 00:00:00.000");
        assert_eq!(time(1_795_336_201_250), "2026-11-22 08:30:01.250");
    }
}
