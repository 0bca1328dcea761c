//! Memory of a rank by part: weights, KV cache, recurrent state and working memory. Working memory is computed from the
//! shapes of the engine's buffers; `tests/limits/memory.py` compares the sum with the peak that the kernel counts.
use collectives::payload_bytes;
use common::{
    limits::SLOTS_MAX,
    precision::{Exchange, KvFormat},
    units::Bytes,
};
use gguf::BlockFormat;
use models::{LayerSpec, Mixer};
use topology::{
    KvBlocks, LayerCut, Place, Topology,
    layout::{Layout, PIPELINE_ROWS, STEP_TOKENS_MAX},
};

use super::holding::{Holding, kv_bytes, state_bytes};

/// The daemon without a model: its program pages, runtime, threads, telemetry. Measured: 16.7 to 18 MiB.
pub const BASE_BYTES: u64 = 15 << 20;
/// Tokenizer memory of a head per token of the vocabulary. Measured: 98 bytes with SPM, up to 230 with 280 000 merges
/// of BPE.
const TOKEN_BYTES: usize = 128;
/// Copies of a row of logits: computed, adjusted, scaled.
const LOGIT_LISTS: usize = 3;
/// Bytes of a float.
const FLOAT: usize = size_of::<f32>();
/// Columns that share a scale, and the bytes of such a block including its sums.
const BLOCK: [usize; 2] = [32, 48];
/// Columns are padded to whole super-blocks.
const SUPER_BLOCK: usize = 256;
/// Tokens of a sequence that read keys and values together.
const ATTENTION_TOKENS: usize = 8;
/// Numbers in front of the values in a head's attention state.
const STATE_HEADER: usize = 2;
/// Smallest receive buffer of a link.
const LINK_BYTES: usize = 64 << 10;

/// The properties of a rank that determine the size of its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Stages of its replica.
    pub stages: usize,
    /// Ranks of its stage.
    pub ranks: usize,
    /// Whether it is the replica's head.
    pub is_head: bool,
    /// Concurrent sequences.
    pub slots: usize,
    /// Format of partial sums.
    pub exchange: Exchange,
}

impl Seat {
    /// The seat of a member of a topology.
    pub fn of(topology: &Topology, place: &Place) -> Self {
        Self {
            stages: usize::from(place.stages),
            ranks: place.group.len(),
            is_head: place.is_head(),
            slots: usize::from(topology.slots),
            exchange: topology.exchange,
        }
    }

    /// Most tokens of a step.
    fn step_tokens(&self) -> usize {
        Layout::alike(1, self.stages as u16, self.ranks as u16).step_tokens().min(STEP_TOKENS_MAX)
    }

    /// Most rows of logits of a step: in a single stage speculative tokens fill it; in a pipeline sequences take turns, and
    /// speculative tokens fill a part of it.
    fn rows(&self) -> usize {
        if self.stages > 1 { self.slots.div_ceil(self.stages).max(PIPELINE_ROWS) } else { usize::from(SLOTS_MAX) }
    }
}

/// Memory of a rank by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankMemory {
    /// Its shard.
    pub weights: Bytes,
    /// Its KV cache, filled.
    pub kv: Bytes,
    /// States of its sequences, and those that are saved.
    pub state: Bytes,
    /// Everything else: the daemon itself, buffers of a step, logits, links, the tokenizer of a head.
    pub working: Bytes,
}

impl RankMemory {
    /// The memory of two models on one rank.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let sum = |one: Bytes, other: Bytes| Bytes(one.0.saturating_add(other.0));
        Self {
            weights: sum(self.weights, other.weights),
            kv: sum(self.kv, other.kv),
            state: sum(self.state, other.state),
            working: sum(self.working, other.working),
        }
    }

    /// The sum, which is the peak that the kernel counts.
    pub fn total(&self) -> Bytes {
        Bytes(self.weights.0 + self.kv.0 + self.state.0 + self.working.0)
    }
}

impl Holding<'_> {
    /// All memory of the rank, with panels of `panel_rows` rows and these KV blocks.
    pub fn memory(&self, panel_rows: usize, kv: KvFormat, blocks: KvBlocks, seat: &Seat) -> RankMemory {
        RankMemory {
            weights: Bytes(self.shard_bytes(panel_rows)),
            kv: Bytes(kv_bytes(kv, &self.sizes.spec, self.plan, blocks)),
            state: Bytes(state_bytes(&self.sizes.spec, self.plan, seat.slots)),
            working: Bytes(working_bytes(self, seat)),
        }
    }
}

/// Peak working memory of a rank in bytes, under long prompts with all slots in use. Excludes the vocabulary tables of
/// structured output and the request bodies in the gateway.
pub fn working_bytes(holding: &Holding<'_>, seat: &Seat) -> u64 {
    let (spec, plan) = (&holding.sizes.spec, holding.plan);
    let head = if seat.is_head { spec.vocabulary_length * TOKEN_BYTES } else { 0 };
    let rows = if plan.is_last_stage(spec) { seat.rows() } else { 0 };
    let logits = rows * plan.vocabulary.len() * LOGIT_LISTS * FLOAT;
    BASE_BYTES + (head + logits + step(holding, seat) + links(holding, seat)) as u64
}

/// Buffers of the largest step (`model/forward`, `model/attention.rs`): those of the layers that need most.
fn step(holding: &Holding<'_>, seat: &Seat) -> usize {
    // States of attention are for whole ranges of tokens, of which each sequence may have one that is not full.
    let tokens = seat.step_tokens();
    let padded = tokens + (ATTENTION_TOKENS - 1) * seat.slots;
    let kinds = holding.sizes.spec.kinds.iter().zip(&holding.plan.cuts);
    let kinds = kinds.map(|(layer, cut)| {
        layer_step(holding, layer, cut, tokens) + padded * attention_states(&layer.mixer, cut) * FLOAT
    });
    kinds.max().unwrap_or(0)
}

/// Floats of a token's states of attention: of all parts so far, and of one.
fn attention_states(mixer: &Mixer, cut: &LayerCut) -> usize {
    match mixer {
        Mixer::Attention(own) => {
            2 * cut.heads_kv.len() * own.group().min(cut.heads.len()) * (STATE_HEADER + own.head_length)
        }
        Mixer::Latent(own) => 2 * cut.heads.len() * (STATE_HEADER + own.latent_length),
        _ => 0,
    }
}

fn layer_step(holding: &Holding<'_>, layer: &LayerSpec, cut: &LayerCut, tokens: usize) -> usize {
    let (embedding, columns) = (holding.sizes.spec.embedding_length, cut.columns.len());
    let (queries, mixing) = mixing(&layer.mixer, cut);
    // Hidden, normed and partial states, and those of the mixer.
    let inputs = layer.input_length * holding.plan.layers.len();
    // What several sums and the sums of several take more, and the tokens' inputs for all layers of the stage.
    let more = 2 * layer.sums()[1].saturating_sub(1) * embedding + inputs;
    let floats = tokens * (3 * embedding + mixing + more) * FLOAT;
    let widest = embedding.max(queries);
    let feed_forward = match layer.feed_forward.experts() {
        None => 2 * tokens * columns * FLOAT + activations(holding, tokens, widest.max(columns)),
        Some(experts) => {
            let rows = tokens * experts.used_count;
            // Tiles end with the tokens of their expert: up to half of their capacity may be unused.
            let grouped = activations(holding, 2 * rows, embedding.max(columns));
            let shared = 2 * tokens * cut.shared.len() * FLOAT;
            let router = tokens * (experts.count + embedding) * FLOAT + shared;
            activations(holding, tokens, widest) + grouped + rows * columns * FLOAT + router
        }
    };
    floats + feed_forward
}

/// Columns of a mixer's output, and the floats that it needs for each token.
fn mixing(mixer: &Mixer, cut: &LayerCut) -> (usize, usize) {
    let units = cut.heads.len();
    match mixer {
        Mixer::Attention(attention) => {
            let (length, heads_kv) = (attention.head_length, cut.heads_kv.len());
            let (queries, keys) = (units * length, heads_kv * length);
            let gates = if attention.has_gate { 2 * queries } else { 0 };
            // Queries, gates and attention outputs; keys and values.
            (queries, 2 * queries + gates + 2 * keys)
        }
        Mixer::Convolution(_) => (units, 4 * units),
        Mixer::Delta(delta) => {
            let values = units * delta.per_key() * delta.head_length;
            // Channels before and behind the convolution; gates and outputs; rates and decays.
            (values, units * (2 * delta.channels() + 2 * delta.per_key()) + 2 * values)
        }
        Mixer::StateSpace(space) => {
            let ([values, keys], heads) = (space.channels(units), space.heads_of(units));
            // Values, gates, outputs before and behind the gates; keys and queries; rates twice and decays.
            (values, 4 * values + keys + 3 * heads)
        }
        Mixer::None => (0, 0),
        Mixer::Latent(latent) => {
            let (inner, cached) = (latent.query_columns.unwrap_or(0), latent.latent_length + latent.rotated_length);
            // Queries before and behind the matrices of keys in two buffers that change places; what these matrices and
            // those of values are multiplied with, by head, as it is and as activations, and the products.
            let widest = latent.latent_length.max(latent.value_length);
            let of_head = 2 * cached + 3 * latent.latent_length + 2 * widest;
            (units * latent.value_length, 2 * inner + cached + latent.latent_length + units * of_head)
        }
    }
}

/// Activations of this many rows as the kernels read them: int8 blocks, or floats for float matrices.
fn activations(holding: &Holding<'_>, rows: usize, columns: usize) -> usize {
    let is_float = |format: BlockFormat| format.block_length() == 1;
    let floats = if holding.formats().any(is_float) { columns * FLOAT } else { 0 };
    let blocks = columns.next_multiple_of(SUPER_BLOCK) / BLOCK[0] * BLOCK[1];
    rows * (floats + if holding.formats().all(is_float) { 0 } else { blocks })
}

/// Buffers of links: an all-reduce keeps the sum, its own part and the result, and send and receive buffers for each
/// peer; two more tensors are for timing all-reduces. Stages receive and hand over the hidden states of a step.
fn links(holding: &Holding<'_>, seat: &Seat) -> usize {
    let (spec, plan, tokens) = (&holding.sizes.spec, holding.plan, seat.step_tokens());
    let peers = seat.ranks.saturating_sub(1);
    // Layers that add up two hidden states at once have both under way.
    let rows = spec.kinds.iter().flat_map(|kind| kind.exchanges(STEP_TOKENS_MAX, seat.ranks, spec.embedding_length));
    let rows = rows.max().unwrap_or(STEP_TOKENS_MAX);
    let message = payload_bytes(seat.exchange, rows, spec.embedding_length);
    let tensor = rows * spec.embedding_length * FLOAT;
    let all_reduce = if peers > 0 { 3 * tensor + 2 * (1 + peers) * message } else { 0 };
    let hops = usize::from(!plan.is_first_stage()) + usize::from(!plan.is_last_stage(spec));
    let hand_overs =
        hops * payload_bytes(seat.exchange.hand_over(spec.has_wide_states()), tokens, spec.embedding_length);
    all_reduce + hand_overs + (seat.ranks * seat.stages).saturating_sub(1) * LINK_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::{
        cut_stages,
        sizes::{ModelSizes, Quantisation},
    };

    fn working(stages: usize, ranks: usize, rank: usize, slots: usize) -> f64 {
        let sizes = ModelSizes::known("tinyllama-1.1b", Quantisation::Q4_0).expect("it is known");
        let layers = sizes.spec.block_count();
        let of: Vec<_> =
            (0..stages).map(|stage| (stage * layers / stages..(stage + 1) * layers / stages, vec![1; ranks])).collect();
        let plans = cut_stages(&sizes.spec, &of).expect("it can be cut");
        let seat = Seat { stages, ranks, is_head: rank == 0, slots, exchange: Exchange::F32 };
        working_bytes(&Holding { sizes: &sizes, plan: &plans[rank] }, &seat) as f64 / (1_u64 << 20) as f64
    }

    #[test]
    fn working_memory_matches_measured_daemons() {
        // Peaks above weights and KV cache of real daemons (bench/measurements.md), in MiB, within 5 % of their totals
        // of 126 to 640.
        for ((stages, ranks, rank), peak, all) in [
            ((1, 1, 0), 36.4, 630.0),
            ((1, 2, 0), 38.1, 373.0),
            ((1, 2, 1), 35.9, 371.0),
            ((2, 1, 0), 26.3, 125.0),
            ((2, 1, 1), 27.5, 128.0),
        ] {
            let found = working(stages, ranks, rank, 16);
            assert!(
                (found - peak).abs() < 0.05 * all,
                "pp{stages}-tp{ranks} rank {rank}: {found} MiB, measured {peak}"
            );
        }
    }

    #[test]
    fn rows_of_logits_depend_on_stages_and_not_on_slots() {
        // What more slots add are padded states of attention, as many on a stage without logits.
        let added = |rank| working(2, 1, rank, 32) - working(2, 1, rank, 2);
        assert_eq!(added(1), added(0), "speculative tokens take as many rows of logits");
        assert_eq!(added(0), working(1, 1, 0, 32) - working(1, 1, 0, 2));
    }

    #[test]
    fn a_total_is_the_sum_of_its_parts() {
        let [weights, kv, state, working] = [1, 2, 4, 8].map(Bytes);
        assert_eq!(RankMemory { weights, kv, state, working }.total(), Bytes(15));
    }
}
