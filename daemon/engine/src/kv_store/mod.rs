//! Keys and values on the disk of each rank, so that a prompt is computed once: completed blocks, and states at the end of
//! a block, are written behind the steps that complete them and found again by their tokens, after an eviction, a new
//! assignment of the same cut, a restart or a power loss. Each rank stores its own part; the head has them
//! read, and continues behind the last block that all ranks have. The files themselves are the daemon's (`port.rs`).
pub mod label;
mod loading;
mod name;
mod order;
mod part;
pub mod port;
mod rank;
pub mod requested;
mod saving;
mod shape;

pub use self::{
    name::{Name, PartHash, Space},
    order::{LoadId, LoadStatus, StoreOrder},
    part::Part,
    rank::KvStore,
};
