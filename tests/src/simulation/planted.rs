//! How each planted bug is found: by histories, by scripts of votes, or by a property of one part that is checked here.
//! `simulate_cluster --planted` prints after how many histories.
use std::{iter, time::Duration};

use common::{
    fault::Loss,
    ids::{Epoch, MemberIndex, Rank, RequestId, TopologyHash},
    planted::{Planted, plant},
    sampling::SamplingParameters,
};
use daemon::node::{
    Effect, Event, Node, SessionId,
    driver::state::StateLock,
    effect::AssignmentEffect,
    machine::{NodeInit, Patience, QUEUE_MAX},
    pulse::Peer,
    steward::{PAUSE_MAX, longer_pause},
};
use engine::{head::admission::refusal, plan::Limits};
use protocol::{
    frame::{FrameHeader, FrameKind, FramePlace},
    message::{Generate, Prepare, Previous, Prompt, Request, RequestBody},
    recovery::Committed,
};
use telemetry::NodeState;
use topology::{KvBlocks, StateCount};

use super::{History, run_vote, topology, vote_scripts, world::LIVENESS};

/// What finds a planted bug.
#[derive(Clone, Copy, Debug)]
enum Finder {
    Histories,
    Votes,
    /// A property that holds without the bug.
    Property(fn() -> bool),
}

fn finder(bug: Planted) -> Finder {
    match bug {
        Planted::BallotTwice | Planted::AcceptedUntold | Planted::OlderBallotAccepted => Finder::Votes,
        Planted::UnlockedState => Finder::Property(folder_is_locked),
        Planted::FullAnswerRefused => Finder::Property(full_answer_is_taken),
        Planted::FrameUnchecked => Finder::Property(damaged_frame_is_refused),
        Planted::LeaseForever => Finder::Property(lease_ends),
        Planted::AnyLinkAccepted => Finder::Property(other_link_is_refused),
        Planted::QueueUnbounded => Finder::Property(queue_is_bounded),
        Planted::PatientAbort => Finder::Property(links_end_with_their_leader),
        Planted::PauseUnbounded => Finder::Property(pause_is_bounded),
        Planted::SilenceUnnoticed => Finder::Property(silence_is_noticed),
        _ => Finder::Histories,
    }
}

/// A planted bug for its lifetime.
struct Bug;

impl Bug {
    fn plant(bug: Planted) -> Self {
        plant(Some(bug));
        Self
    }
}

impl Drop for Bug {
    fn drop(&mut self) {
        plant(None);
    }
}

/// How a bug was found.
#[derive(Clone, Debug)]
pub struct Discovery {
    /// Number of histories or scripts until then; 0 if a property found it.
    pub histories: u64,
    /// What was violated.
    pub what: String,
}

/// Plants a bug and searches for it in at most `most` histories from a seed on.
pub fn find(bug: Planted, first: u64, most: u64) -> Option<Discovery> {
    let _bug = Bug::plant(bug);
    match finder(bug) {
        Finder::Property(holds) => {
            (!holds()).then(|| Discovery { histories: 0, what: "a property does not hold".into() })
        }
        Finder::Histories => (0..most).find_map(|turn| {
            let history = History::draw(first + turn);
            let what = history.run(false).violation?;
            // A history that fails without the bug as well proves nothing.
            plant(None);
            let is_sound = history.run(false).violation.is_none();
            plant(Some(bug));
            is_sound.then_some(Discovery { histories: turn + 1, what })
        }),
        Finder::Votes => {
            let (away, scripts) = vote_scripts(3, 2);
            let runs = (0..).flat_map(|seed| scripts.iter().map(move |turns| (seed, turns)));
            let mut runs = runs.take(most as usize).enumerate();
            runs.find_map(|(turn, (seed, turns)): (usize, (u64, &Vec<_>))| {
                let what = run_vote(3, &away, turns, first + seed, false).violation?;
                Some(Discovery { histories: turn as u64 + 1, what })
            })
        }
    }
}

/// Five bugs of a day, given in days since 1970: any seven days in a row have all bugs.
pub fn of_day(day: u64) -> Vec<Planted> {
    let count = Planted::ALL.len();
    (0..5).map(|turn| Planted::ALL[(day as usize * 5 + turn) % count]).collect()
}

fn folder_is_locked() -> bool {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let listen = std::net::SocketAddr::from(([127, 0, 0, 1], 9999));
    let _first = StateLock::take(folder.path(), "n1", listen).expect("no one holds it");
    StateLock::take(folder.path(), "n2", listen).is_err()
}

fn full_answer_is_taken() -> bool {
    let limits = Limits {
        slots: 1,
        blocks: KvBlocks::alike(1),
        window: None,
        context_length: 8,
        vocabulary_length: 100,
        states: StateCount::NONE,
    };
    refusal(&limits, &[1; 5], &[2; 4]).is_none() && refusal(&limits, &[1; 5], &[2; 5]).is_some()
}

fn damaged_frame_is_refused() -> bool {
    let header = FrameHeader {
        kind: FrameKind::Partial,
        from: Rank(1),
        length: 64,
        epoch: Epoch(3),
        hash: TopologyHash(5),
        step: 7,
        sequence: 2,
        place: FramePlace::default(),
        slowest: Rank(1),
        compute_ns: 9,
        payload_sum: 0,
    };
    let bytes = header.encode();
    (0..8 * bytes.len()).all(|bit| {
        let mut damaged = bytes;
        damaged[bit / 8] ^= 1 << (bit % 8);
        FrameHeader::decode(&damaged).is_err()
    })
}

/// A node that has prepared epoch 1, again if it held it before.
fn prepared(committed: Option<Committed>) -> Node {
    let patience = Patience { lease: Duration::from_secs(60), drain: Duration::from_secs(20) };
    let seen = committed.as_ref().map_or(Epoch(0), |held| held.epoch);
    let mut node = Node::new(NodeInit { name: "n1".into(), epoch: seen, committed, ..NodeInit::default() }, patience);
    let topology = topology("tp2");
    let (epoch, hash) = (Epoch(1), topology.hash());
    let (member, previous) = (MemberIndex(0), Previous::Serves);
    let prepare = Prepare { seen, epoch, topology, member, desired: None, previous };
    let request = Request { id: RequestId(1), body: RequestBody::Prepare(Box::new(prepare)) };
    node.handle(Event::Request { session: SessionId(1), by: "op".into(), request });
    node.handle(Event::Loaded(epoch, Ok(common::units::Bytes(1))));
    node.handle(Event::Persisted(epoch, hash, Ok(())));
    node
}

fn lease_ends() -> bool {
    let mut node = prepared(None);
    let was = node.state();
    node.handle(Event::Tick { now: Duration::from_secs(61) });
    (was, node.state()) == (NodeState::Prepared, NodeState::Idle)
}

fn other_link_is_refused() -> bool {
    let (node, hash) = (prepared(None), topology("tp2").hash());
    node.expects_links(Epoch(1), hash) && !node.expects_links(Epoch(2), hash)
}

/// Histories seldom show it: the first one did after 810, later none of 2000.
fn silence_is_noticed() -> bool {
    let peer = Peer::new(Duration::ZERO);
    let after = |age| peer.lost(&LIVENESS, age);
    after(LIVENESS.silent).is_none() && after(LIVENESS.silent + LIVENESS.heartbeat) == Some(Loss::Silent)
}

/// The links of a recovery end with the session of its leader. Histories seldom show it: the first one did after 668,
/// later none of 2000.
fn links_end_with_their_leader() -> bool {
    let held = Committed::new(Epoch(1), topology("tp2"));
    let hash = held.topology.hash();
    let mut node = prepared(Some(held));
    let request = Request { id: RequestId(2), body: RequestBody::Commit { epoch: Epoch(1), hash } };
    node.handle(Event::Request { session: SessionId(1), by: "op".into(), request });
    let effects = node.handle(Event::SessionClosed(SessionId(1)));
    effects.contains(&Effect::Assignment(AssignmentEffect::Discard(Epoch(1))))
}

fn pause_is_bounded() -> bool {
    let pauses = iter::successors(Some(Duration::from_millis(500)), |pause| Some(longer_pause(*pause)));
    pauses.take(20).all(|pause| pause <= PAUSE_MAX)
}

/// A head takes no more requests than its queue has places.
fn queue_is_bounded() -> bool {
    let (mut node, hash) = (prepared(None), topology("tp2").hash());
    let ask = |id, body| Event::Request {
        session: SessionId(1),
        by: "op".into(),
        request: Request { id: RequestId(id), body },
    };
    node.handle(ask(2, RequestBody::Commit { epoch: Epoch(1), hash }));
    node.handle(Event::Connected(Epoch(1), Ok(())));
    for id in 0..2 * QUEUE_MAX as u64 {
        let generate = Generate::new(Prompt::Tokens(vec![1]), 4, SamplingParameters::default(), Vec::new());
        node.handle(ask(10 + id, RequestBody::Generate(Box::new(generate))));
    }
    node.request_count() as usize == QUEUE_MAX
}
