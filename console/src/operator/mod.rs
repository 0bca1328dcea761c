//! What an operator can ask of a cluster, as plain values: topologies, planner queries and commands on nodes. Pure.
pub mod command;
pub mod fit;
pub mod topology_file;

pub use assignment::{desired, planner_query};
