//! The vote against an adversary: lost, duplicated and delayed messages, voters that crash before and after they write,
//! concurrent proposers, consecutive decisions.
use std::collections::BTreeMap;

use collectives::Choice;
use common::{
    ids::{Epoch, ModelIdentity},
    precision::{Exchange, KvFormat},
};
use protocol::recovery::{Ballot, Committed, Vote, VoteReply};
use topology::{Layout, Member, Topology};

use crate::node::quorum::{Accepted, Acceptor, Electorate, Proposer, Step, VoteGap, Votes, WITNESSED_MAX, majority};

/// A small generator (Knuth, MMIX): the same sequence for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

fn topology(members: &[usize]) -> Topology {
    let members = members.iter().map(|index| Member {
        name: index.to_string(),
        address: index.to_string(),
        weight: 1,
        layers: 0..1,
        cores: Vec::new(),
        threads: 1,
        spin: false,
    });
    Topology {
        layout: Layout::tensor_parallel(members.len() as u16),
        members: members.collect(),
        model: "m".into(),
        identity: ModelIdentity::default(),
        content: None,
        unload_after: None,
        draft: None,
        kv: KvFormat::F16,
        exchange: Exchange::F32,
        collective: Choice::Auto,
        context_length: 1,
        slots: 1,
    }
}

fn of(voters: usize, granted: usize) -> Electorate {
    Electorate { voters, granted }
}

fn members(committed: &Committed) -> Vec<usize> {
    committed.topology.members.iter().map(|member| member.name.parse().expect("a number")).collect()
}

/// A node: its disk, and its own proposal.
struct Elector {
    holds: Committed,
    voter: Acceptor,
    seen: Epoch,
    round: u32,
    proposal: Option<(Committed, Proposer)>,
}

enum Mail {
    Ask { from: usize, to: usize, vote: Vote },
    Answer { to: usize, from: usize, ballot: Ballot, ruling: VoteReply },
}

struct World {
    random: Random,
    nodes: Vec<Elector>,
    mail: Vec<Mail>,
    /// The topology chosen after each topology, and its epoch.
    chosen: BTreeMap<Epoch, Committed>,
    by_epoch: BTreeMap<Epoch, Topology>,
}

impl World {
    fn new(seed: u64, count: usize) -> Self {
        let all: Vec<usize> = (0..count).collect();
        let holds = Committed::new(Epoch(4), topology(&all));
        let nodes = (0..count).map(|_| {
            let (holds, voter) = (holds.clone(), Acceptor::default());
            Elector { holds, voter, seen: Epoch(4), round: 0, proposal: None }
        });
        let (chosen, by_epoch) = (BTreeMap::new(), BTreeMap::new());
        Self { random: Random(seed), nodes: nodes.collect(), mail: Vec::new(), chosen, by_epoch }
    }

    fn begin(&mut self, who: usize) {
        let node = &mut self.nodes[who];
        let base = node.holds.clone();
        let electorate = members(&base);
        let Some(own) = electorate.iter().position(|member| *member == who) else { return };
        node.round += 1;
        let ballot = Ballot { round: node.round, member: own as u16 };
        node.proposal = Some((base.clone(), Proposer::new(&base, ballot, of(electorate.len(), 0))));
        let vote = Vote { base, witness: None, ballot, next: None };
        self.mail.extend(electorate.into_iter().map(|to| Mail::Ask { from: who, to, vote: vote.clone() }));
    }

    fn learn(&mut self, who: usize, committed: &Committed) {
        let node = &mut self.nodes[who];
        if committed.epoch > node.holds.epoch {
            (node.holds, node.seen) = (committed.clone(), node.seen.max(committed.epoch));
            node.proposal = None;
        }
    }

    fn deliver(&mut self, mail: Mail) {
        match mail {
            Mail::Ask { from, to, vote } => {
                self.learn(to, &vote.base);
                let node = &mut self.nodes[to];
                let disk = node.voter.clone();
                let later = (node.holds.epoch > vote.base.epoch).then(|| node.holds.clone());
                let ruling = match later {
                    Some(later) => VoteReply::Behind(Box::new(later)),
                    None => node.voter.rule(&vote, node.seen).0,
                };
                if self.random.below(12) == 0 {
                    // Crashes before it has written.
                    self.nodes[to].voter = disk;
                } else if self.random.below(12) > 0 {
                    self.mail.push(Mail::Answer { to: from, from: to, ballot: vote.ballot, ruling });
                }
            }
            Mail::Answer { to, from, ballot, ruling } => {
                let Some((base, mut proposer)) = self.nodes[to].proposal.take() else { return };
                if proposer.ballot() == ballot {
                    self.step(from, (to, &base, &mut proposer), ruling);
                }
                self.nodes[to].proposal.get_or_insert((base, proposer));
            }
        }
    }

    fn step(&mut self, from: usize, own: (usize, &Committed, &mut Proposer), ruling: VoteReply) {
        let (who, base, proposer) = own;
        let electorate = members(base);
        let Some(voter) = electorate.iter().position(|member| *member == from) else { return };
        match proposer.hear(voter, ruling) {
            Step::Wait => {}
            Step::Nack(ballot) => self.nodes[who].round = self.nodes[who].round.max(ballot.round),
            Step::Behind(later) => self.learn(who, &later),
            Step::Propose => {
                let keep = electorate.iter().copied().filter(|_| self.random.below(3) > 0).collect::<Vec<_>>();
                let keep = if keep.is_empty() { vec![who] } else { keep };
                let next = Some(proposer.propose(|epoch| Committed::new(epoch, topology(&keep))));
                let vote = Vote { base: base.clone(), witness: None, ballot: proposer.ballot(), next };
                self.mail.extend(electorate.into_iter().map(|to| Mail::Ask { from: who, to, vote: vote.clone() }));
            }
            Step::Chosen(next) => {
                let first = self.chosen.entry(base.epoch).or_insert_with(|| next.clone());
                assert_eq!(*first, next, "two topologies follow epoch {}", base.epoch);
                let first = self.by_epoch.entry(next.epoch).or_insert_with(|| next.topology.clone());
                assert_eq!(*first, next.topology, "two topologies have epoch {}", next.epoch);
                let have = electorate.iter().filter(|member| {
                    let accepted = self.nodes[**member].voter.votes.as_ref();
                    self.nodes[**member].holds.epoch > base.epoch
                        || accepted.is_some_and(|votes| votes.accepted.is_some())
                });
                assert!(have.count() >= majority(electorate.len()), "without a majority");
                self.learn(who, &next);
            }
        }
    }

    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            let count = self.nodes.len();
            match self.random.below(10) {
                0 => {
                    let who = self.random.below(count);
                    self.begin(who);
                }
                1 if !self.mail.is_empty() => {
                    let lost = self.random.below(self.mail.len());
                    self.mail.swap_remove(lost);
                }
                2 => {
                    // Restarts: only its disk is left.
                    let who = self.random.below(count);
                    self.nodes[who].proposal = None;
                }
                _ if !self.mail.is_empty() => {
                    let which = self.random.below(self.mail.len());
                    let mail = self.mail.swap_remove(which);
                    if let (Mail::Ask { from, to, vote }, 0) = (&mail, self.random.below(8)) {
                        self.mail.push(Mail::Ask { from: *from, to: *to, vote: vote.clone() });
                    }
                    self.deliver(mail);
                }
                _ => {}
            }
        }
    }
}

#[test]
fn at_most_one_topology_follows_each_and_epochs_are_unique() {
    let mut decisions = 0;
    for seed in 0..1500 {
        let mut world = World::new(seed, 2 + seed as usize % 4);
        world.run(250);
        decisions += world.chosen.len();
    }
    assert!(
        decisions > 800,
        "only {decisions} decisions were made: the adversary is too strong for a meaningful \
     test"
    );
}

fn vote(round: u32, member: u16, next: Option<Committed>) -> Vote {
    let base = Committed::new(Epoch(4), topology(&[0, 1, 2]));
    Vote { base, witness: None, ballot: Ballot { round, member }, next }
}

#[test]
fn voter_keeps_its_promise_and_reports_what_it_accepted() {
    let next = Committed::new(Epoch(5), topology(&[1, 2]));
    let mut voter = Acceptor::default();
    assert_eq!(
        voter.rule(&vote(2, 1, None), Epoch(4)),
        (VoteReply::Promised { accepted: None, epoch: Epoch(4) }, true)
    );
    let older = Ballot { round: 2, member: 1 };
    assert_eq!(voter.rule(&vote(2, 0, None), Epoch(4)).0, VoteReply::Nack(older));
    assert_eq!(voter.rule(&vote(1, 2, Some(next.clone())), Epoch(4)).0, VoteReply::Nack(older));
    assert_eq!(voter.rule(&vote(2, 1, Some(next.clone())), Epoch(4)), (VoteReply::Accepted, true));
    let later = voter.rule(&vote(3, 0, None), Epoch(9)).0;
    assert_eq!(later, VoteReply::Promised { accepted: Some((older, next)), epoch: Epoch(9) });
}

#[test]
fn voter_without_record_abstains_until_a_later_topology() {
    let mut voter = Acceptor { forgot: Some(VoteGap::Lost), ..Acceptor::default() };
    assert!(matches!(voter.rule(&vote(1, 0, None), Epoch(4)).0, VoteReply::Abstains(_)));
    assert!(matches!(voter.rule(&vote(9, 0, None), Epoch(4)).0, VoteReply::Abstains(_)));
    voter.forgot = Some(VoteGap::UpTo(Epoch(4)));
    assert!(matches!(voter.rule(&vote(9, 0, None), Epoch(4)).0, VoteReply::Abstains(_)));
    let mut later = vote(1, 0, None);
    later.base.epoch = Epoch(5);
    assert!(matches!(voter.rule(&later, Epoch(5)).0, VoteReply::Promised { .. }));
}

#[test]
fn one_voter_of_an_even_number_may_have_lost_its_record() {
    for (gap, members, witness, votes) in [
        (VoteGap::Fresh, &[0, 1][..], false, true),
        (VoteGap::UpTo(Epoch(4)), &[0, 1], false, true),
        (VoteGap::Lost, &[0, 1, 2, 3], false, true),
        (VoteGap::UpTo(Epoch(9)), &[0, 1, 2], false, false),
        (VoteGap::Fresh, &[0, 1], true, false),
        // The only voter has no other one that remembers: it asks the absent members first.
        (VoteGap::Fresh, &[0], false, false),
        (VoteGap::UpTo(Epoch(4)), &[0], false, true),
        (VoteGap::UpTo(Epoch(5)), &[0], false, false),
    ] {
        let mut voter = Acceptor { forgot: Some(gap), ..Acceptor::default() };
        let (base, witness) = (Committed::new(Epoch(4), topology(members)), witness.then(|| "w:1".to_owned()));
        let ballot = Ballot { round: 1, member: 0 };
        let ruling = voter.rule(&Vote { base, witness: witness.clone(), ballot, next: None }, Epoch(4)).0;
        assert_eq!(
            matches!(ruling, VoteReply::Promised { .. }),
            votes,
            "{gap:?}, {members:?}, {witness:?}: {ruling:?}"
        );
    }
}

#[test]
fn ballot_is_promised_once_after_proposer_restart() {
    let next = |keep: &[usize]| Some(Committed::new(Epoch(5), topology(keep)));
    let (mut own, mut second) = (Acceptor::default(), Acceptor::default());
    for voter in [&mut own, &mut second] {
        assert!(matches!(voter.rule(&vote(1, 0, None), Epoch(4)).0, VoteReply::Promised { .. }));
    }
    assert_eq!(second.rule(&vote(1, 0, next(&[0, 2])), Epoch(4)).0, VoteReply::Accepted);
    // The proposer crashes before it accepts its own proposal, and starts again at round 1 with another topology.
    let used = Ballot { round: 1, member: 0 };
    assert_eq!(own.rule(&vote(1, 0, None), Epoch(4)), (VoteReply::Nack(used), false));
    assert!(matches!(own.rule(&vote(2, 0, None), Epoch(4)).0, VoteReply::Promised { .. }));
    assert_eq!(own.rule(&vote(1, 0, next(&[0, 2])), Epoch(4)).0, VoteReply::Nack(Ballot { round: 2, member: 0 }));
}

#[test]
fn new_witness_votes_and_a_damaged_one_abstains_once() {
    let mut fresh = Acceptor { forgot: Some(VoteGap::Fresh), ..Acceptor::default() };
    assert!(matches!(fresh.rule(&vote(1, 0, None), Epoch(4)).0, VoteReply::Abstains(_)), "as a member");
    fresh.witnesses(Epoch(4));
    assert!(matches!(fresh.rule(&vote(1, 0, None), Epoch(4)).0, VoteReply::Promised { .. }));
    let mut damaged = Acceptor { forgot: Some(VoteGap::Lost), ..Acceptor::default() };
    damaged.witnesses(Epoch(4));
    assert_eq!(damaged.forgot, Some(VoteGap::UpTo(Epoch(4))));
}

#[test]
fn two_nodes_decide_only_with_witness_or_operator() {
    let base = Committed::new(Epoch(4), topology(&[0, 1]));
    let promised = || VoteReply::Promised { accepted: None, epoch: Epoch(7) };
    let ballot = Ballot { round: 1, member: 0 };
    assert_eq!(Proposer::new(&base, ballot, of(2, 0)).hear(0, promised()), Step::Wait, "alone");
    let mut witnessed = Proposer::new(&base, ballot, of(3, 0));
    assert_eq!((witnessed.hear(0, promised()), witnessed.hear(2, promised())), (Step::Wait, Step::Propose));
    let mut granted = Proposer::new(&base, ballot, of(2, 1));
    assert_eq!(granted.hear(0, promised()), Step::Propose);
    let next = granted.propose(|epoch| Committed::new(epoch, topology(&[0])));
    assert_eq!(next.epoch, Epoch(8), "an unused epoch");
    assert_eq!(granted.hear(0, VoteReply::Accepted), Step::Chosen(next));
}

/// A vote of two nodes on the topology that follows theirs of this epoch.
fn pair_vote(pair: [usize; 2], epoch: u64, round: u32, next: Option<Committed>) -> Vote {
    let base = Committed::new(Epoch(epoch), topology(&pair));
    Vote { base, witness: Some("9:1".into()), ballot: Ballot { round, member: 0 }, next }
}

#[test]
fn witness_of_two_groups_votes_for_both() {
    let next = Committed::new(Epoch(10), topology(&[3]));
    let ballot = Ballot { round: 1, member: 0 };
    let promised = |accepted| (VoteReply::Promised { accepted, epoch: Epoch(0) }, true);
    let mut fresh = Acceptor::default();
    let accepts = fresh.rule_as_witness(&pair_vote([3, 4], 9, 1, Some(next.clone())), Epoch(0));
    assert_eq!(accepts, (VoteReply::Accepted, true));
    // An earlier build stored the votes of a witness like those of a member.
    let accepted = Some(Accepted { ballot, next: next.clone() });
    let votes = Votes { promised: ballot, base: pair_vote([3, 4], 9, 1, None).base, accepted };
    for mut witness in [fresh, Acceptor { votes: Some(votes), ..Acceptor::default() }] {
        assert_eq!(witness.rule_as_witness(&pair_vote([1, 2], 4, 1, None), Epoch(0)), promised(None));
        let told = witness.rule_as_witness(&pair_vote([3, 4], 9, 2, None), Epoch(0));
        assert_eq!(told, promised(Some((ballot, next.clone()))), "the vote of the other group erased nothing");
        assert_eq!(
            witness.rule_as_witness(&pair_vote([3, 4], 9, 1, None), Epoch(0)),
            (VoteReply::Nack(Ballot { round: 2, member: 0 }), false)
        );
        // Within a group, the later topology has precedence.
        assert_eq!(witness.rule_as_witness(&pair_vote([2, 1], 6, 1, None), Epoch(0)), promised(None));
        assert_eq!(witness.witnessed.len(), 2, "it replaces the earlier one");
        let behind = VoteReply::Behind(Box::new(pair_vote([2, 1], 6, 1, None).base));
        assert_eq!(witness.rule_as_witness(&pair_vote([1, 2], 4, 9, None), Epoch(0)), (behind.clone(), false));
        assert_eq!(witness.rule_as_witness(&pair_vote([1, 5], 5, 1, None), Epoch(0)), (behind, false));
    }
}

#[test]
fn proposer_ignores_a_later_topology_of_another_group() {
    let vote = pair_vote([1, 2], 4, 1, None);
    let behind = |pair| VoteReply::Behind(Box::new(pair_vote(pair, 9, 1, None).base));
    let mut proposer = Proposer::new(&vote.base, vote.ballot, of(3, 0));
    assert_eq!(proposer.hear(2, behind([3, 4])), Step::Wait);
    assert!(matches!(proposer.hear(1, behind([2, 3])), Step::Behind(later) if later.epoch == Epoch(9)));
}

#[test]
fn witness_of_too_many_groups_abstains_for_further_ones() {
    let mut witness = Acceptor::default();
    let mut vote = |group: usize, round| {
        witness.rule_as_witness(&pair_vote([2 * group, 2 * group + 1], 4, round, None), Epoch(0)).0
    };
    for group in 0..WITNESSED_MAX {
        assert!(matches!(vote(group, 1), VoteReply::Promised { .. }), "{group}");
    }
    assert!(matches!(vote(WITNESSED_MAX, 1), VoteReply::Abstains(_)));
    assert!(matches!(vote(0, 2), VoteReply::Promised { .. }), "it remembers them");
}
