//! `console kv`: shows the keys and values that nodes keep on their disks or in memory, and deletes them.
use clap::{Args, Subcommand};
use common::fault::Fault;
use serde_json::{Value, json};
use telemetry::{NodeReport, StoreCleared, StoreUse};

use crate::cli::{
    Failure,
    shared::{
        confirm::Consent,
        find_node::find,
        interrupts::Interrupts,
        need::{Need, Reach},
        options::Nodes,
        output,
        watch::{Look, Seen, look_at},
    },
};
use crate::client::{
    cluster::{Cluster, ClusterNode},
    inspect, with_port,
};

/// Options of `console kv`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Kv {
    #[command(subcommand)]
    what: Option<KvCommand>,
    #[command(flatten)]
    list: KvList,
}

/// Subcommands of `console kv`.
#[derive(Clone, Debug, Subcommand)]
enum KvCommand {
    /// Show the stored keys and values of each node, as without a subcommand
    List(KvList),
    /// Delete the stored keys and values; running requests continue, later prompts are computed again
    Clear(KvClear),
}

/// Options of `console kv list`.
#[derive(Clone, Debug, Args)]
struct KvList {
    #[command(flatten)]
    nodes: Nodes,
    #[command(flatten)]
    look: Look,
}

/// Options of `console kv clear`.
#[derive(Clone, Debug, Args)]
struct KvClear {
    #[command(flatten)]
    nodes: Nodes,
    /// Act only on this node (name or address); repeatable [default: all of --nodes]
    #[arg(long, value_name = "NODE")]
    node: Vec<String>,
    #[command(flatten)]
    consent: Consent,
    #[arg(from_global)]
    json: bool,
}

impl Kv {
    /// The nodes that the command contacts.
    pub(crate) fn reach(&mut self) -> Reach<'_> {
        match &mut self.what {
            Some(KvCommand::Clear(clear)) => Reach::Nodes(&mut clear.nodes.nodes, Need::Acts),
            Some(KvCommand::List(list)) => Reach::Nodes(&mut list.nodes.nodes, Need::Looks),
            None => Reach::Nodes(&mut self.list.nodes.nodes, Need::Looks),
        }
    }
}

/// Runs the command.
pub(crate) async fn run(options: Kv) -> Result<u8, Failure> {
    let list = match options.what {
        Some(KvCommand::Clear(options)) => {
            let mut interrupts = Interrupts::listen()?;
            return interrupts.end(clear(options)).await;
        }
        Some(KvCommand::List(list)) => list,
        None => options.list,
    };
    look_at(&list.nodes.nodes, &list.look, async |cluster| Ok(see(cluster))).await
}

/// The stores of all nodes. The exit code is that of a node that does not answer and is not excluded.
fn see(cluster: &Cluster) -> Seen {
    let heads = ["NODE", "BYTES", "BOUND", "FILES", "HITS", "READ", "WRITTEN", "REFUSED"];
    let mut seen = Seen { lines: vec![row(&heads.map(String::from), "STATE")], ..Seen::default() };
    let mut nodes = Vec::new();
    for node in &cluster.nodes {
        let name = output::clean(cluster.name(node));
        match node.answer.as_ref().map(|(_, report)| report) {
            Ok(NodeReport { store: Some(store), .. }) => {
                seen.lines.push(line(&name, store));
                nodes.push(object(&name, store));
            }
            Ok(_) => {
                seen.lines.push(format!("{name:<10}  its release does not report this"));
                nodes.push(json!({"node": name, "store": null}));
            }
            Err(fault) => {
                seen.lines.push(output::clean(&format!("{name:<10}  {}; {}", fault.kind, fault.next())));
                nodes.push(failed(&name, fault));
                if cluster.may_be_member(node) {
                    seen.code = Failure::from(fault.clone()).code();
                }
            }
        }
    }
    seen.object = json!({"nodes": nodes});
    seen
}

fn row(cells: &[String; 8], state: &str) -> String {
    let [name, bytes, bound, files, hits, read, written, refused] = cells;
    format!(
        "{name:<10}  {bytes:>10}  {bound:>10}  {files:>6}  {hits:>6}  {read:>9}  {written:>9}  {refused:>7}  {state}"
    )
}

fn line(name: &str, store: &StoreUse) -> String {
    let counts = [u64::from(store.files), store.hits, store.tokens_read, store.tokens_written, store.files_refused];
    let [files, hits, read, written, refused] = counts.map(|count| count.to_string());
    let (bytes, bound) = (store.bytes.to_string(), store.bytes_max.to_string());
    let disk = store.storage.map_or("unknown disk", |storage| storage.name());
    let memory = if store.in_memory { ", copies in memory" } else { "" };
    let state = format!("{}, {disk}{memory}", store.state.reason());
    row(&[name.into(), bytes, bound, files, hits, read, written, refused], &state)
}

fn object(name: &str, store: &StoreUse) -> Value {
    json!({"node": name, "store": {"on": store.state.is_on(), "reason": store.state.reason(), "disk": store.storage, "in_memory": store.in_memory,
        "bytes": store.bytes.0, "bytes_max": store.bytes_max.0, "files": store.files, "hits": store.hits,
        "tokens_read": store.tokens_read, "tokens_written": store.tokens_written,
        "files_refused": store.files_refused}})
}

fn failed(name: &str, fault: &Fault) -> Value {
    json!({"node": name, "error": Failure::error_object(fault)})
}

async fn clear(options: KvClear) -> Result<u8, Failure> {
    options.consent.check()?;
    let addresses: Vec<String> = options.nodes.nodes.iter().map(|node| with_port(node)).collect();
    let cluster = Cluster::dial(&addresses).await;
    let chosen: Vec<&ClusterNode> = match options.node.is_empty() {
        true => cluster.nodes.iter().collect(),
        false => {
            let places = options.node.iter().map(|node| find(&cluster, node)).collect::<Result<Vec<_>, _>>()?;
            places.into_iter().map(|place| &cluster.nodes[place]).collect()
        }
    };
    let names: Vec<String> = chosen.iter().map(|node| output::clean(cluster.name(node))).collect();
    let question = format!("Delete the stored keys and values on {}?", names.join(", "));
    if !options.consent.obtain(&question, &json!({"nodes": names}), options.json).await? {
        return Ok(0);
    }
    let (mut objects, mut code) = (Vec::new(), 0);
    for (node, name) in chosen.iter().zip(&names) {
        let cleared = match node.session() {
            Ok(session) => inspect::clear_store(&session).await,
            Err(fault) => Err(fault),
        };
        let line = match &cleared {
            Ok(StoreCleared { files, bytes }) => {
                objects.push(json!({"node": name, "files": files, "bytes": bytes.0}));
                format!("{name}: deleted {files} files, {bytes}")
            }
            Err(fault) => {
                objects.push(failed(name, fault));
                // An excluded node that does not answer is expected only if it was named.
                if !options.node.is_empty() || node.answer.is_ok() || cluster.may_be_member(node) {
                    code = Failure::from(fault.clone()).code();
                }
                Failure::line(name, fault)
            }
        };
        if !options.json {
            output::line(&line);
        }
    }
    if options.json {
        output::line(&json!({"cleared": objects}).to_string());
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use common::units::Bytes;
    use telemetry::{StoreState, health::Storage};

    use super::*;

    #[test]
    fn line_shows_state_disk_and_figures() {
        let store = StoreUse {
            state: StoreState::OnFastDisk,
            storage: Some(Storage::Nvme),
            bytes: Bytes(3 << 20),
            bytes_max: Bytes(16 << 30),
            files: 12,
            hits: 5,
            tokens_read: 640,
            ..StoreUse::default()
        };
        let text = line("pi1", &store);
        for part in ["pi1", "3.0 MiB", "16.0 GiB", " 12 ", " 5 ", " 640 ", "on (fast disk), NVMe"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(line("pi1", &StoreUse::default()).ends_with("off (kv_store = \"off\"), unknown disk"));
    }
}
