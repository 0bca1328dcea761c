//! The node as a pure state machine: `Node::handle(event) -> effects`, without sockets, threads or clocks; `driver`
//! executes the effects. Decides which assignments are accepted, which epoch is current and which requests run; never
//! touches weights.
mod assign;
#[cfg(test)]
mod assign_tests;
mod benches;
mod benching;
#[cfg(test)]
mod breaker_tests;
mod cancel;
pub mod driver;
pub mod event;
pub mod machine;
mod models;
mod operate;
pub mod planted;
pub mod pulse;
pub mod quorum;
#[cfg(test)]
mod quorum_tests;
mod recovery;
#[cfg(test)]
mod recovery_tests;
mod requests;
mod serving;
#[cfg(test)]
mod shape_tests;
pub mod slowness;
pub mod steward;
#[cfg(test)]
pub(crate) mod steward_tests;
#[cfg(test)]
pub(crate) mod tests;

pub use event::{BenchKey, Effect, EngineCommand, Event, SessionId};
pub use machine::Node;
