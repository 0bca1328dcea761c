//! Looks after the topology that this node holds: while it does not run, asks its members what they hold and does what `node::steward`
//! decides. A client of the nodes like a console, of its own node too. Silent while all is well.
mod act;
mod peers;
mod rolling;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use shared::{
    ids::MemberIndex,
    protocol::{
        handshake::Identity,
        recovery::{Committed, RecoveryAsk, Standing},
    },
    telemetry::NodeState,
};
use tokio::time::sleep;

use self::{peers::Peers, rolling::Restarting};
use crate::{
    config::{Config, Recovery},
    node::{
        breaker::{Breaker, Turn},
        steward::{Decision, Rules, View, decide},
    },
};

/// Between two looks at the own node, and at the others while something is wrong.
const LOOK: Duration = Duration::from_millis(250);
/// As [`LOOK`] when it has been wrong for [`LONG`].
const LOOK_SLOW: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(120);
/// Members are voted out only when the same was decided for so long: whoever acts by hand goes first.
const SETTLE: Duration = Duration::from_secs(2);
/// Pause after an attempt that failed; doubles up to the most.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(8);

/// What it needs to know of its daemon.
#[derive(Clone, Debug)]
pub struct Steward {
    identity: Identity,
    /// Where the own node is dialled.
    own: String,
    /// Where others dial it; `None`: it does not know.
    listen: Option<String>,
    settings: Recovery,
    /// Nodes that are named in the configuration: where they answer counts more than where they were.
    known: Vec<String>,
    models: Vec<PathBuf>,
}

/// What it remembers from look to look.
#[derive(Debug)]
struct Memory {
    /// Since when a member does not answer.
    lost: BTreeMap<String, Instant>,
    /// The decision, and since when it is the same.
    decided: Option<(Decision, Instant)>,
    /// What was said last.
    said: String,
    /// Nothing is tried before.
    next: Instant,
    pause: Duration,
    /// Round of the latest proposal.
    round: u32,
    /// Since when the topology does not run.
    since: Option<Instant>,
    restarting: Restarting,
    breaker: Breaker,
    /// Nothing is done about slow ranks before.
    speed_next: Instant,
    started: Instant,
}

impl Steward {
    /// For a daemon that listens on `own`, as it is dialled from here.
    pub fn new(config: &Config, identity: Identity, own: String) -> Self {
        let is_any = |address: SocketAddr| address.ip().is_unspecified();
        Self {
            identity,
            listen: (!is_any(config.listen)).then(|| own.clone()),
            own,
            settings: config.recovery.clone(),
            known: config.http.peers.clone(),
            models: config.models.clone(),
        }
    }

    /// Runs until its task is ended.
    pub async fn run(self) {
        let mut memory = Memory {
            lost: BTreeMap::new(),
            decided: None,
            said: String::new(),
            next: Instant::now(),
            pause: PAUSE,
            round: 0,
            since: None,
            restarting: Restarting::default(),
            breaker: Breaker::new(self.settings.retry_slow),
            speed_next: Instant::now(),
            started: Instant::now(),
        };
        let mut peers = Peers::new(self.identity.clone(), self.listen.clone());
        loop {
            let is_long = memory.since.is_some_and(|since| since.elapsed() > LONG);
            sleep(if is_long { LOOK_SLOW } else { LOOK }).await;
            let Ok(own) = peers.standing(&self.own).await else { continue };
            rolling::look(&self, &mut peers, &own, &mut memory.restarting).await;
            if self.settings.enabled {
                self.look(&mut peers, own, &mut memory).await;
            }
        }
    }

    /// While all serves: takes a slow rank out, or tries one again that was.
    async fn watch_speed(&self, peers: &mut Peers, own: Standing, memory: &mut Memory) {
        let now = memory.started.elapsed();
        let Some(base) = own.committed.clone().filter(|_| memory.breaker.is_due(&own, now)) else { return };
        let Some(place) = base.topology.members.iter().position(|member| member.name == own.name) else { return };
        if Instant::now() < memory.speed_next {
            return;
        }
        memory.speed_next = Instant::now() + LOOK_SLOW;
        let views = self.views(peers, &base, &own, memory).await;
        let out = match memory.breaker.out().map(|(name, address)| (name.to_owned(), address.to_owned())) {
            Some((name, address)) => peers.standing(&address).await.ok().filter(|standing| standing.name == name),
            None => None,
        };
        let change = match memory.breaker.look(MemberIndex(place as u16), &base, &views, out.as_ref(), now) {
            Turn::Rest => return,
            Turn::TakeOut { slow, reason } => {
                tracing::warn!("{} is taken out: it {reason}", base.topology.members[slow.index()].name);
                let all = (0..views.len() as u16).map(MemberIndex);
                act::Change::On { stay: all.filter(|one| *one != slow).collect(), lost: vec![(slow, reason)] }
            }
            Turn::TryAgain { before, joins } => {
                tracing::warn!("{} is tried again", before.members[joins.index()].name);
                act::Change::Again { topology: before, joins }
            }
        };
        let proposal = act::Proposal { base: &base, views: &views, own: place, change, granted: 0 };
        if let Err(fault) = act::propose(self, peers, proposal, &mut memory.round).await {
            tracing::warn!("it stays as it is: {fault}");
            // What does not fit now, or finds no majority, does not in a second, either.
            memory.speed_next = Instant::now() + self.settings.exclude_slow.unwrap_or(PAUSE_MAX);
        }
    }

    async fn look(&self, peers: &mut Peers, own: Standing, memory: &mut Memory) {
        let is_wrong = matches!(own.state, NodeState::Idle | NodeState::Faulted);
        let place = |base: Committed| {
            let place = base.topology.members.iter().position(|member| member.name == own.name)?;
            Some((base, place))
        };
        let Some((base, place)) = own.committed.clone().filter(|_| is_wrong).and_then(place) else {
            memory.lost.clear();
            (memory.decided, memory.since, memory.pause) = (None, None, PAUSE);
            memory.said.clear();
            if matches!(own.state, NodeState::Ready | NodeState::Serving) {
                self.watch_speed(peers, own, memory).await;
            }
            return;
        };
        memory.since.get_or_insert_with(Instant::now);
        let views = self.views(peers, &base, &own, memory).await;
        let witness = match &self.settings.witness {
            Some(address) if base.topology.members.len() == 2 => Some(peers.standing(address).await.is_ok()),
            _ => None,
        };
        let rules = Rules { exclude_after: self.settings.exclude_after, witness };
        let decision = decide(MemberIndex(place as u16), &base, &views, &rules);
        if !memory.decided.as_ref().is_some_and(|(before, _)| is_alike(before, &decision)) {
            memory.decided = Some((decision.clone(), Instant::now()));
        }
        let settled = memory.decided.as_ref().is_some_and(|(_, since)| since.elapsed() >= SETTLE);
        if Instant::now() < memory.next && !matches!(decision, Decision::Wait(_) | Decision::Rest) {
            return;
        }
        let outcome = match decision {
            Decision::Rest => Ok(()),
            Decision::Wait(reason) => {
                memory.say(&format!("epoch {} does not run here: {reason}", base.epoch));
                return;
            }
            Decision::Learn(later) => peers.tell(&self.own, RecoveryAsk::Learn(Box::new(later))).await,
            Decision::Bring(unit) => {
                memory.say(&format!("epoch {} is brought up again on {} nodes", base.epoch, unit.len()));
                act::bring(peers, &base, &views, &unit).await
            }
            Decision::Propose { .. } if !settled => return,
            Decision::Propose { stay, lost, granted } => {
                let change = act::Change::On { stay, lost };
                let proposal = act::Proposal { base: &base, views: &views, own: place, change, granted };
                act::propose(self, peers, proposal, &mut memory.round).await
            }
        };
        match outcome {
            Ok(()) => memory.pause = PAUSE,
            Err(fault) => {
                tracing::warn!("epoch {} does not come back yet: {fault}", base.epoch);
                memory.next = Instant::now() + memory.pause;
                memory.pause = (memory.pause * 2).min(PAUSE_MAX);
            }
        }
    }

    /// Asks all addresses at which a member may be, and sorts the answers by who gave them.
    async fn views(&self, peers: &mut Peers, base: &Committed, own: &Standing, memory: &mut Memory) -> Vec<View> {
        let members = &base.topology.members;
        let mut addresses: Vec<String> = members.iter().map(|member| member.address.clone()).collect();
        addresses.extend(own.heard.iter().map(|(_, address)| address.clone()));
        addresses.extend(self.known.iter().cloned());
        addresses.push(self.own.clone());
        let answers = peers.standings(addresses).await;
        let view = |member: &shared::topology::Member| {
            let mut named = answers.iter().filter(|(_, standing)| standing.name == member.name);
            let at_home = answers.get(&member.address).filter(|standing| standing.name == member.name);
            let found = at_home.map(|standing| (&member.address, standing)).or_else(|| named.next());
            let (address, standing) = match found {
                // A node behind a port of all interfaces is where it was.
                Some((address, standing)) if *address == self.own && self.listen.is_none() => {
                    (member.address.clone(), Some(standing.clone()))
                }
                Some((address, standing)) => (address.clone(), Some(standing.clone())),
                None => (member.address.clone(), None),
            };
            let since = match standing {
                Some(_) => {
                    memory.lost.remove(&member.name);
                    None
                }
                None => Some(*memory.lost.entry(member.name.clone()).or_insert_with(Instant::now)),
            };
            View { standing, address, lost: since.map_or(Duration::ZERO, |since| since.elapsed()) }
        };
        members.iter().map(view).collect()
    }
}

/// Whether two decisions are the same but for how long somebody is away.
fn is_alike(one: &Decision, two: &Decision) -> bool {
    match (one, two) {
        (Decision::Propose { stay: one, .. }, Decision::Propose { stay: two, .. }) => one == two,
        _ => one == two,
    }
}

impl Memory {
    /// Says something once.
    fn say(&mut self, text: &str) {
        if self.said != text {
            tracing::info!("{text}");
            self.said = text.into();
        }
    }
}
