//! The faults of a history: their kinds, and the drawing of them from a seed. Half of them are tied to a state of the
//! cluster, so that a run of many histories meets every kind of fault in every state.
use std::time::Duration;

use crate::{random::Random, simulation::states::ClusterState};

common::listed! {
    /// A kind of fault, or an operator's command in the middle of them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[expect(missing_docs, reason = "`Trouble` shows what each of them does")]
    pub enum TroubleKind {
        Kill,
        PowerLoss,
        Wipe,
        Damage,
        OlderRecord,
        SwapAddresses,
        Stop,
        Restart,
        SlowNode,
        ClockJump,
        CutOneWay,
        CutBothWays,
        Isolate,
        CutGateway,
        Delay,
        Drop,
        ResetData,
        ResetControl,
        ResetSessions,
        DiskFull,
        ReadOnly,
        DiskStall,
        OtherFile,
        Unreadable,
        Exclude,
        Cordon,
        Assign,
        TwoConsoles,
        ConsoleLost,
        RestartAll,
        AbandonRequests,
        GatewayRestart,
    }
}

use TroubleKind::*;

impl TroubleKind {
    /// Whether a member loses records that it has promised to keep. Votes survive the loss on one member only.
    fn loses_records(self) -> bool {
        matches!(self, Wipe | Damage | OlderRecord)
    }

    /// Whether it is a command of an operator or of a client, and no fault.
    pub(super) fn is_command(self) -> bool {
        matches!(self, Exclude | Cordon | Assign | TwoConsoles | ConsoleLost | RestartAll | AbandonRequests)
    }
}

/// A fault on a machine, and on another one if it concerns two. Machines are numbered from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Its kind.
    pub kind: TroubleKind,
    /// The machine.
    pub node: usize,
    /// The other machine.
    pub other: usize,
    /// Its duration, or the time until the daemon is started again.
    pub lasts: Duration,
}

/// A fault with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedFault {
    /// Its earliest start.
    pub at: Duration,
    /// It starts when the cluster is in this state, at the latest after [`TIED`].
    pub when: Option<ClusterState>,
    /// The fault.
    pub trouble: Trouble,
}

/// Longest wait of a fault for the state that it is tied to.
pub(super) const TIED: Duration = Duration::from_secs(14);

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, node, other, lasts } = self;
        let (one, two) = (format!("n{}", node + 1), format!("n{}", other + 1));
        match kind {
            Kill => write!(f, "{one} is killed, back after {lasts:?}"),
            PowerLoss => write!(f, "{one} loses power, back after {lasts:?}"),
            Wipe => write!(f, "{one} is killed and its state folder wiped, back after {lasts:?}"),
            Damage => write!(f, "{one} is killed and a file of its state damaged, back after {lasts:?}"),
            OlderRecord => write!(f, "{one} is killed and an older state restored, back after {lasts:?}"),
            SwapAddresses => write!(f, "{one} and {two} are killed and swap addresses, back after {lasts:?}"),
            Stop => write!(f, "{one} is stopped for {lasts:?}"),
            Restart => write!(f, "{one} is restarted by its operator"),
            SlowNode => write!(f, "{one} is slow for {lasts:?}"),
            ClockJump => write!(f, "the clock of {one} jumps by {lasts:?}"),
            CutOneWay => write!(f, "{one} -> {two} is cut for {lasts:?}"),
            CutBothWays => write!(f, "{one} <-> {two} is cut for {lasts:?}"),
            Isolate => write!(f, "{one} is isolated for {lasts:?}"),
            CutGateway => write!(f, "{one} -> gateway is cut for {lasts:?}"),
            Delay => write!(f, "{one} <-> {two} is slow for {lasts:?}"),
            Drop => write!(f, "packets of {one} -> {two} are lost for {lasts:?}, then connections are reset"),
            ResetData => write!(f, "the data link between {one} and {two} is reset"),
            ResetControl => write!(f, "the control link between {one} and {two} is reset"),
            ResetSessions => write!(f, "all sessions of {one} are reset"),
            DiskFull => write!(f, "the disk of {one} is nearly full for {lasts:?}"),
            ReadOnly => write!(f, "the disk of {one} is read-only for {lasts:?}"),
            DiskStall => write!(f, "the disk of {one} stalls for {lasts:?}"),
            OtherFile => write!(f, "{one} is killed, and its model file is another one for {lasts:?}"),
            Unreadable => write!(f, "{one} is killed, and its model file cannot be read for {lasts:?}"),
            Exclude => write!(f, "{one} is excluded for {lasts:?}"),
            Cordon => write!(f, "{one} is cordoned for {lasts:?}"),
            Assign => write!(f, "another topology is assigned for {lasts:?}"),
            TwoConsoles => write!(f, "two consoles assign different topologies for {lasts:?}"),
            ConsoleLost => write!(f, "a console that assigns another topology is killed, again after {lasts:?}"),
            RestartAll => write!(f, "all nodes are restarted, one after another"),
            AbandonRequests => write!(f, "the clients of all requests go away"),
            GatewayRestart => write!(f, "the gateway restarts with the state of {one}"),
        }
    }
}

/// What the faults of a history can concern.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope {
    /// Number of members of the topology.
    pub(super) members: usize,
    /// Number of machines, with the witness.
    pub(super) nodes: usize,
    /// Whether one replica can be down while another one serves.
    pub(super) has_replicas: bool,
    /// Whether members that are away for some seconds are voted out.
    pub(super) votes: bool,
    /// How many earlier seeds have a scope like this one.
    pub(super) ordinal: usize,
}

/// Number of tied faults in a history.
const TIED_COUNT: usize = 10;

impl Scope {
    /// The pairs that a history of this scope can reach.
    fn pairs(self) -> Vec<(TroubleKind, ClusterState)> {
        let mut pairs = Vec::new();
        for state in ClusterState::ALL {
            let is_possible = match state {
                ClusterState::HalfDown => self.has_replicas,
                ClusterState::Voting | ClusterState::Reduced | ClusterState::Returning => self.votes,
                _ => true,
            };
            pairs.extend(TroubleKind::ALL.into_iter().filter(|_| is_possible).map(|kind| (kind, state)));
        }
        pairs
    }

    /// A fault that leads the cluster into a state.
    fn provocation(self, state: ClusterState, random: &mut Random) -> Option<Trouble> {
        let (kind, from, spread) = match state {
            ClusterState::Idle | ClusterState::Answering => return None,
            ClusterState::Loading | ClusterState::Connecting | ClusterState::Recovering => (Kill, 200, 800),
            ClusterState::Voting | ClusterState::Reduced | ClusterState::Returning => (PowerLoss, 9_000, 2_000),
            ClusterState::Draining => (Restart, 0, 1),
            ClusterState::Rolling => (RestartAll, 0, 1),
            ClusterState::HalfDown => (Kill, 2_500, 2_000),
        };
        let lasts = Duration::from_millis(from + random.below(spread) as u64);
        Some(Trouble { kind, node: random.below(self.members), other: 0, lasts })
    }

    fn trouble(self, kind: TroubleKind, victim: usize, random: &mut Random) -> Trouble {
        let nodes = if matches!(kind, SwapAddresses | OtherFile | Unreadable | Exclude | Cordon) {
            self.members
        } else {
            self.nodes
        };
        let node = if kind.loses_records() { victim } else { random.below(nodes) };
        let other = (node + 1 + random.below(nodes - 1)) % nodes;
        let lasts = Duration::from_millis([300, 1_500, 4_000, 12_000][random.below(4)] + random.below(1_000) as u64);
        let is_instant = matches!(
            kind,
            Restart | ResetData | ResetControl | ResetSessions | RestartAll | AbandonRequests | GatewayRestart
        );
        let lasts = if is_instant { Duration::ZERO } else { lasts };
        Trouble { kind, node, other, lasts }
    }
}

/// Draws `count` faults and those that lead to the states which they are tied to.
pub(super) fn draw(random: &mut Random, scope: Scope, count: usize) -> Vec<TimedFault> {
    let mut at = Duration::from_secs(5);
    let victim = random.below(scope.members);
    let pairs = scope.pairs();
    // A step that shares no factor with the number of pairs reaches all of them.
    let step = (pairs.len() / 2 - 1..).find(|step| gcd(*step, pairs.len()) == 1).unwrap_or(1);
    let mut tied = (scope.ordinal * TIED_COUNT..).map(|turn| pairs[turn * step % pairs.len()]).take(TIED_COUNT);
    let mut faults = Vec::with_capacity(2 * count);
    for turn in 0..count {
        at += Duration::from_millis(match random.below(4) {
            0 => random.below(300),
            1 => random.below(3_000),
            _ => 2_000 + random.below(6_000),
        } as u64);
        let next = if turn % 2 == 0 { tied.next() } else { None };
        let Some((kind, state)) = next else {
            let kind = TroubleKind::ALL[random.below(TroubleKind::ALL.len())];
            faults.push(TimedFault { at, when: None, trouble: scope.trouble(kind, victim, random) });
            continue;
        };
        if let Some(trouble) = scope.provocation(state, random) {
            faults.push(TimedFault { at, when: None, trouble });
        }
        at += Duration::from_millis(20);
        faults.push(TimedFault { at, when: Some(state), trouble: scope.trouble(kind, victim, random) });
        at += Duration::from_secs(2);
    }
    faults
}

fn gcd(one: usize, two: usize) -> usize {
    if two == 0 { one } else { gcd(two, one % two) }
}
