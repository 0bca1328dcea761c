//! Chooses, assigns and unloads topologies by sessions with nodes, as an operator's console and a gateway do it.
pub mod assign;
mod compose;
mod content;
mod context;
pub mod desired;
pub mod draft;
pub mod event;
pub mod files;
pub mod fixtures;
pub mod identify;
pub mod lease;
mod links;
pub mod plan;
pub mod planner_query;
pub mod previous;
mod shares;
pub mod source;
pub mod unload;
