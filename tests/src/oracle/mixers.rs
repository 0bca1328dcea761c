//! Layers with a state, position by position as the papers define them.
use models::{DeltaSpec, Mixer, StateSpaceSpec, TensorRole};

use super::{Oracle, sigmoid, silu};

impl Oracle<'_> {
    /// What the output matrix of a layer with a state reads at each position.
    pub(super) fn recurred(&self, layer: usize, mixer: &Mixer, hidden: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let inputs = hidden.iter().map(|hidden| self.norm(hidden, Some(layer), TensorRole::MixerNorm));
        let inputs: Vec<Vec<f64>> = inputs.collect();
        match mixer {
            Mixer::Attention(_) | Mixer::Latent(_) | Mixer::None => unreachable!("it has no state"),
            Mixer::Convolution(_) => self.convolution(layer, &inputs),
            Mixer::Delta(delta) => self.delta(layer, delta, &inputs),
            Mixer::StateSpace(space) => self.space(layer, space, &inputs),
        }
    }

    fn times(&self, layer: usize, role: TensorRole, x: &[f64]) -> Vec<f64> {
        self.part(Some(layer), role, 0).expect("the weight exists").times(x)
    }

    /// The convolution of each channel over the positions.
    fn filtered(&self, layer: usize, role: TensorRole, rows: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let filters = self.part(Some(layer), role, 0).expect("the weight exists");
        let taps = filters.columns;
        let positions = (0..rows.len()).map(|position| {
            let channels = (0..rows[0].len()).map(|channel| {
                let inputs = filters.values[channel * taps..][..taps].iter().enumerate().filter_map(|(tap, weight)| {
                    let before = (position + tap + 1).checked_sub(taps)?;
                    Some(weight * rows[before][channel])
                });
                inputs.sum()
            });
            channels.collect()
        });
        positions.collect()
    }

    fn convolution(&self, layer: usize, inputs: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let projected: Vec<Vec<f64>> = inputs.iter().map(|x| self.times(layer, TensorRole::MixerInput, x)).collect();
        let third = projected[0].len() / 3;
        let products: Vec<Vec<f64>> = projected
            .iter()
            .map(|row| row[..third].iter().zip(&row[2 * third..]).map(|(b, x)| b * x).collect())
            .collect();
        let filtered = self.filtered(layer, TensorRole::Filter, &products);
        let gated = filtered.iter().zip(&projected);
        gated.map(|(y, row)| y.iter().zip(&row[third..]).map(|(y, c)| y * c).collect()).collect()
    }

    fn delta(&self, layer: usize, spec: &DeltaSpec, inputs: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let length = spec.head_length;
        let keys = spec.key_heads * length;
        let projected: Vec<Vec<f64>> = inputs.iter().map(|x| self.times(layer, TensorRole::MixerInput, x)).collect();
        let filtered = self.filtered(layer, TensorRole::Filter, &projected);
        let vector = |role| self.vector(Some(layer), role).expect("the weight exists");
        let (bias, factor, norm) =
            (vector(TensorRole::DecayBias), vector(TensorRole::DecayFactor), vector(TensorRole::StateNorm));
        let mut states = vec![vec![vec![0.0; length]; length]; spec.value_heads];
        let rows = inputs.iter().zip(&filtered).map(|(x, row)| {
            let row: Vec<f64> = row.iter().map(|value| silu(*value)).collect();
            let (rates, decays) =
                (self.times(layer, TensorRole::StateRate, x), self.times(layer, TensorRole::StateDecay, x));
            let gates = self.times(layer, TensorRole::StateGate, x);
            let heads = (0..spec.value_heads).flat_map(|head| {
                let of_key = if spec.is_grouped { head / spec.per_key() } else { head % spec.key_heads };
                let query = self.of_length_1(&row[of_key * length..][..length]);
                let key = self.of_length_1(&row[keys + of_key * length..][..length]);
                let value = &row[2 * keys + head * length..][..length];
                let decay = ((decays[head] + bias[head]).exp().ln_1p() * factor[head]).exp();
                let state = &mut states[head];
                state.iter_mut().flatten().for_each(|held| *held *= decay);
                let held: Vec<f64> =
                    (0..length).map(|column| (0..length).map(|row| state[row][column] * key[row]).sum()).collect();
                for (state, key) in state.iter_mut().zip(&key) {
                    for (column, place) in state.iter_mut().enumerate() {
                        *place += key * (value[column] - held[column]) * sigmoid(rates[head]);
                    }
                }
                let read = (0..length).map(|column| {
                    (0..length).map(|row| state[row][column] * query[row]).sum::<f64>() / (length as f64).sqrt()
                });
                let read = self.unit(&read.collect::<Vec<f64>>());
                let gate = &gates[head * length..][..length];
                let out = read.iter().zip(&norm).zip(gate).map(|((read, norm), gate)| read * norm * silu(*gate));
                out.collect::<Vec<f64>>()
            });
            heads.collect()
        });
        rows.collect()
    }

    /// The projection with a role, its convolution and its activation.
    fn convolved(&self, layer: usize, roles: [TensorRole; 3], inputs: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let [projection, filter, bias] = roles;
        let projected: Vec<Vec<f64>> = inputs.iter().map(|x| self.times(layer, projection, x)).collect();
        let mut rows = self.filtered(layer, filter, &projected);
        let bias = self.vector(Some(layer), bias).unwrap_or_else(|| vec![0.0; rows[0].len()]);
        for row in &mut rows {
            row.iter_mut().zip(&bias).for_each(|(value, bias)| *value = silu(*value + bias));
        }
        rows
    }

    fn space(&self, layer: usize, spec: &StateSpaceSpec, inputs: &[Vec<f64>]) -> Vec<Vec<f64>> {
        use TensorRole::{Filter, FilterBias, KeyFilter, KeyFilterBias, MixerInput, StateKeys};
        let StateSpaceSpec { heads, head_length, key_length, groups, .. } = *spec;
        let values = self.convolved(layer, [MixerInput, Filter, FilterBias], inputs);
        let keys = self.convolved(layer, [StateKeys, KeyFilter, KeyFilterBias], inputs);
        let vector = |role| self.vector(Some(layer), role).expect("the weight exists");
        let (bias, factor) = (vector(TensorRole::DecayBias), vector(TensorRole::DecayFactor));
        let (skip, norm) = (vector(TensorRole::StateSkip), vector(TensorRole::StateNorm));
        let mut states = vec![vec![vec![0.0; key_length]; head_length]; heads];
        let rows = inputs.iter().zip(&values).zip(&keys).map(|((x, values), keys)| {
            let rates = self.times(layer, TensorRole::StateDecay, x);
            let gates = self.times(layer, TensorRole::StateGate, x);
            let read = (0..heads).flat_map(|head| {
                let group = head / (heads / groups);
                let key = &keys[group * key_length..][..key_length];
                let query = &keys[(groups + group) * key_length..][..key_length];
                let rate = (rates[head] + bias[head]).exp().ln_1p();
                let decay = (rate * factor[head]).exp();
                let rows = states[head].iter_mut().zip(&values[head * head_length..]);
                let read = rows.map(|(state, value)| {
                    state.iter_mut().zip(key).for_each(|(held, key)| *held = *held * decay + value * rate * key);
                    state.iter().zip(query).map(|(held, query)| held * query).sum::<f64>() + skip[head] * value
                });
                read.collect::<Vec<f64>>()
            });
            let gated: Vec<f64> = read.zip(&gates).map(|(read, gate)| read * silu(*gate)).collect();
            let normed: Vec<f64> = gated.chunks(gated.len() / groups).flat_map(|group| self.unit(group)).collect();
            normed.iter().zip(&norm).map(|(value, norm)| value * norm).collect()
        });
        rows.collect()
    }

    /// A vector divided by its Euclidean length.
    fn of_length_1(&self, x: &[f64]) -> Vec<f64> {
        let squares = x.iter().map(|x| x * x).sum::<f64>() + f64::from(self.spec.norm_epsilon);
        x.iter().map(|x| x / squares.sqrt()).collect()
    }
}
