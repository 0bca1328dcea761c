//! The node as a pure state machine: `Node::handle(event) -> effects`, without sockets, threads or clocks; `driver`
//! executes the effects. Decides which assignments are accepted, which epoch is current and which requests run; never
//! touches weights.
mod assign;
mod benches;
mod benching;
mod cancel;
pub mod driver;
pub mod effect;
pub mod event;
pub mod machine;
mod models;
mod neighbours;
mod operate;
pub mod pulse;
pub mod quorum;
mod recovery;
mod requests;
mod serving;
mod sizes;
pub mod slowness;
pub mod steward;
#[cfg(test)]
pub(crate) mod tests;
mod tombstone;
mod unload;

pub use effect::Effect;
pub use event::{BenchKey, EngineCommand, Event, SessionId};
pub use machine::Node;
pub use sizes::BoundedSize;
