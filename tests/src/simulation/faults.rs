//! The faults of a history, generated from a seed, each with its time and duration.
use std::time::Duration;

use crate::random::Random;

/// A kind of fault. Machines are numbered from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the docs of each variant describe its fields")]
pub enum Trouble {
    /// The daemon is killed and restarts after a delay.
    Kill { node: usize, back: Duration },
    /// The machine loses power.
    Power { node: usize, back: Duration },
    /// The daemon is killed and its state folder is emptied.
    Wipe { node: usize, back: Duration },
    /// The daemon is stopped (SIGSTOP) for a time.
    Stop { node: usize, lasts: Duration },
    /// An operator restarts the daemon.
    Restart { node: usize },
    /// No packets pass from one machine to another.
    Cut { from: usize, to: usize, both: bool, lasts: Duration },
    /// A machine is cut off from all others in both directions.
    Isolate { node: usize, lasts: Duration },
    /// One link between two ranks is reset.
    Reset { one: usize, two: usize, is_data: bool },
    /// Writes fail.
    Disk { node: usize, lasts: Duration },
}

/// A fault with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedFault {
    /// Start of the fault.
    pub at: Duration,
    /// The kind of fault.
    pub trouble: Trouble,
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = |node: &usize| format!("n{}", node + 1);
        match self {
            Self::Kill { node, back } => write!(f, "{} is killed, back after {back:?}", name(node)),
            Self::Power { node, back } => write!(f, "{} loses power, back after {back:?}", name(node)),
            Self::Wipe { node, back } => {
                write!(f, "{} is killed and its state folder wiped, back after {back:?}", name(node))
            }
            Self::Stop { node, lasts } => write!(f, "{} is stopped for {lasts:?}", name(node)),
            Self::Restart { node } => write!(f, "{} is restarted by its operator", name(node)),
            Self::Cut { from, to, both, lasts } => {
                let arrow = if *both { "<->" } else { "->" };
                write!(f, "{} {arrow} {} is cut for {lasts:?}", name(from), name(to))
            }
            Self::Isolate { node, lasts } => write!(f, "{} is isolated for {lasts:?}", name(node)),
            Self::Reset { one, two, is_data } => {
                let which = if *is_data { "data" } else { "control" };
                write!(f, "the {which} link between {} and {} is reset", name(one), name(two))
            }
            Self::Disk { node, lasts } => write!(f, "the disk of {} is full for {lasts:?}", name(node)),
        }
    }
}

/// Generates the faults of a history for `members` members on `nodes` machines (including the witness); at most one
/// member's state folder is wiped.
pub(super) fn draw(random: &mut Random, members: usize, nodes: usize, count: usize) -> Vec<TimedFault> {
    let mut at = Duration::from_secs(5);
    let mut is_wiped = false;
    let mut faults = Vec::with_capacity(count);
    for _ in 0..count {
        at += Duration::from_millis(match random.below(4) {
            0 => random.below(300),
            1 => random.below(3_000),
            _ => 2_000 + random.below(9_000),
        } as u64);
        let node = random.below(nodes);
        let other = (node + 1 + random.below(nodes.max(2) - 1)) % nodes;
        let lasts = Duration::from_millis([300, 1_500, 4_000, 12_000][random.below(4)] + random.below(1_000) as u64);
        let trouble = match random.below(20) {
            0..5 => Trouble::Kill { node, back: lasts },
            5..7 => Trouble::Power { node, back: lasts },
            7 if !is_wiped && node < members => {
                is_wiped = true;
                Trouble::Wipe { node, back: lasts }
            }
            7..9 => Trouble::Stop { node, lasts },
            9..11 => Trouble::Restart { node },
            11..14 if nodes > 1 => Trouble::Cut { from: node, to: other, both: random.below(2) == 0, lasts },
            14 => Trouble::Isolate { node, lasts },
            15..18 if nodes > 1 => Trouble::Reset { one: node, two: other, is_data: random.below(2) == 0 },
            18 => Trouble::Disk { node, lasts },
            _ => Trouble::Kill { node, back: lasts },
        };
        faults.push(TimedFault { at, trouble });
    }
    faults
}
