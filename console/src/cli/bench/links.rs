//! `console bench links`: round-trip times, throughput and incast of the links between nodes, measured by the nodes on
//! separate connections.
use std::io::IsTerminal;

use clap::Args;
use protocol::network::{PINGS_DEFAULT, PINGS_MAX, STREAM_MS, STREAM_MS_DEFAULT};
use serde_json::json;
use telemetry::{BenchProgress, NetworkBench, bench::network_table};
use tokio_util::sync::CancellationToken;

use crate::{
    cli::{
        Failure,
        shared::{interrupts::Interrupts, output, sessions::open_included},
    },
    client::network::{Effort, measure},
};

/// Options of `console bench links`.
#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct Links {
    /// At least two nodes.
    #[arg(skip)]
    pub(super) nodes: Vec<String>,
    /// Number of round trips of a small message on each link
    #[arg(long, value_name = "N", default_value_t = PINGS_DEFAULT,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(PINGS_MAX)))]
    pings: u32,
    /// Milliseconds for which each node streams to each other node
    #[arg(long, value_name = "MS", default_value_t = STREAM_MS_DEFAULT,
        value_parser = clap::value_parser!(u32).range(*STREAM_MS.start() as i64..=*STREAM_MS.end() as i64))]
    stream_ms: u32,
    /// Skip the incast measurement, in which all other nodes stream to one at once
    #[arg(long)]
    no_incast: bool,
    #[arg(from_global)]
    json: bool,
}

/// Runs the command. A signal closes its sessions, which ends the measurements on the nodes.
pub(super) async fn run(options: Links) -> Result<u8, Failure> {
    check_count(options.nodes.len(), "given")?;
    let MeasuredLinks { found, left_out } = Interrupts::listen()?.end(find(&options)).await?;
    if options.json {
        let nodes =
            found.iter().map(|(name, bench)| json!({"node": name, "links": bench.links, "incast": bench.incast}));
        let nodes: Vec<serde_json::Value> = nodes.collect();
        let object = json!({"pings": options.pings, "stream_ms": options.stream_ms, "nodes": nodes,
            "left_out": left_out});
        output::line(&object.to_string());
    } else {
        network_table(&found).iter().for_each(|line| output::line(&output::clean(line)));
    }
    Ok(0)
}

fn check_count(nodes: usize, which: &str) -> Result<(), Failure> {
    if nodes >= 2 {
        return Ok(());
    }
    let message = format!("cannot measure links: at least 2 nodes are needed, {nodes} {which}");
    Err(Failure::Usage { message, next: "pass at least two: --nodes A,B" })
}

/// The links of all nodes that are not excluded.
struct MeasuredLinks {
    /// The results, with the names of the nodes.
    found: Vec<(String, NetworkBench)>,
    /// Names of the excluded nodes.
    left_out: Vec<String>,
}

async fn find(options: &Links) -> Result<MeasuredLinks, Failure> {
    let (sessions, left_out) = open_included(&options.nodes).await?;
    check_count(sessions.len(), "not excluded")?;
    let effort = Effort { pings: options.pings, stream_ms: options.stream_ms, incast: !options.no_incast };
    let found = measure(&sessions, effort, &tell, &CancellationToken::new()).await?;
    let found = sessions.iter().map(|session| session.identity.name.clone()).zip(found).collect();
    Ok(MeasuredLinks { found, left_out })
}

/// Shows the current measurement if standard error is a terminal.
fn tell(name: &str, progress: &BenchProgress) {
    if std::io::stderr().is_terminal() {
        output::note(&format!("{}: {}", output::clean(name), output::clean(&progress.to_string())));
    }
}
