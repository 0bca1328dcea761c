//! What a node reports about itself and where its time is spent. Plain values; nothing is measured here.
pub mod bench;
pub mod doctor;
pub mod finding;
pub mod health;
pub mod hop;
pub mod kv_store;
pub mod node;
pub mod request;
pub mod stall;
pub mod straggler;
pub mod sync;
pub mod warning;
pub mod window;

pub use bench::{BenchFound, BenchProgress, KernelBench, KnownLink, LinkBench, LinkTime, NetworkBench, NodeBench};
pub use finding::{Finding, Severity};
pub use health::Health;
pub use hop::{HopRecord, HopSync, StageTime, slow_stage};
pub use kv_store::{StoreCleared, StoreState, StoreUse};
pub use node::{KvUse, LoadProgress, Measured, NodeReport, NodeState, PACED, ShardMemory};
pub use request::{RequestReport, RequestStage};
pub use stall::UsualWait;
pub use straggler::{LatenessSums, Named, WINDOW_STEPS, judge, straggler};
pub use sync::{Arrival, Lateness, LayerSync, PhaseTotals, RankTotals, SyncKind, SyncRecord};
pub use warning::Warning;
