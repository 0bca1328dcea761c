//! Reads GGUF files; never trusts a number in them.
pub mod block;
