//! The engine: its own thread, plain synchronous Rust. The head schedules and samples; the other ranks follow its plans.
pub mod follower;
pub mod head;
pub mod output;
pub mod plan;
pub mod sample;
pub mod schedule;
pub mod step;

pub use schedule::RequestKey;
