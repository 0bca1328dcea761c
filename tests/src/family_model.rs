//! Small models of any family with seeded random weights, written from the family's own table of tensors: a test gives
//! keys as a converter would write them, and the names of tensors that files may have.
use std::sync::Arc;

use gguf::{BlockFormat, GgufError, GgufFile};
use models::{KeySource, Keys, ModelSpec, Predictor, TensorRole, TensorSpec, families};
use topology::sizes::{fitting, has_more_bits};

use crate::{
    gguf_writer::{GgufWriter, Value},
    quantise::quantise,
    random::Random,
    tiny_model::{VOCABULARY_LENGTH_MIN, vocabulary},
};

/// The output matrix, which files of tied models do not have.
const OUTPUT: &str = "output.weight";
/// Approximate standard deviation of the logits.
const LOGIT_SPREAD: f32 = 3.0;

/// A model to be written.
#[derive(Clone, Debug)]
pub struct FamilyModel {
    /// As in `general.architecture`.
    pub architecture: &'static str,
    /// Keys, without the architecture in front.
    pub keys: Vec<(&'static str, Value)>,
    /// Tensors that the family does not need, as the file names them: biases, an output matrix, fused rows.
    pub optional: Vec<&'static str>,
    /// Layers whose values are their keys.
    pub keyed: Vec<usize>,
    /// Format of the matrices; rows that are not whole blocks fall back as in real files.
    pub format: BlockFormat,
    /// Format of the matrices of experts; `None`: as the others.
    pub expert_format: Option<BlockFormat>,
    /// Format of the embedding and the output matrix; `None`: as the others.
    pub output_format: Option<BlockFormat>,
    /// Size of the vocabulary, at least [`VOCABULARY_LENGTH_MIN`].
    pub vocabulary_length: usize,
    /// Format of the values and down matrices of the layers to which llama.cpp's Q4_K_M gives more bits.
    pub finer_format: Option<BlockFormat>,
    /// Seed of every weight.
    pub seed: u64,
}

impl FamilyModel {
    /// A model with these keys.
    pub fn new(architecture: &'static str, keys: &[(&'static str, Value)]) -> Self {
        Self {
            architecture,
            keys: keys.to_vec(),
            optional: Vec::new(),
            keyed: Vec::new(),
            format: BlockFormat::F32,
            expert_format: None,
            output_format: None,
            vocabulary_length: VOCABULARY_LENGTH_MIN,
            finer_format: None,
            seed: 1,
        }
    }

    /// Gemma 3 with five layers of a window of so many positions before one that attends to everything, and an output
    /// matrix.
    pub fn gemma3(window: u32) -> Self {
        let keys = [
            ("block_count", Value::U32(6)),
            ("context_length", Value::U32(1024)),
            ("embedding_length", Value::U32(128)),
            ("feed_forward_length", Value::U32(256)),
            ("attention.head_count", Value::U32(4)),
            ("attention.head_count_kv", Value::U32(2)),
            ("attention.key_length", Value::U32(32)),
            ("attention.value_length", Value::U32(32)),
            ("attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
            ("attention.sliding_window", Value::U32(window)),
        ];
        Self::new("gemma3", &keys).untied()
    }

    /// The same model with an output matrix of its own.
    #[must_use]
    pub fn untied(mut self) -> Self {
        if !self.optional.contains(&OUTPUT) {
            self.optional.push(OUTPUT);
        }
        self
    }

    /// The same model with all matrices in this format.
    #[must_use]
    pub fn with_format(self, format: BlockFormat) -> Self {
        Self { format, ..self }
    }

    /// Number of layers.
    pub fn block_count(&self) -> usize {
        self.number("block_count")
    }

    /// The bytes of a single file.
    ///
    /// # Panics
    /// The family is unknown or refuses the keys.
    pub fn bytes(&self) -> Vec<u8> {
        self.writer().finish()
    }

    /// The model as a file in memory.
    ///
    /// # Panics
    /// As [`Self::bytes`], or the file is invalid.
    pub fn file(&self) -> Arc<GgufFile> {
        Arc::new(GgufFile::from_bytes(vec![self.bytes()]).expect("the model is valid"))
    }

    /// The unfinished file, for a test to change.
    ///
    /// # Panics
    /// The family is unknown or refuses the keys.
    pub fn writer(&self) -> GgufWriter {
        let family = families::named(self.architecture).expect("the family exists");
        let spec = (family.spec)(&Keys { source: self, architecture: family.name }).expect("the keys are complete");
        let mut writer = GgufWriter::new(3)
            .text("general.architecture", self.architecture)
            .text("general.type", "model")
            .text("general.name", "small");
        for (name, value) in &self.keys {
            writer = writer.value(&format!("{}.{name}", self.architecture), value.clone());
        }
        writer = vocabulary(writer, self.vocabulary_length);
        let mut written = Vec::new();
        for tensor in spec.tensors() {
            writer = self.tensor(writer, &mut written, tensor.name.into(), &tensor, false);
        }
        for layer in 0..spec.block_count() {
            let is_finer = has_more_bits(layer, spec.block_count());
            for tensor in spec.layer_tensors(layer) {
                let name = format!("blk.{layer}.{}", tensor.name);
                writer = self.tensor(writer, &mut written, name, &tensor, is_finer);
            }
        }
        let Some(own) = self.predictor(&spec) else { return writer };
        for tensor in own.layer_tensors(0) {
            let is_finer = has_more_bits(spec.block_count() - 1, spec.block_count());
            writer = self.tensor(writer, &mut written, own.layer_tensor(0, tensor.name), &tensor, is_finer);
        }
        writer
    }

    fn tensor(
        &self,
        writer: GgufWriter,
        written: &mut Vec<String>,
        name: String,
        tensor: &TensorSpec,
        is_finer: bool,
    ) -> GgufWriter {
        let is_wanted = !tensor.is_optional || self.optional.contains(&tensor.name);
        // Roles may share a tensor.
        if !is_wanted || written.contains(&name) {
            return writer;
        }
        written.push(name.clone());
        let [columns, rows, count] = tensor.file_dimensions();
        let format = match tensor.role {
            _ if tensor.is_float => BlockFormat::F32,
            role if role.is_per_expert() && count > 1 => self.expert_format.unwrap_or(self.format),
            TensorRole::Embedding | TensorRole::Output => self.output_format.unwrap_or(self.format),
            TensorRole::Value | TensorRole::Down if is_finer => self.finer_format.unwrap_or(self.format),
            _ => self.format,
        };
        let format = fitting(format, columns);
        let (mean, spread) = distribution(tensor);
        let lengths = [columns, rows, count].map(|length| length as u64);
        let dimensions = match lengths {
            [_, 1, 1] if tensor.is_vector => &lengths[..1],
            [_, _, 1] => &lengths[..2],
            _ => &lengths[..],
        };
        let (seed, source) = (self.seed, name.clone());
        let scale = tensor.scale_name().filter(|scale| self.optional.iter().any(|optional| scale == optional));
        let writer = match scale {
            Some(scale) => {
                let name = format!("{}{scale}", name.strip_suffix(tensor.name).unwrap_or_default());
                let values = Random::named(seed, &name).normals(count, 0.3);
                let bytes = values.iter().flat_map(|value| (1.0 + value).to_le_bytes()).collect();
                writer.tensor(&name, &[count as u64], BlockFormat::F32, bytes)
            }
            None => writer,
        };
        writer.made_tensor(&name, dimensions, format, move |out| {
            let mut random = Random::named(seed, &source);
            (0..rows * count).try_for_each(|_| {
                let mut values = random.normals(columns, spread);
                values.iter_mut().for_each(|value| *value += mean);
                out.write_all(&quantise(format, &values))
            })
        })
    }

    /// The predictor behind the layers, if the keys demand one.
    fn predictor(&self, spec: &ModelSpec) -> Option<ModelSpec> {
        let block = spec.block_count();
        let predictor = Predictor { block, has_output_norm: self.optional.contains(&"nextn.shared_head_norm.weight") };
        let is_wanted = self.number("nextn_predict_layers") == 1 && self.block_count() == block + 1;
        is_wanted.then(|| spec.with_predictor(predictor).expect("a layer attends"))
    }

    fn value(&self, key: &str) -> Option<&Value> {
        let name = key.strip_prefix(self.architecture).and_then(|rest| rest.strip_prefix('.'))?;
        self.keys.iter().find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    fn number(&self, key: &str) -> usize {
        match self.value(&format!("{}.{key}", self.architecture)) {
            Some(Value::U32(value)) => *value as usize,
            _ => 0,
        }
    }
}

/// Mean and standard deviation of a tensor's weights: hidden states keep their size, and routers choose clearly.
fn distribution(tensor: &TensorSpec) -> (f32, f32) {
    use TensorRole::{
        DecayFactor, Embedding, Filter, KeyFilter, KeyNorm, MixerNorm, Output, OutputNorm, QueryNorm, Router, Sinks,
    };
    let unit = 1.0 / (tensor.dimensions[0] as f32).sqrt();
    match tensor.role {
        Embedding | Output => (0.0, LOGIT_SPREAD * unit),
        Router => (0.0, 2.0 * unit),
        Sinks => (0.0, 1.0),
        Filter | KeyFilter => (0.0, unit),
        // Negative: states decay.
        DecayFactor => (-0.5, 0.1),
        TensorRole::StateNorm | TensorRole::StateSkip => (1.0, 0.1),
        TensorRole::RopeFactors => (2.0, 0.2),
        OutputNorm | MixerNorm | QueryNorm | KeyNorm => (1.0, 0.1),
        TensorRole::MixerPostNorm | TensorRole::FeedForwardNorm | TensorRole::FeedForwardPostNorm => (1.0, 0.1),
        TensorRole::SharedNorm | TensorRole::SharedPostNorm | TensorRole::ExpertsPostNorm => (1.0, 0.1),
        TensorRole::QueryInnerNorm | TensorRole::LatentNorm => (1.0, 0.1),
        TensorRole::JoinedTokenNorm | TensorRole::JoinedStateNorm => (1.0, 0.1),
        TensorRole::InputNorm | TensorRole::InputPostNorm | TensorRole::OutputScale => (1.0, 0.1),
        // Divided by the root of its length.
        TensorRole::RouterScale => (1.0 / unit, 0.1 / unit),
        TensorRole::InputEmbedding => (0.0, unit),
        _ if tensor.is_vector => (0.0, 0.1),
        _ => (0.0, unit),
    }
}

impl KeySource for FamilyModel {
    fn text(&self, key: &str) -> Result<Option<String>, GgufError> {
        Ok(match self.value(key) {
            Some(Value::Text(text)) => Some(String::from_utf8_lossy(text).into_owned()),
            _ => None,
        })
    }

    fn unsigned(&self, key: &str) -> Result<Option<u64>, GgufError> {
        Ok(match self.value(key) {
            Some(Value::U32(value)) => Some(u64::from(*value)),
            _ => None,
        })
    }

    fn float(&self, key: &str) -> Result<Option<f64>, GgufError> {
        Ok(match self.value(key) {
            Some(Value::F32(value)) => Some(f64::from(*value)),
            _ => None,
        })
    }

    fn integers(&self, key: &str) -> Result<Option<Vec<i64>>, GgufError> {
        let Some(Value::Array(_, values)) = self.value(key) else { return Ok(None) };
        let integers = values.iter().map(|value| if let Value::I32(value) = value { i64::from(*value) } else { 0 });
        Ok(Some(integers.collect()))
    }

    fn flags(&self, key: &str) -> Result<Option<Vec<bool>>, GgufError> {
        let Some(Value::Array(_, values)) = self.value(key) else { return Ok(None) };
        Ok(Some(values.iter().map(|value| matches!(value, Value::Flag(true))).collect()))
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, GgufError> {
        Ok(match self.value(key) {
            Some(Value::Flag(value)) => Some(*value),
            _ => None,
        })
    }

    fn rows(&self, tensor: &str) -> Option<usize> {
        let of_layer = tensor.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        let part = of_layer.map_or(tensor, |(_, part)| part);
        let is_there = self.optional.contains(&part);
        match part {
            "token_embd.weight" => Some(self.vocabulary_length),
            // Gate and up in one tensor.
            "ffn_up.weight" if is_there => Some(2 * self.number("feed_forward_length")),
            // Layers without values of their own.
            "attn_v.weight" if self.keyed.iter().any(|layer| tensor == format!("blk.{layer}.{part}")) => None,
            "attn_v.weight" => Some(1),
            _ => is_there.then_some(1),
        }
    }
}
