//! The tensors of multi-head latent attention.
use super::{Cut, Share, TensorSpec};
use crate::{mixer::LatentSpec, names::TensorRole};

impl LatentSpec {
    pub(super) fn tensors(&self, embedding: usize) -> Vec<TensorSpec> {
        use TensorRole::{
            Latent, LatentNorm, LatentQuery, LatentValue, MixerOutput, Query, QueryInner, QueryInnerNorm,
        };
        let (heads, latent, values) = (self.head_count, self.latent_length, self.head_count * self.value_length);
        let of_queries = Cut::Rows(Share::units(self.query_length()));
        let (name, inner) = match self.query_columns {
            Some(columns) => ("attn_q_b.weight", columns),
            None => ("attn_q.weight", embedding),
        };
        let of_heads = |role, name, columns, rows| TensorSpec {
            dimensions: [columns, rows, heads],
            ..TensorSpec::matrix(role, name, columns, rows, Cut::Matrices)
        };
        let (whole, of_values) = (latent + self.rotated_length, Cut::Columns(Share::units(self.value_length)));
        let mut tensors = vec![
            TensorSpec::matrix(Query, name, inner, heads * self.query_length(), of_queries),
            TensorSpec::matrix(Latent, "attn_kv_a_mqa.weight", embedding, whole, Cut::Whole),
            TensorSpec::vector(LatentNorm, "attn_kv_a_norm.weight", latent),
            of_heads(LatentQuery, "attn_k_b.weight", self.plain_length, latent),
            of_heads(LatentValue, "attn_v_b.weight", latent, self.value_length),
            TensorSpec::matrix(MixerOutput, "attn_output.weight", values, embedding, of_values),
        ];
        if let Some(columns) = self.query_columns {
            tensors.extend([
                TensorSpec::matrix(QueryInner, "attn_q_a.weight", embedding, columns, Cut::Whole),
                TensorSpec::vector(QueryInnerNorm, "attn_q_a_norm.weight", columns),
            ]);
        }
        tensors
    }
}
