//! Reads GGUF files and trusts no number in them. `read` is the pure parser, `metadata` and `tensor` are views of the
//! checked bytes, `file` opens one model (one or more splits), `content` hashes the tensors. Does no arithmetic on
//! weights and has no notion of models and tokenizers.
pub mod block;
pub mod content;
pub mod error;
pub mod file;
pub mod index;
pub mod metadata;
pub mod read;
pub mod reader;
pub mod stamp;
pub mod tensor;

pub use block::BlockFormat;
pub use content::Content;
pub use error::GgufError;
pub use file::GgufFile;
pub use index::Index;
pub use metadata::{Metadata, Texts};
pub use stamp::Stamp;
pub use tensor::Tensor;
