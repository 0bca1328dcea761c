//! Attention, position by position.
use models::{AttentionSpec, HeadNorms, RopeSpec, Rotation, Scaling, TensorRole};

use super::{KeysValues, Oracle, sigmoid};

impl Oracle<'_> {
    /// What each position attends to.
    pub(super) fn attended(
        &self,
        layer: usize,
        attention: &AttentionSpec,
        hidden: &[Vec<f64>],
        [keys, values]: &KeysValues,
    ) -> Vec<Vec<f64>> {
        let attended = hidden.iter().enumerate().map(|(position, hidden)| {
            let x = self.norm(hidden, Some(layer), TensorRole::MixerNorm);
            let query = self.project(layer, TensorRole::Query, TensorRole::QueryBias, &x);
            if !attention.has_gate {
                let query = self.turn(layer, attention, TensorRole::QueryNorm, position, query);
                return self.attend(layer, attention, position, &query, [keys, values]);
            }
            let heads = query.chunks(2 * attention.head_length).map(|head| head.split_at(attention.head_length));
            let (query, gates): (Vec<&[f64]>, Vec<&[f64]>) = heads.unzip();
            let query = self.turn(layer, attention, TensorRole::QueryNorm, position, query.concat());
            let out = self.attend(layer, attention, position, &query, [keys, values]);
            out.iter().zip(gates.concat()).map(|(out, gate)| out * sigmoid(gate)).collect()
        });
        attended.collect()
    }

    /// The keys and values of a layer.
    pub(super) fn keys_values(&self, layer: usize, attention: &AttentionSpec, hidden: &[Vec<f64>]) -> KeysValues {
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for (position, hidden) in hidden.iter().enumerate() {
            let x = self.norm(hidden, Some(layer), TensorRole::MixerNorm);
            let key = self.project(layer, TensorRole::Key, TensorRole::KeyBias, &x);
            let value = if attention.values_are_keys {
                key.clone()
            } else {
                self.project(layer, TensorRole::Value, TensorRole::ValueBias, &x)
            };
            keys.push(self.turn(layer, attention, TensorRole::KeyNorm, position, key));
            let heads = value.chunks(attention.head_length);
            let normed = heads.flat_map(|head| if attention.has_value_norm { self.unit(head) } else { head.to_vec() });
            values.push(normed.collect());
        }
        [keys, values]
    }

    /// Norms of each head, and its rotation.
    fn turn(
        &self,
        layer: usize,
        attention: &AttentionSpec,
        norm: TensorRole,
        position: usize,
        heads: Vec<f64>,
    ) -> Vec<f64> {
        let rope = attention.rope.map(|rope| &self.spec.ropes[usize::from(rope)]);
        let factors = match rope.map(|rope| &rope.scaling) {
            Some(Scaling::Long(long)) if self.spec.context_length > long.original_context => {
                self.vector(None, TensorRole::RopeFactorsLong)
            }
            Some(Scaling::Long(_)) => self.vector(None, TensorRole::RopeFactors),
            _ if rope.is_some_and(|rope| rope.has_factors) => self.vector(None, TensorRole::RopeFactors),
            _ => None,
        };
        let heads = match attention.head_norms {
            HeadNorms::Whole => self.norm(&heads, Some(layer), norm),
            _ => heads,
        };
        let mut out = Vec::new();
        for head in heads.chunks(attention.head_length) {
            let mut head = head.to_vec();
            if attention.head_norms == HeadNorms::BeforeRotation {
                head = self.norm(&head, Some(layer), norm);
            }
            if let Some(rope) = rope {
                rotate(rope, factors.as_deref(), position, &mut head);
            }
            if attention.head_norms == HeadNorms::AfterRotation {
                head = self.norm(&head, Some(layer), norm);
            }
            out.extend(head);
        }
        out
    }

    /// The newest token's attention to the positions that it sees.
    fn attend(
        &self,
        layer: usize,
        attention: &AttentionSpec,
        position: usize,
        query: &[f64],
        all: [&[Vec<f64>]; 2],
    ) -> Vec<f64> {
        let first = attention.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let [keys, values] = all.map(|rows| &rows[first..(position + 1 + attention.ahead).min(rows.len())]);
        let sinks = self.vector(Some(layer), TensorRole::Sinks);
        let growth = attention.temperature.map_or(1.0, |own| {
            let steps = (position as f64 / f64::from(own.length)).floor();
            1.0 + f64::from(own.slope) * (1.0 + steps).ln()
        });
        let heads = query.chunks(attention.head_length).enumerate().flat_map(|(head, query)| {
            let begin = head / attention.group() * attention.head_length;
            let part = |row: &Vec<f64>| row[begin..begin + attention.head_length].to_vec();
            let weights: Vec<f64> = keys
                .iter()
                .map(|key| {
                    let dot: f64 = query.iter().zip(part(key)).map(|(q, k)| q * k).sum();
                    let score = dot * f64::from(attention.scale) * growth;
                    attention.score_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh()).exp()
                })
                .collect();
            let total = weights.iter().sum::<f64>() + sinks.as_ref().map_or(0.0, |sinks| sinks[head].exp());
            let mut out = vec![0.0; attention.head_length];
            for (weight, value) in weights.iter().zip(values) {
                out.iter_mut().zip(part(value)).for_each(|(out, value)| *out += weight / total * value);
            }
            out
        });
        heads.collect()
    }
}

/// Rotates a head (Su et al. 2021).
pub(super) fn rotate(rope: &RopeSpec, factors: Option<&[f64]>, position: usize, head: &mut [f64]) {
    let (pairs, base) = (rope.dimension_count / 2, f64::from(rope.freq_base));
    for pair in 0..pairs {
        let frequency = base.powf(-2.0 * pair as f64 / rope.dimension_count as f64);
        let frequency = frequency / factors.map_or(1.0, |factors| factors[pair]);
        let frequency = if rope.rotates(pair) { frequency } else { 0.0 };
        let (angle, magnitude) = match &rope.scaling {
            Scaling::None => (position as f64 * frequency, 1.0),
            Scaling::Long(long) => (position as f64 * frequency, f64::from(long.magnitude)),
            Scaling::Linear(scale) => (position as f64 * frequency / f64::from(*scale), 1.0),
            Scaling::Yarn(yarn) => {
                // The pair that turns so many times within the original context.
                let at = |turns: f32| {
                    let length = f64::from(yarn.original_context) / (2.0 * std::f64::consts::PI * f64::from(turns));
                    rope.dimension_count as f64 * length.ln() / (2.0 * base.ln())
                };
                let (fast, slow) = (at(yarn.beta_fast).floor().max(0.0), at(yarn.beta_slow).ceil());
                let slow = slow.min(rope.dimension_count as f64 - 1.0);
                let ramp = ((pair as f64 - fast) / (slow - fast).max(0.001)).clamp(0.0, 1.0);
                let mixed = frequency * (1.0 - ramp) + frequency / f64::from(yarn.factor) * ramp;
                (position as f64 * mixed, f64::from(yarn.magnitude))
            }
        };
        let (a, b) = match rope.rotation {
            Rotation::Neighbours => (2 * pair, 2 * pair + 1),
            Rotation::Halves => (pair, pair + pairs),
        };
        let (x, y) = (head[a], head[b]);
        head[a] = magnitude * (x * angle.cos() - y * angle.sin());
        head[b] = magnitude * (x * angle.sin() + y * angle.cos());
    }
}
