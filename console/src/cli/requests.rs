//! `console requests`: what waits, runs and ran on the heads; and ending somebody's request.
use clap::Args;
use serde_json::{Value, json};
use shared::protocol::{
    inspect::{EndedRequest, HeadRequests, RequestPhase, RunningRequest},
    message::FinishReason,
};

use super::{
    Failure,
    confirm::Consent,
    exclude::find,
    interrupts::Interrupts,
    look::{Look, Seen, look_at},
    options::Nodes,
    output,
};
use crate::{
    client::{cluster::Cluster, inspect, with_port},
    view::format::milliseconds,
};

/// `console requests`.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct Requests {
    #[command(subcommand)]
    pub(super) what: Option<What>,
    #[command(flatten)]
    pub(super) nodes: Nodes,
    /// Ended requests to show, of each head
    #[arg(long, value_name = "N", default_value_t = 10)]
    last: usize,
    #[command(flatten)]
    pub(super) look: Look,
}

/// What to do with requests.
#[derive(Clone, Debug, clap::Subcommand)]
pub(super) enum What {
    /// End a request, whoever asked for it: that one hears that it was cancelled
    Cancel(Cancel),
}

/// Options of `console requests cancel`.
#[derive(Clone, Debug, Args)]
pub(super) struct Cancel {
    /// The request as `console requests` names it: NODE/NUMBER
    #[arg(value_name = "NODE/NUMBER", value_parser = name)]
    request: (String, u64),
    #[command(flatten)]
    pub(super) nodes: Nodes,
    #[command(flatten)]
    consent: Consent,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn name(text: &str) -> Result<(String, u64), String> {
    let parts = text.rsplit_once('/').filter(|(node, _)| !node.is_empty());
    let parts = parts.and_then(|(node, number)| Some((node.to_owned(), number.parse().ok()?)));
    parts.ok_or_else(|| "NODE/NUMBER, for example pi1/12".into())
}

impl Requests {
    /// Whether an object is wanted.
    pub(super) fn json(&self) -> bool {
        match &self.what {
            Some(What::Cancel(cancel)) => cancel.json,
            None => self.look.json,
        }
    }
}

/// Runs the command.
pub(super) async fn run(options: Requests) -> Result<u8, Failure> {
    if let Some(What::Cancel(cancel)) = options.what {
        return end(cancel).await;
    }
    look_at(&options.nodes.nodes, &options.look, async |cluster| see(cluster, options.last).await).await
}

/// The heads of what runs, or all nodes where nothing does: ended requests are remembered all the same.
async fn see(cluster: &Cluster, last: usize) -> Result<Seen, Failure> {
    let heads: Vec<String> = cluster.topology().map_or_else(Vec::new, |(topology, _)| {
        topology.layout.heads().filter_map(|head| Some(topology.members.get(head.index())?.name.clone())).collect()
    });
    let (mut found, mut missing) = (Vec::new(), None);
    for node in &cluster.nodes {
        let name = cluster.name(node);
        if !heads.is_empty() && !heads.iter().any(|head| head == name) {
            continue;
        }
        match node.session() {
            Ok(session) => found.push((output::clean(name), inspect::requests(&session).await?)),
            // A node that is out is not missed.
            Err(fault) if cluster.exclusion(node).is_none() => missing = Some(fault),
            Err(_) => {}
        }
    }
    if let (true, Some(fault)) = (found.is_empty(), &missing) {
        return Err(fault.clone().into());
    }
    for (_, requests) in &mut found {
        requests.ended.drain(..requests.ended.len().saturating_sub(last));
    }
    let code = missing.as_ref().map_or(0, |fault| Failure::from(fault.clone()).code());
    let heads = found.iter().map(|(name, requests)| object(name, requests)).collect::<Value>();
    let away = missing.map(|fault| fault.node);
    Ok(Seen { lines: lines(&found), object: json!({"heads": heads, "away": away}), code })
}

/// A head's requests as an object.
pub(super) fn object(name: &str, requests: &HeadRequests) -> Value {
    let running = |one: &RunningRequest| {
        json!({"id": format!("{name}/{}", one.number), "by": one.by, "phase": one.phase.name(), "age_ms": one.age.milliseconds(),
            "prompt_tokens": one.prompt_tokens, "tokens": one.tokens, "max_tokens": one.max_tokens})
    };
    let ended = |one: &EndedRequest| {
        let times = &one.times;
        let reached = |time: f64| (one.reason.is_some() && times.last_token.0 > 0).then_some(time);
        json!({"id": format!("{name}/{}", one.number), "by": one.by, "ago_ms": one.ago.milliseconds(), "reason": one.reason,
            "fault": one.fault, "prompt_tokens": times.prompt_tokens, "cached_tokens": times.cached_tokens, "tokens": one.tokens,
            "queued_ms": reached(times.dispatched.milliseconds()), "ttft_ms": reached(times.ttft_ms()),
            "tpot_ms": reached(times.tpot_ms()), "total_ms": reached(times.last_token.milliseconds())})
    };
    json!({"node": name, "running": requests.running.iter().map(running).collect::<Value>(),
        "ended": requests.ended.iter().map(ended).collect::<Value>()})
}

fn lines(found: &[(String, HeadRequests)]) -> Vec<String> {
    let all = || found.iter().flat_map(|(_, requests)| &requests.running);
    let queued = all().filter(|one| one.phase == RequestPhase::Queued).count();
    let mut lines = vec![format!("{} running, {queued} queued", all().count() - queued), String::new()];
    lines.push(format!(
        "{:<12}  {:<9}  {:>8}  {:>7}  {:>11}  {:>10}  {:>10}  BY",
        "REQUEST", "STATE", "AGE", "PROMPT", "TOKENS", "TTFT", "TPOT"
    ));
    for (name, requests) in found {
        for one in &requests.running {
            let tokens = format!("{} of {}", one.tokens, one.max_tokens);
            lines.push(format!(
                "{:<12}  {:<9}  {:>8}  {:>7}  {tokens:>11}  {:>10}  {:>10}  {}",
                format!("{name}/{}", one.number),
                one.phase.name(),
                age(one.age.milliseconds()),
                one.prompt_tokens,
                "",
                "",
                output::clean(&one.by)
            ));
        }
    }
    for (name, requests) in found {
        for one in requests.ended.iter().rev() {
            let has_times = one.times.last_token.0 > 0;
            let time = |value: f64| if has_times { milliseconds(value) } else { "-".into() };
            lines.push(format!(
                "{:<12}  {:<9}  {:>8}  {:>7}  {:>11}  {:>10}  {:>10}  {}",
                format!("{name}/{}", one.number),
                ending(one.reason),
                format!("-{}", age(one.ago.milliseconds())),
                one.times.prompt_tokens,
                one.tokens,
                time(one.times.ttft_ms()),
                time(one.times.tpot_ms()),
                output::clean(&one.by)
            ));
            if let Some(fault) = &one.fault {
                lines.push(format!("{:<12}  {}", "", output::clean(fault)));
            }
        }
    }
    lines
}

fn ending(reason: Option<FinishReason>) -> &'static str {
    match reason {
        Some(FinishReason::Stop) => "stopped",
        Some(FinishReason::Length) => "done",
        Some(FinishReason::Context) => "full",
        Some(FinishReason::Cancelled) => "cancelled",
        None => "failed",
    }
}

fn age(ms: f64) -> String {
    match ms / 1e3 {
        seconds if seconds < 100.0 => format!("{seconds:.1} s"),
        seconds if seconds < 6000.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.0} h", seconds / 3600.0),
    }
}

async fn end(options: Cancel) -> Result<u8, Failure> {
    options.consent.check()?;
    let (who, number) = &options.request;
    let addresses: Vec<String> = options.nodes.nodes.iter().map(|node| with_port(node)).collect();
    let mut interrupts = Interrupts::listen()?;
    let cluster = interrupts.end(async { Ok::<_, Failure>(Cluster::dial(&addresses).await) }).await?;
    let session = cluster.nodes[find(&cluster, who)?].session()?;
    let known = interrupts.end(inspect::requests(&session)).await?;
    let one = known.running.iter().find(|one| one.number == *number);
    let request = format!("{}/{number}", output::clean(who));
    let Some(one) = one else {
        let message = format!("no request {request} waits or runs");
        return Err(Failure::Usage { message, next: "console requests names those that do" });
    };
    let (by, tokens) = (output::clean(&one.by), one.tokens);
    let what = format!("End request {request} of {by} after {tokens} of {} tokens?", one.max_tokens);
    let object = json!({"request": request, "by": by, "tokens": tokens});
    if !interrupts.end(options.consent.obtain(&what, &object, options.json)).await? {
        return Ok(0);
    }
    interrupts.end(inspect::cancel(&session, *number)).await?;
    if options.json {
        let mut object = object;
        object["cancelled"] = json!(true);
        output::line(&object.to_string());
    } else {
        output::line(&format!("{request} is cancelled"));
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_named_by_node_and_number() {
        assert_eq!(name("pi1/12"), Ok(("pi1".into(), 12)));
        assert_eq!(name("[fe80::1]:9999/3"), Ok(("[fe80::1]:9999".into(), 3)));
        for text in ["12", "/12", "pi1/", "pi1/x", "pi1/-1"] {
            assert!(name(text).is_err_and(|error| error.contains("NODE/NUMBER")), "{text}");
        }
    }
}
