//! The first half of a layer, which mixes the positions of a text: attention, or a recurrence with a state of fixed size.
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{
    limits::{CONTEXT_LENGTH_MAX, EMBEDDING_LENGTH_MAX, HEAD_COUNT_MAX, HEAD_LENGTH_MAX, SEGMENTS_MAX, within},
    rotation::RopeSpec,
};

/// The first half of a layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Mixer {
    /// Attention.
    Attention(AttentionSpec),
    /// A short convolution.
    Convolution(ConvolutionSpec),
    /// A gated delta net.
    Delta(DeltaSpec),
    /// A state space.
    StateSpace(StateSpaceSpec),
    /// Nothing: the layer has only a feed-forward network.
    None,
    /// Multi-head latent attention.
    Latent(LatentSpec),
}

/// A short convolution over positions (LFM2): `output(c * convolution(b * x))`, with `b`, `c` and `x` from one projection.
/// Its state are the latest values of `b * x`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConvolutionSpec {
    /// Channels, each with a filter of its own.
    pub channels: usize,
    /// Length of a filter, in positions.
    pub taps: usize,
}

/// A gated delta net (Yang et al. 2024): keys, queries and values pass through a short convolution; each value head has a
/// state matrix, which decays, forgets what it holds for a key and learns the value for it. Several value heads share the
/// query and the key of a key head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeltaSpec {
    /// Query and key heads.
    pub key_heads: usize,
    /// Value heads, a multiple of `key_heads`.
    pub value_heads: usize,
    /// Elements of a query, a key and a value.
    pub head_length: usize,
    /// Length of a filter, in positions.
    pub taps: usize,
    /// Whether the value heads of a key head are consecutive, as their rates and decays are; otherwise they are as far
    /// apart as there are key heads.
    pub is_grouped: bool,
}

/// A state space (Mamba-2, Dao and Gu 2024): values, keys and queries pass through a short convolution; the state matrix
/// of each head decays, takes up the product of value and key, and is read with the query. The heads of a group share
/// keys and queries, and a norm of what all of them read and gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateSpaceSpec {
    /// Heads.
    pub heads: usize,
    /// Elements of a head's value.
    pub head_length: usize,
    /// Elements of a key and a query.
    pub key_length: usize,
    /// Groups of heads; divides `heads`.
    pub groups: usize,
    /// Length of a filter, in positions.
    pub taps: usize,
}

/// Multi-head latent attention (DeepSeek-V2, 2024): keys and values of all heads are products with one short vector, the
/// latent, which is cached in their place next to one rotated key. The matrices of a head's keys and values pass to its
/// queries and results, so that all heads attend to one KV head: the latent and the rotated key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatentSpec {
    /// Query heads.
    pub head_count: usize,
    /// Elements of a query head that are not rotated.
    pub plain_length: usize,
    /// Elements behind them that are rotated, even.
    pub rotated_length: usize,
    /// Elements of a head's result.
    pub value_length: usize,
    /// Elements of the latent.
    pub latent_length: usize,
    /// Inner columns between the hidden state and the queries, with a norm; `None`: one matrix.
    pub query_columns: Option<usize>,
    /// The table of rotation angles (index into [`ModelSpec::ropes`]).
    pub rope: u8,
    /// Factor of the scores.
    pub scale: f32,
}

/// What a layer caches of each position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvHeads {
    /// Query heads that read the same KV head.
    pub group: usize,
    /// Elements of the key of a KV head.
    pub key_length: usize,
    /// Elements of its value.
    pub value_length: usize,
    /// Whether values are stored; otherwise they are the first elements of the keys.
    pub has_values: bool,
}

/// Grouped-query attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionSpec {
    /// Query heads.
    pub head_count: usize,
    /// Key and value heads; divides `head_count`.
    pub head_count_kv: usize,
    /// Elements of a head, even.
    pub head_length: usize,
    /// The table of rotation angles (index into [`ModelSpec::ropes`]); `None` without rotation.
    pub rope: Option<u8>,
    /// Factor of the scores.
    pub scale: f32,
    /// Queries grow with their position.
    pub temperature: Option<Temperature>,
    /// Scores are limited smoothly to plus or minus this: `cap tanh(score / cap)`.
    pub score_cap: Option<f32>,
    /// Newest positions that a token attends to, its own included; `None`: all.
    pub window: Option<usize>,
    /// Later positions that a token attends to, as far as its text has them: then a text is computed at once, for its
    /// embedding, and cannot be continued.
    #[serde(default)]
    pub ahead: usize,
    /// The earlier layer whose keys and values it reads; `None`: it has its own.
    #[serde(default)]
    pub keys_of: Option<u16>,
    /// Whether the values are the keys before norm and rotation.
    #[serde(default)]
    pub values_are_keys: bool,
    /// Whether each head of the values is divided by its root mean square.
    #[serde(default)]
    pub has_value_norm: bool,
    /// Whether each head of the queries is followed by a gate of the same length, whose sigmoid the head's result is
    /// multiplied with.
    #[serde(default)]
    pub has_gate: bool,
    /// Whether each head has a score without a value, which takes a part of the weights.
    pub has_sinks: bool,
    /// Norms of the heads of queries and keys.
    pub head_norms: HeadNorms,
    /// Whether queries, keys and values are the rows of one tensor.
    pub is_fused: bool,
    /// Whether files must have the biases of queries, keys and values; other files may have them.
    pub needs_biases: bool,
    /// Whether files must have the bias of the output; other files may have it.
    pub needs_output_bias: bool,
}

/// Queries are multiplied by `1 + slope ln(1 + floor(position / length))`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Temperature {
    /// Growth.
    pub slope: f32,
    /// Positions that share a factor.
    pub length: f32,
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeadNorms {
    /// None.
    None,
    /// Of each head, before the rotation.
    BeforeRotation,
    /// Of each head, after the rotation.
    AfterRotation,
    /// Of all heads together, before the rotation. Every rank computes the queries and keys of all heads: sums of squares
    /// from the other ranks would delay each layer by a further exchange, and the exchange's formats are too coarse.
    Whole,
}

impl AttentionSpec {
    /// So many query heads and KV heads of a length, rotated by the first table, with scores divided by the square root
    /// of their length, and nothing else.
    pub fn new(head_count: usize, head_count_kv: usize, head_length: usize) -> Self {
        Self {
            head_count,
            head_count_kv,
            head_length,
            rope: Some(0),
            scale: 1.0 / (head_length as f32).sqrt(),
            temperature: None,
            score_cap: None,
            window: None,
            ahead: 0,
            keys_of: None,
            values_are_keys: false,
            has_value_norm: false,
            has_gate: false,
            has_sinks: false,
            head_norms: HeadNorms::None,
            is_fused: false,
            needs_biases: false,
            needs_output_bias: false,
        }
    }

    fn is_sound(&self, ropes: &[RopeSpec]) -> bool {
        within(self.head_count, HEAD_COUNT_MAX)
            && within(self.head_count_kv, HEAD_COUNT_MAX)
            && self.head_count.is_multiple_of(self.head_count_kv)
            && within(self.head_length, HEAD_LENGTH_MAX)
            && self.head_length.is_multiple_of(2)
            && self.window.is_none_or(|window| within(window, CONTEXT_LENGTH_MAX))
            && self.ahead as u64 <= CONTEXT_LENGTH_MAX
            && self.rope.is_none_or(|rope| {
                let rope = ropes.get(usize::from(rope));
                rope.is_some_and(|rope| rope.dimension_count <= self.head_length)
            })
            // A norm of all heads leaves keys and values of the rank's heads alone.
            && (self.head_norms != HeadNorms::Whole || self.keys_of.is_none() && !self.values_are_keys)
            && !(self.head_norms == HeadNorms::Whole && self.has_gate)
            && !(self.is_fused && self.has_gate)
    }

    /// Whether keys and values are no longer read once they fell out of its window.
    pub const fn forgets(&self) -> bool {
        self.window.is_some() && self.ahead == 0
    }

    /// Query heads that read the same KV head.
    pub const fn group(&self) -> usize {
        self.head_count / self.head_count_kv
    }
}

impl Mixer {
    /// The attention, if it is one.
    pub const fn attention(&self) -> Option<&AttentionSpec> {
        match self {
            Self::Attention(attention) => Some(attention),
            Self::Convolution(_) | Self::Delta(_) | Self::StateSpace(_) | Self::Latent(_) | Self::None => None,
        }
    }

    /// What it caches of each position; `None` if it has a state.
    pub const fn kv_heads(&self) -> Option<KvHeads> {
        match self {
            Self::Attention(own) => {
                let (group, length) = (own.group(), own.head_length);
                Some(KvHeads { group, key_length: length, value_length: length, has_values: true })
            }
            Self::Latent(own) => {
                let (group, key_length) = (own.head_count, own.latent_length + own.rotated_length);
                Some(KvHeads { group, key_length, value_length: own.latent_length, has_values: false })
            }
            Self::Convolution(_) | Self::Delta(_) | Self::StateSpace(_) | Self::None => None,
        }
    }

    /// The units that ranks divide among each other: query heads, channels, key heads with their value heads, or groups
    /// of a state space; and the columns of the output matrix that belong to one.
    pub const fn units(&self) -> (usize, usize) {
        match self {
            Self::Attention(attention) => (attention.head_count, attention.head_length),
            Self::Convolution(convolution) => (convolution.channels, 1),
            Self::Delta(delta) => (delta.key_heads, delta.per_key() * delta.head_length),
            Self::StateSpace(space) => (space.units(), space.heads_of(1) * space.head_length),
            Self::None => (0, 1),
            Self::Latent(latent) => (latent.head_count, latent.value_length),
        }
    }

    /// Floats of the state of so many units; 0 if there is none.
    pub const fn state_length(&self, units: usize) -> usize {
        match self {
            Self::Attention(_) | Self::Latent(_) | Self::None => 0,
            Self::Convolution(convolution) => units * (convolution.taps - 1),
            Self::Delta(delta) => {
                units * (delta.tail_length() + delta.per_key() * delta.head_length * delta.head_length)
            }
            Self::StateSpace(space) => space.tail_length(units) + space.matrices_length(units),
        }
    }

    /// Rows as long as a hidden state that ranks exchange besides the mixer's sums: the sum of squares of each token and
    /// rank, if the mixer's norm spans the ranks.
    pub fn squares_rows(&self, tokens: usize, ranks: usize, embedding: usize) -> usize {
        match self {
            Self::StateSpace(space) if space.spans_ranks() && ranks > 1 => {
                (tokens * ranks).div_ceil((embedding / SQUARES_BLOCK).max(1))
            }
            _ => 0,
        }
    }

    /// Where the floats of a unit are in the state of so many units, in order: the latest inputs of its channels, then its
    /// matrices. Units that share channels have these in common.
    pub fn state_ranges(&self, units: usize, unit: usize) -> Vec<Range<usize>> {
        let mut ranges = Vec::new();
        let mut add = |at: usize, length: usize| ranges.push(at..at + length);
        match self {
            Self::Attention(_) | Self::Latent(_) | Self::None => {}
            Self::Convolution(own) => (0..own.taps - 1).for_each(|tap| add(tap * units + unit, 1)),
            Self::Delta(own) => {
                let (per_key, length) = (own.per_key(), own.head_length);
                let head = |number| if own.is_grouped { unit * per_key + number } else { number * units + unit };
                let width = units * own.channels();
                for begin in (0..own.taps - 1).map(|tap| tap * width) {
                    // Queries and keys of all units, then the values.
                    [0, 1].into_iter().for_each(|segment| add(begin + (segment * units + unit) * length, length));
                    (0..per_key).for_each(|number| add(begin + (2 * units + head(number)) * length, length));
                }
                let (begin, matrix) = ((own.taps - 1) * width, length * length);
                (0..per_key).for_each(|number| add(begin + head(number) * matrix, matrix));
            }
            Self::StateSpace(own) => {
                let ([values, keys], own_values) = (own.channels(units), own.channels(1)[0]);
                (0..own.taps - 1).for_each(|tap| add(tap * values + unit * own_values, own_values));
                let group = if own.spans_ranks() { 0 } else { unit };
                for begin in (0..own.taps - 1).map(|tap| (own.taps - 1) * values + tap * keys) {
                    [0, 1]
                        .into_iter()
                        .for_each(|half| add(begin + half * keys / 2 + group * own.key_length, own.key_length));
                }
                let matrices = own.matrices_length(1);
                add(own.tail_length(units) + unit * matrices, matrices);
            }
        }
        ranges
    }

    /// Floats with which a token changes the state of so many units: inputs of the convolution, and decay and rate of
    /// each matrix.
    pub const fn input_length(&self, units: usize) -> usize {
        match self {
            Self::Attention(_) | Self::Latent(_) | Self::None => 0,
            Self::Convolution(_) => units,
            Self::StateSpace(space) => {
                let [values, keys] = space.channels(units);
                values + keys + 2 * space.heads_of(units)
            }
            Self::Delta(delta) => units * (delta.channels() + 2 * delta.per_key()),
        }
    }

    pub(crate) fn is_sound(&self, ropes: &[RopeSpec]) -> bool {
        match self {
            Self::Attention(attention) => attention.is_sound(ropes),
            Self::Convolution(convolution) => convolution.is_sound(),
            Self::Delta(delta) => delta.is_sound(),
            Self::StateSpace(space) => space.is_sound(),
            Self::None => true,
            Self::Latent(latent) => latent.is_sound(ropes),
        }
    }
}

impl ConvolutionSpec {
    fn is_sound(&self) -> bool {
        within(self.channels, EMBEDDING_LENGTH_MAX) && (2..=TAPS_MAX).contains(&self.taps)
    }
}

impl LatentSpec {
    /// Elements of a query head.
    pub const fn query_length(&self) -> usize {
        self.plain_length + self.rotated_length
    }

    fn is_sound(&self, ropes: &[RopeSpec]) -> bool {
        within(self.head_count, HEAD_COUNT_MAX)
            && [self.plain_length, self.rotated_length, self.value_length, self.latent_length]
                .into_iter()
                .all(|length| within(length, HEAD_LENGTH_MAX))
            && within(self.latent_length + self.rotated_length, HEAD_LENGTH_MAX)
            && self.query_columns.is_none_or(|columns| within(columns, EMBEDDING_LENGTH_MAX))
            && ropes.get(usize::from(self.rope)).is_some_and(|rope| rope.dimension_count == self.rotated_length)
    }
}

impl DeltaSpec {
    /// Value heads of each key head.
    pub const fn per_key(&self) -> usize {
        self.value_heads / self.key_heads
    }

    /// Channels of the convolution that belong to a key head.
    pub const fn channels(&self) -> usize {
        (2 + self.per_key()) * self.head_length
    }

    /// Floats of the latest inputs of the convolution that belong to a key head.
    pub const fn tail_length(&self) -> usize {
        self.channels() * (self.taps - 1)
    }

    fn is_sound(&self) -> bool {
        within(self.key_heads, HEAD_COUNT_MAX)
            && within(self.value_heads, HEAD_COUNT_MAX)
            && self.value_heads.is_multiple_of(self.key_heads)
            && self.per_key() <= PER_KEY_MAX
            && within(self.head_length, HEAD_LENGTH_MAX)
            && self.head_length.is_multiple_of(32)
            && (2..=TAPS_MAX).contains(&self.taps)
    }
}

impl StateSpaceSpec {
    /// The units that ranks divide among each other: groups, whose norms need all of their heads; the heads of a single
    /// group, whose norm is then that of all ranks ([`Self::spans_ranks`]).
    pub const fn units(&self) -> usize {
        if self.spans_ranks() { self.heads } else { self.groups }
    }

    /// Whether the norm spans the ranks of a stage. It then comes behind the sum over ranks, of which it is a factor.
    pub const fn spans_ranks(&self) -> bool {
        self.groups == 1
    }

    /// Heads of so many units.
    pub const fn heads_of(&self, units: usize) -> usize {
        self.heads / self.units() * units
    }

    /// Groups with heads of so many units.
    pub const fn groups_of(&self, units: usize) -> usize {
        if self.spans_ranks() && units > 0 { 1 } else { units }
    }

    /// Channels of the convolution: values of so many units, and keys and queries of their groups.
    pub const fn channels(&self, units: usize) -> [usize; 2] {
        [self.heads_of(units) * self.head_length, 2 * self.groups_of(units) * self.key_length]
    }

    /// Floats of the latest inputs of the convolution.
    pub const fn tail_length(&self, units: usize) -> usize {
        let [values, keys] = self.channels(units);
        (values + keys) * (self.taps - 1)
    }

    const fn matrices_length(&self, units: usize) -> usize {
        self.heads_of(units) * self.head_length * self.key_length
    }

    fn is_sound(&self) -> bool {
        within(self.heads, HEAD_COUNT_MAX)
            && within(self.groups, HEAD_COUNT_MAX)
            && self.heads.is_multiple_of(self.groups)
            && within(self.head_length, HEAD_LENGTH_MAX)
            && within(self.key_length, HEAD_LENGTH_MAX)
            && (2..=TAPS_MAX).contains(&self.taps)
    }
}

/// Values of an exchange that carry the sum of squares of a token and a rank: a block of every exchange format.
pub const SQUARES_BLOCK: usize = 32;
/// Most value heads of a key head: the segments of queries and keys come before theirs.
pub(crate) const PER_KEY_MAX: usize = SEGMENTS_MAX - 2;
/// Longest filter of a convolution.
pub(crate) const TAPS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_divide_the_floats_of_a_state() {
        let delta = |is_grouped| {
            let delta = DeltaSpec { key_heads: 6, value_heads: 18, head_length: 32, taps: 4, is_grouped };
            Mixer::Delta(delta)
        };
        let convolution = Mixer::Convolution(ConvolutionSpec { channels: 6, taps: 3 });
        let space = |groups| {
            let (heads, head_length, key_length, taps) = (6, 8, 16, 4);
            Mixer::StateSpace(StateSpaceSpec { heads, head_length, key_length, groups, taps })
        };
        for mixer in [delta(true), delta(false), convolution, space(6), space(3), space(1)] {
            // The heads of a single group have its keys and queries in common.
            let is_shared = mixer == space(1);
            for units in [1, 2, 5] {
                let mut owners = vec![None; mixer.state_length(units)];
                for unit in 0..units {
                    let floats: Vec<usize> = mixer.state_ranges(units, unit).into_iter().flatten().collect();
                    assert_eq!(floats.len(), mixer.state_length(1), "{mixer:?}");
                    floats.into_iter().for_each(|float| {
                        assert!(owners[float].replace(unit).is_none() || is_shared, "{mixer:?}");
                    });
                }
                assert!(owners.iter().all(Option::is_some), "{mixer:?}");
            }
        }
        assert_eq!(Mixer::Attention(AttentionSpec::new(4, 2, 32)).state_ranges(4, 1), []);
    }
}
