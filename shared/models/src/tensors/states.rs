//! The tensors of mixers with a state.
use crate::{
    mixer::{ConvolutionSpec, DeltaSpec, StateSpaceSpec},
    names::TensorRole,
    tensors::{Cut, Fused, Segments, Share, TensorSpec},
};

impl ConvolutionSpec {
    pub(crate) fn tensors(&self, embedding: usize) -> Vec<TensorSpec> {
        use TensorRole::{MixerInput, MixerOutput};
        let channels = self.channels;
        let (of_input, of_output) =
            (Cut::Rows(Share::Units(Segments::default().and(3, 1))), Cut::Columns(Share::units(1)));
        vec![
            TensorSpec::matrix(MixerInput, "shortconv.in_proj.weight", embedding, 3 * channels, of_input),
            TensorSpec::filters("shortconv.conv.weight", self.taps, channels, Cut::Rows(Share::units(1))),
            TensorSpec::matrix(MixerOutput, "shortconv.out_proj.weight", channels, embedding, of_output),
        ]
    }
}

impl DeltaSpec {
    pub(crate) fn tensors(&self, embedding: usize) -> Vec<TensorSpec> {
        use TensorRole::{
            DecayBias, DecayFactor, MixerInput, MixerOutput, StateDecay, StateGate, StateNorm, StateRate,
        };
        let (length, heads) = (self.head_length, self.value_heads);
        let values = heads * length;
        let channels = self.channels() * self.key_heads;
        // The value heads of a key head, or one of them for each of several segments.
        let and_values = |before: Segments, length: usize| match self.is_grouped {
            true => before.and(1, self.per_key() * length),
            false => before.and(self.per_key(), length),
        };
        let of_values = |length| Share::Units(and_values(Segments::default(), length));
        let of_channels = Cut::Rows(Share::Units(and_values(Segments::default().and(2, length), length)));
        let rows = |role, name, count: usize, length| {
            TensorSpec::matrix(role, name, embedding, count, Cut::Rows(of_values(length)))
        };
        let columns =
            |role, name| TensorSpec { cut: Cut::Columns(of_values(1)), ..TensorSpec::vector(role, name, heads) };
        let of_output = Cut::Columns(of_values(length));
        let [rate, decay] = match self.is_grouped {
            true => [(StateRate, 0), (StateDecay, self.per_key())].map(|(role, first)| TensorSpec {
                fused: Some(Fused { rows: 2 * heads, first }),
                cut: Cut::Rows(Share::Alternating(self.per_key())),
                ..rows(role, "ssm_ba.weight", heads, 1)
            }),
            false => [rows(StateRate, "ssm_beta.weight", heads, 1), rows(StateDecay, "ssm_alpha.weight", heads, 1)],
        };
        vec![
            TensorSpec::matrix(MixerInput, "attn_qkv.weight", embedding, channels, of_channels),
            rows(StateGate, "attn_gate.weight", values, length),
            rate,
            decay,
            TensorSpec::filters("ssm_conv1d.weight", self.taps, channels, of_channels),
            columns(DecayBias, "ssm_dt.bias"),
            columns(DecayFactor, "ssm_a"),
            TensorSpec::vector(StateNorm, "ssm_norm.weight", length),
            TensorSpec::matrix(MixerOutput, "ssm_out.weight", values, embedding, of_output),
        ]
    }
}

impl StateSpaceSpec {
    pub(crate) fn tensors(&self, embedding: usize) -> Vec<TensorSpec> {
        use TensorRole::{
            DecayBias, DecayFactor, Filter, FilterBias, KeyFilter, KeyFilterBias, MixerInput, MixerOutput, StateDecay,
            StateGate, StateKeys, StateNorm, StateSkip,
        };
        let ([values, keys], heads) = (self.channels(self.units()), self.heads);
        let (of_values, of_heads) = (Share::units(self.channels(1)[0]), Share::units(self.heads_of(1)));
        // The ranks of a single group need its keys and queries.
        let of_keys = (!self.spans_ranks()).then(|| Share::Units(Segments::default().and(2, self.key_length)));
        let (key_rows, key_columns) = (of_keys.map_or(Cut::Whole, Cut::Rows), of_keys.map_or(Cut::Whole, Cut::Columns));
        let input = |role, first, count, cut| TensorSpec {
            fused: Some(Fused { rows: 2 * values + keys + heads, first }),
            ..TensorSpec::matrix(role, "ssm_in.weight", embedding, count, cut)
        };
        let filters = |role, first, count, cut| TensorSpec {
            role,
            fused: Some(Fused { rows: values + keys, first }),
            ..TensorSpec::filters("ssm_conv1d.weight", self.taps, count, cut)
        };
        let bias = |role, first, count, cut| TensorSpec {
            cut,
            fused: Some(Fused { rows: values + keys, first }),
            is_optional: true,
            ..TensorSpec::vector(role, "ssm_conv1d.bias", count)
        };
        let of_head = |role, name| TensorSpec {
            dimensions: [1, heads, 1],
            cut: Cut::Rows(of_heads),
            ..TensorSpec::vector(role, name, 1)
        };
        let norm = TensorSpec {
            dimensions: [values / self.groups, self.groups, 1],
            cut: if self.spans_ranks() { Cut::Columns(of_values) } else { Cut::Rows(Share::units(1)) },
            ..TensorSpec::vector(StateNorm, "ssm_norm.weight", 1)
        };
        vec![
            input(StateGate, 0, values, Cut::Rows(of_values)),
            input(MixerInput, values, values, Cut::Rows(of_values)),
            input(StateKeys, 2 * values, keys, key_rows),
            input(StateDecay, 2 * values + keys, heads, Cut::Rows(of_heads)),
            filters(Filter, 0, values, Cut::Rows(of_values)),
            filters(KeyFilter, values, keys, key_rows),
            bias(FilterBias, 0, values, Cut::Columns(of_values)),
            bias(KeyFilterBias, values, keys, key_columns),
            TensorSpec { cut: Cut::Columns(of_heads), ..TensorSpec::vector(DecayBias, "ssm_dt.bias", heads) },
            of_head(DecayFactor, "ssm_a"),
            of_head(StateSkip, "ssm_d"),
            norm,
            TensorSpec::matrix(MixerOutput, "ssm_out.weight", values, embedding, Cut::Columns(of_values)),
        ]
    }
}
