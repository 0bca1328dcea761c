//! Finds or assigns the topology that a command needs: a topology that already serves the model, with any layout,
//! or a new one. Replacing a running topology requires a confirmation that lists the losses.
use std::sync::Arc;

use common::ids::TopologyHash;
use serde_json::{Value, json};
use topology::Topology;

use crate::cli::{
    Failure,
    model::choice::{ModelFiles, advised, pick},
    shared::{confirm::Consent, output, sessions::assign_and_tell},
    topology::choose_layout::{ChosenLayout, choose},
};
use crate::{
    client::{
        assign::{Assigned, propose},
        cluster::{Cluster, ClusterNode},
        session::Session,
        with_port,
    },
    operator::desired::{DesiredTopology, TopologyRequest},
};

/// A running topology, and the sessions of its members in member order.
#[derive(Debug)]
pub struct Obtained {
    /// Of its members, without those that do not answer while another replica serves.
    pub sessions: Vec<Arc<Session>>,
    /// The topology.
    pub assigned: Assigned,
}

/// The nodes that answered: the named nodes that are not excluded, and all members of the topologies that run on
/// them.
pub(crate) struct Reached {
    pub(crate) cluster: Cluster,
    pub(crate) sessions: Vec<Arc<Session>>,
}

/// A topology that is loaded on nodes.
struct Held<'a> {
    topology: &'a Topology,
    hash: TopologyHash,
    requests: u32,
    /// Number of its members that answer.
    answering: usize,
}

impl Reached {
    /// Dials the nodes, and the other members of the topologies that run on them.
    pub(crate) async fn dial(nodes: &[String]) -> Result<Self, Failure> {
        let addresses: Vec<String> = nodes.iter().map(|node| with_port(node)).collect();
        let cluster = Cluster::dial(&addresses).await.with_known("").await;
        for node in &cluster.nodes {
            let Some(entry) = cluster.exclusion(node) else { continue };
            let how = if cluster.is_cordoned(node) { "cordoned" } else { "excluded" };
            let (node, by) = (output::clean(&entry.node), output::clean(&entry.by));
            output::note(&format!("{node} is {how}: {} ({by})", output::clean(entry.reason.as_deref().unwrap_or(""))));
        }
        let sessions = cluster.usable_of(addresses.len());
        Ok(Self { sessions: sessions.unwrap_or_default(), cluster })
    }

    /// The sessions of the named nodes that are not excluded.
    ///
    /// # Errors
    /// A node does not answer, or all nodes are excluded.
    pub(crate) fn usable(&self, named: usize) -> Result<&[Arc<Session>], Failure> {
        self.cluster.usable_of(named)?;
        Ok(&self.sessions)
    }

    /// The model files of the nodes that answer.
    ///
    /// # Errors
    /// No node answers, or can list its files.
    pub(crate) async fn files(&self, named: usize) -> Result<ModelFiles, Failure> {
        let answering = self.cluster.nodes.iter().filter_map(|node| node.session().ok());
        let answering: Vec<Arc<Session>> = answering.collect();
        if answering.is_empty() {
            self.usable(named)?;
        }
        let mut files = ModelFiles::ask(&answering).await;
        files.ensure_listed()?;
        files.mark_excluded(&self.cluster);
        Ok(files)
    }

    /// Whether a topology that meets the request already serves.
    pub(crate) fn has_serving(&self, asked: &TopologyRequest) -> bool {
        self.serving(asked).is_some()
    }

    /// The request with the full name of its model, see [`pick`].
    ///
    /// # Errors
    /// No node answers, or the name is ambiguous.
    async fn name_model(&self, asked: &TopologyRequest, named: usize) -> Result<TopologyRequest, Failure> {
        let running = self.cluster.topology().map(|(topology, _)| topology.model.as_str());
        if running == Some(&asked.model) {
            return Ok(asked.clone());
        }
        let model = match (asked.model.is_empty(), running) {
            (true, Some(running)) => running.to_owned(),
            _ => {
                let held = self.files(named).await?;
                pick(&asked.model, running, &held.models())?
            }
        };
        if model != asked.model {
            output::note(&output::clean(&format!("model {model}")));
        }
        // `--draft mtp` means the model's own file, which was named as the model was typed.
        let draft = asked.draft.clone().map(|draft| if draft == asked.model { model.clone() } else { draft });
        Ok(TopologyRequest { model, draft, ..asked.clone() })
    }

    /// The running topology that matches the request, if any.
    fn serving(&self, asked: &TopologyRequest) -> Option<Obtained> {
        let topologies = self.cluster.topologies();
        let (topology, reports) = topologies
            .into_iter()
            .find(|(topology, _)| asked.is_met_by(topology) && self.cluster.has_serving(topology))?;
        let sessions = topology.members.iter().filter_map(|member| self.session_of(&member.name)).collect();
        let epoch = reports.first()?.epoch;
        Some(Obtained { sessions, assigned: Assigned { epoch, topology: topology.clone(), reused: true } })
    }

    /// The session of the node with this name, if it answers.
    fn session_of(&self, name: &str) -> Option<Arc<Session>> {
        let node = self.cluster.nodes.iter().find(|node| self.cluster.name(node) == name)?;
        node.session().ok()
    }

    /// Whether one of these nodes is a member of a topology.
    fn is_in(&self, topology: &Topology) -> bool {
        let mut members = topology.members.iter();
        members.any(|member| self.sessions.iter().any(|session| session.identity.name == member.name))
    }

    /// The topologies that have these nodes as members, without duplicates.
    fn held(&self) -> Vec<Held<'_>> {
        let mut held: Vec<Held<'_>> = Vec::new();
        for report in self.cluster.nodes.iter().filter_map(ClusterNode::report) {
            let Some((topology, hash, _)) = report.topology.as_ref().filter(|(topology, ..)| self.is_in(topology))
            else {
                continue;
            };
            match held.iter_mut().find(|held| held.hash == *hash) {
                Some(held) => (held.requests, held.answering) = (held.requests + report.requests, held.answering + 1),
                None => held.push(Held { topology, hash: *hash, requests: report.requests, answering: 1 }),
            }
        }
        held
    }

    /// The topologies that a new assignment would end, in words and as an object. `None` if there are none, or if
    /// the assignment only restores a broken topology.
    pub(crate) fn losses(&self, next: Option<&Topology>) -> Option<(String, Value)> {
        let mut held = self.held();
        if let Some(next) = next.filter(|_| !self.cluster.serves()) {
            held.retain(|held| !held.is_restored_by(next));
        }
        if held.is_empty() {
            return None;
        }
        let words: Vec<String> = held.iter().map(Held::words).collect();
        let object = held.iter().map(|held| {
            let (layout, model) = (held.topology.layout.to_string(), &held.topology.model);
            json!({"topology": layout, "model": model, "requests": held.requests, "silent_members": held.silent()})
        });
        Some((words.join(" and "), object.collect()))
    }

    /// Introduces all nodes to each other, after a topology was assigned.
    pub(crate) async fn introduce(&self) {
        for fault in self.cluster.introduce().await {
            output::note(&output::clean(&format!("a node does not learn the addresses of the others: {fault}")));
        }
    }

    /// Sends the list of excluded nodes to the nodes that missed a change, before a topology is assigned.
    pub(crate) async fn spread(&self) {
        for (address, fault) in self.cluster.spread().await {
            output::note(&output::clean(&format!("{address} cannot store the list of excluded nodes: {fault}")));
        }
    }
}

impl Held<'_> {
    /// Whether an assignment has the same layout, model and members.
    fn is_restored_by(&self, next: &Topology) -> bool {
        let names = next.members.iter().map(|member| &member.name);
        (next.layout, &next.model) == (self.topology.layout, &self.topology.model)
            && names.eq(self.topology.members.iter().map(|member| &member.name))
    }

    /// Number of its members that do not answer: they may run further requests.
    fn silent(&self) -> usize {
        self.topology.members.len().saturating_sub(self.answering)
    }

    fn words(&self) -> String {
        let names: Vec<&str> = self.topology.members.iter().map(|member| member.name.as_str()).collect();
        let requests = match self.requests {
            0 => "no running requests".to_owned(),
            1 => "1 running request".to_owned(),
            count => format!("{count} running requests"),
        };
        let requests = match self.silent() {
            0 => requests,
            silent => format!("{requests} on those that answer; {silent} of {} do not", names.len()),
        };
        let (layout, model) = (self.topology.layout, &self.topology.model);
        output::clean(&format!("{layout} with {model} on {} ({requests})", names.join(", ")))
    }
}

/// A topology that meets the request: the one that already serves, or a new one. `purpose` describes its use, for
/// the confirmation. `None` after a dry run.
///
/// # Errors
/// Nodes do not answer, the topology is impossible, the operator declined, or there is no terminal to ask on.
pub async fn obtain(
    nodes: &[String],
    asked: &TopologyRequest,
    purpose: &str,
    consent: Consent,
    json: bool,
) -> Result<Option<Obtained>, Failure> {
    obtain_from(&Reached::dial(nodes).await?, nodes.len(), asked, purpose, consent, json).await
}

/// Like [`obtain`], on nodes that were already dialled; `count` of them were named.
///
/// # Errors
/// Those of [`obtain`].
pub(crate) async fn obtain_from(
    reached: &Reached,
    count: usize,
    asked: &TopologyRequest,
    purpose: &str,
    consent: Consent,
    json: bool,
) -> Result<Option<Obtained>, Failure> {
    let named = reached.name_model(asked, count).await?;
    let asked = &named;
    if let Some(found) = reached.serving(asked) {
        let topology = &found.assigned.topology;
        let what = format!("{purpose} on the running {} with {}", topology.layout, output::clean(&topology.model));
        let goes_on = !consent.dry_run || consent.obtain(&what, &json!({"replaces": []}), json).await?;
        return Ok(goes_on.then_some(found));
    }
    match assign_new(reached, count, asked, consent, json).await {
        Err(failure) => Err(advised(failure, &reached.sessions).await),
        done => done,
    }
}

/// Assigns a new topology. `None` after a dry run.
async fn assign_new(
    reached: &Reached,
    named: usize,
    asked: &TopologyRequest,
    consent: Consent,
    json: bool,
) -> Result<Option<Obtained>, Failure> {
    let sessions = reached.usable(named)?;
    let ChosenLayout { sessions, wanted } = choose(sessions, asked).await?;
    let (topology, _) = propose(&sessions, &wanted).await?;
    if !may_replace(reached, &wanted, &topology, consent, json).await? {
        return Ok(None);
    }
    reached.spread().await;
    let assigned = assign_and_tell(&sessions, &wanted).await?;
    reached.introduce().await;
    Ok(Some(Obtained { sessions, assigned }))
}

async fn may_replace(
    reached: &Reached,
    wanted: &DesiredTopology,
    topology: &Topology,
    consent: Consent,
    json: bool,
) -> Result<bool, Failure> {
    let names: Vec<String> = topology.members.iter().map(|member| output::clean(&member.name)).collect();
    let next = format!("{} with {} on {}", wanted.layout, output::clean(&wanted.model), names.join(", "));
    let plan = |replaces| json!({"topology": wanted.layout.to_string(), "model": wanted.model, "nodes": names, "replaces": replaces});
    match reached.losses(Some(topology)) {
        Some((lost, object)) => consent.obtain_late(&format!("Replace {lost} by {next}?"), &plan(object), json).await,
        None if consent.dry_run => consent.obtain(&format!("Assign {next}?"), &plan(json!([])), json).await,
        None => Ok(true),
    }
}

/// The nodes for a command that assigns several topologies, one after another. `None` after a dry run.
///
/// # Errors
/// See [`obtain`].
pub async fn clear_way(
    nodes: &[String],
    purpose: &str,
    consent: Consent,
    json: bool,
) -> Result<Option<Vec<Arc<Session>>>, Failure> {
    let reached = Reached::dial(nodes).await?;
    let sessions = reached.usable(nodes.len())?;
    let may = match reached.losses(None) {
        Some((lost, object)) => {
            let question = format!("Replace {lost} by {purpose}? The last one stays assigned.");
            consent.obtain_late(&question, &json!({"replaces": object}), json).await?
        }
        None if consent.dry_run => {
            consent.obtain(&format!("Assign {purpose}?"), &json!({"replaces": []}), json).await?
        }
        None => true,
    };
    if !may {
        return Ok(None);
    }
    reached.spread().await;
    Ok(Some(sessions.to_vec()))
}
