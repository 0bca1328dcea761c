//! Shared code of the scenarios: writers of GGUF files and small models, weights in every format, seeded random
//! numbers.
pub mod deep_models;
pub mod dequantise;
pub mod engines;
pub mod fake_heads;
pub mod families;
pub mod family_model;
pub mod faults;
pub mod gguf_writer;
pub mod greedy;
pub mod grids;
pub mod http;
pub mod incidents;
pub mod modules;
pub mod oracle;
pub mod programs;
pub mod proxy;
pub mod quantise;
pub mod random;
pub mod ranks;
pub mod reference;
pub mod simulation;
pub mod slowing;
pub mod style;
pub mod terminal;
pub mod tiny_model;
pub mod tmux;
