//! brambled: one node of a bramble. ARCHITECTURE.md lists the modules and the allowed imports between them.
pub mod bench;
pub mod check;
pub mod command_line;
pub mod config;
pub mod gateway;
pub mod health;
pub mod keys;
pub mod kv_store;
mod listening;
pub mod log;
pub mod node;
pub mod pair;
mod print;
mod priority;
pub mod run;
pub mod serve;
pub mod store;
pub mod text;
