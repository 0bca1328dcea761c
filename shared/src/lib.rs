//! What both programs of Bramble speak: GGUF files, tokenizers, topologies, the wire protocol and telemetry.
//! No threads and no clocks here; sockets only in `protocol/connection.rs`.
pub mod gguf;
pub mod tokenizer;
