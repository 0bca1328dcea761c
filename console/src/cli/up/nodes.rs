//! The first steps of `console up`: which nodes there are, and giving the key to those without one.
use std::{path::Path, time::Duration};

use anyhow::anyhow;
use common::fault::{Fault, FaultKind};
use protocol::noise::pake::Code;
use tokio::task::JoinSet;

use super::{Up, log::SetupLog};
use crate::cli::{
    Failure, key,
    node::discover,
    shared::{confirm::has_person, output},
};
use crate::client::{clusters::Kept, session, with_port};

/// How long to listen for announcements.
const LISTEN: Duration = Duration::from_secs(3);

/// The nodes: given, of the saved cluster, or announced on the network.
///
/// # Errors
/// There are none, or the operator declined those that were found.
pub(super) async fn find(
    options: &Up,
    saved: Option<&(String, Kept)>,
    log: &mut SetupLog,
) -> Result<Vec<String>, Failure> {
    let (what, command) = ("find the nodes", "console node discover");
    if !options.given.is_empty() {
        log.skip(what, command, &format!("given: {}", options.given.join(", ")));
        return Ok(options.given.clone());
    }
    if let Some((name, kept)) = saved {
        log.skip(what, command, &format!("cluster {name}: {}", kept.nodes.join(", ")));
        return Ok(kept.nodes.clone());
    }
    log.begin(what, command);
    let listening = tokio::task::spawn_blocking(|| discover::listen(LISTEN, discover::NODES_MAX));
    let found = listening.await.map_err(|error| anyhow!(error))??;
    if found.is_empty() {
        return Err(Failure::State {
            message: "no node announces itself on this network".into(),
            next: "start brambled on each node, or name the nodes: console up ADDRESS ADDRESS",
        });
    }
    let addresses: Vec<String> = found.keys().map(ToString::to_string).collect();
    let mut nodes = Vec::new();
    for ((node, announced), answer) in addresses.iter().cloned().zip(found.values()).zip(dial(&addresses).await) {
        let is_of_others = announced.claimed == Some(true) && answer.is_err_and(|fault| has_other_key(&fault));
        if is_of_others {
            output::note(&format!("      {} at {node} belongs to another cluster", output::clean(&announced.name)));
            continue;
        }
        output::note(&format!("      {} at {node}", output::clean(&announced.name)));
        nodes.push(node);
    }
    if nodes.is_empty() {
        return Err(Failure::State {
            message: "all nodes that announce themselves belong to another cluster".into(),
            next: "pass the key of that cluster with --key FILE, or name other nodes: console up ADDRESS ADDRESS",
        });
    }
    if !log.is_rehearsal() {
        let question = format!("      Set up these {} nodes as one cluster?", nodes.len());
        options.consent.obtain_late(&question, &serde_json::json!({"nodes": nodes}), options.json).await?;
    }
    log.done(&nodes.join(", "));
    Ok(nodes)
}

/// Whether a node has a key, but not that of this console.
fn has_other_key(fault: &Fault) -> bool {
    matches!(fault.kind, FaultKind::KeyDiffers | FaultKind::KeyNeeded)
}

/// Gives the key to the nodes that have none. Whether all nodes can be asked now, which a dry run may not achieve.
///
/// # Errors
/// A node does not answer, has another key, or refuses the code; there is no code for it.
pub(super) async fn adopt(options: &Up, nodes: &[String], key: &Path, log: &mut SetupLog) -> Result<bool, Failure> {
    let what = "adopt the nodes";
    let how = if options.ssh { "--ssh" } else { "--code CODE,.." };
    let command = |nodes: &[&str]| format!("console key adopt {} {how}", nodes.join(" "));
    if !key.exists() {
        log.plan(what, &command(&nodes.iter().map(String::as_str).collect::<Vec<_>>()));
        return Ok(false);
    }
    let places = without_key(nodes).await?;
    let lacking: Vec<&str> = places.iter().map(|place| nodes[*place].as_str()).collect();
    if lacking.is_empty() {
        log.skip(what, &command(&["NODE.."]), "all nodes have the key");
        return Ok(true);
    }
    if log.is_rehearsal() {
        log.plan(what, &command(&lacking));
        return Ok(false);
    }
    let codes = codes(&options.code, options.ssh || has_person(), nodes.len(), &places)?;
    log.begin(what, &command(&lacking));
    let secret = key::adopt::secret(key)?;
    let mut names = Vec::new();
    for (index, node) in lacking.iter().enumerate() {
        let adopted = match codes.get(index) {
            None if !options.ssh => key::adopt::give_asked(node, &secret).await?,
            code => key::adopt::give(node, code, &secret).await?,
        };
        let name = adopted.node;
        output::note(&format!("      {} ({node}) has the key", output::clean(&name)));
        names.push(name);
    }
    log.done(&names.join(", "));
    Ok(true)
}

/// Dials all nodes at once: whether each accepts this console, in the same order.
async fn dial(nodes: &[String]) -> Vec<Result<(), Fault>> {
    let mut asked = JoinSet::new();
    for (index, node) in nodes.iter().enumerate() {
        let address = with_port(node);
        asked.spawn(async move { (index, session::open(&address).await.map(|_| ())) });
    }
    let mut answers = asked.join_all().await;
    answers.sort_by_key(|(index, _)| *index);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// The indices of the nodes without a key.
async fn without_key(nodes: &[String]) -> Result<Vec<usize>, Failure> {
    let mut places = Vec::new();
    for (index, answer) in dial(nodes).await.into_iter().enumerate() {
        match answer {
            Ok(()) => {}
            Err(fault) if fault.kind == FaultKind::Unclaimed => places.push(index),
            Err(fault) => return Err(fault.into()),
        }
    }
    Ok(places)
}

/// The codes of the nodes at these places; none if they can be asked for, or read over ssh. There is a code for each node
/// of the command, or for each that has no key.
fn codes(given: &[Code], can_ask: bool, nodes: usize, places: &[usize]) -> Result<Vec<Code>, Failure> {
    match given.len() {
        0 if can_ask => Ok(Vec::new()),
        0 => Err(Failure::Usage {
            message: format!("{} nodes have no key, and there is no terminal to ask for their codes", places.len()),
            next: "pass the codes that `sudo brambled pair` displays with --code CODE,.., or --ssh",
        }),
        count if count == nodes => Ok(places.iter().map(|place| given[*place].clone()).collect()),
        count if count == places.len() => Ok(given.to_vec()),
        count => Err(Failure::Usage {
            message: format!("{count} pairing codes for {} nodes without a key", places.len()),
            next: "pass one --code per node, in the same order, or --ssh",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(given: &[&str], nodes: usize, places: &[usize]) -> Option<Vec<String>> {
        let given: Vec<Code> = given.iter().map(|code| code.parse().expect("a code")).collect();
        let codes = codes(&given, false, nodes, places).ok()?;
        Some(codes.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn codes_are_those_of_all_nodes_or_of_those_without_a_key() {
        let two = ["1111-1111", "2222-2222"];
        assert_eq!(of(&two, 2, &[1]), Some(vec![two[1].into()]), "one per node");
        assert_eq!(of(&two, 3, &[0, 2]), Some(two.map(str::to_owned).into()), "one per new node");
        assert_eq!(of(&two, 3, &[0, 1, 2]), None, "one is missing");
        assert_eq!(of(&[], 1, &[0]), None, "there is no one to ask");
        assert!(codes(&[], true, 1, &[0]).is_ok_and(|codes| codes.is_empty()));
    }
}
