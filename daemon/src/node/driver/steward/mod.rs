//! Sends the questions of the node's steward (`node::steward`, which decides) and returns the answers; drives rolling
//! restarts.
mod content;
mod peers;
mod rolling;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use assignment::{identify::identify, lease::Leases};
use common::{
    fault::{Fault, FaultKind},
    ids::ModelIdentity,
};
use planner::replan::{Stays, replan};
use protocol::{
    handshake::Identity,
    message::{RequestBody, ResponseBody},
    session::Session,
};
use tokio::{
    sync::watch::Receiver,
    task::{JoinSet, spawn_blocking},
    time::{sleep, timeout},
};
use topology::{Topology, sizes::ModelSizes};

use self::{content::OtherMembers, peers::Peers};
use super::opening::{self, ModelFile};
use crate::{
    config::Config,
    node::steward::{self, Question, Reply, StewardAsk, StewardSettings, rolling::Restarting},
};

/// Longest time to read the header of this node's own model file.
const OWN_FILE: Duration = Duration::from_secs(20);

/// Driver of the steward's state machine.
#[derive(Clone, Debug)]
pub struct StewardDriver {
    identity: Identity,
    settings: StewardSettings,
    /// The daemon's settings, also after a reload.
    current: Receiver<Arc<Config>>,
}

/// The answer to one question, the session on which it came, and the address for which that session was opened, if it was
/// not open before.
struct Answered {
    question: Question,
    reply: Reply,
    session: Option<Arc<Session>>,
    opened: Option<String>,
}

impl StewardDriver {
    /// A driver for a daemon with these settings whose address, as dialled from this machine, is `own`.
    pub fn new(current: Receiver<Arc<Config>>, identity: Identity, own: String) -> Self {
        let config = Arc::clone(&current.borrow());
        let settings = StewardSettings {
            name: identity.name.clone(),
            listen: (!config.listen.ip().is_unspecified()).then(|| own.clone()),
            own,
            recovery: config.recovery.clone(),
            known: config.http.peers.clone(),
        };
        Self { identity, settings, current }
    }

    /// Runs until its task is aborted.
    pub async fn run(self) {
        let started = Instant::now();
        let mut machine = steward::Steward::new(self.settings.clone());
        let mut restarting = Restarting::default();
        let mut peers = Peers::new(self.identity.clone(), self.settings.listen.clone());
        loop {
            sleep(machine.wait()).await;
            let Ok(own) = peers.standing(&self.settings.own).await else { continue };
            let leaves = rolling::look(&self, &mut peers, &own, &mut restarting, started.elapsed()).await;
            if self.settings.recovery.enabled {
                let now = started.elapsed();
                let asks = match leaves {
                    Some(name) => machine.leave(now, own, &name),
                    None => machine.look(now, own),
                };
                self.follow(&mut machine, &mut peers, asks, started).await;
            }
        }
    }

    /// Sends questions and returns answers until the state machine is idle. Unanswered questions then end with the set.
    async fn follow(
        &self,
        machine: &mut steward::Steward,
        peers: &mut Peers,
        mut asks: Vec<StewardAsk>,
        started: Instant,
    ) {
        let (mut asked, mut leases) = (JoinSet::new(), Leases::default());
        loop {
            for ask in std::mem::take(&mut asks) {
                self.begin(ask, peers, &mut asked);
            }
            if !machine.is_busy() {
                return;
            }
            let answered = tokio::select! {
                answered = asked.join_next() => answered,
                () = leases.extend() => continue,
            };
            // If a question panicked, this look ends; the next one starts from the current standings.
            let Some(Ok(Answered { question, reply, session, opened })) = answered else { return };
            if let Some(session) = session {
                if matches!(reply, Reply::Node(Ok(ResponseBody::Prepared))) {
                    leases.add(Arc::clone(&session));
                }
                opened.into_iter().for_each(|address| peers.keep(address, Arc::clone(&session)));
            }
            asks = machine.hear(started.elapsed(), question, reply);
        }
    }

    fn begin(&self, ask: StewardAsk, peers: &mut Peers, asked: &mut JoinSet<Answered>) {
        match ask {
            StewardAsk::Node { question, address, body, within } => {
                let (known, identity) = (peers.known(&address), self.identity.clone());
                asked.spawn(async move {
                    let (session, opened) = match known {
                        Some(session) => (Ok(session), None),
                        None => (peers::open(&address, &identity).await.map(Arc::new), Some(address)),
                    };
                    let (reply, session) = match session {
                        Ok(session) => (answer(&session, body, within).await, Some(session)),
                        Err(fault) => (Err(fault), None),
                    };
                    Answered { question, reply: Reply::Node(reply), session, opened }
                });
            }
            StewardAsk::Content { question, address, topology } => {
                let known = peers.known(&address);
                let others = topology.members.iter().filter(|member| member.address != address);
                let sessions = others.filter_map(|member| peers.known(&member.address)).collect();
                let others = OtherMembers { own: self.identity.clone(), sessions };
                asked.spawn(async move {
                    let session = match known {
                        Some(session) => Ok(session),
                        None => peers::open(&address, &others.own).await.map(Arc::new),
                    };
                    let result = match session {
                        Ok(session) => content::check(&topology, &others, session).await,
                        Err(fault) => Err(fault),
                    };
                    Answered { question, reply: Reply::Content(result), session: None, opened: None }
                });
            }
            StewardAsk::Plan { question, desired, stay } => {
                let models = self.current.borrow().models.clone();
                let sessions = stay.iter().filter_map(|one| peers.known(&one.address)).collect();
                asked.spawn(async move {
                    let planned = plan(models, sessions, desired, stay).await;
                    Answered { question, reply: Reply::Plan(planned), session: None, opened: None }
                });
            }
        }
    }
}

/// The first answer that is not progress of a load.
async fn answer(session: &Session, body: RequestBody, within: Duration) -> Result<ResponseBody, Fault> {
    let what = match &body {
        RequestBody::Prepare(_) => "loading its shard",
        RequestBody::Commit { .. } => "opening its links",
        RequestBody::Abort { .. } => "an abort",
        RequestBody::Exclude(_) => "storing the list of excluded nodes",
        _ => "an answer about recovery",
    };
    let mut reply = session.ask(body).await?;
    loop {
        match reply.next(what, within).await? {
            ResponseBody::Loading(_) => {}
            body => return Ok(body),
        }
    }
}

/// Fits the desired topology to the available members, with the sizes in the model's file. A node that cannot read its own
/// file, because of which it may be left out, asks the others for theirs.
async fn plan(
    models: Vec<PathBuf>,
    sessions: Vec<Arc<Session>>,
    desired: Topology,
    stay: Vec<Stays>,
) -> Result<Topology, FaultKind> {
    let panicked = |error| FaultKind::Internal { reason: format!("the planner panicked: {error}") };
    let (model, expected) = (desired.model.clone(), desired.identity);
    let own = spawn_blocking(move || {
        let ModelFile { file, spec, .. } = opening::open(&models, &model)?;
        let actual = ModelIdentity(file.identity());
        if actual != expected {
            return Err(FaultKind::ModelDiffers { model, expected, actual });
        }
        Ok(ModelSizes::of_file(&file, &spec))
    });
    let own = match timeout(OWN_FILE, own).await {
        Ok(own) => own.map_err(panicked)?,
        Err(_) => Err(FaultKind::Timeout { what: "its model file".into(), seconds: OWN_FILE.as_secs() as u32 }),
    };
    let sizes = match own {
        Ok(sizes) => sizes,
        Err(fault) => sizes_of_others(&sessions, &desired).await.ok_or(fault)?,
    };
    let planned = spawn_blocking(move || replan(&desired, &stay, &sizes)).await.map_err(panicked)?;
    planned.map_err(|reason| FaultKind::TopologyInvalid { reason })
}

/// The sizes of the model that one of the others has.
async fn sizes_of_others(sessions: &[Arc<Session>], desired: &Topology) -> Option<ModelSizes> {
    for session in sessions {
        if let Ok(card) = identify(session, &desired.model).await
            && card.identity == desired.identity
            && let Ok(sizes) = card.sizes()
        {
            return Some(sizes);
        }
    }
    None
}
