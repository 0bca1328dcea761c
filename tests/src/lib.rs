//! What the scenarios share: writers of GGUF files and small models, weights in every format, seeded numbers.
pub mod dequantise;
pub mod engines;
pub mod fake_heads;
pub mod faults;
pub mod gguf_writer;
pub mod http;
pub mod oracle;
pub mod programs;
pub mod proxy;
pub mod quantise;
pub mod random;
pub mod ranks;
pub mod reference;
pub mod slowing;
pub mod terminal;
pub mod tiny_model;
pub mod tmux;
