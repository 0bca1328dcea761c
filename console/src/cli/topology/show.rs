//! `console topology show`: prints the running topology as a file.
use clap::Args;
use serde_json::json;

use crate::{
    cli::{
        Failure,
        shared::{
            options::Nodes,
            other_topologies, output,
            silent::SilentNodes,
            watch::{Look, Seen, look_at},
        },
    },
    client::cluster::Cluster,
    operator::topology_file::TopologyFile,
};

/// Options of `console topology show`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ShowTopology {
    #[command(flatten)]
    pub(super) nodes: Nodes,
    #[command(flatten)]
    look: Look,
}

/// Runs `console topology show`.
pub(super) async fn run(options: &ShowTopology) -> Result<u8, Failure> {
    look_at(&options.nodes.nodes, &options.look, async |cluster| see(cluster)).await
}

fn see(cluster: &Cluster) -> Result<Seen, Failure> {
    let Some((topology, reports)) = cluster.topology() else {
        // An unreachable node may hold a topology, so report the node as unreachable instead of "no topology".
        cluster.usable()?;
        let message = "no topology runs on these nodes".to_owned();
        return Err(Failure::State {
            message,
            next: "start one with console topology assign FILE or console generate --topology tpN",
        });
    };
    let file = TopologyFile::of(topology);
    let epoch = reports.first().map(|report| report.epoch.0);
    let (layout, serving) = (topology.layout.to_string(), cluster.is_serving());
    let silent = SilentNodes::of(cluster);
    let object = json!({"layout": layout, "epoch": epoch, "serving": serving, "file": file,
        "others": other_topologies::objects(cluster), "away": silent.objects()});
    let mut lines = vec![format!("# {layout} on {} nodes", topology.members.len())];
    // As comments of the file.
    let others = other_topologies::lines(cluster, "console topology show");
    lines.extend(others.into_iter().chain(silent.lines()).map(|line| format!("# {}", line.replace('\n', " "))));
    lines.extend(output::clean(&file.text()).lines().map(str::to_owned));
    Ok(Seen { lines, object, code: 0 })
}
