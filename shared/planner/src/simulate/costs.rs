//! Compute times of a rank from its profile: one set of formulas for simulated nodes and for paced daemons.
use common::precision::KvFormat;
use models::KvHeads;
use telemetry::SyncKind;

use super::NodeProfile;
use crate::holding::{Holding, kv_position_bytes};

/// Work of a step in the layers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Tokens.
    pub tokens: u32,
    /// Sequences that they belong to.
    pub sequences: f64,
    /// KV positions read: each sequence's positions once, including the tokens of this step.
    pub read: f64,
    /// Pairs of a token and a position that it attends to.
    pub pairs: f64,
}

impl Load {
    /// Sums over tokens, given as position and whether it is the last of its sequence; tokens of a sequence must be
    /// consecutive.
    pub fn of(tokens: impl Iterator<Item = (u32, bool)>) -> Self {
        tokens.fold(Self::default(), |load, (position, is_last)| {
            let seen = f64::from(position) + 1.0;
            let read = load.read + if is_last { seen } else { 0.0 };
            let sequences = load.sequences + if is_last { 1.0 } else { 0.0 };
            Self { tokens: load.tokens + 1, sequences, read, pairs: load.pairs + seen }
        })
    }

    /// The same step in a layer with a window, for sequences of about equal length.
    fn through(self, window: Option<usize>) -> Self {
        let Some(window) = window.map(|window| window as f64) else { return self };
        let tokens = f64::from(self.tokens);
        let read = self.read.min(self.sequences * (window - 1.0) + tokens);
        Self { read, pairs: self.pairs.min(tokens * window), ..self }
    }
}

/// Nanoseconds of half a layer: its matrices, the KV cache in the attention half, and a fixed overhead.
pub fn half_layer_ns(
    profile: &NodeProfile,
    holding: &Holding<'_>,
    kv: KvFormat,
    layer: usize,
    kind: SyncKind,
    load: Load,
) -> u64 {
    let [mixes, feeds] = holding.sizes.spec.layer(layer).halves();
    if !(if kind == SyncKind::Attention { mixes } else { feeds }) {
        return 0;
    }
    let besides = (profile.layer_ns + profile.layer_token_ns * u64::from(load.tokens.saturating_sub(1))) / 2;
    if kind == SyncKind::FeedForward {
        return besides + profile.work_ns(holding.feed_forward(layer, load.tokens), load.tokens);
    }
    let spec = &holding.sizes.spec;
    let matrices = besides + profile.work_ns(holding.attention(layer), load.tokens);
    let Some(KvHeads { key_length, value_length, .. }) = spec.layer(layer).mixer.kv_heads() else {
        // Each sequence's state is read and written once, and used about twice by each token.
        let floats = holding.plan.state_length(spec, layer) as f64;
        let bytes = load.sequences * floats * (2 * size_of::<f32>()) as f64;
        return matrices + profile.attention_ns(bytes, f64::from(load.tokens) * 2.0 * floats);
    };
    let window = spec.layer(layer).attention().and_then(|attention| attention.window);
    let Load { read, pairs, .. } = load.through(window);
    let bytes = read * kv_position_bytes(kv, spec, holding.plan, layer) as f64;
    // The queries of a chunk share the KV cache reads; scores and weighted sums take a multiply-add per value.
    let heads = holding.plan.cut_of(spec, layer).heads.len();
    let macs = pairs * (heads * (key_length + value_length)) as f64;
    matrices + profile.attention_ns(bytes, macs)
}

/// Nanoseconds of the logits of a rank's vocabulary rows, and of sampling from them.
pub fn output_ns(profile: &NodeProfile, holding: &Holding<'_>, wants_logits: u32) -> u64 {
    let logits = holding.plan.vocabulary.len() as u64 * u64::from(wants_logits);
    profile.work_ns(holding.output(), wants_logits) + logits * profile.logit_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_reads_its_sequence_once() {
        let chunk = Load::of((100..104).map(|position| (position, position == 103)));
        assert_eq!(chunk, Load { tokens: 4, sequences: 1.0, read: 104.0, pairs: f64::from(101 + 102 + 103 + 104) });
        let seen = chunk.through(Some(10));
        assert_eq!((seen.read, seen.pairs), (13.0, 40.0));
        assert_eq!(chunk.through(Some(1000)), chunk);
        let answers = Load::of([(9, true), (19, true)].into_iter());
        assert_eq!(answers, Load { tokens: 2, sequences: 2.0, read: 30.0, pairs: 30.0 });
    }
}
