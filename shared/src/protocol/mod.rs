//! The wire: preamble and handshake, messages between console and daemon, heartbeats, data frames between ranks, keys.
pub mod across;
pub mod bench;
pub mod connection;
pub mod discovery;
pub mod error;
pub mod frame;
pub mod handshake;
pub mod inspect;
pub mod message;
pub mod models;
pub mod noise;
pub mod pairing;
pub mod recovery;
pub mod seal;
pub mod session;

/// The port that brambled listens on unless told otherwise.
pub const PORT: u16 = 9999;
/// Lowest wire version that this build speaks.
pub const WIRE_LOWEST: u16 = 4;
/// Highest wire version that this build speaks.
pub const WIRE_HIGHEST: u16 = 4;
/// Changes whenever a kernel gives other numbers: ranks of a stage must share it.
pub const NUMERIC_VERSION: u32 = 3;
/// The build, for people; never compared.
pub const BUILD: &str = env!("CARGO_PKG_VERSION");
