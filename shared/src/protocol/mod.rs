//! The wire: preamble and handshake, messages between console and daemon, heartbeats, data frames between ranks, keys.
pub mod across;
pub mod bench;
pub mod checksum;
pub mod connection;
pub mod discovery;
pub mod error;
pub mod frame;
#[cfg(test)]
mod golden_tests;
pub mod handshake;
pub mod inspect;
pub mod losses;
pub mod message;
mod messages;
pub mod models;
pub mod network;
pub mod noise;
pub mod older;
pub mod pairing;
pub mod recovery;
pub mod seal;
pub mod session;
pub mod version;

pub use version::{WIRE_HIGHEST, WIRE_LOWEST};

/// The port that brambled listens on unless told otherwise.
pub const PORT: u16 = 9999;
/// Changes whenever a kernel gives other numbers: ranks of a stage must share it.
pub const NUMERIC_VERSION: u32 = 3;
/// The build, for people; never compared.
pub const BUILD: &str = env!("CARGO_PKG_VERSION");
