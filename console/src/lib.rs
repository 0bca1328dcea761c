//! console: the operator's terminal of a bramble.
pub mod client;
pub mod effect;
pub mod event;
pub mod keymap;
pub mod state;
pub mod update;
pub mod view;
