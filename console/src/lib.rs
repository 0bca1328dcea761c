//! console: the operator's terminal for a bramble cluster. See ARCHITECTURE.md for the modules and their allowed
//! dependencies.
pub mod catalogue;
pub mod cli;
pub mod client;
pub mod conversation;
#[cfg(test)]
mod fixtures;
pub mod http;
pub mod keymap;
pub mod operator;
pub mod recording;
pub mod run;
pub mod state;
mod suggest;
pub mod terminal;
pub mod update;
pub mod view;
