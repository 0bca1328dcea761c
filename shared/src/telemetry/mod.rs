//! What a node reports about itself and about where time goes. Plain values; nothing is measured here.
pub mod node;
pub mod sync;

pub use node::{LoadProgress, NodeReport, NodeState};
pub use sync::{LayerSync, PhaseTotals, RankTotals, SyncKind, SyncRecord};
