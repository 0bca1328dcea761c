//! EmbeddingGemma: the layers of Gemma 3, in which tokens also attend to later ones; for embeddings alone.
use super::{Family, gemma3};
use crate::{limits::FEED_FORWARD_LENGTH_MAX, spec::Pooling};

pub(super) const FAMILY: Family = Family {
    name: "gemma-embedding",
    spec: |keys| {
        let mut spec = gemma3::spec(keys)?;
        spec.pooling = Some(spec.pooling.unwrap_or(Pooling::Mean));
        if keys.has_tensor("dense_2.weight") {
            spec.pooled_columns = keys.length("dense_2_feat_out", FEED_FORWARD_LENGTH_MAX)?;
        }
        let all = spec.context_length;
        // Half of the window lies before a token and half behind it.
        Ok(spec.map_attention(|_, attention| {
            let half = attention.window.map(|window| window / 2);
            attention.ahead = half.unwrap_or(all);
            attention.window = half.map(|half| half + 1);
        }))
    },
};
