//! console: the operator's terminal for a bramble cluster. See ARCHITECTURE.md for the modules and their allowed
//! dependencies.
pub mod bench;
pub mod cli;
pub mod client;
pub mod clusters;
pub mod effect;
pub mod event;
pub mod export;
#[cfg(test)]
mod fixtures;
pub mod http;
pub mod keymap;
pub mod order;
mod outlet;
pub mod page;
pub mod planned;
pub mod proxy;
pub mod recording;
pub mod run;
pub mod state;
pub mod terminal;
pub mod topology_file;
pub mod update;
pub mod view;
pub mod wanted;
