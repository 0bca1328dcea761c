//! Identifiers that both programs and the wire protocol use. Newtypes, so that a rank cannot be confused with a layer.
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
    /// Position of a node in its replica (as in MPI): 0 is the head, stage s of tpN has ranks s*N to s*N+N-1.
    Rank(u16)
);
id!(
    /// Position of a node in the whole topology, counted replica after replica.
    MemberIndex(u16)
);
id!(
    /// A layer of the model, counted over the whole model.
    LayerIndex(u32)
);
id!(
    /// Number of an assignment. A node never accepts an epoch lower than the highest it has seen.
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

/// Largest jump of an epoch or a revision that one message may make. In counters where the highest number wins, each
/// change adds one, so even a node that was off for years is not further behind.
pub const JUMP_MAX: u64 = 1 << 20;

/// Whether a counter last seen at `seen` may plausibly be at `new` now.
pub fn is_in_reach(seen: u64, new: u64) -> bool {
    new <= seen.saturating_add(JUMP_MAX)
}

impl Epoch {
    /// The epoch after this one.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// First 8 bytes of a SHA-256; identifies a topology in every frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TopologyHash(pub u64);

impl fmt::Display for TopologyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Identity of a model's files by their headers: SHA-256 of metadata and tensor table of each split and the splits'
/// sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ModelIdentity(pub [u8; 32]);

impl fmt::Display for ModelIdentity {
    /// The first 8 bytes in hexadecimal: enough to distinguish two files by eye.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Content of a model: the root of the SHA-256 hashes of its tensors and its header ([`gguf::content`]). Equal
/// on all ranks of one topology.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ContentRoot(pub [u8; 32]);

impl fmt::Display for ContentRoot {
    /// The first 8 bytes in hexadecimal: enough to distinguish two files by eye.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The model that an answer belongs to: the identity of its header and, if the nodes compared it, the root of its
/// tensor hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ModelRoots {
    /// Identity of the file's header.
    pub identity: ModelIdentity,
    /// `None` if release 0.1 assigned the topology.
    pub content: Option<ContentRoot>,
}

impl ModelRoots {
    /// Whether the models are known to differ, so that tokens of one are invalid for the other. An unknown root matches
    /// any root.
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
