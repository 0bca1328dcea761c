//! `console restart`: restarts nodes one by one, the topology assigned anew after each.
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use tokio::time::Instant;

use super::{Failure, exclude::progress, interrupts::Interrupts, options, output};
use crate::client::{
    cluster::Cluster,
    event::{OperateEvent, RestartStep},
    restart::{Stopped, restart},
    with_port,
};

/// Runs the command. The first signal ends it after the node that is under way, the second at once.
pub(super) async fn run(options: options::Restart) -> Result<u8, Failure> {
    options.consent.check()?;
    let addresses: Vec<String> = options.nodes.nodes.iter().map(|node| with_port(node)).collect();
    let mut interrupts = Interrupts::listen()?;
    let cluster = interrupts.end(async { Ok::<_, Failure>(Cluster::dial(&addresses).await) }).await?;
    let which = which(&cluster, &options.only)?;
    let names: Vec<String> = cluster.nodes.iter().map(|node| cluster.name(node).to_owned()).collect();
    let named = |list: &[usize]| list.iter().map(|node| output::clean(&names[*node])).collect::<Vec<_>>();
    let question = format!("Restart {}, one by one? What runs may finish first.", named(&which).join(", "));
    let plan = json!({"restart": named(&which)});
    if !interrupts.end(options.consent.obtain(&question, &plan, options.json)).await? {
        return Ok(0);
    }
    drop(cluster);

    let begun = Instant::now();
    let stop = AtomicBool::new(false);
    let tell = |event| match event {
        OperateEvent::Restart { node, step } => {
            let name = output::clean(&names[node]);
            output::note(&match step {
                RestartStep::Draining => format!("{name} drains"),
                RestartStep::Starting => format!("{name} has ended and starts"),
                RestartStep::Assigning => format!("{name} is back; the topology is assigned anew"),
                RestartStep::Done { seconds } => format!("{name} done after {seconds:.1} s"),
            });
        }
        other => progress(&other),
    };
    let restarting = restart(&addresses, &which, &stop, &tell);
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
                output::note("ends after this node; once more ends it at once");
            }
        }
    };
    match (result, interrupted) {
        (Ok(()), _) => {
            let seconds = begun.elapsed().as_secs_f64();
            if options.json {
                output::line(&json!({"restarted": named(&which), "seconds": seconds}).to_string());
            } else {
                let nodes = if which.len() == 1 { "node" } else { "nodes" };
                output::line(&format!("{} {nodes} restarted in {seconds:.1} s", which.len()));
            }
            Ok(0)
        }
        (Err(Stopped { fault, remaining }), code) => {
            let remaining = named(&remaining);
            Err(Failure::Unfinished { fault: fault.map(Box::new), remaining, code: code.unwrap_or(130) })
        }
    }
}

/// The nodes that were named by name or address; without any all that are not out.
pub(super) fn which(cluster: &Cluster, only: &[String]) -> Result<Vec<usize>, Failure> {
    if only.is_empty() {
        cluster.usable()?;
        let is_in = |index: &usize| cluster.exclusion(&cluster.nodes[*index]).is_none();
        return Ok((0..cluster.nodes.len()).filter(is_in).collect());
    }
    only.iter().map(|who| super::exclude::find(cluster, who)).collect()
}
