//! Multi-head latent attention as the paper defines it: with the keys and values of every head.
use models::{LatentSpec, TensorRole};

use super::{Oracle, attention::rotate};

impl Oracle<'_> {
    /// What the output matrix reads at each position.
    pub(super) fn latent(&self, layer: usize, spec: &LatentSpec, hidden: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let rope = &self.spec.ropes[usize::from(spec.rope)];
        let times = |role, index, x: &[f64]| self.part(Some(layer), role, index).expect("the weight exists").times(x);
        let inputs = hidden.iter().map(|hidden| self.norm(hidden, Some(layer), TensorRole::MixerNorm));
        let inputs: Vec<Vec<f64>> = inputs.collect();
        let (mut latents, mut rotated) = (Vec::new(), Vec::new());
        for (position, x) in inputs.iter().enumerate() {
            let mut both = times(TensorRole::Latent, 0, x);
            let mut key = both.split_off(spec.latent_length);
            rotate(rope, None, position, &mut key);
            latents.push(self.norm(&both, Some(layer), TensorRole::LatentNorm));
            rotated.push(key);
        }
        let mut out = vec![Vec::new(); inputs.len()];
        for head in 0..spec.head_count {
            let keys = self.part(Some(layer), TensorRole::LatentQuery, head).expect("the weight exists");
            let keys: Vec<Vec<f64>> = latents.iter().map(|latent| keys.transposed_times(latent)).collect();
            let values = latents.iter().map(|latent| times(TensorRole::LatentValue, head, latent));
            let values: Vec<Vec<f64>> = values.collect();
            for (position, x) in inputs.iter().enumerate() {
                let inner = match spec.query_columns {
                    Some(_) => self.norm(&times(TensorRole::QueryInner, 0, x), Some(layer), TensorRole::QueryInnerNorm),
                    None => x.clone(),
                };
                let queries = times(TensorRole::Query, 0, &inner);
                let query = &queries[head * spec.query_length()..][..spec.query_length()];
                let (plain, turned) = query.split_at(spec.plain_length);
                let mut turned = turned.to_vec();
                rotate(rope, None, position, &mut turned);
                let weights: Vec<f64> = keys[..=position]
                    .iter()
                    .zip(&rotated)
                    .map(|(key, rotated)| {
                        let dot: f64 =
                            plain.iter().zip(key).chain(turned.iter().zip(rotated)).map(|(q, k)| q * k).sum();
                        (dot * f64::from(spec.scale)).exp()
                    })
                    .collect();
                let total: f64 = weights.iter().sum();
                out[position].extend((0..spec.value_length).map(|column| {
                    weights.iter().zip(&values).map(|(weight, value)| weight / total * value[column]).sum::<f64>()
                }));
            }
        }
        out
    }
}
