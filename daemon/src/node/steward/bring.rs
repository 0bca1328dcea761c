//! Brings the committed topology up again on some of its members: prepares on all, then commits on all; aborts on all
//! if one fails.
use std::{collections::BTreeMap, time::Duration};

use common::{
    fault::{Fault, FaultKind},
    ids::MemberIndex,
    planted::{Planted, is_planted},
};
use protocol::{
    message::{Prepare, Previous, RequestBody, ResponseBody},
    recovery::Committed,
};

use super::{
    ANSWER, Doing, Question, Reply, Steward, StewardAsk, View, ask::unexpected, learn::still_excludes, view::exclusions,
};

/// Longest pause between two attempts to bring a topology back.
pub const PAUSE_MAX: Duration = Duration::from_secs(8);
/// Longest time without progress of a load.
const PREPARE: Duration = Duration::from_secs(60);
/// Deadline for opening the links.
const COMMIT: Duration = Duration::from_secs(20);

/// The current stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BringStage {
    /// Before anything is prepared, so that no lease ends while another member hashes its file.
    Content,
    Prepare,
    Commit,
    /// A member that never heard of it, or serves it, ignores it.
    Abort,
}

/// A topology that is being restored.
#[derive(Debug)]
pub(super) struct Bring {
    base: Committed,
    /// The members with their addresses.
    unit: Vec<(MemberIndex, String)>,
    stage: BringStage,
    waiting: BTreeMap<Question, MemberIndex>,
    /// The first fault.
    result: Result<(), Fault>,
}

impl Steward {
    /// Starts to bring up a topology on a unit: all members of a replica, or all members.
    pub(super) fn bring(&mut self, base: Committed, views: &[View], unit: &[MemberIndex]) -> Vec<StewardAsk> {
        // A member of another replica that cannot store the list must not keep this one from serving.
        let list = exclusions(views.iter().filter_map(|view| view.standing.as_ref()));
        let members: Vec<&View> = unit.iter().map(|member| &views[member.index()]).collect();
        // Each of them once before an attempt: its disk may be full.
        let told = members.iter().position(|view| self.told.as_ref() == Some(&view.address));
        let mut untold = members.iter().skip(told.map_or(0, |place| place + 1));
        let behind = untold.find(|view| view.standing.as_ref().is_some_and(|one| still_excludes(one, &base, &list)));
        self.told = behind.map(|view| view.address.clone());
        if let Some(address) = self.told.clone() {
            return vec![self.tell_exclusions(&address, list)];
        }
        let unit = unit.iter().map(|member| (*member, views[member.index()].address.clone())).collect();
        let has_content = base.topology.content.is_some() && !is_planted(Planted::ContentUnchecked);
        let first = if has_content { BringStage::Content } else { BringStage::Prepare };
        let bring = Bring { base, unit, stage: first, waiting: BTreeMap::new(), result: Ok(()) };
        self.bring_stage(Box::new(bring), first)
    }

    fn bring_stage(&mut self, mut bring: Box<Bring>, stage: BringStage) -> Vec<StewardAsk> {
        (bring.stage, bring.waiting) = (stage, BTreeMap::new());
        let (epoch, hash) = bring.base.name();
        let mut asks = Vec::with_capacity(bring.unit.len());
        for (member, address) in bring.unit.clone() {
            let (body, within) = match stage {
                BringStage::Content => {
                    let (question, topology) = (self.question(), Box::new(bring.base.topology.clone()));
                    bring.waiting.insert(question, member);
                    asks.push(StewardAsk::Content { question, address, topology });
                    continue;
                }
                BringStage::Prepare => {
                    let Committed { topology, desired, .. } = bring.base.clone();
                    let prepare = Prepare { seen: epoch, epoch, topology, member, desired, previous: Previous::Serves };
                    (RequestBody::Prepare(Box::new(prepare)), PREPARE)
                }
                BringStage::Commit => (RequestBody::Commit { epoch, hash }, COMMIT),
                BringStage::Abort => (RequestBody::Abort { epoch, hash }, ANSWER),
            };
            let (question, ask) = self.ask(&address, body, within);
            bring.waiting.insert(question, member);
            asks.push(ask);
        }
        self.doing = Doing::Bring(bring);
        asks
    }

    pub(super) fn hear_bring(&mut self, mut bring: Box<Bring>, question: Question, reply: Reply) -> Vec<StewardAsk> {
        let Some(member) = bring.waiting.remove(&question) else {
            self.doing = Doing::Bring(bring);
            return Vec::new();
        };
        let answer = match (bring.stage, reply) {
            (BringStage::Content, Reply::Content(result)) => result,
            (stage, reply) => match (stage, reply.of_node()) {
                (BringStage::Abort, _) => Ok(()),
                (BringStage::Prepare, Ok(ResponseBody::Prepared))
                | (BringStage::Commit, Ok(ResponseBody::Committed)) => Ok(()),
                (_, Ok(_)) => Err(unexpected()),
                (_, Err(fault)) => Err(fault),
            },
        };
        let (base, name) = (&bring.base, &bring.base.topology.members[member.index()].name);
        match (bring.stage, &answer) {
            (BringStage::Prepare, Ok(())) => self.member_loaded(name),
            // If others are silent, too, the cause may be storage that they share.
            (BringStage::Content, Err(Fault { kind: FaultKind::Timeout { .. }, .. })) if !bring.waiting.is_empty() => {}
            (BringStage::Content, Err(fault)) => self.member_failed(base, name, &fault.kind, true),
            (BringStage::Prepare, Err(fault)) => self.member_failed(base, name, &fault.kind, false),
            _ => {}
        }
        bring.result = bring.result.and(answer);
        // One failure is decisive: members that wait for a lost one would wait until their links time out.
        let is_over = bring.result.is_err() && bring.stage != BringStage::Abort && !is_planted(Planted::PatientAbort);
        if !bring.waiting.is_empty() && !is_over {
            self.doing = Doing::Bring(bring);
            return Vec::new();
        }
        match (bring.stage, &bring.result) {
            (BringStage::Content, Ok(())) => self.bring_stage(bring, BringStage::Prepare),
            (BringStage::Prepare, Ok(())) => self.bring_stage(bring, BringStage::Commit),
            (BringStage::Prepare | BringStage::Commit, Err(_)) => self.bring_stage(bring, BringStage::Abort),
            (BringStage::Content | BringStage::Commit | BringStage::Abort, _) => {
                self.ended(bring.result);
                Vec::new()
            }
        }
    }
}

/// The pause after one more failed attempt.
pub fn longer_pause(pause: Duration) -> Duration {
    (pause * 2).min(if is_planted(Planted::PauseUnbounded) { 15 * PAUSE_MAX } else { PAUSE_MAX })
}
