//! One rank's part of a model: its weights, its KV cache and the forward pass over a batch of tokens. Reaches the other
//! ranks only through the `Collective` trait; starts no thread and opens no socket.
pub mod attention;
pub mod batch;
pub mod embedding;
pub mod error;
pub mod expert_cache;
pub mod experts;
pub mod feed_forward;
pub mod forward;
pub mod inputs;
pub mod kv_cache;
mod matrix;
pub mod mixer;
pub mod needs;
mod norm;
mod pace;
pub mod packed;
mod pooling;
pub mod region;
pub mod rope;
pub mod slices;
pub mod weights;

pub use batch::{Batch, BatchToken, BlockTables};
pub use error::LoadError;
pub use expert_cache::ExpertCache;
pub use forward::{ForwardError, KvSink, Memories, Model};
pub use kv_cache::KvCache;
pub use matrix::Matrix;
pub use mixer::state::{StateCache, UnitPlace};
pub use pace::{Pace, PacedMachine, PacedShard};
pub use packed::{Cached, PackedCache};
pub use pooling::Pooled;
pub use weights::{Layer, Shard, Source};
