//! console: the operator's terminal of a bramble. See ARCHITECTURE.md for the rooms and who may import whom.
pub mod cli;
pub mod client;
pub mod run;
