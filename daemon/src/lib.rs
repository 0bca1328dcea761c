//! brambled: one node of a bramble. See ARCHITECTURE.md for the rooms and who may import whom.
pub mod bench;
pub mod check;
pub mod collective;
pub mod config;
pub mod engine;
pub mod gateway;
pub mod health;
pub mod kernels;
pub mod keys;
pub mod log;
pub mod model;
pub mod node;
pub mod pair;
mod print;
mod priority;
pub mod serve;
pub mod store;
pub mod text;
