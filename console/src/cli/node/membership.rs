//! `console node add` and `remove`: changes the nodes of the running topology. A node that no longer belongs to it can
//! leave the saved cluster.
use std::sync::Arc;

use common::{fault::Fault, ids::Epoch};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use topology::{Exclusion, Topology};

use super::dial;
use crate::{
    cli::{
        Failure, cluster,
        model::{
            choice::{ModelFiles, advised},
            provide::Supply,
        },
        shared::{
            find_node::{find, progress},
            interrupts::Interrupts,
            options::Change,
            output,
            silent::{LEAVE_OUT, SilentNodes},
        },
    },
    client::{
        assign::{Assigned, Next, assign, assign_as, identify_on_any},
        cluster::{Cluster, ClusterNode},
        event::OperateEvent,
        exclude::say,
        session::Session,
    },
    operator::desired::DesiredTopology,
};

/// The running topology: that of the group with this node, if one is named.
///
/// # Errors
/// There is none, or a node that may hold one does not answer.
fn running<'c>(cluster: &'c Cluster, of: Option<&str>) -> Result<&'c Topology, Failure> {
    let running = match of {
        Some(name) => cluster.topology_of(name).map(|group| group.topology),
        None => cluster.topology().map(|(topology, _)| topology),
    };
    let Some(topology) = running else {
        SilentNodes::of(cluster).ensure_none("hold the topology")?;
        return Err(Failure::State {
            message: "no topology runs on these nodes".to_owned(),
            next: "load a model with console run MODEL, or console topology assign FILE",
        });
    };
    Ok(topology)
}

/// The running topology, and the sessions of its members in member order, except that of `leaving`.
fn serving(cluster: &Cluster, leaving: Option<&str>) -> Result<(Topology, Vec<Arc<Session>>), Failure> {
    let topology = running(cluster, leaving)?;
    let staying = topology.members.iter().filter(|member| Some(member.name.as_str()) != leaving);
    let sessions = staying.map(|member| session_of(cluster, &member.name)).collect::<Result<_, _>>()?;
    Ok((topology.clone(), sessions))
}

/// The session of a member of the topology.
pub(super) fn session_of(cluster: &Cluster, member: &str) -> Result<Arc<Session>, Failure> {
    let name = output::clean(member);
    let Some(node) = cluster.nodes.iter().find(|node| cluster.name(node) == member) else {
        let message = format!("the topology has the member {name}, which is not among the given nodes");
        return Err(Failure::Usage { message, next: "name all nodes of the topology with --nodes" });
    };
    node.session().map_err(|fault| {
        let next = format!(
            "start {name} again, or let the others continue without it: console node exclude {name} --reason TEXT"
        );
        Failure::Advised { fault: Box::new(fault), next }
    })
}

/// Upper bound of the speed-up in decoding, which is bound by the bytes that a node reads per token.
fn gain(before: &Topology, after: &DesiredTopology) -> f64 {
    let ranks = |stages: u16, ranks: u16| f64::from(stages) * f64::from(ranks);
    let per_answer = ranks(1, after.layout.ranks) / ranks(1, before.layout.ranks);
    let replicas = f64::from(after.layout.replicas) / f64::from(before.layout.replicas);
    per_answer * replicas
}

/// Adds a node.
pub(super) async fn join(change: Change, kept: Option<&str>) -> Result<u8, Failure> {
    change.consent.check()?;
    let mut interrupts = Interrupts::listen()?;
    let dialled = async { Ok::<_, Failure>(dial(&change.nodes, Some(&change.node)).await) };
    let cluster = interrupts.end(dialled).await?;
    let node = &cluster.nodes[find(&cluster, &change.node)?];
    let session = node.session()?;
    let name = session.identity.name.clone();
    // First, because the other members of that topology may not be among the given nodes.
    joins_one(&cluster, &name)?;
    let (topology, mut sessions) = serving(&cluster, None)?;
    // No members, because these answer.
    let silent = SilentNodes::of(&cluster);
    silent.note("hold another topology");
    if topology.members.iter().any(|member| member.name == name) {
        let message = format!("{} is already a member of the topology", output::clean(&name));
        return Err(Failure::State { message, next: "name the address of another node" });
    }
    sessions.push(session);
    let lacking =
        interrupts.end(async { Ok::<_, Failure>(lacking(&topology, &sessions, &node.address).await) }).await?;
    let wanted = DesiredTopology::again(&topology, sessions.len());
    let (now, then) = (topology.layout, wanted.layout);
    let times = gain(&topology, &wanted);
    let what = format!("{now} becomes {then}: at most {times:.2} times the tokens per second, before network costs");
    output::note(&what);
    let deeds: String = lacking.iter().map(|supply| format!(" First, {}.", supply.deed())).collect();
    let question = format!("Add {} to the topology? Running requests continue.{deeds}", output::clean(&name));
    let files: Vec<&str> = lacking.iter().map(|supply| supply.model.as_str()).collect();
    let plan = json!({"node": name, "topology": then.to_string(), "times": times, "copies": files});
    if !interrupts.end(change.consent.obtain(&question, &plan, change.json)).await? {
        return Ok(0);
    }
    interrupts.end(bring(&lacking)).await?;
    let address = sessions.last().map_or_else(String::new, |session| session.address.clone());
    let assigned = interrupts.end(switch(&sessions, &wanted)).await?;
    done(&change, json!({"node": name, "state": "joined", "away": silent.objects()}), &assigned);
    cluster::follow(kept, &[address], &[]);
    Ok(0)
}

/// Removes a node, which need not answer.
pub(super) async fn leave(change: Change, kept: Option<&str>) -> Result<u8, Failure> {
    change.consent.check()?;
    let mut interrupts = Interrupts::listen()?;
    let dialled = async { Ok::<_, Failure>(dial(&change.nodes, None).await.with_known(&change.node).await) };
    let mut cluster = interrupts.end(dialled).await?;
    let index = find(&cluster, &change.node)?;
    let node = &cluster.nodes[index];
    let (name, address) = (cluster.name(node).to_owned(), node.address.clone());
    if !is_member(&cluster, &name) {
        return forget(change, kept, cluster, index, &mut interrupts).await;
    }
    let (topology, rest) = serving(&cluster, Some(&name))?;
    if rest.is_empty() {
        let message = format!("{} cannot leave: it is the only member of the topology", output::clean(&name));
        return Err(Failure::State { message, next: "unload the model with console topology unload" });
    }
    uncordoned(&cluster, &name)?;
    // No members, because these answer.
    let silent = SilentNodes::of(&cluster).except(&address);
    silent.note("hold another topology");
    let wanted = DesiredTopology::again(&topology, rest.len());
    let question =
        format!("Remove {} from {}? The new layout is {}.", output::clean(&name), topology.layout, wanted.layout);
    let plan = json!({"node": name, "topology": wanted.layout.to_string()});
    if !interrupts.end(change.consent.obtain(&question, &plan, change.json)).await? {
        return Ok(0);
    }
    let assigned = match rest.len() == topology.members.len() {
        true => interrupts.end(settle(&rest, &topology)).await?,
        false => interrupts.end(switch(&rest, &wanted)).await?,
    };
    clear(&mut cluster, index).await;
    done(&change, json!({"node": name, "state": "left", "away": silent.objects()}), &assigned);
    cluster::follow(kept, &[], &[address]);
    Ok(0)
}

/// Checks that a new node serves no other model than the nodes that it joins, whose requests would end, and that these have
/// one topology.
///
/// # Errors
/// It does, or they have several.
fn joins_one(cluster: &Cluster, name: &str) -> Result<(), Failure> {
    let groups = cluster.groups();
    if groups.len() < 2 {
        return Ok(());
    }
    if let Some(other) = groups.iter().find(|group| group.has(name)) {
        return Err(serves_another(name, other.topology));
    }
    let models: Vec<String> = groups.iter().map(|group| output::clean(&group.topology.model)).collect();
    Err(Failure::State {
        message: format!("these nodes serve several models: {}", models.join(", ")),
        next: "name the nodes of one of them with --nodes",
    })
}

/// The error of a node that serves another model.
pub(super) fn serves_another(name: &str, topology: &Topology) -> Failure {
    let (name, model) = (output::clean(name), output::clean(&topology.model));
    Failure::State {
        message: format!("{name} serves {model} as {}; its requests would end", topology.layout),
        next: "unload that model first with console topology unload, or name another node",
    }
}

/// Whether a node is a member of the running topology, or of the desired one that it approximates.
fn is_member(cluster: &Cluster, name: &str) -> bool {
    cluster.topology_of(name).is_some()
}

/// Makes sure that a node that no reported topology has as a member belongs to no other one: the node itself answers,
/// or all others do. Excluded nodes need not answer, nor does the node at the address `new`, which is yet to join.
///
/// # Errors
/// The node does not answer, and neither does another one that may hold a topology with it, or there is no other one.
pub(super) fn ensure_peers_answer(cluster: &Cluster, node: usize, new: Option<&str>) -> Result<(), Failure> {
    let own = &cluster.nodes[node];
    let Err(own_fault) = &own.answer else { return Ok(()) };
    let name = output::clean(cluster.name(own));
    let others = cluster.nodes.iter().filter(|other| other.address != own.address);
    let peers: Vec<&ClusterNode> = others.filter(|peer| new != Some(peer.address.as_str())).collect();
    let mut members = peers.iter().filter(|peer| cluster.may_be_member(peer));
    let (fault, why) = match members.find_map(|peer| peer.answer.as_ref().err()) {
        _ if peers.iter().all(|peer| peer.answer.is_err()) => {
            (own_fault, format!("no node answers that could report a topology with {name}"))
        }
        Some(fault) => (fault, format!("{} may hold a topology with {name}", output::clean(&fault.node))),
        None => return Ok(()),
    };
    let next = format!("{}: {why}; {LEAVE_OUT}", fault.next());
    Err(Failure::Advised { fault: Box::new(fault.clone()), next })
}

/// Removes a node that is no member of the topology from the saved cluster, with its exclusion.
async fn forget(
    change: Change,
    kept: Option<&str>,
    mut cluster: Cluster,
    node: usize,
    interrupts: &mut Interrupts,
) -> Result<u8, Failure> {
    ensure_peers_answer(&cluster, node, None)?;
    let (name, address) = (cluster.name(&cluster.nodes[node]).to_owned(), cluster.nodes[node].address.clone());
    let shown = output::clean(&name);
    let Some(saved) = kept else {
        let message = format!("{shown} is not a member of the topology, and the nodes belong to no saved cluster");
        return Err(Failure::State { message, next: "list the members with console topology show" });
    };
    let silent = SilentNodes::of(&cluster).except(&address);
    silent.note("hold another topology");
    let question = format!("Remove {shown} from the saved cluster {saved}? It is not a member of the topology.");
    let plan = json!({"node": name, "cluster": saved});
    if !interrupts.end(change.consent.obtain(&question, &plan, change.json)).await? {
        return Ok(0);
    }
    clear(&mut cluster, node).await;
    cluster::follow(kept, &[], &[address]);
    let now = cluster.topology().map(|(topology, reports)| (topology.layout.to_string(), reports[0].epoch.0));
    if change.json {
        let (layout, epoch) = now.unzip();
        let object = json!({"node": name, "state": "left", "topology": layout, "epoch": epoch,
            "away": silent.objects()});
        output::line(&object.to_string());
    } else {
        output::line(&format!("{shown} left; no topology had to change"));
    }
    Ok(0)
}

/// Deletes the exclusion of a node that left, so that a machine that gets its name is not excluded. A failure is only
/// reported: the node has left.
pub(super) async fn clear(cluster: &mut Cluster, node: usize) {
    if cluster.exclusion(&cluster.nodes[node]).is_none() {
        return;
    }
    if let Err(fault) = say(cluster, node, None, &|_| {}).await {
        output::note(&output::clean(&format!("the nodes cannot delete the exclusion of the node: {fault}")));
    }
}

/// The files of the topology's model that the node with this address lacks and another node has.
pub(super) async fn lacking(topology: &Topology, sessions: &[Arc<Session>], address: &str) -> Vec<Supply> {
    let held = ModelFiles::ask(sessions).await;
    let draft = topology.draft.as_ref().map(|draft| draft.model.as_str());
    let models = std::iter::once(topology.model.as_str()).chain(draft.filter(|draft| *draft != topology.model));
    let supplies = models.map(|model| Supply::for_node(model, &held, address));
    supplies.filter(|supply| !supply.is_settled()).collect()
}

/// Copies the files.
pub(super) async fn bring(lacking: &[Supply]) -> Result<(), Failure> {
    for supply in lacking {
        supply.bring().await?;
    }
    Ok(())
}

/// Refuses to assign a topology while a member that stays is cordoned.
fn uncordoned(cluster: &Cluster, leaving: &str) -> Result<(), Failure> {
    let cordoned = cluster.nodes.iter().find(|node| cluster.name(node) != leaving && cluster.is_cordoned(node));
    cordoned.and_then(|node| cluster.exclusion(node)).map_or(Ok(()), |entry| Err(still_cordoned(entry)))
}

/// The failure of a command that assigns a topology with a cordoned member. Nodes refuse it, and without the member the
/// topology would lose a node that belongs to it.
pub(super) fn still_cordoned(entry: &Exclusion) -> Failure {
    let message = format!("{} is cordoned ({}: {})", entry.node, entry.by, entry.reason.as_deref().unwrap_or_default());
    Failure::State { message: output::clean(&message), next: "uncordon it first: console node uncordon NODE" }
}

/// Assigns a topology to the nodes. If a node lacks the model's file, the failure names a node that has it.
pub(super) async fn switch(sessions: &[Arc<Session>], wanted: &DesiredTopology) -> Result<Assigned, Failure> {
    match assign(sessions, wanted, &|event| progress(&OperateEvent::Assign(event))).await {
        Ok(assigned) => Ok(assigned),
        Err(fault) => Err(advised(fault.into(), sessions).await),
    }
}

/// Makes the running topology, which only approximates the operator's, the desired one: nodes that it lacks do not
/// return.
async fn settle(sessions: &[Arc<Session>], topology: &Topology) -> Result<Assigned, Failure> {
    let card = identify_on_any(sessions.iter().map(|session| &**session), &topology.model).await?;
    let sizes = card.sizes().map_err(|kind| Fault::new("console", kind))?;
    let next = Next { topology: topology.clone(), desired: None, sizes: &sizes, seen: Epoch(0) };
    let stop = CancellationToken::new();
    Ok(assign_as(sessions, next, &stop, &|event| progress(&OperateEvent::Assign(event))).await?)
}

/// Prints the result: an object with the name of the node and how its state has changed, or a sentence.
fn done(change: &Change, mut object: Value, assigned: &Assigned) {
    let (layout, epoch) = (assigned.topology.layout.to_string(), assigned.epoch.0);
    if change.json {
        object["topology"] = json!(layout);
        object["epoch"] = json!(epoch);
        return output::line(&object.to_string());
    }
    let [name, how] = ["node", "state"].map(|field| object[field].as_str().unwrap_or_default());
    output::line(&format!("{} {how}; {layout} is serving, epoch {epoch}", output::clean(name)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::fake_node::{FakeNode, Script};

    #[track_caller]
    fn check_refused(cluster: &Cluster, node: usize, new: Option<&str>, blamed: &str) {
        let refused = ensure_peers_answer(cluster, node, new).expect_err("a topology is not ruled out");
        assert_eq!(refused.code(), 3);
        assert_eq!(refused.json()["error"]["node"], blamed, "{refused}");
    }

    #[tokio::test]
    async fn silent_nodes_are_named_before_no_topology_is_reported() {
        let node = FakeNode::start("pi1", Script::default()).await;
        let silent = ["127.0.0.1:1", "127.0.0.1:2"];
        let mut cluster = Cluster::dial(&[node.address.clone(), silent[0].into(), silent[1].into()]).await;
        let refused = running(&cluster, None).expect_err("two nodes do not answer");
        let error = refused.json()["error"].take();
        assert_eq!((refused.code(), &error["node"]), (3, &json!(silent[0])), "{error}");
        assert!(refused.to_string().contains(silent[1]), "{refused}");
        let next = error["next"].as_str().unwrap_or_default();
        assert!(next.contains("127.0.0.1:1, 127.0.0.1:2 may hold the topology"), "{next}");
        for (name, address) in ["pi2", "pi3"].into_iter().zip(silent) {
            cluster.exclusions.say(name, address, Some("dead"), "me@here");
        }
        assert_eq!(running(&cluster, None).expect_err("excluded nodes hold none").code(), 8);
    }

    #[tokio::test]
    async fn silent_node_is_in_no_topology_only_if_its_peers_answer() {
        let node = FakeNode::start("pi1", Script::default()).await;
        let (old, other) = ("127.0.0.1:1", "127.0.0.1:2");
        let mut cluster = Cluster::dial(&[node.address.clone(), old.into(), other.into()]).await;
        ensure_peers_answer(&cluster, 0, None).expect("it answers for itself");
        check_refused(&cluster, 1, None, other);
        ensure_peers_answer(&cluster, 1, Some(other)).expect("a node that is yet to join holds no topology");
        cluster.exclusions.cordon("pi3", other, "fan", "me@here");
        check_refused(&cluster, 1, None, other);
        cluster.exclusions.say("pi3", other, Some("dead"), "me@here");
        ensure_peers_answer(&cluster, 1, None).expect("an excluded node holds no topology");
        let cluster = Cluster::dial(&[node.address.clone(), old.into()]).await;
        ensure_peers_answer(&cluster, 1, None).expect("all others answer");
        check_refused(&cluster, 1, Some(&node.address), old);
        check_refused(&Cluster::dial(&[old.to_owned(), other.to_owned()]).await, 0, None, old);
        check_refused(&Cluster::dial(&[old.to_owned()]).await, 0, None, old);
    }
}
