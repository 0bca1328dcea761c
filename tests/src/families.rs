//! Two small models of each family: one of ordinary dimensions, and one that is awkward to cut: an odd number of heads,
//! a single KV head, rows that are no multiple of 256, windows shorter than a prompt, more ranks than KV heads.
use std::sync::Arc;

use gguf::GgufFile;

use crate::{family_model::FamilyModel, gguf_writer::Value};

/// Dimensions of a model.
#[derive(Clone, Copy)]
struct Dimensions {
    layers: u32,
    embedding: u32,
    heads: u32,
    heads_kv: u32,
    head_length: u32,
    columns: u32,
}

const ORDINARY: Dimensions =
    Dimensions { layers: 4, embedding: 256, heads: 8, heads_kv: 4, head_length: 32, columns: 512 };
const AWKWARD: Dimensions =
    Dimensions { layers: 5, embedding: 160, heads: 3, heads_kv: 1, head_length: 64, columns: 288 };

impl Dimensions {
    fn keys(self) -> Vec<(&'static str, Value)> {
        vec![
            ("block_count", Value::U32(self.layers)),
            ("context_length", Value::U32(512)),
            ("embedding_length", Value::U32(self.embedding)),
            ("feed_forward_length", Value::U32(self.columns)),
            ("attention.head_count", Value::U32(self.heads)),
            ("attention.head_count_kv", Value::U32(self.heads_kv)),
            ("attention.key_length", Value::U32(self.head_length)),
            ("attention.value_length", Value::U32(self.head_length)),
            ("attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
            ("rope.dimension_count", Value::U32(self.head_length)),
        ]
    }

    /// The keys with more of them; the last of several values counts.
    fn with(self, more: &[(&'static str, Value)]) -> Vec<(&'static str, Value)> {
        let mut keys = self.keys();
        for (key, value) in more {
            keys.retain(|(other, _)| other != key);
            keys.push((key, value.clone()));
        }
        keys
    }
}

/// The biases of queries, keys and values, which any file may have.
const BIASES: [&str; 3] = ["attn_q.bias", "attn_k.bias", "attn_v.bias"];
/// Factors of the products of matrices, which any file may have; llama.cpp reads `output.scale` only in NVFP4 files.
const SCALES: [&str; 10] = [
    "attn_q.scale",
    "attn_k.scale",
    "attn_v.scale",
    "attn_output.scale",
    "ffn_gate.scale",
    "ffn_up.scale",
    "ffn_down.scale",
    "ffn_gate_exps.scale",
    "ffn_up_exps.scale",
    "ffn_down_exps.scale",
];
/// A file whose output matrix is not the embedding.
const UNTIED: [&str; 1] = ["output.weight"];

/// A key and its value.
type KeyValue = (&'static str, Value);

fn number(key: &'static str, value: u32) -> KeyValue {
    (key, Value::U32(value))
}

fn float(key: &'static str, value: f32) -> KeyValue {
    (key, Value::F32(value))
}

fn window(positions: u32) -> KeyValue {
    number("attention.sliding_window", positions)
}

fn experts(columns: u32) -> Vec<KeyValue> {
    let counts = [number("expert_count", 8), number("expert_used_count", 3)];
    [&counts[..], &[number("expert_feed_forward_length", columns)]].concat()
}

fn yarn() -> Vec<KeyValue> {
    vec![
        ("rope.scaling.type", Value::Text(b"yarn".into())),
        float("rope.scaling.factor", 8.0),
        number("rope.scaling.original_context_length", 64),
        float("rope.freq_base", 150_000.0),
    ]
}

/// A list of numbers.
fn list(values: &[u32]) -> Value {
    Value::Array(5, values.iter().map(|value| Value::I32(*value as i32)).collect())
}

/// Pairs of a rotation in sections.
fn sections(lengths: [i32; 4]) -> Vec<KeyValue> {
    vec![("rope.dimension_sections", Value::Array(5, lengths.map(Value::I32).to_vec()))]
}

fn granite() -> Vec<KeyValue> {
    vec![
        float("embedding_scale", 12.0),
        float("residual_scale", 0.22),
        float("logit_scale", 2.0),
        float("attention.scale", 0.03),
    ]
}

/// The files of those whose names begin with one of these, each with an output matrix: with the embedding in its place,
/// random weights repeat the last token, whatever was before it, and greedy answers show no wrong key or value.
///
/// # Panics
/// A model is invalid.
pub fn files(beginnings: &[&str]) -> Vec<(String, Arc<GgufFile>)> {
    let shapes = shapes().into_iter();
    let shapes = shapes.filter(|(name, _)| beginnings.iter().any(|beginning| name.starts_with(beginning)));
    shapes.map(|(name, model)| (name, model.untied().file())).collect()
}

/// Every shape with its name, by family.
pub fn shapes() -> Vec<(String, FamilyModel)> {
    let mut shapes = Shapes(Vec::new());
    shapes.plain();
    shapes.scaled();
    shapes.windowed();
    shapes.gemma4();
    shapes.mixtures();
    shapes.latent();
    shapes.recurrent();
    shapes.spaces();
    shapes.0
}

/// The shapes so far.
struct Shapes(Vec<(String, FamilyModel)>);

impl Shapes {
    /// Adds both shapes of a family with further keys and with tensors that it does not need.
    fn add(&mut self, name: &str, [ordinary, awkward]: [&[KeyValue]; 2], optional: &[&'static str]) {
        let family = models::families::named(name.split('+').next().unwrap_or(name)).expect("the family exists").name;
        for (shape, dimensions, keys) in [("ordinary", ORDINARY, ordinary), ("awkward", AWKWARD, awkward)] {
            let model = FamilyModel::new(family, &dimensions.with(keys));
            self.0.push((format!("{name}-{shape}"), FamilyModel { optional: optional.to_vec(), ..model }));
        }
    }

    fn plain(&mut self) {
        // llama.cpp reads only heads that are as long as the hidden state together.
        let whole = [number("embedding_length", 192)];
        self.add("llama", [&[], &[]], &["output.weight", "rope_freqs.weight", "attn_output.bias"]);
        self.add("arcee", [&[], &[]], &UNTIED);
        self.add("qwen2", [&[], &whole], &UNTIED);
        self.add("qwen3", [&[], &[]], &[]);
        self.add("qwen3+scales", [&[], &[]], &[&SCALES[..], &UNTIED].concat());
        let pooled = |number_of| [number("pooling_type", number_of)];
        self.add("qwen3+last", [&pooled(3), &pooled(3)], &[]);
        self.add("qwen3+mean", [&pooled(1), &pooled(1)], &[]);
        self.add("qwen3vl", [&sections([6, 5, 5, 0]), &sections([14, 8, 10, 0])], &[]);
        self.add("smollm3", [&[], &[]], &[]);
        self.add("seed_oss", [&[], &[]], &[&BIASES[..], &UNTIED].concat());
        self.add("ernie4_5", [&[], &[]], &[]);
        self.add("hunyuan-dense", [&[], &[]], &[]);
        let rotated = |count| [number("rope.dimension_count", count)];
        self.add("glm4", [&rotated(16), &rotated(32)], &["output.weight", "ffn_up.weight"]);
    }

    fn scaled(&mut self) {
        self.add("granite", [&granite(), &granite()], &[]);
        let long = |context: u32| {
            vec![
                number("rope.scaling.original_context_length", context),
                float("rope.scaling.attn_factor", 1.19),
                number("rope.dimension_count", 24),
                number("embedding_length", if context == 64 { 192 } else { 256 }),
            ]
        };
        let fused = ["attn_qkv.weight", "ffn_up.weight", "rope_factors_long.weight", "rope_factors_short.weight"];
        self.add("phi3", [&long(512), &long(64)], &fused);
        let growing = [
            float("rope.scaling.yarn_log_multiplier", 1.0),
            float("attention.temperature_scale", 0.1),
            number("rope.scaling.original_context_length", 16),
        ];
        let ministral = [&yarn()[..], &growing].concat();
        self.add("mistral3", [&ministral, &ministral], &[]);
    }

    fn windowed(&mut self) {
        let linear = [("rope.scaling.type", Value::Text(b"linear".into())), float("rope.scaling.factor", 8.0)];
        self.add("gemma3", [&[window(24)], &[&[window(7)], &linear[..]].concat()], &[]);
        let pooled = [number("pooling_type", 1), number("dense_2_feat_out", 512), number("dense_3_feat_in", 512)];
        // llama.cpp fails in a file without a layer that attends to everything.
        let pooled = [(24, 2), (7, 3)].map(|(positions, period)| {
            [&pooled[..], &[window(positions), number("attention.sliding_window_pattern", period)]].concat()
        });
        self.add("gemma-embedding", pooled.each_ref().map(Vec::as_slice), &["dense_2.weight", "dense_3.weight"]);
        let caps = [float("attn_logit_softcapping", 5.0), float("final_logit_softcapping", 3.0)];
        let gemma2 = |positions| [&caps[..], &[window(positions)]].concat();
        self.add("gemma2", [&gemma2(24), &gemma2(7)], &[]);
        let large =
            [window(7), number("block_count", 64), number("embedding_length", 192), number("feed_forward_length", 96)];
        self.add("exaone4", [&[], &large], &UNTIED);
        let cohere = |positions, embedding| {
            let norm = float("attention.layer_norm_epsilon", 1e-5);
            [norm, window(positions), float("logit_scale", 0.25), number("embedding_length", embedding)]
        };
        self.add("cohere2", [&cohere(24, 256), &cohere(7, 192)], &[]);
        let flags = [true, true, false, true, false].map(Value::Flag).to_vec();
        let olmo3 = [
            &yarn()[..],
            &[window(7), number("embedding_length", 192)],
            &[("attention.sliding_window_pattern", Value::Array(7, flags))],
        ];
        self.add("olmo2", [&[], &olmo3.concat()], &UNTIED);
        let gpt_oss = |columns, positions| [&experts(columns)[..], &yarn(), &[window(positions)]].concat();
        self.add("gpt-oss", [&gpt_oss(256, 24), &gpt_oss(160, 7)], &UNTIED);
    }

    /// Heads of several lengths, shared keys, values that are keys, inputs for each layer, experts next to a network.
    fn gemma4(&mut self) {
        let of = |full: u32, windowed: u32, positions: u32| {
            vec![
                window(positions),
                number("attention.key_length", full),
                number("attention.value_length", full),
                number("attention.key_length_swa", windowed),
                number("attention.value_length_swa", windowed),
                number("rope.dimension_count", full),
                number("rope.dimension_count_swa", windowed),
                float("rope.freq_base", 1_000_000.0),
                float("rope.freq_base_swa", 10_000.0),
                float("final_logit_softcapping", 30.0),
                number("embedding_length_per_layer_input", 0),
            ]
        };
        let pattern = |values: &[bool]| {
            let flags = values.iter().map(|value| Value::Flag(*value));
            ("attention.sliding_window_pattern", Value::Array(7, flags.collect()))
        };
        // The last of several values of a key counts.
        let inputs = number("embedding_length_per_layer_input", 32);
        let shared = |count| number("attention.shared_kv_layers", count);
        let small = [
            [
                &of(64, 32, 24)[..],
                &[
                    number("block_count", 6),
                    pattern(&[true, false, true, false, true, false]),
                    shared(2),
                    inputs.clone(),
                ],
            ]
            .concat(),
            [
                &of(128, 64, 7)[..],
                &[pattern(&[true, true, false, true, false]), shared(2), inputs.clone()],
                &[("feed_forward_length", list(&[288, 288, 288, 160, 160]))],
            ]
            .concat(),
        ];
        let tensors = ["rope_freqs.weight", "layer_output_scale.weight"];
        self.add("gemma4", small.each_ref().map(Vec::as_slice), &tensors);
        let large = [
            [
                &of(64, 32, 24)[..],
                &experts(128),
                &[pattern(&[true, true, true, false]), ("attention.head_count_kv", list(&[4, 4, 4, 2]))],
            ]
            .concat(),
            [
                &of(128, 64, 7)[..],
                &experts(96),
                &[pattern(&[true, false, true, true, false]), ("attention.head_count_kv", list(&[3, 1, 3, 3, 1]))],
            ]
            .concat(),
        ];
        let tensors = ["rope_freqs.weight", "layer_output_scale.weight", "ffn_gate_inp.weight"];
        let more = [&tensors[..], &["ffn_gate_up_exps.weight", "ffn_down_exps.scale"]].concat();
        let begin = self.0.len();
        self.add("gemma4+experts", large.each_ref().map(Vec::as_slice), &more);
        for ((_, model), layers) in self.0[begin..].iter_mut().zip([vec![3], vec![1, 4]]) {
            model.keyed = layers;
        }
    }

    /// Layers with a state.
    fn recurrent(&mut self) {
        let lfm2 = |counts: &[u32], embedding| {
            let taps = number("shortconv.l_cache", 3);
            vec![("attention.head_count_kv", list(counts)), taps, number("embedding_length", embedding)]
        };
        let lfm2 = [lfm2(&[0, 4, 4, 0], 256), lfm2(&[0, 0, 1, 0, 1], 192)];
        self.add("lfm2", lfm2.each_ref().map(Vec::as_slice), &[]);
        let mixed = [(256, 1), (96, 2)].map(|(columns, first)| {
            let router = [number("leading_dense_block_count", first), number("expert_gating_func", 2)];
            [&experts(columns)[..], &router].concat()
        });
        let lfm2moe = [[&lfm2[0][..], &mixed[0]].concat(), [&lfm2[1][..], &mixed[1]].concat()];
        self.add("lfm2moe", lfm2moe.each_ref().map(Vec::as_slice), &["exp_probs_b.bias"]);
        let delta = |keys: u32, values: u32, length: u32| {
            vec![
                number("ssm.conv_kernel", 4),
                number("ssm.group_count", keys),
                number("ssm.time_step_rank", values),
                number("ssm.state_size", length),
                number("ssm.inner_size", values * length),
            ]
        };
        let qwen35 = [
            [&delta(4, 8, 32)[..], &sections([6, 5, 5, 0])].concat(),
            [&delta(3, 9, 64)[..], &sections([14, 8, 10, 0]), &[number("full_attention_interval", 2)]].concat(),
        ];
        self.add("qwen35", qwen35.each_ref().map(Vec::as_slice), &[]);
        let behind = |keys: &[KeyValue], layers| {
            [keys, &[number("block_count", layers + 1), number("nextn_predict_layers", 1)]].concat()
        };
        let predicting = [behind(&qwen35[0], ORDINARY.layers), behind(&qwen35[1], AWKWARD.layers)];
        let norm = ["nextn.shared_head_norm.weight"];
        self.add("qwen35+predictor", predicting.each_ref().map(Vec::as_slice), &norm);
        let wide = [(192, 256), (96, 160)].map(|(columns, shared)| {
            [&experts(columns)[..], &[number("expert_shared_feed_forward_length", shared)]].concat()
        });
        let qwen35moe = [[&qwen35[0][..], &wide[0]].concat(), [&qwen35[1][..], &wide[1]].concat()];
        self.add("qwen35moe", qwen35moe.each_ref().map(Vec::as_slice), &UNTIED);
        let predicting = [behind(&qwen35moe[0], ORDINARY.layers), behind(&qwen35moe[1], AWKWARD.layers)];
        self.add("qwen35moe+predictor", predicting.each_ref().map(Vec::as_slice), &UNTIED);
        let qwen3next = [[&delta(4, 8, 32)[..], &wide[0]].concat(), [&delta(3, 9, 64)[..], &wide[1]].concat()];
        self.add("qwen3next", qwen3next.each_ref().map(Vec::as_slice), &UNTIED);
    }

    /// State spaces, and layers with one half.
    fn spaces(&mut self) {
        let space = |heads: u32, length: u32, keys: u32, groups: u32| {
            vec![
                number("ssm.conv_kernel", 4),
                number("ssm.group_count", groups),
                number("ssm.time_step_rank", heads),
                number("ssm.state_size", keys),
                number("ssm.inner_size", heads * length),
            ]
        };
        // llama.cpp reads only states of twice the hidden state's length.
        let hybrid = [
            [&space(8, 64, 32, 1)[..], &granite(), &[("attention.head_count_kv", list(&[0, 4, 0, 0]))]].concat(),
            [&space(5, 64, 16, 1)[..], &granite(), &[("attention.head_count_kv", list(&[0, 0, 1, 0, 1]))]].concat(),
        ];
        let not_rotated = ("rope.scaling.finetuned", Value::Flag(false));
        let biased = ["ssm_conv1d.bias"];
        self.add("granitehybrid", [&[&hybrid[0][..], &[not_rotated]].concat(), &hybrid[1]], &biased);
        let shared = |columns| number("expert_shared_feed_forward_length", columns);
        let mixed = [
            [&hybrid[0][..], &experts(512)[..2], &[shared(256)]].concat(),
            [&hybrid[1][..], &experts(288)[..2], &[shared(160)]].concat(),
        ];
        self.add("granitehybrid+experts", mixed.each_ref().map(Vec::as_slice), &[&biased[..], &UNTIED].concat());
        // One half in each layer.
        let single = |heads_kv: &[u32], columns: &[u32]| {
            let lists = [("attention.head_count_kv", list(heads_kv)), ("feed_forward_length", list(columns))];
            [&lists[..], &[float("attention.layer_norm_epsilon", 1e-5)]].concat()
        };
        let nemotron = |columns: [u32; 2]| {
            let [first, second] = columns;
            [
                [&space(8, 32, 32, 4)[..], &single(&[0, 0, 4, 0], &[0, first, 0, first])].concat(),
                [&space(6, 80, 16, 3)[..], &single(&[0, 0, 0, 1, 0], &[0, 0, second, 0, second])].concat(),
            ]
        };
        let dense = nemotron([512, 288]);
        self.add("nemotron_h", dense.each_ref().map(Vec::as_slice), &[&biased[..], &UNTIED].concat());
        let [ordinary, awkward] = nemotron([192, 96]);
        let router = [("expert_weights_norm", Value::Flag(true)), float("expert_weights_scale", 2.5)];
        let mixture = [
            [&ordinary[..], &experts(192), &router, &[shared(256)]].concat(),
            [&awkward[..], &experts(96), &router, &[shared(160)]].concat(),
        ];
        self.add("nemotron_h_moe", mixture.each_ref().map(Vec::as_slice), &[&biased[..], &UNTIED].concat());
    }

    /// Attention to one short vector for each position.
    fn latent(&mut self) {
        // Latent, elements with and without rotation, values, inner columns of queries.
        let of = |[latent, rotated, plain, values, columns]: [u32; 5]| {
            vec![
                number("attention.head_count_kv", 1),
                number("attention.kv_lora_rank", latent),
                number("attention.q_lora_rank", columns),
                number("attention.key_length", latent + rotated),
                number("attention.value_length", latent),
                number("attention.key_length_mla", plain + rotated),
                number("attention.value_length_mla", values),
                number("rope.dimension_count", rotated),
            ]
        };
        let glm = [
            number("leading_dense_block_count", 1),
            number("expert_shared_count", 1),
            number("expert_gating_func", 2),
            ("expert_weights_norm", Value::Flag(true)),
            float("expert_weights_scale", 1.8),
        ];
        let lite = [
            number("leading_dense_block_count", 2),
            number("expert_shared_count", 2),
            float("rope.scaling.yarn_log_multiplier", 0.0707),
        ];
        let deepseek = [
            [&of([128, 32, 32, 64, 256])[..], &experts(128), &glm].concat(),
            [&of([48, 8, 24, 96, 0])[..], &experts(96), &yarn(), &lite].concat(),
        ];
        self.add("deepseek2", deepseek.each_ref().map(Vec::as_slice), &["output.weight", "exp_probs_b.bias"]);
    }

    fn mixtures(&mut self) {
        let shared = |columns: u32| number("expert_shared_feed_forward_length", columns);
        let first = number("leading_dense_block_count", 1);
        let mixtral = &experts(512)[..2];
        self.add("llama+experts", [mixtral, mixtral], &[]);
        self.add("qwen3moe", [&experts(192), &experts(160)], &UNTIED);
        self.add("qwen3moe+scales", [&experts(256), &experts(160)], &[&SCALES[..], &UNTIED].concat());
        let imaged = [(192, [6, 5, 5, 0]), (160, [14, 8, 10, 0])]
            .map(|(columns, lengths)| [&experts(columns)[..], &sections(lengths)].concat());
        self.add("qwen3vlmoe", imaged.each_ref().map(Vec::as_slice), &UNTIED);
        // llama.cpp reads only as many KV heads as query heads.
        let olmoe = [(256, 8), (192, 3)].map(|(embedding, heads)| {
            [mixtral, &[number("embedding_length", embedding), number("attention.head_count_kv", heads)]].concat()
        });
        self.add("olmoe", olmoe.each_ref().map(Vec::as_slice), &UNTIED);
        let granite_moe = [&granite()[..], mixtral].concat();
        self.add("granitemoe", [&[&granite_moe[..], &[shared(256)]].concat(), &granite_moe], &[]);
        let qwen2moe = |columns, wide, embedding| {
            [&experts(columns)[..], &[shared(wide), number("embedding_length", embedding)]].concat()
        };
        let qwen2moe = [qwen2moe(128, 256, 256), qwen2moe(96, 160, 192)];
        self.add("qwen2moe", qwen2moe.each_ref().map(Vec::as_slice), &[&BIASES[..], &UNTIED].concat());
        let router = [
            first.clone(),
            number("expert_shared_count", 1),
            ("expert_weights_norm", Value::Flag(true)),
            float("expert_weights_scale", 1.8),
            number("rope.dimension_count", 16),
        ];
        let glm = [128, 96].map(|columns| [&experts(columns)[..], &router].concat());
        let biased = [&BIASES[..], &["output.weight", "exp_probs_b.bias"]].concat();
        self.add("glm4moe", glm.each_ref().map(Vec::as_slice), &biased);
        // Enough experts that rounding rarely changes the groups.
        let grouped = [
            number("expert_count", 32),
            number("expert_used_count", 6),
            number("expert_group_count", 4),
            number("expert_group_used_count", 2),
            number("expert_gating_func", 2),
            number("leading_dense_block_count", 1),
            number("expert_shared_count", 1),
            ("expert_weights_norm", Value::Flag(true)),
            float("expert_weights_scale", 1.2),
            number("rope.dimension_count", 16),
        ];
        let ling = [(128, 256), (96, 192)].map(|(columns, embedding)| {
            [&experts(columns)[..], &grouped, &[number("embedding_length", embedding)]].concat()
        });
        let fused = ["attn_qkv.weight", "output.weight", "exp_probs_b.bias"];
        self.add("bailingmoe2", ling.each_ref().map(Vec::as_slice), &fused);
        let ernie = [(128, 256), (96, 160)].map(|(columns, wide)| {
            let steps = [first.clone(), number("interleave_moe_layer_step", 1), shared(wide)];
            [&experts(columns)[..], &steps].concat()
        });
        self.add("ernie4_5-moe", ernie.each_ref().map(Vec::as_slice), &["exp_probs_b.bias"]);
    }
}
