//! The table of nodes: their states, the health of their machines, and their share of the blame for waiting.
use common::{ids::MemberIndex, latency::ratio, units::Bytes};
use telemetry::{Health, NodeReport, NodeState};

use crate::state::{
    State,
    clean::clean_line,
    lateness::ranks,
    node::{Node, NodeStatus},
    row::{Cell, TableRow, Tone},
    table::{Column, Table},
};

/// The table's columns.
const COLUMNS: &[Column] = &[
    Column::left("node", 10, 0),
    Column::left("state", 13, 0),
    Column::left("rank", 5, 2),
    Column::right("temp", 6, 1),
    Column::right("GHz", 7, 3),
    Column::right("delay", 5, 2),
    Column::right("used/GiB", 9, 4),
    Column::left("shard", 9, 6),
    Column::right("link", 8, 7),
    Column::right("traffic", 10, 8),
    Column::left("governor", 11, 9),
    Column::rest("health", 12, 1),
];

/// The nodes in the order in which they were named.
pub fn table(state: &State) -> Table {
    let ranks = if state.layers_move() { ranks(state) } else { Vec::new() };
    let rows = state.cluster.nodes.iter().enumerate().map(|(place, node)| {
        let late = ranks.iter().find(|rank| rank.node == Some(place)).map(|rank| rank.late);
        row(state, node, late)
    });
    Table { columns: COLUMNS, rows: rows.collect() }
}

fn row(state: &State, node: &Node, late: Option<f64>) -> TableRow {
    let standing = node.status(state.now);
    let is_live = matches!(standing, NodeStatus::Reports(_));
    let report = node.report.as_ref();
    let health = report.map(|report| &report.health);
    let mut cells = vec![
        Cell::text(node.name()),
        status_cell(state, node),
        Cell::text(place(state, node).unwrap_or_else(|| "–".to_owned())),
        temperature(node, health),
        clock(health),
        Cell::figure(late, |late| format!("{:.0} %", late * 100.0)),
        memory(health),
        shard(report),
        Cell::figure(health.and_then(|health| health.link.as_ref()?.mbit), link_speed),
        Cell::figure(node.history.latest(state.now).and_then(|sample| sample.bytes_per_second), traffic),
        governor(health),
        why(state, node, health),
    ];
    if !is_live {
        // Old figures are meaningless for now.
        let last = cells.len() - 1;
        cells[2..last].iter_mut().for_each(|cell| cell.tone = Tone::Dim);
    }
    // The operator looks for lost nodes, so only their figures are dim.
    let is_gone = matches!(standing, NodeStatus::Away | NodeStatus::Lost);
    TableRow { key: node.address.clone(), cells, is_stale: !is_live && !is_gone }
}

/// A node's state in one word: `stale` if it has sent nothing for a while, regardless of its last report.
pub fn status_cell(state: &State, node: &Node) -> Cell {
    if state.cluster.exclusion(node).is_some() {
        return Cell::text(if node.is_open() { "out" } else { "out, away" }).toned(Tone::Warn);
    }
    let standing = node.status(state.now);
    let text = match (node.load, standing) {
        (Some(load), NodeStatus::Reports(_) | NodeStatus::Silent) => {
            format!("load {:.0} %", 100.0 * ratio(load.done.0 as f64, load.total.0 as f64))
        }
        (_, NodeStatus::Connecting) => "dialling".to_owned(),
        (_, NodeStatus::Away) => "away".to_owned(),
        (_, NodeStatus::Lost) => "lost".to_owned(),
        (_, NodeStatus::Stale(seconds)) => format!("stale {seconds} s"),
        (_, NodeStatus::Silent) => "connected".to_owned(),
        (_, NodeStatus::Reports(NodeState::Faulted)) => match waited_for(state, node) {
            Some(other) => return Cell::text(format!("waits for {other}")).toned(Tone::Warn),
            None => NodeState::Faulted.name().to_owned(),
        },
        (_, NodeStatus::Reports(NodeState::Ready)) if state.is_busy(node) => NodeState::Serving.name().to_owned(),
        (_, NodeStatus::Reports(state)) => state.name().to_owned(),
    };
    let is_restarting = state.cluster.restarts(node) && matches!(standing, NodeStatus::Lost | NodeStatus::Away);
    if is_restarting {
        return Cell::text("restarting").toned(Tone::Warn);
    }
    Cell::text(text).toned(tone(standing))
}

/// The other node that a node's fault names: this node itself is fine.
pub fn waited_for(state: &State, node: &Node) -> Option<String> {
    let fault = node.fault()?;
    state
        .cluster
        .nodes
        .iter()
        .find(|other: &&Node| fault.node == other.name() && other.address != node.address)
        .map(|other| other.name().to_owned())
}

/// The tone of a standing.
pub fn tone(standing: NodeStatus) -> Tone {
    match standing {
        NodeStatus::Away | NodeStatus::Lost | NodeStatus::Reports(NodeState::Faulted) => Tone::Bad,
        NodeStatus::Connecting | NodeStatus::Silent | NodeStatus::Reports(NodeState::Idle) => Tone::Dim,
        NodeStatus::Reports(NodeState::Ready | NodeState::Serving) => Tone::Ok,
        NodeStatus::Stale(_) | NodeStatus::Reports(_) => Tone::Warn,
    }
}

/// As [`place`], in words.
pub fn place_in_words(state: &State, node: &Node) -> Option<String> {
    let member = state.cluster.member_of(node)?;
    let (topology, _) = state.cluster.topology()?;
    let place = topology.place(MemberIndex(member as u16));
    let rank = place.rank.0 - place.group.start;
    let replica = (topology.layout.replicas > 1).then(|| format!("replica {}, ", place.replica));
    let stage = (topology.layout.stages > 1).then(|| format!("stage {}, ", place.stage));
    Some(format!("{}{}rank {rank}", replica.unwrap_or_default(), stage.unwrap_or_default()))
}

/// The rank within its stage, with stage and replica if there are several.
pub fn place(state: &State, node: &Node) -> Option<String> {
    let member = state.cluster.member_of(node)?;
    let (topology, _) = state.cluster.topology()?;
    let place = topology.place(MemberIndex(member as u16));
    let (rank, stage, replica) = (place.rank.0 - place.group.start, place.stage, place.replica);
    Some(match (topology.layout.replicas > 1, topology.layout.stages > 1) {
        (false, false) => rank.to_string(),
        (false, true) => format!("{stage}.{rank}"),
        (true, _) => format!("{replica}.{stage}.{rank}"),
    })
}

fn temperature(node: &Node, health: Option<&Health>) -> Cell {
    let celsius = health.and_then(|health| health.temperature);
    let is_hot = celsius.is_some_and(|celsius| celsius.0 >= telemetry::warning::HOT.0);
    let cell =
        Cell::figure(celsius.map(|celsius| celsius.0), |celsius| format!("{celsius:.1}{}", node.history.trend()));
    if is_hot { cell.toned(Tone::Bad) } else { cell }
}

fn clock(health: Option<&Health>) -> Cell {
    let Some(clock) = health.and_then(|health| health.clock.as_ref()) else {
        return Cell::figure(None::<f64>, |_| String::new());
    };
    let gigahertz = |megahertz: u32| f64::from(megahertz) / 1e3;
    Cell {
        text: format!("{:.1}/{:.1}", gigahertz(clock.current.0), gigahertz(clock.hardware.0.max(clock.limit.0))),
        number: Some(f64::from(clock.current.0)),
        tone: if clock.limit < clock.hardware { Tone::Warn } else { Tone::Plain },
    }
}

/// The speed of a link.
pub fn link_speed(mbit: u32) -> String {
    if mbit >= 1000 { format!("{} Gb/s", f64::from(mbit) / 1e3) } else { format!("{mbit} Mb/s") }
}

/// Bytes per second over a link.
pub fn traffic(rate: f64) -> String {
    if rate < 9.95e6 { format!("{:.1} MB/s", rate / 1e6) } else { format!("{:.0} MB/s", rate / 1e6) }
}

fn governor(health: Option<&Health>) -> Cell {
    match health.and_then(|health| health.clock.as_ref()) {
        Some(clock) => {
            Cell::text(clean_line(&clock.governor)).toned(if clock.is_held_low() { Tone::Warn } else { Tone::Plain })
        }
        None => Cell::figure(None::<f64>, |_| String::new()),
    }
}

fn memory(health: Option<&Health>) -> Cell {
    let memory = health.and_then(|health| health.memory);
    let used = memory.map(|memory| memory.total.0.saturating_sub(memory.available.0) as f64);
    Cell::figure(used, |used| {
        let total = memory.map_or(0.0, |memory| memory.total.0 as f64);
        format!("{:.1}/{:.1}", used / GIB, total / GIB)
    })
}

/// Bytes per GiB.
const GIB: f64 = (1_u64 << 30) as f64;

fn shard(report: Option<&NodeReport>) -> Cell {
    let bytes = report.map(|report| report.shard).filter(|bytes| *bytes > Bytes(0));
    Cell::figure(bytes.map(|bytes| bytes.0 as f64), |bytes| Bytes(bytes as u64).to_string())
}

/// The reason for a node's state: its exclusion, its fault, otherwise the worst warnings of its machine.
fn why(state: &State, node: &Node, health: Option<&Health>) -> Cell {
    if let Some(entry) = state.cluster.exclusion(node) {
        let reason = format!("{} ({})", entry.reason.as_deref().unwrap_or_default(), entry.by);
        return Cell::text(clean_line(&reason));
    }
    if let NodeStatus::Stale(_) = node.status(state.now) {
        return Cell::text("silent, old figures").toned(Tone::Dim);
    }
    if let Some(fault) = node.fault() {
        let is_own = fault.node == node.name() || fault.node == node.address;
        let reason = if is_own { fault.kind.to_string() } else { fault.to_string() };
        return Cell::text(clean_line(&reason));
    }
    let Some(health) = health else { return Cell::figure(None::<f64>, |_| String::new()) };
    let warnings = health.warnings();
    match warnings.as_slice() {
        [] if *health == Health::default() => Cell::figure(None::<f64>, |_| String::new()),
        [] => Cell::text("ok").toned(Tone::Ok),
        [first, rest @ ..] => {
            let more = if rest.is_empty() { String::new() } else { format!(" +{}", rest.len()) };
            Cell::text(clean_line(&first.short()) + &more).toned(if first.is_acute() { Tone::Bad } else { Tone::Warn })
        }
    }
}

/// Total tokens per second of all heads; `None` if no head has counted any recently.
pub fn tokens_per_second(state: &State) -> Option<f64> {
    let samples = state.cluster.nodes.iter().filter_map(|node| node.history.latest(state.now));
    let rates: Vec<f64> = samples.map(|sample| sample.tokens_per_second).collect();
    (!rates.is_empty()).then(|| rates.iter().sum())
}

/// Running and waiting requests on all reporting heads.
pub fn requests(state: &State) -> u32 {
    let live = state.cluster.nodes.iter().filter(|node| matches!(node.status(state.now), NodeStatus::Reports(_)));
    live.filter_map(|node| node.report.as_ref()).map(|report| report.requests).sum()
}

#[cfg(test)]
mod tests {
    use common::fault::{Fault, FaultKind, Loss};
    use topology::rolling::{Phase, Rolling};

    use super::*;
    use crate::{
        fixtures::{Story, running},
        state::{Page, node::Link, status, sync::SyncPicture, tables},
    };

    #[test]
    fn node_silent_for_two_seconds_is_stale_in_every_table() {
        let mut story = Story::busy();
        let until = story.state.now.as_millis() as u64;
        story.at(until + 2100);
        for node in 1..4 {
            story.report(node, running(node, NodeState::Ready, false));
        }
        let rows = table(&story.state).rows;
        assert_eq!((rows[0].cells[1].text.as_str(), rows[0].is_stale), ("stale 2 s", true));
        assert!(rows[0].cells[3..6].iter().all(|cell| cell.tone == Tone::Dim), "{:?}", rows[0]);
        assert!(rows[1..].iter().all(|row| !row.is_stale && row.cells[1].text == "ready"));
        let requests = tables::table(&story.state, Page::Requests).expect("page has a table").rows;
        assert!(!requests.is_empty() && requests.iter().all(|row| row.is_stale), "all belong to the head");
        assert_eq!(super::requests(&story.state), 0, "counts of a silent head are not shown as current");
        assert!(matches!(status::status(&story.state), status::ClusterStatus::Silent(node) if node.name() == "pi0"));
    }

    #[test]
    fn stopped_node_is_blamed_instead_of_its_waiting_peers() {
        let mut story = Story::generating();
        let until = story.state.now.as_millis() as u64;
        story.at(until + 2500);
        let lost = FaultKind::NodeLost { how: Loss::Silent };
        for node in [0, 1, 3] {
            let fault = Some(Fault::new("pi2", lost.clone()));
            story.report(node, NodeReport { fault, ..running(node, NodeState::Faulted, false) });
        }
        assert_eq!(status::status(&story.state), status::ClusterStatus::Broken("pi2"));
        let hint = status::hint(&story.state);
        assert!(hint.starts_with("pi2 sends nothing"), "{hint}");
        let rows = table(&story.state).rows;
        let words: Vec<_> = rows.iter().map(|row| (row.cells[1].text.as_str(), row.cells[1].tone)).collect();
        let waits = ("waits for pi2", Tone::Warn);
        assert_eq!(words, [waits, waits, ("stale 2 s", Tone::Warn), waits]);
    }

    #[test]
    fn planned_restart_shows_its_peers_as_waiting() {
        let mut story = Story::generating();
        let node = story.state.cluster.nodes[2].name().to_owned();
        let targets = vec![(node.clone(), story.state.cluster.nodes[2].address.clone())];
        story.state.cluster.rolling = Some(Rolling {
            targets,
            done: 0,
            before: Some(1),
            phase: Phase::Runs,
            drain_ms: 0,
            by: String::new(),
            revision: 1,
        });
        let gone = Fault::new(&node, FaultKind::NodeLost { how: Loss::Left });
        story.state.cluster.nodes[2].link = Link::Lost { fault: gone.clone(), was_open: true };
        for other in [0, 1, 3] {
            let fault = Some(gone.clone());
            story.report(other, NodeReport { fault, ..running(other, NodeState::Faulted, false) });
        }
        let rows = table(&story.state).rows;
        let words: Vec<_> = rows.iter().map(|row| (row.cells[1].text.as_str(), row.cells[1].tone)).collect();
        let waits = ("waits for pi2", Tone::Warn);
        assert_eq!(words, [waits, waits, ("restarting", Tone::Warn), waits], "no cell is alarming");
    }

    #[test]
    fn no_straggler_while_nothing_is_computed() {
        let mut story = Story::generating();
        let late = |story: &Story| table(&story.state).rows[2].cells[5].text.clone();
        assert_eq!(late(&story), "32 %");
        let until = story.state.now.as_millis() as u64;
        story.at(until + 2500).all_report(NodeState::Ready, false);
        assert_eq!(late(&story), "–");
        assert_eq!(SyncPicture::take(&story.state).straggler, None);
    }

    #[test]
    fn loading_shows_progress_and_heat_shows_its_trend() {
        let mut story = Story::begin();
        story.at(10).all_connected().all_loading();
        assert_eq!(table(&story.state).rows[0].cells[1].text, "load 80 %");
        let rows = table(&Story::degraded().state).rows;
        assert_eq!((rows[1].cells[3].text.as_str(), rows[1].cells[3].tone), ("83.6↑", Tone::Bad));
        assert_eq!(rows[3].cells[1].text, "out");
    }
}
