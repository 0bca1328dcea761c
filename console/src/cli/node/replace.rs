//! `console node replace`: a new node takes the position of another one, which need not answer.
use std::{path::PathBuf, sync::Arc};

use clap::Args;
use common::fault::FaultKind;
use protocol::noise::pake::Code;
use serde_json::json;
use topology::Topology;

use super::{
    dial,
    membership::{bring, clear, ensure_peers_answer, lacking, serves_another, session_of, still_cordoned, switch},
};
use crate::{
    cli::{
        Failure, cluster, key,
        shared::{
            confirm::Consent,
            find_node::find,
            interrupts::Interrupts,
            options::{Nodes, node},
            output,
        },
    },
    client::{
        assign::report,
        cluster::Cluster,
        session::{self, Session},
        with_port,
    },
    operator::desired::DesiredTopology,
};

/// Options of `console node replace`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Replace {
    /// Name or address of the node that leaves; it need not answer
    #[arg(value_name = "OLD")]
    old: String,
    /// The node that takes its position, as ADDRESS[:PORT]
    #[arg(value_name = "NEW", value_parser = node)]
    new: String,
    /// Pairing code of the new node, displayed by `sudo brambled pair`, if it has no key yet [default: asks]
    #[arg(long, value_name = "CODE", value_parser = <Code as std::str::FromStr>::from_str)]
    code: Option<Code>,
    /// Fetch the code with `ssh NEW sudo brambled pair --json`
    #[arg(long, conflicts_with = "code")]
    ssh: bool,
    #[command(flatten)]
    pub(super) nodes: Nodes,
    #[command(flatten)]
    consent: Consent,
    #[arg(from_global)]
    json: bool,
}

/// Runs the command. `kept` is the saved cluster, `key` its key file.
pub(super) async fn run(options: Replace, kept: Option<&str>, key: Option<PathBuf>) -> Result<u8, Failure> {
    options.consent.check()?;
    let mut interrupts = Interrupts::listen()?;
    let dialled = async { Ok::<_, Failure>(dial(&options.nodes, None).await.with_known(&options.old).await) };
    let mut cluster = interrupts.end(dialled).await?;
    let index = find(&cluster, &options.old)?;
    let old = &cluster.nodes[index];
    let (name, address) = (cluster.name(old).to_owned(), old.address.clone());
    let new = with_port(&options.new);
    if new == address {
        let message = "the new node has the address of the old one".to_owned();
        return Err(Failure::Usage { message, next: "name another node; to restart this one: console restart NODE" });
    }
    let topology = position(&cluster, index, &new)?;
    let others = others(&cluster, topology.as_ref(), &name, &address)?;
    let opened = interrupts.end(async { Ok::<_, Failure>(session::open(&new).await) }).await?;
    let needs_key = match &opened {
        Ok(_) => false,
        Err(fault) if fault.kind == FaultKind::Unclaimed => true,
        Err(fault) => return Err(fault.clone().into()),
    };
    if let Ok(session) = &opened {
        let found = interrupts.end(async { Ok::<_, Failure>(report(session).await?) }).await?;
        let own = cluster.topology_of(&name).map(|group| group.topology);
        let served = found.topology.as_ref().filter(|_| found.state.serves()).map(|(served, ..)| served);
        if let Some(other) = served.filter(|served| own != Some(*served)) {
            return Err(serves_another(&found.name, other));
        }
    }
    let question = question(&name, &options.new, topology.as_ref(), needs_key);
    let layout = topology.as_ref().map(|topology| topology.layout.on(others.len() + 1).to_string());
    let plan = json!({"old": name, "new": options.new, "adopts": needs_key, "topology": layout});
    if !interrupts.end(options.consent.obtain(&question, &plan, options.json)).await? {
        return Ok(0);
    }
    let session = match opened {
        Ok(session) => Arc::new(session),
        Err(_) => interrupts.end(adopt(&options, key)).await?,
    };
    let joined = session.identity.name.clone();
    let epoch = match &topology {
        Some(topology) => Some(interrupts.end(take_position(topology, others, session, &name, &address)).await?),
        None => None,
    };
    clear(&mut cluster, index).await;
    cluster::exchange(kept, &address, &options.new);
    if options.json {
        let object = json!({"old": name, "new": joined, "topology": layout, "epoch": epoch});
        output::line(&object.to_string());
    } else {
        let (name, joined) = (output::clean(&name), output::clean(&joined));
        let serves = layout.zip(epoch).map_or_else(
            || "no topology had to change".to_owned(),
            |(layout, epoch)| format!("{layout} is serving, epoch {epoch}"),
        );
        output::line(&format!("{joined} replaced {name}; {serves}"));
    }
    Ok(0)
}

fn question(name: &str, new: &str, topology: Option<&Topology>, needs_key: bool) -> String {
    let of = topology.map_or_else(String::new, |topology| {
        format!(" in {} with {}", topology.layout, output::clean(&topology.model))
    });
    let key = if needs_key { " The new node gets the cluster key." } else { "" };
    let files =
        if topology.is_some() { " It copies the model's file if it lacks it. Running requests continue." } else { "" };
    format!("Replace {} by {new}{of}?{key}{files}", output::clean(name))
}

/// The topology that has the node `old` as a member: the operator's, which the running one may only approximate after a
/// loss. `None` if nothing runs. `new` is the address of the node that takes its position.
///
/// # Errors
/// The node is not a member of the running topology, or a node that may hold a topology with it does not answer.
fn position(cluster: &Cluster, old: usize, new: &str) -> Result<Option<Topology>, Failure> {
    let node = &cluster.nodes[old];
    let name = cluster.name(node);
    let found = cluster.topology_of(name).and_then(|group| {
        group.desired().into_iter().chain([group.topology]).find(|topology: &&Topology| {
            topology.members.iter().any(|member| member.name == name || member.address == node.address)
        })
    });
    if let Some(topology) = found {
        return Ok(Some(topology.clone()));
    }
    ensure_peers_answer(cluster, old, Some(new))?;
    if cluster.topology().is_none() {
        return Ok(None);
    }
    Err(Failure::State {
        message: format!("{} is not a member of the topology", output::clean(name)),
        next: "console node remove OLD removes it from the saved cluster, console node add NEW adds the new node",
    })
}

/// The sessions of the other members, in order, each with its position in the topology. Excluded members stay out.
///
/// # Errors
/// One of them is cordoned or does not answer.
fn others(
    cluster: &Cluster,
    topology: Option<&Topology>,
    name: &str,
    address: &str,
) -> Result<Vec<(usize, Arc<Session>)>, Failure> {
    let members = topology.map_or(&[][..], |topology| &topology.members);
    let mut sessions = Vec::new();
    for (place, member) in members.iter().enumerate() {
        if member.name == name || member.address == address {
            continue;
        }
        match cluster.exclusions.of(&member.name, &member.address) {
            Some(entry) if entry.is_cordon => return Err(still_cordoned(entry)),
            Some(_) => {}
            None => sessions.push((place, session_of(cluster, &member.name)?)),
        }
    }
    Ok(sessions)
}

/// Gives the key to the new node, and connects to it.
async fn adopt(options: &Replace, key: Option<PathBuf>) -> Result<Arc<Session>, Failure> {
    let path = key.map_or_else(key::default_path, Ok)?;
    let secret = key::adopt::secret(&path)?;
    match &options.code {
        None if !options.ssh => key::adopt::give_asked(&options.new, &secret).await?,
        code => key::adopt::give(&options.new, code.as_ref(), &secret).await?,
    };
    Ok(Arc::new(session::open(&with_port(&options.new)).await?))
}

/// Copies the model's files to the new node and assigns the topology with it. Returns the epoch.
async fn take_position(
    topology: &Topology,
    others: Vec<(usize, Arc<Session>)>,
    new: Arc<Session>,
    name: &str,
    address: &str,
) -> Result<u64, Failure> {
    let mut members = topology.members.iter();
    let place = members.position(|member| member.name == name || member.address == address);
    let place = place.unwrap_or(topology.members.len());
    let new_address = new.address.clone();
    let before = others.iter().filter(|(other, _)| *other < place).count();
    let mut sessions: Vec<Arc<Session>> = others.into_iter().map(|(_, session)| session).collect();
    sessions.insert(before, new);
    bring(&lacking(topology, &sessions, &new_address).await).await?;
    let assigned = switch(&sessions, &DesiredTopology::again(topology, sessions.len())).await?;
    Ok(assigned.epoch.0)
}

#[cfg(test)]
mod tests {
    use assignment::fixtures;
    use topology::{Layout, Member};

    use super::*;
    use crate::client::fake_node::{FakeNode, Script};

    #[tokio::test]
    async fn cordoned_member_is_not_left_out_of_the_new_topology() {
        let (mut nodes, mut members) = (Vec::new(), Vec::new());
        let sample = fixtures::topology();
        for name in ["pi1", "pi2", "pi3"] {
            let node = FakeNode::start(name, Script::default()).await;
            members.push(Member { name: name.into(), address: node.address.clone(), ..sample.members[0].clone() });
            nodes.push(node);
        }
        let topology = Topology { layout: Layout::tensor_parallel(3), members, ..sample };
        let addresses: Vec<String> = nodes.iter().map(|node| node.address.clone()).collect();
        let mut cluster = Cluster::dial(&addresses).await;
        let places = |cluster: &Cluster, old: usize| {
            let Member { name, address, .. } = &topology.members[old];
            let found = others(cluster, Some(&topology), name, address)?;
            Ok::<_, Failure>(found.iter().map(|(place, _)| *place).collect::<Vec<usize>>())
        };
        cluster.exclusions.cordon("pi1", &addresses[0], "fan", "me@here");
        let refused = places(&cluster, 1).expect_err("pi1 would lose its place");
        assert_eq!(refused.code(), 8);
        assert!(refused.to_string().contains("pi1 is cordoned (me@here: fan)"), "{refused}");
        assert_eq!(places(&cluster, 0).expect("pi1 itself leaves"), [1, 2]);
        cluster.exclusions.say("pi1", &addresses[0], Some("dead"), "me@here");
        assert_eq!(places(&cluster, 1).expect("an excluded member stays out"), [2]);
        cluster.exclusions.say("pi1", &addresses[0], None, "me@here");
        assert_eq!(places(&cluster, 1).expect("all are included"), [0, 2]);
    }
}
