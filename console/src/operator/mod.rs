//! What an operator can ask of a cluster, as plain values: topologies and the groups of nodes that run them, planner
//! queries and commands on nodes. Pure.
pub mod acceptance;
pub mod command;
pub mod fit;
pub mod groups;
pub mod model_order;
pub mod topology_file;
pub mod transfer;

pub use assignment::{desired, planner_query};
