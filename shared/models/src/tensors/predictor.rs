//! The tensors of a predictor besides those of its layer, all of them whole on every rank.
use super::{Cut, TensorSpec};
use crate::{names::TensorRole, spec::Predictor};

/// From the two joined parts to a hidden state.
pub(crate) const JOINED: &str = "nextn.eh_proj.weight";
/// The norm before the output matrix; without it, that of the file's model.
pub(crate) const OWN_NORM: &str = "nextn.shared_head_norm.weight";
/// An embedding and an output matrix that are not those of the file's model.
pub(crate) const OWN_TABLES: [&str; 2] = ["nextn.embed_tokens.weight", "nextn.shared_head_head.weight"];

impl Predictor {
    /// The tensors that join both parts, and the norm.
    pub(super) fn tensors(self, embedding: usize) -> Vec<TensorSpec> {
        use TensorRole::{Joined, JoinedStateNorm, JoinedTokenNorm, OutputNorm};
        let mut tensors = vec![
            TensorSpec::vector(JoinedTokenNorm, "nextn.enorm.weight", embedding),
            TensorSpec::vector(JoinedStateNorm, "nextn.hnorm.weight", embedding),
            TensorSpec::matrix(Joined, JOINED, 2 * embedding, embedding, Cut::Whole),
        ];
        if self.has_output_norm {
            tensors.push(TensorSpec::vector(OutputNorm, OWN_NORM, embedding));
        }
        tensors
    }
}
