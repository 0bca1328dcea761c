//! `console sync`: all-reduce times of the running topology by rank (worst straggler first) and by layer, with the
//! straggler and its cause.
mod boundary;

use std::{cmp::Ordering, collections::BTreeMap};

use clap::Args;
use common::{
    fault::Fault,
    ids::{MemberIndex, Rank},
    latency::{Histogram, ratio},
    units::{Bytes, Nanoseconds},
};
use serde_json::{Value, json};
use telemetry::{Health, HopSync, LatenessSums, SyncKind, SyncRecord, WINDOW_STEPS};
use topology::Topology;

use boundary::{StageBoundary, boundaries, slow};

use crate::cli::{
    Failure,
    profile::{
        beside,
        straggler::{self, Straggler},
    },
    shared::{
        options::Nodes,
        other_topologies, output,
        watch::{Look, Seen, look_at},
    },
};
use crate::{
    client::{assign::records, cluster::Cluster},
    state::sync::cause,
    view::format::{short_time, tight_time},
};

/// Options of `console sync`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Sync {
    #[command(flatten)]
    pub(crate) nodes: Nodes,
    /// Show only these layers, for example 0,5
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    layers: Vec<u32>,
    #[command(flatten)]
    pub(crate) look: Look,
}

/// Runs the command. With `--watch`, each later screen covers the all-reduces since the previous one, and at least the
/// latest [`WINDOW_STEPS`] steps.
pub(crate) async fn run(options: Sync) -> Result<u8, Failure> {
    let mut seen_steps: BTreeMap<String, u64> = BTreeMap::new();
    look_at(&options.nodes.nodes, &options.look, async |cluster| {
        let members = members(cluster, &mut seen_steps).await?;
        let mut seen = Picture::of(cluster, &members)?.seen(&options.layers);
        seen.lines.extend(other_topologies::lines(cluster, "console sync"));
        seen.object["others"] = other_topologies::objects(cluster);
        Ok(seen)
    })
    .await
}

/// A member of the running topology.
struct Of {
    name: String,
    health: Health,
    records: Vec<SyncRecord>,
    /// The latest hand-overs that it received.
    hops: Vec<HopSync>,
    shard: Bytes,
    /// Why there is no report, or why the member does not serve.
    fault: Option<Fault>,
    /// Whether it is among the given nodes.
    is_given: bool,
}

/// The straggler in the new steps, see [`retain_new`], with a sentence on shares and cause.
///
/// # Errors
/// No topology runs.
pub(crate) async fn straggler(
    cluster: &Cluster,
    seen: &mut BTreeMap<String, u64>,
) -> Result<Option<(String, String)>, Failure> {
    let members = members(cluster, seen).await?;
    let found = Picture::of(cluster, &members)?.straggler;
    Ok(found.map(|found| {
        let of = &members[found.member];
        let others = others(&members, found.member);
        (of.name.clone(), output::clean(&found.sentence(&of.name, &of.health, &others)))
    }))
}

/// The new records of each member. A member that does not answer has none.
async fn members(cluster: &Cluster, seen: &mut BTreeMap<String, u64>) -> Result<Vec<Of>, Failure> {
    let (topology, _) = running(cluster)?;
    let mut found = Vec::with_capacity(topology.members.len());
    for member in &topology.members {
        let node = cluster.nodes.iter().find(|node| cluster.name(node) == member.name);
        let is_given = node.is_some();
        let answer = node.and_then(|node| node.answer.as_ref().ok());
        let (mut list, mut health) = (Vec::new(), Health::default());
        let (mut hops, mut shard) = (Vec::new(), Bytes(0));
        let mut fault = node.and_then(|node| node.answer.as_ref().err().cloned());
        if let Some((session, report)) = answer {
            (health, fault) = (report.health.clone(), report.fault.clone());
            (hops, shard) = (report.hops.clone(), report.shard);
            match records(session).await {
                Ok(found) => list = found,
                Err(lost) => fault = Some(lost),
            }
        }
        retain_new(&mut list, seen.entry(member.name.clone()).or_default());
        found.push(Of { name: output::clean(&member.name), health, records: list, hops, shard, fault, is_given });
    }
    Ok(found)
}

/// Keeps the records since the step `seen`, and sets that to the latest one. If there are any, at least the latest
/// [`WINDOW_STEPS`] are kept: a slow cluster makes few steps between two looks, too few to name a straggler.
fn retain_new(records: &mut Vec<SyncRecord>, seen: &mut u64) {
    let Some(latest) = records.iter().map(|record| record.step).max() else { return };
    let before = std::mem::replace(seen, latest);
    let after = match latest.cmp(&before) {
        Ordering::Greater => before.min(latest.saturating_sub(u64::from(WINDOW_STEPS))),
        Ordering::Equal => before,
        // The step count started again: the records belong to a new run of the engine.
        Ordering::Less => 0,
    };
    records.retain(|record| record.step > after);
}

/// The machines of the other members, as far as they answered.
fn others(members: &[Of], member: usize) -> Vec<&Health> {
    beside(member, members.iter().map(|of| &of.health))
}

fn running(cluster: &Cluster) -> Result<(&Topology, u64), Failure> {
    let found = cluster.topology();
    if found.is_none() {
        // An unreachable node may hold a topology, so report the node as unreachable instead of "no topology".
        cluster.usable()?;
    }
    let (topology, reports) = found.ok_or_else(|| Failure::State {
        message: "no topology runs on these nodes".into(),
        next: "start one with console generate --topology tpN or console topology assign FILE",
    })?;
    Ok((topology, reports.first().map_or(0, |report| report.epoch.0)))
}

/// The all-reduces of one rank.
struct RankSyncRow {
    member: usize,
    rank: u16,
    stage: u16,
    late: f64,
    last: f64,
    /// Means of computing, waiting and wire.
    means: [Nanoseconds; 3],
    /// Means of the arrival of the first byte of the rank's parts after its peers entered, and of the time from
    /// there to the last byte.
    arrival: [Nanoseconds; 2],
    count: usize,
}

/// Latencies and counts by member, for one all-reduce of a layer.
type Members = BTreeMap<usize, (Histogram, usize)>;
/// All-reduces of all layers, with the latency (wait + wire) by member.
type Layers = BTreeMap<(u32, SyncKind), Members>;

struct Picture<'a> {
    title: String,
    head: Value,
    rows: Vec<RankSyncRow>,
    layers: Layers,
    straggler: Option<Straggler>,
    steps: usize,
    members: &'a [Of],
    /// In the order in which a token passes them.
    boundaries: Vec<StageBoundary>,
    /// The member that is the slow stage of its pipeline, and its computing time relative to the other stages,
    /// normalised by the weights.
    slow_stage: Option<(usize, f64)>,
}

impl<'a> Picture<'a> {
    fn of(cluster: &Cluster, members: &'a [Of]) -> Result<Self, Failure> {
        let (topology, epoch) = running(cluster)?;
        let (mut rows, mut named, mut groups) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..members.len() {
            let place = topology.place(MemberIndex(index as u16));
            let begin = topology.layout.members(place.replica).start;
            let group = begin + usize::from(place.group.start)..begin + usize::from(place.group.end);
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        for group in groups {
            let lists: Vec<Vec<SyncRecord>> = members[group.clone()].iter().map(|of| of.records.clone()).collect();
            let first = topology.place(MemberIndex(group.start as u16)).rank.index();
            let mut sums = LatenessSums::new(first, lists.len());
            for (rank, list) in lists.iter().enumerate() {
                list.iter().for_each(|record| sums.add(rank, record));
            }
            let (late, last) = (sums.shares(), sums.last_shares());
            for (rank, list) in lists.iter().enumerate() {
                let place = topology.place(MemberIndex((group.start + rank) as u16));
                let (member, stage, rank_number) = (group.start + rank, place.stage, place.rank.0);
                let (means, arrival, count) = (means(list), arrival(&lists, place.rank), list.len());
                let (late, last) = (late[rank], last[rank]);
                rows.push(RankSyncRow { member, rank: rank_number, stage, late, last, means, arrival, count });
            }
            let found = straggler::of_ranks(first, &lists);
            named.extend(found.map(|found| Straggler { member: group.start + found.member, ..found }));
        }
        let straggler = named.into_iter().max_by(|one, two| one.named.late.total_cmp(&two.named.late));
        // Over all steps, a rank other than the one named in a window may have the largest share.
        let is_named = |row: &RankSyncRow| straggler.as_ref().is_some_and(|found| found.member == row.member);
        rows.sort_by(|one, two| {
            is_named(two).cmp(&is_named(one)).then(two.late.total_cmp(&one.late)).then(one.member.cmp(&two.member))
        });
        let steps = members.iter().map(|of| steps(&of.records)).max().unwrap_or(0);
        let head = json!({"topology": topology.layout.to_string(), "epoch": epoch, "model": topology.model});
        let title = format!("{}  epoch {epoch}  {}", topology.layout, output::clean(&topology.model));
        let boundaries = boundaries(topology, members);
        Ok(Self {
            title,
            head,
            rows,
            layers: layers(members),
            straggler,
            steps,
            members,
            boundaries,
            slow_stage: slow(topology, members),
        })
    }

    fn name(&self, member: usize) -> &str {
        &self.members[member].name
    }

    fn network(&self) -> f64 {
        let sums = self.rows.iter().fold([0.0; 3], |mut sums, row| {
            sums.iter_mut().zip(row.means).for_each(|(sum, mean)| *sum += mean.0 as f64 * row.count as f64);
            sums
        });
        // Add the hops. If a stage has one rank, no all-reduce contains its computing.
        let (mut network, mut all) = (sums[1] + sums[2], sums.iter().sum::<f64>());
        for StageBoundary { to, sync, .. } in &self.boundaries {
            let hops = sync.hop.0 as f64 * f64::from(sync.timed);
            let reduces = self.rows.iter().any(|row| row.member == *to && row.count > 0);
            let own = if reduces { 0.0 } else { sync.compute.0 as f64 * f64::from(sync.count) };
            (network, all) = (network + hops, all + hops + own);
        }
        ratio(network, all)
    }

    fn seen(&self, only: &[u32]) -> Seen {
        let sentence = self.straggler.as_ref().map(|found| {
            let of = &self.members[found.member];
            output::clean(&found.sentence(&of.name, &of.health, &others(self.members, found.member)))
        });
        let sentence = sentence.or_else(|| self.pipeline_sentence());
        let mut lines = vec![format!("{}  {} steps  network {:.0} %", self.title, self.steps, 100.0 * self.network())];
        let faults: Vec<(&str, &Fault)> =
            self.members.iter().filter_map(|of| Some((of.name.as_str(), of.fault.as_ref()?))).collect();
        lines.extend(faults.iter().map(|(name, fault)| format!("{name}: {}", output::clean(&fault.to_string()))));
        let not_asked = self.members.iter().filter(|of| !of.is_given).map(|of| of.name.as_str());
        let not_asked: Vec<&str> = not_asked.collect();
        if !not_asked.is_empty() {
            lines.push(format!("not asked: {}; name all members with --nodes", not_asked.join(", ")));
        }
        lines.push(sentence.clone().unwrap_or_else(|| match self.steps {
            0 if self.boundaries.is_empty() => "idle: no all-reduces since the last sample".into(),
            0 => "no all-reduces; the latest hand-overs:".into(),
            _ => "no straggler".into(),
        }));
        lines.push(String::new());
        lines.extend(self.rank_lines());
        lines.push(String::new());
        lines.extend(self.boundary_lines());
        lines.extend(self.layer_lines(only));
        let mut object = self.head.clone();
        object["steps"] = json!(self.steps);
        object["network_fraction"] = json!(self.network());
        object["straggler"] = json!(self.straggler.as_ref().map(|found| {
            let of = &self.members[found.member];
            found.object(&of.name, &of.health, &others(self.members, found.member))
        }));
        object["verdict"] = json!(sentence);
        object["slow_stage"] = json!(self.slow_stage.map(|(member, factor)| {
            let cause = self.members[member].health.cause_beside(&others(self.members, member));
            json!({"node": self.name(member), "factor": factor, "cause": cause.map(|cause| cause.to_string())})
        }));
        object["ranks"] = self.rows.iter().map(|row| self.row_object(row)).collect();
        object["layers"] = self.layer_objects(only);
        object["hand_overs"] = self.boundaries.iter().map(|boundary| self.boundary_object(boundary)).collect();
        object["faults"] =
            faults.iter().map(|(name, fault)| json!({"node": name, "fault": fault.to_string()})).collect();
        object["not_asked"] = json!(not_asked);
        let code = faults.first().map_or(0, |(_, fault)| Failure::from((*fault).clone()).code());
        Seen { lines, object, code }
    }

    fn rank_lines(&self) -> Vec<String> {
        let width = self.members.iter().map(|of| of.name.chars().count()).max().unwrap_or(0).max(4);
        let head = format!(
            "{:<width$}  {:>5}  {:>4}  {:>5}  {:>5}  {:>7}  {:>7}  {:>7}  {:>7}  {:>7}  {:>5}  {:>5}  HEALTH",
            "NODE", "STAGE", "RANK", "LATE", "LAST", "OWN", "WAIT", "WIRE", "FIRST", "WAY", "NET", "TEMP"
        );
        std::iter::once(head).chain(self.rows.iter().map(|row| self.rank_line(row, width))).collect()
    }

    fn rank_line(&self, row: &RankSyncRow, width: usize) -> String {
        let of = &self.members[row.member];
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        let [own, wait, wire] = row.means;
        let total = (own.0 + wait.0 + wire.0) as f64;
        let temperature = of.health.temperature.map_or("-".into(), |celsius| format!("{:.1}", celsius.0));
        let words: Vec<String> = of.health.warnings().iter().map(|warning| warning.short()).collect();
        let words = match (&of.fault, words.is_empty()) {
            _ if !of.is_given => "not asked".into(),
            (Some(_), _) => "does not serve".into(),
            (None, true) => "ok".into(),
            (None, false) => words.join(", "),
        };
        format!(
            "{:<width$}  {:>5}  {:>4}  {:>5}  {:>5}  {:>7}  {:>7}  {:>7}  {:>7}  {:>7}  {:>5}  {temperature:>5}  {words}",
            of.name,
            row.stage,
            row.rank,
            percent(row.late),
            percent(row.last),
            short_time(own),
            short_time(wait),
            short_time(wire),
            short_time(row.arrival[0]),
            short_time(row.arrival[1]),
            percent(ratio((wait.0 + wire.0) as f64, total)),
        )
    }

    /// A sentence on the slow stage of a pipeline, or else on its slow hop.
    fn pipeline_sentence(&self) -> Option<String> {
        let stage = self.slow_stage.map(|(member, factor)| {
            let cause = cause(&self.members[member].health, &others(self.members, member));
            let name = self.name(member);
            format!(
                "{name} is the slow stage: relative to its weights it computes {factor:.2} times as long as the \
                 other stages; {cause}."
            )
        });
        stage.or_else(|| self.slow_hop_sentence())
    }

    fn row_object(&self, row: &RankSyncRow) -> Value {
        let of = &self.members[row.member];
        let [own, wait, wire] = row.means.map(|time| time.0);
        json!({"node": of.name, "member": row.member, "rank": row.rank, "stage": row.stage, "late": row.late, "last": row.last,
            "count": row.count, "compute_ns": own, "wait_ns": wait, "wire_ns": wire,
            "first_ns": row.arrival[0].0, "way_ns": row.arrival[1].0, "network_fraction": ratio((wait + wire) as f64, (own + wait + wire) as f64),
            "cause": of.health.cause_beside(&others(self.members, row.member)).map(|cause| cause.to_string()),
            "celsius": of.health.temperature.map(|celsius| celsius.0),
            "warnings": of.health.warnings().iter().map(|warning| warning.short()).collect::<Vec<_>>()})
    }

    fn layer_lines(&self, only: &[u32]) -> Vec<String> {
        let columns: Vec<usize> = self.rows.iter().map(|row| row.member).collect();
        let titles = columns.iter().map(|member| format!("{:^20}", format!("{}  p50 p95 p99", self.name(*member))));
        let mut lines = vec![format!("{:<10}{}", "LAYER", titles.collect::<String>().trim_end())];
        for ((layer, kind), members) in self.layers.iter().filter(|((layer, _), _)| is_wanted(only, *layer)) {
            let cells: String = columns.iter().map(|member| layer_cell(members.get(member))).collect();
            lines.push(format!("{:<10}{}", format!("{layer:>3} {}", short(*kind)), cells.trim_end()));
        }
        lines
    }

    fn layer_objects(&self, only: &[u32]) -> Value {
        let wanted = self.layers.iter().filter(|((layer, _), _)| is_wanted(only, *layer));
        let objects = wanted.map(|((layer, kind), members)| {
            let ranks = members.iter().map(|(member, (histogram, count))| {
                let [p50, p95, p99] = quantiles(histogram).map(|time| time.0);
                json!({"node": self.name(*member), "count": count, "p50_ns": p50, "p95_ns": p95, "p99_ns": p99})
            });
            json!({"layer": layer, "all_reduce": short(*kind), "ranks": ranks.collect::<Value>()})
        });
        objects.collect()
    }
}

/// The quantiles of a rank at a layer; dashes if it has no all-reduce there.
fn layer_cell(found: Option<&(Histogram, usize)>) -> String {
    let times = found.map(|(histogram, _)| quantiles(histogram));
    let texts = times.map_or([(); 3].map(|()| "-".to_owned()), |times| times.map(tight_time));
    texts.map(|text| format!("{text:>6}")).join("") + "  "
}

fn is_wanted(only: &[u32], layer: u32) -> bool {
    only.is_empty() || only.contains(&layer)
}

fn short(kind: SyncKind) -> &'static str {
    match kind {
        SyncKind::Attention => "attn",
        SyncKind::FeedForward => "ffn",
    }
}

fn quantiles(histogram: &Histogram) -> [Nanoseconds; 3] {
    [0.5, 0.95, 0.99].map(|quantile| histogram.quantile(quantile).unwrap_or_default())
}

fn means(list: &[SyncRecord]) -> [Nanoseconds; 3] {
    let sums = list.iter().fold([0_u64; 3], |mut sums, record| {
        let times = [record.compute, record.wait, record.wire];
        sums.iter_mut().zip(times).for_each(|(sum, time)| *sum += time.0);
        sums
    });
    sums.map(|sum| Nanoseconds(sum / (list.len() as u64).max(1)))
}

/// Means over the records of a rank's peers: arrival of its first byte after they entered, and time from there to
/// its last byte.
fn arrival(lists: &[Vec<SyncRecord>], of: Rank) -> [Nanoseconds; 2] {
    let heard = lists.iter().flatten().flat_map(|record| &record.arrivals).filter(|arrival| arrival.rank == of);
    let (count, first, way) = heard.fold((0_u64, 0_u64, 0_u64), |(count, first, way), arrival| {
        (count + 1, first.saturating_add(arrival.first.0), way.saturating_add(arrival.way().0))
    });
    [first, way].map(|sum| Nanoseconds(sum / count.max(1)))
}

fn steps(list: &[SyncRecord]) -> usize {
    let mut steps: Vec<u64> = list.iter().map(|record| record.step).collect();
    steps.dedup();
    steps.len()
}

fn layers(members: &[Of]) -> Layers {
    let mut layers = Layers::new();
    for (member, of) in members.iter().enumerate() {
        for record in &of.records {
            let of_layer = layers.entry((record.layer.0, record.kind)).or_default();
            let (histogram, count) = of_layer.entry(member).or_default();
            histogram.record(Nanoseconds(record.wait.0 + record.wire.0));
            *count += 1;
        }
    }
    layers
}

#[cfg(test)]
mod tests;
