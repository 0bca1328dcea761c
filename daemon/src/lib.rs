//! brambled: one node of a bramble.
pub mod engine;
pub mod kernels;
pub mod collective;
