//! Which nodes hold what: the layout as people write it, the topology as nodes agree on it, and the cuts of a model.
pub mod balance;
pub mod cost;
pub mod exclusion;
pub mod groups;
pub mod known;
pub mod layout;
pub mod memory;
pub mod planner;
#[cfg(test)]
mod planner_tests;
pub mod replan;
#[cfg(test)]
mod replan_tests;
pub mod reslice;
pub mod rolling;
pub mod shard;
pub mod sizes;
pub mod spec;
pub mod stages;
pub mod working;

pub use exclusion::{Exclusion, ExclusionError, Exclusions};
pub use groups::{Group, Groups, Role};
pub use layout::{Layout, Place};
pub use reslice::{Route, routes};
pub use rolling::Rolling;
pub use shard::{CutError, ShardPlan, cut, cut_stages};
pub use spec::{Exchange, KvFormat, Member, SpecError, Topology};
pub use stages::{split_layers, split_layers_where};
