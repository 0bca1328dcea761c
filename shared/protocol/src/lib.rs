//! The wire: preamble and handshake, messages between console and daemon, heartbeats, data frames between ranks, keys.
pub mod across;
pub mod address;
pub mod bench;
pub mod checksum;
pub mod connection;
pub mod discovery;
pub mod frame;
pub mod handshake;
pub mod inspect;
pub mod kv;
pub mod losses;
pub mod message;
pub mod messages;
pub mod models;
pub mod network;
pub mod noise;
pub mod pairing;
pub mod recovery;
mod request_name;
pub mod seal;
pub mod session;
#[cfg(test)]
mod tests;
pub mod texts;

/// The default port of brambled.
pub const PORT: u16 = 9999;
/// Changes whenever a kernel's results change: all ranks of a stage must have the same.
pub const NUMERIC_VERSION: u32 = 3;
/// The build, for display; never compared.
pub const BUILD: &str = env!("CARGO_PKG_VERSION");
