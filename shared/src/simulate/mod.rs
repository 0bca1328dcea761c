//! A cluster in virtual time: nodes with one core that talks and one network card each, in whole nanoseconds. The same input gives
//! the same nanosecond on every machine. No clocks, no threads, no sockets; nothing here is measured.
pub mod collective;
pub mod jitter;
pub mod network;
#[cfg(test)]
mod network_tests;
pub mod profile;

pub use collective::Tensor;
pub use jitter::{Jitter, Noise};
pub use network::{Action, Link, Network, NodeSpeed, Stuck};
pub use profile::NodeProfile;
