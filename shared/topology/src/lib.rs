//! The assignment of model parts to nodes: the layout as operators write it, the topology as nodes agree on it, and the
//! cuts of a model.
pub mod columns;
pub mod exclusion;
pub mod kv;
pub mod layout;
pub mod reslice;
pub mod rolling;
pub mod shard;
pub mod sizes;
pub mod spec;
pub mod stages;
pub mod state;

pub use columns::ExpertPart;
pub use exclusion::{Exclusion, ExclusionError, Exclusions};
pub use kv::KvBlocks;
pub use layout::SpecError;
pub use layout::groups::{Group, Groups, Role};
pub use layout::{Layout, Place};
pub use reslice::{Route, routes};
pub use rolling::Rolling;
pub use shard::{CutError, LayerCut, Matrices, Ranges, ShardPlan, TensorPart, cut, cut_stages};
pub use spec::{Draft, Member, Topology};
pub use stages::{split_layers, split_layers_where, split_model};
pub use state::StateCount;
