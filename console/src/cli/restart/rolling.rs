//! `console restart --rolling`: a restart that the nodes store and drive themselves. The console only watches: it
//! may exit, and another console may watch, pause, resume or abort the restart.
use std::time::Duration;

use common::fault::{Fault, FaultKind};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use topology::{Rolling, rolling::Phase};

use super::{RestartOptions, Verb};

use crate::cli::{
    Failure,
    shared::{interrupts::Interrupts, output, silent::SilentNodes},
};
use crate::client::{
    cluster::Cluster,
    operate,
    recovery::{in_phase, rolling},
    session::own_name,
    with_port,
};

/// Interval between two polls.
const LOOK: Duration = Duration::from_millis(300);

/// Starts a rolling restart. Signals stop the watching, not the restart.
pub(super) async fn run(options: &RestartOptions) -> Result<u8, Failure> {
    let addresses: Vec<String> = options.nodes.nodes.iter().map(|node| with_port(node)).collect();
    let mut interrupts = Interrupts::listen()?;
    let cluster = interrupts.end(async { Ok::<_, Failure>(Cluster::dial(&addresses).await) }).await?;
    let Some(begun) = begin(options, &cluster, &mut interrupts).await? else { return Ok(0) };
    let out = super::left_out(&cluster, &options.only);
    if options.consent.yes {
        // Otherwise the question has named them.
        out.iter().for_each(|node| output::note(&format!("left out: {node}")));
    }
    if options.detach {
        tell(&begun, options.json, &[("left_out", json!(out))]);
        return Ok(0);
    }
    drop(cluster);
    interrupts.end(watch(&addresses, options.json, Some(out))).await
}

/// Watches, pauses, resumes or aborts the current rolling restart. Signals stop the watching, not the restart.
pub(super) async fn control(options: &RestartOptions, verb: Verb) -> Result<u8, Failure> {
    let addresses: Vec<String> = options.nodes.nodes.iter().map(|node| with_port(node)).collect();
    let mut interrupts = Interrupts::listen()?;
    let (what, phase) = match verb {
        Verb::Status => return interrupts.end(watch(&addresses, options.json, None)).await,
        Verb::Pause => ("Pause", Phase::Paused(format!("requested by {}", own_name()))),
        Verb::Resume => ("Resume", Phase::Runs),
        Verb::Abort => ("Abort", Phase::Aborted),
    };
    interrupts.end(open(&addresses)).await?;
    if options.consent.dry_run {
        options.consent.obtain(&format!("{what} the rolling restart?"), &Value::Null, options.json).await?;
        return Ok(0);
    }
    let changing = async {
        let cluster = Cluster::dial(&addresses).await;
        let changed = in_phase(&cluster, phase).await?;
        Ok::<_, Failure>((changed, SilentNodes::of(&cluster)))
    };
    let (changed, silent) = interrupts.end(changing).await?;
    silent.note("have missed this");
    if verb != Verb::Resume {
        tell(&changed, options.json, &[("away", silent.objects())]);
        return Ok(0);
    }
    interrupts.end(watch(&addresses, options.json, None)).await
}

/// Checks that there is a rolling restart to pause, resume or abort.
///
/// # Errors
/// There is none, or no node stores one and a node that may store it does not answer.
async fn open(addresses: &[String]) -> Result<(), Failure> {
    let cluster = Cluster::dial(addresses).await;
    match rolling(&cluster).await {
        Some(rolling) if matches!(rolling.phase, Phase::Runs | Phase::Paused(_)) => return Ok(()),
        // The nodes that answer store the latest one, unless it was started without them.
        Some(_) => SilentNodes::of(&cluster).note("store a later restart"),
        // An unreachable node may store a restart, so report the node as unreachable instead of "no restart".
        None => drop(cluster.usable()?),
    }
    Err(Failure::State {
        message: "no rolling restart is running or paused on these nodes".into(),
        next: "start one with console restart --rolling",
    })
}

/// Starts a rolling restart. `None` after a dry run or a refusal.
async fn begin(
    options: &RestartOptions,
    cluster: &Cluster,
    interrupts: &mut Interrupts,
) -> Result<Option<Rolling>, Failure> {
    options.consent.check()?;
    let which = super::which(cluster, &options.only)?;
    let names: Vec<String> = which.iter().map(|node| output::clean(cluster.name(&cluster.nodes[*node]))).collect();
    let out = super::left_out(cluster, &options.only);
    let question = format!(
        "Restart {}, one after another? Running requests pause or continue elsewhere.{}",
        names.join(", "),
        super::sentence(&out)
    );
    let plan = json!({"restart": names, "drain_ms": options.drain_ms, "left_out": out});
    if !interrupts.end(options.consent.obtain(&question, &plan, options.json)).await? {
        return Ok(None);
    }
    let begun = operate::begin(cluster, &which, options.drain_ms);
    interrupts.end(async { Ok::<_, Failure>(Some(begun.await?)) }).await
}

/// Reports each step until the restart ends or pauses. `out`: the nodes that it leaves out, if they are known.
///
/// # Errors
/// No node stores a restart, a node that may store it does not answer, or none has answered for 60 s.
async fn watch(addresses: &[String], json: bool, out: Option<Vec<String>>) -> Result<u8, Failure> {
    let begun = Instant::now();
    let mut seen: Option<u64> = None;
    let mut silent = Instant::now();
    loop {
        let cluster = Cluster::dial(addresses).await;
        let found = rolling(&cluster).await;
        match found {
            // If only a node that has just restarted answered, its state may be outdated.
            Some(rolling) if seen.is_none_or(|seen| rolling.revision >= seen) => {
                silent = Instant::now();
                let is_new = seen.replace(rolling.revision) != Some(rolling.revision);
                let is_over = !rolling.is_running();
                if is_over {
                    let silent = SilentNodes::of(&cluster);
                    silent.note("store a later restart");
                    let mut more = vec![("seconds", json!(begun.elapsed().as_secs_f64())), ("away", silent.objects())];
                    more.extend(out.map(|out| ("left_out", json!(out))));
                    tell(&rolling, json, &more);
                    return Ok(if rolling.phase == Phase::Done { 0 } else { 1 });
                }
                if is_new {
                    output::note(&line(&rolling));
                }
            }
            None if seen.is_none() => {
                // As in `open`.
                cluster.usable()?;
                let message = "no rolling restart is stored on these nodes".into();
                return Err(Failure::State { message, next: "start one with console restart --rolling" });
            }
            _ if silent.elapsed() > Duration::from_secs(60) => {
                let what = "the wait for a node that stores the rolling restart".into();
                return Err(Fault::new("console", FaultKind::Timeout { what, seconds: 60 }).into());
            }
            _ => {}
        }
        // Nodes limit the number of sessions, so none stays open between two polls.
        drop(cluster);
        sleep(LOOK).await;
    }
}

fn line(rolling: &Rolling) -> String {
    let count = format!("{} of {} done", rolling.done, rolling.targets.len());
    match (&rolling.phase, rolling.target()) {
        (Phase::Runs, Some((name, _))) if rolling.before.is_some() => {
            format!("{} is restarting; {count}", output::clean(name))
        }
        (Phase::Runs, Some((name, _))) => format!("{} is next; {count}", output::clean(name)),
        (Phase::Paused(reason), _) => format!("paused, {count}: {}", output::clean(reason)),
        (Phase::Aborted, _) => format!("aborted, {count}"),
        (Phase::Done | Phase::Runs, _) => count,
    }
}

/// Prints the state of a restart; `more`: further fields of its object.
fn tell(rolling: &Rolling, json: bool, more: &[(&str, Value)]) {
    if !json {
        return output::line(&line(rolling));
    }
    let reason = if let Phase::Paused(reason) = &rolling.phase { Some(reason) } else { None };
    let phase = match rolling.phase {
        Phase::Runs => "runs",
        Phase::Paused(_) => "paused",
        Phase::Aborted => "aborted",
        Phase::Done => "done",
    };
    let names: Value = rolling.targets.iter().map(|(name, _)| name.as_str()).collect();
    let mut object = json!({"phase": phase, "reason": reason, "done": rolling.done, "nodes": names, "seconds": null});
    more.iter().for_each(|(name, value)| object[*name] = value.clone());
    output::line(&object.to_string());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{
        fake_node::{FakeNode, Script},
        recovery::change,
    };

    #[tokio::test]
    async fn silent_spare_hides_no_restart_once_a_node_stores_one() {
        let node = FakeNode::start("pi1", Script::default()).await;
        let addresses = [node.address.clone(), "127.0.0.1:1".to_owned()];
        let found = async || open(&addresses).await.map_err(|failure| failure.code());
        assert_eq!(found().await, Err(3), "the silent node may store one");
        for (phase, expected) in [(Phase::Done, Err(8)), (Phase::Runs, Ok(()))] {
            let targets = vec![("pi1".to_owned(), node.address.clone())];
            let (before, by) = (None, "me@here".to_owned());
            let rolling = Rolling { targets, done: 0, before, phase, drain_ms: 0, by, revision: 0 };
            let cluster = Cluster::dial(&addresses).await;
            change(&cluster, |_| Ok(rolling)).await.expect("pi1 stores it");
            assert_eq!(found().await, expected);
        }
    }
}
