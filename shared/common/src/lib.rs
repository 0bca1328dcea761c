//! The words that every crate shares: ids, units, limits, formats, faults, latencies. Pure; no file, socket, clock or thread.
pub mod browser;
pub mod calendar;
pub mod changes;
pub mod chat;
pub mod digest;
pub mod fault;
pub mod ids;
pub mod latency;
pub mod limits;
mod listed;
pub mod older;
pub mod planted;
pub mod precision;
pub mod sampling;
pub mod text;
pub mod tool_use;
pub mod units;
pub mod version;
