//! What both programs of Bramble speak: GGUF files, tokenizers, topologies, the wire protocol and telemetry.
//! No threads and no clocks here; sockets only in `protocol/connection.rs`.
pub mod browser;
pub mod calendar;
pub mod gguf;
pub mod ids;
pub mod latency;
pub mod protocol;
pub mod sampling;
pub mod schedule;
pub mod simulate;
pub mod telemetry;
pub mod text;
pub mod tokenizer;
pub mod tools;
pub mod topology;
pub mod units;
