//! What a model computes, as data. A family (`families/`) reads the keys of a file into a [`ModelSpec`]; one table of
//! tensors follows from it (`tensors`). All other code reads the spec and the table, and never the
//! family.
pub mod families;
pub mod feed_forward;
pub mod further;
pub mod keys;
pub mod known;
pub mod limits;
pub mod mixer;
pub mod names;
pub mod read;
pub mod rotation;
pub mod spec;
pub mod tensors;

pub use feed_forward::{Activation, DenseSpec, ExpertGroups, ExpertsSpec, FeedForward, RouterSpec, Scores, SharedSpec};
pub use keys::{KeySource, Keys};
pub use mixer::{
    AttentionSpec, ConvolutionSpec, DeltaSpec, HeadNorms, KvHeads, LatentSpec, Mixer, SQUARES_BLOCK, StateSpaceSpec,
    Temperature,
};
pub use names::{Part, TensorRole};
pub use read::{read, read_predictor, unused};
pub use rotation::{LongSpec, RopeSpec, Rotation, Scaling, YarnSpec};
pub use spec::{LayerSpec, ModelSpec, NormKind, Norms, OutputNorm, Pooling, Predictor};
pub use tensors::{Cut, Fused, Segments, Share, TensorSpec};
