//! `console restart`: restarts nodes one by one and assigns the topology again after each.
mod rolling;

use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use serde_json::json;
use tokio::time::Instant;

use crate::cli::{
    Failure,
    shared::{confirm::Consent, find_node::progress, interrupts::Interrupts, options::Nodes, output},
};
use crate::client::operate;
use crate::client::{
    cluster::Cluster,
    event::{OperateEvent, RestartStep},
    restart::{Stopped, restart},
    with_port,
};

/// Runs the command.
pub(crate) async fn run(options: RestartOptions) -> Result<u8, Failure> {
    match options.verb()? {
        Some(verb) => rolling::control(&options, verb).await,
        None if options.rolling => rolling::run(&options).await,
        None => one_by_one(options).await,
    }
}

/// Restarts the nodes from here. The first signal stops it after the current node, the second stops it at once.
async fn one_by_one(options: RestartOptions) -> Result<u8, Failure> {
    options.consent.check()?;
    let addresses: Vec<String> = options.nodes.nodes.iter().map(|node| with_port(node)).collect();
    let mut interrupts = Interrupts::listen()?;
    let cluster = interrupts.end(async { Ok::<_, Failure>(Cluster::dial(&addresses).await) }).await?;
    let which = which(&cluster, &options.only)?;
    let names: Vec<String> = cluster.nodes.iter().map(|node| cluster.name(node).to_owned()).collect();
    let named = |list: &[usize]| list.iter().map(|node| output::clean(&names[*node])).collect::<Vec<_>>();
    let out = left_out(&cluster, &options.only);
    let question =
        format!("Restart {}, one by one? Running requests finish first.{}", named(&which).join(", "), sentence(&out));
    let plan = json!({"restart": named(&which), "left_out": out});
    if !interrupts.end(options.consent.obtain(&question, &plan, options.json)).await? {
        return Ok(0);
    }
    drop(cluster);

    let begun = Instant::now();
    let stop = AtomicBool::new(false);
    let restarting = async { restart(&addresses, &which, &stop, &|event| tell(&names, event)).await };
    tokio::pin!(restarting);
    let mut interrupted = None;
    let result = loop {
        tokio::select! {
            result = &mut restarting => break result,
            code = interrupts.next() => {
                if interrupted.replace(code).is_some() {
                    return Err(Failure::Interrupted { code });
                }
                stop.store(true, Ordering::Release);
                output::note("stopping after this node; interrupt again to stop at once");
            }
        }
    };
    match (result, interrupted) {
        (Ok(()), _) => {
            let seconds = begun.elapsed().as_secs_f64();
            if options.json {
                let object = json!({"restarted": named(&which), "seconds": seconds, "left_out": out});
                output::line(&object.to_string());
            } else {
                let nodes = if which.len() == 1 { "node" } else { "nodes" };
                let rest = if out.is_empty() { String::new() } else { format!(".{}", sentence(&out)) };
                output::line(&format!("{} {nodes} restarted in {seconds:.1} s{rest}", which.len()));
            }
            Ok(0)
        }
        (Err(Stopped { fault, remaining }), code) => {
            let remaining = named(&remaining);
            Err(Failure::Unfinished { fault: fault.map(Box::new), remaining, code: code.unwrap_or(130) })
        }
    }
}

/// Prints the progress of a restart of nodes with these names.
fn tell(names: &[String], event: OperateEvent) {
    let OperateEvent::Restart { node, step } = event else { return progress(&event) };
    let name = output::clean(&names[node]);
    output::note(&match step {
        RestartStep::Draining => format!("{name}: draining"),
        RestartStep::Starting => format!("{name}: stopped, starting again"),
        RestartStep::Assigning => format!("{name}: started, assigning the topology again"),
        RestartStep::Done { seconds } => format!("{name}: done after {seconds:.1} s"),
    });
}

/// The indices of the nodes given by name or address; without any, of all nodes that are not excluded.
pub(crate) fn which(cluster: &Cluster, only: &[String]) -> Result<Vec<usize>, Failure> {
    if only.is_empty() {
        cluster.usable()?;
        let all = 0..cluster.nodes.len();
        return Ok(all.filter(|index| cluster.exclusion(&cluster.nodes[*index]).is_none()).collect());
    }
    only.iter().map(|who| crate::cli::shared::find_node::find(cluster, who)).collect()
}

/// Without named nodes, the excluded and cordoned nodes, which are not restarted.
fn left_out(cluster: &Cluster, only: &[String]) -> Vec<String> {
    let out = cluster.nodes.iter().filter(|node| only.is_empty() && cluster.exclusion(node).is_some());
    out.map(|node| {
        let how = if cluster.is_cordoned(node) { "cordoned" } else { "excluded" };
        format!("{} ({how})", output::clean(cluster.name(node)))
    })
    .collect()
}

/// ` Left out: pi2 (cordoned). Name it to restart it.`, or nothing.
fn sentence(out: &[String]) -> String {
    let it = if out.len() == 1 { "it" } else { "them" };
    if out.is_empty() { String::new() } else { format!(" Left out: {}. Name {it} to restart {it}.", out.join(", ")) }
}

/// Options of `console restart`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RestartOptions {
    /// Restart only these nodes, by name or address, in this order [default: all nodes that are not excluded]; or one of
    /// status (watch the rolling restart), pause, resume, abort (each after the current node)
    #[arg(value_name = "NODE|status|pause|resume|abort")]
    only: Vec<String>,
    /// Let the nodes restart one another, independently of this console; running requests drain for up to
    /// --drain-ms, then continue elsewhere or later
    #[arg(long)]
    rolling: bool,
    /// Longest drain of a node in a rolling restart, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = operate::DRAIN_MS, value_parser = clap::value_parser!(u32).range(0..=600_000))]
    drain_ms: u32,
    /// Start a rolling restart without watching it
    #[arg(long, requires = "rolling")]
    detach: bool,
    #[command(flatten)]
    pub(crate) nodes: Nodes,
    #[command(flatten)]
    consent: Consent,
    #[arg(from_global)]
    json: bool,
}

/// What to do with the rolling restart that the nodes drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Status,
    Pause,
    Resume,
    Abort,
}

impl Verb {
    fn named(word: &str) -> Option<Self> {
        match word {
            "status" => Some(Self::Status),
            "pause" => Some(Self::Pause),
            "resume" => Some(Self::Resume),
            "abort" => Some(Self::Abort),
            _ => None,
        }
    }
}

impl RestartOptions {
    /// The verb, if the first word is one.
    fn verb(&self) -> Result<Option<Verb>, Failure> {
        let Some((first, rest)) = self.only.split_first() else { return Ok(None) };
        let verb = Verb::named(first);
        if verb.is_some() && (!rest.is_empty() || self.rolling) {
            let message = format!("console restart {first} concerns the whole rolling restart and takes no nodes");
            return Err(Failure::Usage { message, next: "give a node of this name by its address" });
        }
        Ok(verb)
    }
}
