//! What a model computes, as data. A family (`families/`) reads the keys of a file into a [`ModelSpec`]; one table of
//! tensors follows from it (`tensors`). All other code reads the spec and the table, and never the
//! family.
pub mod families;
pub mod keys;
pub mod known;
pub mod limits;
pub mod names;
pub mod read;
pub mod spec;
pub mod tensors;

pub use keys::{KeySource, Keys};
pub use names::{Part, TensorRole};
pub use read::{read, unused};
pub use spec::{
    Activation, AttentionSpec, DenseSpec, ExpertGroups, ExpertsSpec, FeedForward, HeadNorms, LayerSpec, LongSpec,
    ModelSpec, NormKind, Norms, Pooling, RopeSpec, Rotation, RouterSpec, Scaling, Scores, SharedSpec, Temperature,
    YarnSpec,
};
pub use tensors::{Cut, Fused, Share, TensorSpec};
