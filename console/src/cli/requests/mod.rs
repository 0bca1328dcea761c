//! `console requests`: shows queued, running and finished requests of the heads, and cancels requests.
use clap::Args;
use common::{fault::Fault, latency::RequestTimes};
use serde_json::{Value, json};
use telemetry::{NodeReport, RequestReport, RequestStage};

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
use crate::{
    client::{cluster::Cluster, inspect, with_port},
    view::format::milliseconds,
};

/// Options of `console requests`.
#[derive(Clone, Debug, Args)]
#[command(subcommand_negates_reqs = true)]
pub(crate) struct Requests {
    #[command(subcommand)]
    pub(crate) what: Option<What>,
    #[command(flatten)]
    pub(crate) nodes: Nodes,
    /// Number of finished requests to show per head
    #[arg(long, value_name = "N", default_value_t = 10)]
    last: usize,
    #[command(flatten)]
    pub(crate) look: Look,
}

/// Subcommands of `console requests`.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum What {
    /// Cancel a request of any client; the client receives an error
    Cancel(Cancel),
}

/// Options of `console requests cancel`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Cancel {
    /// The request as printed by console requests: NODE/NUMBER
    #[arg(value_name = "NODE/NUMBER", value_parser = name)]
    request: (String, u64),
    #[command(flatten)]
    pub(crate) nodes: Nodes,
    #[command(flatten)]
    consent: Consent,
    #[arg(from_global)]
    json: bool,
}

fn name(text: &str) -> Result<(String, u64), String> {
    let parts = text.rsplit_once('/').filter(|(node, _)| !node.is_empty());
    let parts = parts.and_then(|(node, number)| Some((node.to_owned(), number.parse().ok()?)));
    parts.ok_or_else(|| "expected NODE/NUMBER, for example pi1/12".into())
}

impl Requests {
    /// The nodes that the command contacts.
    pub(crate) fn reach(&mut self) -> Reach<'_> {
        match &mut self.what {
            Some(What::Cancel(cancel)) => Reach::Nodes(&mut cancel.nodes.nodes, Need::Acts),
            None => Reach::Nodes(&mut self.nodes.nodes, Need::Looks),
        }
    }
}

/// Runs the command.
pub(crate) async fn run(options: Requests) -> Result<u8, Failure> {
    if let Some(What::Cancel(cancel)) = options.what {
        return end(cancel).await;
    }
    look_at(&options.nodes.nodes, &options.look, async |cluster| see(cluster, options.last)).await
}

/// The name of a head and its requests.
type Told = (String, Vec<RequestReport>);

/// The requests of the heads of running topologies, or of all nodes if none runs. The exit code is that of a head that
/// does not answer; other silent nodes, which may be heads of another topology, are only named.
fn see(cluster: &Cluster, last: usize) -> Result<Seen, Failure> {
    let groups = cluster.topologies();
    let heads = groups.iter().flat_map(|(topology, _)| {
        topology.layout.heads().filter_map(move |head| Some(topology.members.get(head.index())?.name.as_str()))
    });
    let heads: Vec<&str> = heads.collect();
    let members = groups.iter().flat_map(|(topology, _)| &topology.members).map(|member| member.name.as_str());
    let members: Vec<&str> = members.collect();
    let (mut found, mut away) = (Vec::new(), Vec::new());
    let mut lost: Vec<Fault> = Vec::new();
    for node in &cluster.nodes {
        let name = cluster.name(node);
        let is_head = heads.is_empty() || heads.contains(&name);
        match &node.answer {
            Ok((_, report)) if is_head => found.push((output::clean(name), told(report, last))),
            // An excluded node does not count as missing; a cordoned one may finish requests.
            Err(fault) if cluster.may_be_member(node) && (is_head || !members.contains(&name)) => {
                away.push((output::clean(name), fault.clone()));
                lost.extend(is_head.then(|| fault.clone()));
            }
            _ => {}
        }
    }
    let code = lost.first().map_or(0, |fault| Failure::from(fault.clone()).code());
    if let (true, Some(failure)) = (found.is_empty(), Failure::of_nodes(lost, Vec::new())) {
        return Err(failure);
    }
    let heads: Value = found.iter().map(|(name, requests)| object(name, requests)).collect();
    let silent: Value = away.iter().map(|(_, fault)| Failure::error_object(fault)).collect();
    Ok(Seen { lines: lines(&found, &away), object: json!({"heads": heads, "away": silent}), code })
}

/// The queued and running requests, and the last `last` finished ones.
fn told(report: &NodeReport, last: usize) -> Vec<RequestReport> {
    let (over, open): (Vec<_>, Vec<_>) = report.traces.iter().cloned().partition(|one| one.stage.is_over());
    open.into_iter().chain(over.into_iter().take(last)).collect()
}

fn times(stage: &RequestStage) -> Option<&RequestTimes> {
    match stage {
        RequestStage::Finished(_, times) if times.sampled_tokens > 0 => Some(times),
        _ => None,
    }
}

/// A head's requests as a JSON object.
pub(crate) fn object(name: &str, requests: &[RequestReport]) -> Value {
    let one = |one: &RequestReport| {
        let times = times(&one.stage);
        let fault = if let RequestStage::Failed(fault) = &one.stage { Some(fault.to_string()) } else { None };
        let reason = if let RequestStage::Finished(reason, _) = &one.stage { Some(*reason) } else { None };
        json!({"id": format!("{name}/{}", one.number), "by": one.by, "state": one.stage.name(), "age_ms": one.age_ms,
            "prompt_tokens": one.prompt_tokens, "tokens": one.tokens, "max_tokens": one.max_tokens,
            "reason": reason, "fault": fault, "cached_tokens": times.map(|times| times.cached_tokens), "stored_tokens": times.map(|times| times.stored_tokens),
            "drafted_tokens": times.map(|times| times.drafted_tokens),
            "accepted_tokens": times.map(|times| times.accepted_tokens),
            "queued_ms": times.map(|times| times.dispatched.milliseconds()), "ttft_ms": times.map(RequestTimes::ttft_ms),
            "tpot_ms": times.map(RequestTimes::tpot_ms), "total_ms": times.map(|times| times.last_token.milliseconds()),
            "trace": times.map(crate::cli::generate::trace)})
    };
    let (ended, running): (Vec<_>, Vec<_>) = requests.iter().partition(|one| one.stage.is_over());
    let objects = |list: Vec<&RequestReport>| list.into_iter().map(one).collect::<Value>();
    json!({"node": name, "running": objects(running), "ended": objects(ended)})
}

fn lines(found: &[Told], away: &[(String, Fault)]) -> Vec<String> {
    let count =
        |is: fn(&RequestStage) -> bool| found.iter().flat_map(|(_, all)| all).filter(|one| is(&one.stage)).count();
    let queued = count(|stage| matches!(stage, RequestStage::Queued));
    let running = count(|stage| !stage.is_over()) - queued;
    let mut lines = vec![format!("{running} running, {queued} queued"), String::new()];
    lines.push(format!(
        "{:<12}  {:<9}  {:>10}  {:>7}  {:>11}  {:>10}  {:>10}  BY",
        "REQUEST", "STATE", "AGE", "PROMPT", "TOKENS", "TTFT", "TPOT"
    ));
    for is_over in [false, true] {
        for (name, requests) in found {
            let shown = requests.iter().filter(|one| one.stage.is_over() == is_over);
            lines.extend(shown.flat_map(|one| row(name, one)));
        }
    }
    lines.extend(away.iter().map(|(name, fault)| Failure::line(name, fault)));
    lines
}

fn row(name: &str, one: &RequestReport) -> Vec<String> {
    let is_over = one.stage.is_over();
    let ago = if is_over { " ago" } else { "" };
    let tokens = if is_over { one.tokens.to_string() } else { format!("{} of {}", one.tokens, one.max_tokens) };
    let time =
        |of: fn(&RequestTimes) -> f64| times(&one.stage).map_or_else(String::new, |times| milliseconds(of(times)));
    let mut lines = vec![format!(
        "{:<12}  {:<9}  {:>10}  {:>7}  {tokens:>11}  {:>10}  {:>10}  {}",
        format!("{name}/{}", one.number),
        one.stage.name(),
        format!("{}{ago}", age(one.age_ms)),
        one.prompt_tokens,
        time(RequestTimes::ttft_ms),
        time(RequestTimes::tpot_ms),
        output::clean(&one.by)
    )];
    if let RequestStage::Failed(fault) = &one.stage {
        lines.push(format!("{:<12}  {}", "", output::clean(&fault.to_string())));
    }
    lines
}

fn age(ms: u64) -> String {
    match ms as f64 / 1e3 {
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
    let node = &cluster.nodes[find(&cluster, who)?];
    let (session, report) = node.answer.as_ref().map_err(Clone::clone)?;
    let one = report.traces.iter().find(|one| one.number == *number && !one.stage.is_over());
    let request = format!("{}/{number}", output::clean(who));
    let Some(one) = one else {
        let message = format!("request {request} is neither queued nor running");
        return Err(Failure::State { message, next: "list the requests with console requests" });
    };
    let (by, tokens) = (output::clean(&one.by), one.tokens);
    let what = format!("Cancel request {request} of {by} after {tokens} of {} tokens?", one.max_tokens);
    let object = json!({"request": request, "by": by, "tokens": tokens});
    if !interrupts.end(options.consent.obtain(&what, &object, options.json)).await? {
        return Ok(0);
    }
    interrupts.end(inspect::cancel(session, *number)).await?;
    if options.json {
        let mut object = object;
        object["cancelled"] = json!(true);
        output::line(&object.to_string());
    } else {
        output::line(&format!("cancelled {request}"));
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use assignment::fixtures;
    use topology::{Layout, Member, Topology};

    use super::*;
    use crate::client::fake_node::{FakeNode, Script};

    #[tokio::test]
    async fn silent_nodes_that_may_be_heads_are_named() {
        let node = FakeNode::start("pi1", Script::default()).await;
        let [member, other] = ["127.0.0.1:1", "127.0.0.1:2"];
        let sample = fixtures::topology();
        let members = [("pi1", node.address.as_str()), ("pi2", member)].map(|(name, address)| {
            let (name, address) = (name.to_owned(), address.to_owned());
            Member { name, address, ..sample.members[0].clone() }
        });
        let mut topology = Topology { layout: Layout::tensor_parallel(2), members: members.to_vec(), ..sample };
        node.serves(&topology, 0, true);
        let seen = async |addresses: &[&str]| {
            let addresses: Vec<String> = addresses.iter().map(|address| (*address).to_owned()).collect();
            see(&Cluster::dial(&addresses).await, 10).expect("a head answers")
        };
        let quiet = seen(&[node.address.as_str(), member]).await;
        assert_eq!((quiet.code, &quiet.object["away"]), (0, &json!([])), "pi2 is no head");
        let spare = seen(&[node.address.as_str(), member, other]).await;
        assert_eq!((spare.code, &spare.object["away"][0]["node"]), (0, &json!(other)), "every known head answers");
        assert!(spare.lines.last().is_some_and(|line| line.starts_with(other)), "{:?}", spare.lines);
        topology.layout = Layout::alike(2, 1, 1);
        node.serves(&topology, 0, true);
        let lost = seen(&[node.address.as_str(), member]).await;
        assert_eq!((lost.code, &lost.object["away"][0]["node"]), (3, &json!(member)), "pi2 is a head");
        node.forget();
        let unsure = seen(&[node.address.as_str(), other]).await;
        assert_eq!((unsure.code, &unsure.object["away"][0]["node"]), (3, &json!(other)), "no head is known");
        let none = see(&Cluster::dial(&[member.to_owned(), other.to_owned()]).await, 10);
        let failure = none.map(|seen| seen.code).expect_err("no node answers");
        assert!(failure.code() == 3 && failure.to_string().contains(other), "{failure}");
    }

    #[test]
    fn a_request_is_named_by_node_and_number() {
        assert_eq!(name("pi1/12"), Ok(("pi1".into(), 12)));
        assert_eq!(name("[fe80::1]:9999/3"), Ok(("[fe80::1]:9999".into(), 3)));
        for text in ["12", "/12", "pi1/", "pi1/x", "pi1/-1"] {
            assert!(name(text).is_err_and(|error| error.contains("NODE/NUMBER")), "{text}");
        }
    }
}
