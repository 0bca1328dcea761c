//! Reads GGUF files and trusts no number in them. `read` is the pure parser, `metadata` and `tensor` are views of the
//! checked bytes, `file` maps one model (one or more splits), `shape` holds the hyper-parameters, `content` hashes the
//! tensors. Does no arithmetic on weights and reads no tokenizer.
pub mod block;
pub mod content;
pub mod error;
pub mod file;
pub mod index;
pub mod metadata;
pub mod read;
pub mod reader;
pub mod shape;
pub mod stamp;
pub mod tensor;

pub use block::BlockFormat;
pub use content::Content;
pub use error::GgufError;
pub use file::GgufFile;
pub use index::Index;
pub use metadata::{Metadata, Texts};
pub use shape::{Architecture, Experts, Shape};
pub use stamp::Stamp;
pub use tensor::Tensor;
