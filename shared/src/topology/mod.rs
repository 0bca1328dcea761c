//! Which nodes hold what: the layout as people write it, the topology as nodes agree on it, and the cuts of a model.
pub mod exclusion;
pub mod layout;
pub mod shard;
pub mod spec;
pub mod stages;

pub use exclusion::{Exclusion, ExclusionError, Exclusions};
pub use layout::{Layout, Place};
pub use shard::{CutError, ShardPlan, cut, cut_stages};
pub use spec::{Exchange, KvFormat, Member, SpecError, Topology};
pub use stages::split_layers;
