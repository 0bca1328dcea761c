//! console: the operator's terminal of a bramble.
pub mod client;
