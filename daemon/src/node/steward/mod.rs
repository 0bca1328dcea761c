//! Looks after the topology that its node holds, as a pure state machine: `look` begins with what the own node says, `hear` takes answers,
//! both return what to ask next. It is a client of the nodes like a console. What it remembers dies with the process. The driver
//! (`node/driver/steward`) and the simulation send its questions.
mod ask;
mod bring;
mod decide;
mod learn;
mod propose;
mod shape;

use std::{collections::BTreeMap, time::Duration};

use shared::{
    ids::MemberIndex,
    protocol::{
        error::{Fault, FaultKind},
        message::{RequestBody, ResponseBody},
        recovery::{Committed, RecoveryAnswer, RecoveryAsk, Standing},
    },
    telemetry::NodeState,
    topology::Member,
};

#[cfg(test)]
pub(in crate::node) use self::propose::with_shares;
pub use self::{
    ask::{Ask, Question, Reply},
    decide::{Decision, Rules, View, decide},
};
use self::{
    bring::Bring,
    propose::{Change, Joins, Proposal, Propose},
    shape::BALANCE_PAUSE,
};
use super::breaker::{Breaker, Turn};
use crate::config::Recovery;

/// Between two looks at the own node, and at the others while something is wrong.
const LOOK: Duration = Duration::from_millis(250);
/// As [`LOOK`] when it has been wrong for [`LONG`].
const LOOK_SLOW: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(120);
/// Members are voted out only when the same was decided for so long, which leaves an operator the time to act first.
const SETTLE: Duration = Duration::from_secs(2);
/// A member that serves is stopped only when its replica was broken for so long: a look may fall into the moment in which it came up.
const RETAKE: Duration = Duration::from_secs(1);
/// A group that serves without another one looks so often whether members of that have forgotten the topology.
const TEACH: Duration = Duration::from_secs(4);
/// Pause after an attempt that failed; doubles up to the most.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(8);
/// A question must be answered within this; a disk may have to be synced.
pub const ANSWER: Duration = Duration::from_secs(3);

/// What it needs to know of its daemon.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's name.
    pub name: String,
    /// Where the own node is dialled.
    pub own: String,
    /// Where others dial it; `None`: it does not know.
    pub listen: Option<String>,
    /// How a topology comes back.
    pub recovery: Recovery,
    /// Nodes that are named in the configuration: where they answer counts more than where they were.
    pub known: Vec<String>,
}

/// Why the members are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// The topology does not run.
    Recover,
    /// It runs; a rank may be slow.
    Speed,
    /// It runs; the own node's record of votes is gone.
    Recall,
    /// It runs here; this node may have missed a later decision, or a member of a group with another role may have lost its record.
    Teach,
    /// It runs, but differs from the desired topology, whose missing members may be back.
    Return,
    /// It runs on one replica, and one of its members is about to restart.
    Leave,
}

/// What is under way.
#[derive(Debug)]
enum Doing {
    Nothing,
    Look(Box<Look>),
    Bring(Box<Bring>),
    Propose(Box<Propose>),
    /// A node is told of a topology that it does not know.
    Learn(Question),
}

/// Asks all members what they hold.
#[derive(Debug)]
struct Look {
    base: Committed,
    place: usize,
    /// Whether the own node's record of votes is gone.
    forgets: bool,
    purpose: Purpose,
    waiting: BTreeMap<Question, String>,
    answers: BTreeMap<String, Standing>,
    /// The question to the witness, and whether it answered.
    witness: Option<(Question, Option<bool>)>,
    /// The question to the node that was taken out as slow, its name and its answer.
    out: Option<(Question, String, Option<Standing>)>,
}

impl Look {
    fn is_complete(&self) -> bool {
        let is_out_told = self.out.as_ref().is_none_or(|(question, ..)| *question == NONE);
        self.waiting.is_empty() && is_out_told && self.witness.is_none_or(|(_, answers)| answers.is_some())
    }
}

/// A question that is answered.
const NONE: Question = Question(0);

/// The steward of one node.
#[derive(Debug)]
pub struct Steward {
    settings: Settings,
    now: Duration,
    asked: u64,
    doing: Doing,
    /// Since when a member does not answer.
    lost: BTreeMap<String, Duration>,
    /// The decision, and since when it is the same.
    decided: Option<(Decision, Duration)>,
    /// What was said last.
    said: String,
    /// Nothing is tried before.
    next: Duration,
    pause: Duration,
    /// Round of the latest proposal.
    round: u32,
    /// Since when the topology does not run.
    since: Option<Duration>,
    breaker: Breaker,
    /// Nothing is done about slow ranks before.
    speed_next: Duration,
    /// No member is taught before.
    teach_next: Duration,
    /// The members that are back, and since when this list is unchanged.
    back: Option<(Vec<Joins>, Duration)>,
    /// Earliest time to include members that are back, and the pause before the attempt after that.
    return_next: Duration,
    return_pause: Duration,
    /// The member that is about to restart.
    leaving: String,
    /// Earliest time of the next rebalance, and the pause after it.
    balance_next: Duration,
    balance_pause: Duration,
}

impl Steward {
    /// A steward that has seen nothing yet.
    pub fn new(settings: Settings) -> Self {
        let breaker = Breaker::new(settings.recovery.retry_slow);
        Self {
            settings,
            now: Duration::ZERO,
            asked: 0,
            doing: Doing::Nothing,
            lost: BTreeMap::new(),
            decided: None,
            said: String::new(),
            next: Duration::ZERO,
            pause: PAUSE,
            round: 0,
            since: None,
            breaker,
            speed_next: Duration::ZERO,
            teach_next: Duration::ZERO,
            back: None,
            return_next: Duration::ZERO,
            return_pause: PAUSE_MAX,
            leaving: String::new(),
            balance_next: Duration::ZERO,
            balance_pause: BALANCE_PAUSE,
        }
    }

    /// Whether answers are awaited. When it is at rest, no answer counts any more.
    pub fn is_busy(&self) -> bool {
        !matches!(self.doing, Doing::Nothing)
    }

    /// How long to wait until the next look.
    pub fn wait(&self) -> Duration {
        if self.since.is_some_and(|since| self.now.saturating_sub(since) > LONG) { LOOK_SLOW } else { LOOK }
    }

    /// What it said last about a topology that does not run.
    pub fn said(&self) -> &str {
        &self.said
    }

    /// Begins a look with what the own node holds; `now` is the time since the daemon started. What was under way is given up.
    pub fn look(&mut self, now: Duration, own: Standing) -> Vec<Ask> {
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
        let serves = matches!(own.state, NodeState::Ready | NodeState::Serving);
        let purpose = match () {
            () if own.forgets => Some(Purpose::Recall),
            // Before the breaker, which may be due at every look.
            () if now >= self.teach_next => Some(Purpose::Teach),
            () if self.breaker.is_due(&own, now) => Some(Purpose::Speed),
            () if own.committed.as_ref().is_some_and(|base| base.desired.is_some()) => Some(Purpose::Return),
            () => None,
        };
        let base = own.committed.clone().filter(|_| serves && now >= self.speed_next);
        let (Some((base, place)), Some(purpose)) = (base.and_then(place), purpose) else { return Vec::new() };
        self.speed_next = now + LOOK_SLOW;
        if purpose == Purpose::Teach {
            self.teach_next = now + TEACH;
        }
        if purpose == Purpose::Return && place != 0 {
            return Vec::new();
        }
        self.ask_all(base, place, own, purpose)
    }

    /// Starts to exclude a member that is about to restart, if it belongs to the only replica. The next topology is loaded while the current
    /// one serves; without enough memory for both, nothing changes. The member rejoins by itself after its restart.
    pub fn leave(&mut self, now: Duration, own: Standing, name: &str) -> Vec<Ask> {
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

    /// Takes an answer in.
    pub fn hear(&mut self, now: Duration, question: Question, reply: Reply) -> Vec<Ask> {
        self.now = now;
        match std::mem::replace(&mut self.doing, Doing::Nothing) {
            Doing::Nothing => Vec::new(),
            Doing::Look(look) => self.hear_look(look, question, reply),
            Doing::Bring(bring) => self.hear_bring(bring, question, reply),
            Doing::Propose(propose) => self.hear_propose(propose, question, reply),
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

    fn ask(&mut self, address: &str, body: RequestBody, within: Duration) -> (Question, Ask) {
        let question = self.question();
        (question, Ask::Node { question, address: address.into(), body, within })
    }

    fn recover(&mut self, address: &str, ask: RecoveryAsk) -> (Question, Ask) {
        self.ask(address, RequestBody::Recovery(Box::new(ask)), ANSWER)
    }

    /// Asks at all addresses at which a member may be.
    fn ask_all(&mut self, base: Committed, place: usize, own: Standing, purpose: Purpose) -> Vec<Ask> {
        let mut addresses: Vec<String> = base.topology.members.iter().map(|member| member.address.clone()).collect();
        if purpose == Purpose::Return {
            addresses.extend(base.desired().members.iter().map(|member| member.address.clone()));
        }
        addresses.extend(own.heard.iter().map(|(_, address)| address.clone()));
        addresses.extend(self.settings.known.iter().cloned());
        addresses.push(self.settings.own.clone());
        addresses.sort_unstable();
        addresses.dedup();
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

    fn hear_look(&mut self, mut look: Box<Look>, question: Question, reply: Reply) -> Vec<Ask> {
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

    /// Sorts the answers by the member that gave them.
    fn views(&mut self, look: &Look, members: &[Member]) -> Vec<View> {
        let (own, listen, now) = (self.settings.own.clone(), self.settings.listen.is_some(), self.now);
        let mut view = |member: &Member| {
            let mut named = look.answers.iter().filter(|(_, standing)| standing.name == member.name);
            let at_home = look.answers.get(&member.address).filter(|standing| standing.name == member.name);
            let found = at_home.map(|standing| (&member.address, standing)).or_else(|| named.next());
            let (address, standing) = match found {
                // A node behind a port of all interfaces is where it was.
                Some((address, standing)) if *address == own && !listen => (member.address.clone(), Some(standing)),
                Some((address, standing)) => (address.clone(), Some(standing)),
                None => (member.address.clone(), None),
            };
            let since = match standing {
                Some(_) => {
                    self.lost.remove(&member.name);
                    now
                }
                None => *self.lost.entry(member.name.clone()).or_insert(now),
            };
            View { standing: standing.cloned(), address, lost: now.saturating_sub(since) }
        };
        members.iter().map(&mut view).collect()
    }

    fn decide(&mut self, look: Look, views: Vec<View>) -> Vec<Ask> {
        let Look { base, place, witness, .. } = look;
        let witness = witness.and_then(|(_, answers)| answers);
        let rules = Rules { exclude_after: self.settings.recovery.exclude_after, witness };
        let decision = decide(MemberIndex(place as u16), &base, &views, &rules);
        if !self.decided.as_ref().is_some_and(|(before, _)| is_alike(before, &decision)) {
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
            Decision::Bring(unit) if !retakes && unit.iter().any(|member| views[member.index()].serves()) => Vec::new(),
            Decision::Bring(unit) => {
                self.say(&format!("epoch {} is brought up again on {} nodes", base.epoch, unit.len()));
                self.bring(base, &views, &unit)
            }
            Decision::Propose { .. } if !settled => Vec::new(),
            Decision::Propose { stay, lost, granted } => {
                let change = Change::On { stay, lost };
                self.propose(Proposal { base, views, own: place, change, granted, serves: false })
            }
        }
    }

    /// While all serves: takes a slow rank out, or tries one again that was.
    fn watch_speed(&mut self, look: Look, views: Vec<View>) -> Vec<Ask> {
        let Look { base, place, out, .. } = look;
        let out = out.and_then(|(_, _, standing)| standing);
        let change = match self.breaker.look(MemberIndex(place as u16), &base, &views, out.as_ref(), self.now) {
            Turn::Rest => return Vec::new(),
            Turn::TakeOut { slow, reason } => {
                tracing::warn!("{} is taken out: it {reason}", base.topology.members[slow.index()].name);
                let all = (0..views.len() as u16).map(MemberIndex);
                Change::On { stay: all.filter(|one| *one != slow).collect(), lost: vec![(slow, reason)] }
            }
            Turn::TryAgain { before, joins } => {
                tracing::warn!("{} is tried again", before.members[joins.index()].name);
                Change::Again { topology: before, joins }
            }
        };
        self.propose(Proposal { base, views, own: place, change, granted: 0, serves: true })
    }

    /// What was under way to bring the topology back has ended.
    fn ended(&mut self, outcome: Result<(), Fault>) {
        match outcome {
            Ok(()) => self.pause = PAUSE,
            Err(fault) => {
                tracing::warn!("the topology does not come back yet: {fault}");
                self.next = self.now + self.pause;
                self.pause = (self.pause * 2).min(PAUSE_MAX);
            }
        }
    }

    /// A vote about a slow rank has ended.
    fn speed_ended(&mut self, outcome: Result<(), Fault>) {
        if let Err(fault) = outcome {
            tracing::warn!("it stays as it is: {fault}");
            // What does not fit now, or finds no majority, does not in a second, either.
            self.speed_next = self.now + self.settings.recovery.exclude_slow.unwrap_or(PAUSE_MAX);
        }
    }

    /// Says something once.
    fn say(&mut self, text: &str) {
        if self.said != text {
            tracing::info!("{text}");
            self.said = text.into();
        }
    }
}

/// Whether two decisions are the same but for how long a member is away.
fn is_alike(one: &Decision, two: &Decision) -> bool {
    match (one, two) {
        (Decision::Propose { stay: one, .. }, Decision::Propose { stay: two, .. }) => one == two,
        _ => one == two,
    }
}

/// A node answered something else than what was asked.
fn unexpected() -> Fault {
    Fault::new("steward", FaultKind::Malformed { reason: "an unexpected answer".into() })
}
