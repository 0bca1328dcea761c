//! Checks the members that join a topology, before the vote on it: the decision could not be undone if one of them cannot
//! load its shard, and it would replace a topology that an operator gave to one of them meanwhile.
use std::iter;

use common::fault::{Fault, FaultKind};
use protocol::{
    message::ResponseBody,
    recovery::{RecoveryAnswer, RecoveryAsk},
};
use telemetry::NodeState;

use super::{
    Doing, Reply, Steward, StewardAsk,
    ask::unexpected,
    change::TopologyChange,
    propose::{ProposalStage, Propose},
    reasons::{ends_by_itself, is_straggler},
    view::exclusions,
};

impl Steward {
    /// Asks the joining members whether they hold the model; without any, the vote starts.
    pub(super) fn check_joins(&mut self, mut propose: Box<Propose>) -> Vec<StewardAsk> {
        let Some(wanted) = propose.wanted.clone() else { return self.begin_vote(propose) };
        propose.waiting.clear();
        let mut asks = Vec::new();
        for (place, address) in propose.proposal.change.joining(&wanted).into_iter().enumerate() {
            let question = self.question();
            propose.waiting.insert(question, place);
            asks.push(StewardAsk::Content { question, address, topology: Box::new(wanted.clone()) });
        }
        if asks.is_empty() {
            return self.begin_vote(propose);
        }
        propose.stage = ProposalStage::Content;
        self.doing = Doing::Propose(propose);
        asks
    }

    /// A joining member has compared its file. After all have, which may take minutes, asks whether they still hold no
    /// topology.
    pub(super) fn joins_compared(
        &mut self,
        mut propose: Box<Propose>,
        place: usize,
        result: Result<(), Fault>,
    ) -> Vec<StewardAsk> {
        let wanted = propose.wanted.as_ref();
        let joining = wanted.map_or_else(Vec::new, |wanted| propose.proposal.change.joining(wanted));
        if let Err(fault) = result {
            joining.into_iter().nth(place).into_iter().for_each(|address| self.hold_back(address));
            return self.end_vote(&propose.proposal, Err(fault));
        }
        let mut asks = Vec::new();
        if propose.waiting.is_empty() {
            propose.stage = ProposalStage::Standing;
            for (place, address) in joining.iter().enumerate() {
                let (question, ask) = self.recover(address, RecoveryAsk::Standing(None));
                propose.waiting.insert(question, place);
                asks.push(ask);
            }
        }
        self.doing = Doing::Propose(propose);
        asks
    }

    /// A joining member has answered what it holds. When all hold nothing, the vote starts.
    pub(super) fn joins_answered(&mut self, mut propose: Box<Propose>, reply: Reply) -> Vec<StewardAsk> {
        let standing = match reply.of_node() {
            Ok(ResponseBody::Recovery(RecoveryAnswer::Standing(one))) => *one,
            Ok(_) => return self.end_vote(&propose.proposal, Err(unexpected())),
            Err(fault) => return self.end_vote(&propose.proposal, Err(fault)),
        };
        let may_be_slow = matches!(propose.proposal.change, TopologyChange::Again { .. });
        // A node that was away, or whose state is an older one, may hold entries that are replaced.
        let members = propose.proposal.views.iter().filter_map(|view| view.standing.as_ref());
        let list = exclusions(iter::once(&standing).chain(members));
        let out = list.of(&standing.name, "");
        let may_join =
            out.is_none_or(|entry| entry.is_cordon || ends_by_itself(entry) || (may_be_slow && is_straggler(entry)));
        if standing.state != NodeState::Idle || standing.committed.is_some() || !may_join {
            let state = standing.state.name();
            let reason = format!("an operator gave it another topology or excluded it (state: {state})");
            let fault = Fault::new(standing.name, FaultKind::TopologyInvalid { reason });
            return self.end_vote(&propose.proposal, Err(fault));
        }
        propose.proposal.change.saw(&standing.name, standing.epoch);
        if propose.waiting.is_empty() {
            return self.begin_vote(propose);
        }
        self.doing = Doing::Propose(propose);
        Vec::new()
    }
}
