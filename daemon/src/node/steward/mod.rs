//! Watches over the topology that its node holds, as a pure state machine: `look` starts with this node's standing,
//! `hear` takes answers; both return the next questions. It is a client of the nodes like a console. Its state is lost
//! with the process. The driver (`node/driver/steward`) and the simulation send its questions.
mod absences;
mod ask;
mod balance;
pub mod breaker;
mod bring;
mod change;
mod decide;
mod failing;
mod joins;
mod learn;
mod propose;
mod reasons;
pub mod rolling;
mod shape;
mod speed;
mod unload;
mod view;

use std::{collections::BTreeMap, time::Duration};

use common::{
    fault::Fault,
    ids::{Epoch, MemberIndex, TopologyHash},
};
use protocol::{
    message::{RequestBody, ResponseBody},
    recovery::{Committed, RecoveryAnswer, RecoveryAsk, Standing},
};
use telemetry::NodeState;

#[cfg(test)]
pub(in crate::node) use self::balance::with_shares;
use self::{
    absences::Absences,
    bring::Bring,
    change::{Joins, TopologyChange},
    failing::{Failing, LeftOut},
    propose::{Proposal, Propose},
    shape::{BALANCE_PAUSE, HeldBack},
    unload::Unloading,
};
pub use self::{
    ask::{Question, Reply, StewardAsk},
    bring::{PAUSE_MAX, longer_pause},
    decide::{Decision, Rules, decide},
};
use super::steward::breaker::Breaker;
use crate::config::Recovery;
pub use crate::node::steward::{reasons::BY_ITSELF, view::View};

/// Interval at which this node is checked, and the other members while something is wrong.
const LOOK: Duration = Duration::from_millis(250);
/// Like [`LOOK`], when the topology has been down for [`LONG`].
const LOOK_SLOW: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(120);
/// Members are voted out only when the decision has been the same for this long, so that an operator can act first.
const SETTLE: Duration = Duration::from_secs(2);
/// A member that serves is stopped only when its replica has been broken for this long: a look may coincide with a
/// start.
const RETAKE: Duration = Duration::from_secs(1);
/// Interval at which a member that serves checks whether others lack a record that it has.
const TEACH: Duration = Duration::from_secs(4);
/// Pause after a failed attempt; doubles up to a maximum.
const PAUSE: Duration = Duration::from_millis(500);
/// Deadline of an answer; the node may have to sync its disk first.
pub const ANSWER: Duration = Duration::from_secs(3);

/// Settings of the daemon that the steward needs.
#[derive(Clone, Debug)]
pub struct StewardSettings {
    /// The node's name.
    pub name: String,
    /// Address for dialling this node from this machine.
    pub own: String,
    /// Address at which other nodes dial this one; `None`: unknown.
    pub listen: Option<String>,
    /// Recovery settings.
    pub recovery: Recovery,
    /// Nodes of the configuration: their configured addresses have precedence over earlier ones.
    pub known: Vec<String>,
}

/// The purpose of a look at the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// The topology does not run.
    Recover,
    /// It runs, but a rank may be slow.
    Speed,
    /// It runs, but this node's record of votes is lost.
    Recall,
    /// It runs here; this node or a member may have missed something, or a member may have lost its record.
    Teach,
    /// It runs, but differs from the desired topology, whose missing members may be back.
    Return,
    /// It runs on one replica, and one of its members is about to restart.
    Leave,
}

/// The current activity.
#[derive(Debug)]
enum Doing {
    Nothing,
    Look(Box<Look>),
    Bring(Box<Bring>),
    Propose(Box<Propose>),
    /// Sends a topology or a list of exclusions to a node that does not have it, or lets this node forget a topology.
    Learn(Question),
    Unload(Box<Unloading>),
}

/// Requests the standings of all members.
#[derive(Debug)]
struct Look {
    base: Committed,
    place: usize,
    /// Whether this node's record of votes is lost.
    forgets: bool,
    purpose: Purpose,
    waiting: BTreeMap<Question, String>,
    answers: BTreeMap<String, Standing>,
    /// The question to the witness, and whether the witness answered.
    witness: Option<(Question, Option<bool>)>,
    /// The question to the excluded straggler, its name and its answer.
    out: Option<(Question, String, Option<Standing>)>,
}

impl Look {
    fn is_complete(&self) -> bool {
        let is_out_told = self.out.as_ref().is_none_or(|(question, ..)| *question == NONE);
        self.waiting.is_empty() && is_out_told && self.witness.is_none_or(|(_, answers)| answers.is_some())
    }
}

/// The number of an answered question.
const NONE: Question = Question(0);

/// The steward of one node.
#[derive(Debug)]
pub struct Steward {
    settings: StewardSettings,
    now: Duration,
    asked: u64,
    doing: Doing,
    /// For each member that does not answer, since when.
    lost: BTreeMap<String, Duration>,
    /// The absences of members since their topology last served.
    absences: BTreeMap<String, Absences>,
    /// For each member that could not load its shard, since when.
    failing: BTreeMap<String, Failing>,
    left_out: Option<LeftOut>,
    /// The decision that was dropped last because an operator assigned a topology.
    dropped: Option<(Epoch, TopologyHash)>,
    /// The latest decision, and since when it has been the same.
    decided: Option<(Decision, Duration)>,
    /// The last message about a topology that does not run.
    said: String,
    /// Earliest time of the next attempt.
    next: Duration,
    pause: Duration,
    /// Round of the latest proposal.
    round: u32,
    /// Since when the topology has been down.
    since: Option<Duration>,
    breaker: Breaker,
    /// Earliest time of the next look while the topology serves, and the purpose of the latest one.
    look_next: Duration,
    latest: Purpose,
    /// Earliest time of the next action against slow ranks.
    speed_next: Duration,
    /// Earliest time of the next check for records that others lack.
    teach_next: Duration,
    /// The nodes to which the previous checks sent a topology that they lacked, and the list of exclusions.
    taught: Option<String>,
    told: Option<String>,
    /// The members that are back, and since when this list is unchanged.
    back: Option<(Vec<Joins>, Duration)>,
    /// Earliest time to include members that are back, and the pause before the attempt after that.
    return_next: Duration,
    return_pause: Duration,
    /// Such members, by address, without which the others return: the last attempt to include them failed.
    held_back: BTreeMap<String, HeldBack>,
    /// The member that is about to restart.
    leaving: String,
    /// Earliest time of the next rebalance, and the pause after it.
    balance_next: Duration,
    balance_pause: Duration,
}

impl Steward {
    /// A steward in its initial state.
    pub fn new(settings: StewardSettings) -> Self {
        let breaker = Breaker::new(settings.recovery.retry_slow);
        Self {
            settings,
            now: Duration::ZERO,
            asked: 0,
            doing: Doing::Nothing,
            lost: BTreeMap::new(),
            absences: BTreeMap::new(),
            failing: BTreeMap::new(),
            left_out: None,
            dropped: None,
            decided: None,
            said: String::new(),
            next: Duration::ZERO,
            pause: PAUSE,
            round: 0,
            since: None,
            breaker,
            look_next: Duration::ZERO,
            latest: Purpose::Return,
            speed_next: Duration::ZERO,
            teach_next: Duration::ZERO,
            taught: None,
            told: None,
            back: None,
            return_next: Duration::ZERO,
            return_pause: PAUSE_MAX,
            held_back: BTreeMap::new(),
            leaving: String::new(),
            balance_next: Duration::ZERO,
            balance_pause: BALANCE_PAUSE,
        }
    }

    /// Whether it waits for answers. When it is idle, answers are ignored.
    pub fn is_busy(&self) -> bool {
        !matches!(self.doing, Doing::Nothing)
    }

    /// How long to wait until the next look.
    pub fn wait(&self) -> Duration {
        if self.since.is_some_and(|since| self.now.saturating_sub(since) > LONG) { LOOK_SLOW } else { LOOK }
    }

    /// The last message about a topology that does not run.
    pub fn said(&self) -> &str {
        &self.said
    }

    /// Starts a look with this node's standing; `now` is the time since the daemon started. Abandons the current
    /// activity.
    pub fn look(&mut self, now: Duration, own: Standing) -> Vec<StewardAsk> {
        (self.now, self.doing) = (now, Doing::Nothing);
        let is_wrong = matches!(own.state, NodeState::Idle | NodeState::Faulted);
        let place = |base: Committed| {
            let place = base.topology.members.iter().position(|member| member.name == own.name)?;
            Some((base, place))
        };
        if let Some((base, place)) = own.committed.clone().filter(|_| is_wrong).and_then(place) {
            self.since.get_or_insert(now);
            return self.ask_all(base, place, own, Purpose::Recover);
        }
        self.lost.clear();
        (self.decided, self.since, self.pause) = (None, None, PAUSE);
        self.said.clear();
        if let Some(asks) = self.unload_if_idle(&own) {
            return asks;
        }
        let serves = matches!(own.state, NodeState::Ready | NodeState::Serving);
        if serves {
            self.failing.clear();
        }
        let base = own.committed.clone().filter(|_| serves && now >= self.look_next);
        let Some((base, place)) = base.and_then(place) else { return Vec::new() };
        let Some(purpose) = self.next_purpose(&own, &base, place) else { return Vec::new() };
        (self.look_next, self.latest) = (now + LOOK_SLOW, purpose);
        if purpose == Purpose::Teach {
            self.teach_next = now + TEACH;
        }
        self.ask_all(base, place, own, purpose)
    }

    /// The purpose of the next look while the topology serves. Purposes take turns: each of them may be due at every
    /// look, and none may keep another from its turn.
    fn next_purpose(&self, own: &Standing, base: &Committed, place: usize) -> Option<Purpose> {
        if own.forgets {
            return Some(Purpose::Recall);
        }
        let turns = match self.latest {
            Purpose::Teach => [Purpose::Speed, Purpose::Return, Purpose::Teach],
            Purpose::Speed => [Purpose::Return, Purpose::Teach, Purpose::Speed],
            _ => [Purpose::Teach, Purpose::Speed, Purpose::Return],
        };
        turns.into_iter().find(|purpose| match purpose {
            Purpose::Teach => self.now >= self.teach_next,
            Purpose::Speed => self.now >= self.speed_next && self.breaker.is_due(own, self.now),
            // Only the first member includes others.
            _ => place == 0 && base.desired.is_some(),
        })
    }

    /// Starts to exclude a member that is about to restart, if it belongs to the only replica. The next topology is
    /// loaded while the current one serves; without enough memory for both, nothing changes. The member rejoins by
    /// itself after its restart.
    pub fn leave(&mut self, now: Duration, own: Standing, name: &str) -> Vec<StewardAsk> {
        (self.now, self.doing) = (now, Doing::Nothing);
        let Some(base) = own.committed.clone() else { return Vec::new() };
        let place = |name: &str| base.topology.members.iter().position(|member| member.name == name);
        let (Some(place), Some(_)) = (place(&own.name), place(name)) else { return Vec::new() };
        if base.topology.layout.replicas != 1 || base.topology.members.len() < 2 || base.desired.is_some() {
            return Vec::new();
        }
        self.leaving = name.into();
        self.ask_all(base, place, own, Purpose::Leave)
    }

    /// Processes an answer.
    pub fn hear(&mut self, now: Duration, question: Question, reply: Reply) -> Vec<StewardAsk> {
        self.now = now;
        match std::mem::replace(&mut self.doing, Doing::Nothing) {
            Doing::Nothing => Vec::new(),
            Doing::Look(look) => self.hear_look(look, question, reply),
            Doing::Bring(bring) => self.hear_bring(bring, question, reply),
            Doing::Propose(propose) => self.hear_propose(propose, question, reply),
            Doing::Unload(unloading) => self.hear_unload(unloading, question, reply),
            Doing::Learn(waiting) if waiting == question => {
                self.ended(reply.of_node().map(drop));
                Vec::new()
            }
            learn @ Doing::Learn(_) => {
                self.doing = learn;
                Vec::new()
            }
        }
    }

    fn question(&mut self) -> Question {
        self.asked += 1;
        Question(self.asked)
    }

    fn ask(&mut self, address: &str, body: RequestBody, within: Duration) -> (Question, StewardAsk) {
        let question = self.question();
        (question, StewardAsk::Node { question, address: address.into(), body, within })
    }

    fn recover(&mut self, address: &str, ask: RecoveryAsk) -> (Question, StewardAsk) {
        self.ask(address, RequestBody::Recovery(Box::new(ask)), ANSWER)
    }

    /// Requests the standings at all addresses at which a member may be.
    fn ask_all(&mut self, base: Committed, place: usize, own: Standing, purpose: Purpose) -> Vec<StewardAsk> {
        let has_absent = matches!((purpose, place), (Purpose::Return | Purpose::Recall, _) | (Purpose::Teach, 0));
        let addresses = self.addresses(&base, &own, has_absent);
        let caller = self.settings.listen.as_ref().map(|listen| (self.settings.name.clone(), listen.clone()));
        let standing = || RecoveryAsk::Standing(caller.clone());
        let (mut asks, mut waiting) = (Vec::new(), BTreeMap::new());
        for address in addresses {
            let (question, ask) = self.recover(&address, standing());
            waiting.insert(question, address);
            asks.push(ask);
        }
        let mut witness = None;
        if let Some(address) = self.settings.recovery.witness.clone()
            && purpose == Purpose::Recover
            && base.topology.members.len() == 2
        {
            let (question, ask) = self.recover(&address, standing());
            witness = Some((question, None));
            asks.push(ask);
        }
        let mut out = None;
        let slow = self.breaker.out().map(|(name, address)| (name.to_owned(), address.to_owned()));
        if let Some((name, address)) = slow.filter(|_| purpose == Purpose::Speed) {
            let (question, ask) = self.recover(&address, standing());
            out = Some((question, name, None));
            asks.push(ask);
        }
        let answers = BTreeMap::new();
        let forgets = own.forgets;
        self.doing = Doing::Look(Box::new(Look { base, place, forgets, purpose, waiting, answers, witness, out }));
        asks
    }

    fn hear_look(&mut self, mut look: Box<Look>, question: Question, reply: Reply) -> Vec<StewardAsk> {
        let standing = match reply.of_node() {
            Ok(ResponseBody::Recovery(RecoveryAnswer::Standing(standing))) => Some(*standing),
            _ => None,
        };
        if let Some((asked, answers)) = look.witness.as_mut().filter(|(asked, _)| *asked == question) {
            (*asked, *answers) = (NONE, Some(standing.is_some()));
        } else if let Some((asked, name, answer)) = look.out.as_mut().filter(|(asked, ..)| *asked == question) {
            (*asked, *answer) = (NONE, standing.filter(|standing| standing.name == *name));
        } else if let Some(address) = look.waiting.remove(&question)
            && let Some(standing) = standing
        {
            look.answers.insert(address, standing);
        }
        if !look.is_complete() {
            self.doing = Doing::Look(look);
            return Vec::new();
        }
        let views = self.views(&look, &look.base.topology.members);
        if look.purpose != Purpose::Recover && views.iter().all(View::serves) {
            self.forget_absences(&look.base);
        }
        if let Some(ask) = self.recall(&look, &views) {
            return vec![ask];
        }
        match look.purpose {
            Purpose::Recover => self.decide(*look, views),
            Purpose::Speed => self.watch_speed(*look, views),
            Purpose::Teach => self.teach(*look, views),
            Purpose::Return => self.watch_return(*look, views),
            Purpose::Leave => self.watch_leave(*look, views),
            Purpose::Recall => Vec::new(),
        }
    }

    fn decide(&mut self, look: Look, views: Vec<View>) -> Vec<StewardAsk> {
        let Look { base, place, witness, .. } = look;
        let witness = witness.and_then(|(_, answers)| answers);
        let rules = Rules { exclude_after: self.settings.recovery.exclude_after, witness, failing: None };
        let own = MemberIndex(place as u16);
        let decision = self.without_failing(own, &base, &views, rules);
        let decision = decision.unwrap_or_else(|| decide(own, &base, &views, &rules));
        if !self.decided.as_ref().is_some_and(|(before, _)| before.is_alike(&decision)) {
            self.decided = Some((decision.clone(), self.now));
        }
        let is_old = |age| self.decided.as_ref().is_some_and(|(_, since)| self.now >= *since + age);
        let (settled, retakes) = (is_old(SETTLE), is_old(RETAKE));
        if self.now < self.next && !matches!(decision, Decision::Wait(_) | Decision::Rest) {
            return Vec::new();
        }
        match decision {
            Decision::Rest => {
                self.pause = PAUSE;
                Vec::new()
            }
            Decision::Wait(reason) => {
                self.say(&format!("epoch {} does not run here: {reason}", base.epoch));
                Vec::new()
            }
            Decision::Learn(later) => {
                let own = self.settings.own.clone();
                let (question, ask) = self.recover(&own, RecoveryAsk::Learn(Box::new(later)));
                self.doing = Doing::Learn(question);
                vec![ask]
            }
            Decision::Forget => self.forget(&base),
            Decision::Bring(unit) if !retakes && unit.iter().any(|member| views[member.index()].serves()) => Vec::new(),
            Decision::Bring(unit) => {
                self.say(&format!("epoch {} is being brought up again on {} nodes", base.epoch, unit.len()));
                self.bring(base, &views, &unit)
            }
            Decision::Propose { .. } if !settled => Vec::new(),
            Decision::Propose { stay, lost, granted } => {
                self.leave_out(&base, &lost);
                let change = TopologyChange::On { stay, lost };
                self.propose(Proposal { base, views, own: place, change, granted, serves: false })
            }
        }
    }

    /// An attempt to bring the topology back has ended.
    fn ended(&mut self, outcome: Result<(), Fault>) {
        match outcome {
            Ok(()) => self.pause = PAUSE,
            Err(fault) => {
                tracing::warn!("cannot bring the topology back yet: {fault}");
                self.next = self.now + self.pause;
                self.pause = longer_pause(self.pause);
            }
        }
    }

    /// Logs a message once.
    fn say(&mut self, text: &str) {
        if self.said != text {
            tracing::info!("{text}");
            self.said = text.into();
        }
    }
}
