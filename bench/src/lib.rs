//! Benchmarks for developers: load, matrices of layouts with their reports, all-reduces, daemons with parts left out.
//! Drives the other crates; nothing depends on it.
pub mod command_line;
mod commands;
mod daemon_variant;
pub mod measurement;
pub mod target;
pub mod threads;

pub use command_line::run;
