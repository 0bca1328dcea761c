//! Reads GGUF files; never trusts a number in them. `read` is the pure parser, `metadata` and `tensor` are views on
//! what it checked, `file` maps one model (one or more splits), `shape` holds the hyper-parameters, `content` names what the tensors hold.
//! Does no arithmetic on weights and reads no tokenizer.
pub mod block;
pub mod content;
pub mod error;
pub mod file;
pub mod metadata;
pub mod read;
pub mod shape;
pub mod tensor;

pub use block::BlockFormat;
pub use content::{Content, Stamp};
pub use error::GgufError;
pub use file::GgufFile;
pub use metadata::{Metadata, Texts};
pub use read::Index;
pub use shape::{Architecture, Experts, Shape};
pub use tensor::Tensor;
