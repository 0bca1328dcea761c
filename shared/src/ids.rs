//! Identifiers that both programs and the wire use. Newtypes, so that a rank is never taken for a layer.
use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// Position of a node in its replica (the MPI sense): 0 is the head, stage s of tpN holds ranks s*N to s*N+N-1.
    Rank(u16)
);
id!(
    /// Position of a node in a whole topology: replica after replica.
    MemberIndex(u16)
);
id!(
    /// A layer of the model, counted over the whole model.
    LayerIndex(u32)
);
id!(
    /// Number of an assignment. A node never follows one lower than the highest it has seen.
    Epoch(u64)
);
id!(
    /// A generation request, unique within a console session.
    RequestId(u64)
);
id!(
    /// A sequence's place in the batch and in the block tables of every rank.
    Slot(u16)
);

impl Rank {
    /// The rank as an index into per-rank lists.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl MemberIndex {
    /// The member as an index into the topology's members.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl Slot {
    /// The slot as an index into per-slot lists.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Largest step of an epoch or a revision that one message may take: counters that the highest number wins go up by one at a time, and a
/// node that was away for years is not so far behind.
pub const JUMP_MAX: u64 = 1 << 20;

/// Whether a counter that was last seen at `seen` may be at `new` now.
pub fn is_in_reach(seen: u64, new: u64) -> bool {
    new <= seen.saturating_add(JUMP_MAX)
}

impl Epoch {
    /// The epoch after this one.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// First 8 bytes of a SHA-256: names a topology in every frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TopologyHash(pub u64);

impl fmt::Display for TopologyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Identity of a model's files by their headers: SHA-256 of metadata and tensor table of each split and the splits' sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ModelIdentity(pub [u8; 32]);

impl fmt::Display for ModelIdentity {
    /// The first 8 bytes in hexadecimal: enough to tell two files apart by eye.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What a model holds: the root of the SHA-256 hashes of its tensors and its header ([`crate::gguf::content`]). Ranks of one topology
/// have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ContentRoot(pub [u8; 32]);

impl fmt::Display for ContentRoot {
    /// The first 8 bytes in hexadecimal: enough to tell two files apart by eye.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The model that an answer belongs to: its header's identity and, where the nodes compared it, the root of its tensors' hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelRoots {
    /// Of the file's header.
    pub identity: ModelIdentity,
    /// `None` where release 0.1 assigned the topology.
    pub content: Option<ContentRoot>,
}

impl ModelRoots {
    /// Whether tokens of the one are none of the other. A root that is not known differs from none.
    pub fn differs(&self, other: &Self) -> bool {
        self.identity != other.identity || self.content.zip(other.content).is_some_and(|(own, theirs)| own != theirs)
    }
}

impl fmt::Display for ModelRoots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "identity {}", self.identity)?;
        self.content.iter().try_for_each(|content| write!(f, ", content {content}"))
    }
}
