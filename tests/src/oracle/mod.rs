//! An independent forward pass in f64, straight from the papers: one token at a time with whole matrices, no cache
//! format and no sharding; slow. Shares the GGUF reader and the model's spec with the product, but no arithmetic.
mod attention;
mod latent;
mod mixers;

use std::{cell::RefCell, collections::HashMap, rc::Rc};

use gguf::GgufFile;
use models::{Activation, Cut, ExpertsSpec, LayerSpec, Mixer, ModelSpec, NormKind, Pooling, Scores, Share, TensorRole};

use crate::{dequantise::dequantise, greedy::log_softmax};

/// A model with all weights as f64.
pub struct Oracle<'a> {
    file: &'a GgufFile,
    spec: ModelSpec,
    /// Matrices that were needed before.
    parts: RefCell<HashMap<PartKey, Option<Rc<Matrix>>>>,
}

/// Layer, role and index of a matrix.
type PartKey = (Option<usize>, TensorRole, usize);

/// Keys and values of a layer, each `[position, kv heads * head_length]`.
type KeysValues = [Vec<Vec<f64>>; 2];

/// The experts chosen for a token in a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Indices of the experts, the most probable first.
    pub experts: Vec<usize>,
    /// Difference between the logit of the last chosen expert and the best logit of an expert that was not chosen.
    pub margin: f64,
}

struct Matrix {
    rows: usize,
    columns: usize,
    values: Vec<f64>,
}

impl Matrix {
    fn times(&self, x: &[f64]) -> Vec<f64> {
        assert_eq!(x.len(), self.columns);
        (0..self.rows)
            .map(|row| self.values[row * self.columns..][..self.columns].iter().zip(x).map(|(w, x)| w * x).sum())
            .collect()
    }

    /// The product with its transpose.
    fn transposed_times(&self, x: &[f64]) -> Vec<f64> {
        assert_eq!(x.len(), self.rows);
        let mut out = vec![0.0; self.columns];
        for (row, x) in self.values.chunks(self.columns).zip(x) {
            out.iter_mut().zip(row).for_each(|(out, w)| *out += w * x);
        }
        out
    }
}

impl<'a> Oracle<'a> {
    /// Opens a model.
    ///
    /// # Panics
    /// If the file is not a valid model.
    pub fn new(file: &'a GgufFile) -> Self {
        Self { file, spec: models::read(file).expect("the model is valid"), parts: RefCell::default() }
    }

    /// One of the matrices with a role, of a layer or outside them; `None` if the file does not have it.
    fn part(&self, layer: Option<usize>, role: TensorRole, index: usize) -> Option<Rc<Matrix>> {
        let key = (layer, role, index);
        if let Some(found) = self.parts.borrow().get(&key) {
            return found.clone();
        }
        let part = self.read(key).map(Rc::new);
        self.parts.borrow_mut().insert(key, part.clone());
        part
    }

    fn read(&self, key: PartKey) -> Option<Matrix> {
        let (layer, role, index) = key;
        let table = layer.map_or_else(|| self.spec.tensors(), |layer| self.spec.layer_tensors(layer));
        let wanted = table.into_iter().find(|tensor| tensor.role == role)?;
        let name = layer.map_or_else(|| wanted.name.into(), |layer| format!("blk.{layer}.{}", wanted.name));
        let tensor = self.file.tensor(&name)?;
        let bytes = self.file.tensor_bytes(&tensor).expect("the tensor can be read");
        let length = bytes.len() / tensor.dimensions[2] as usize;
        let values = dequantise(tensor.format, &bytes[index * length..][..length]).into_iter().map(f64::from);
        let [columns, rows, _] = wanted.dimensions;
        let scale = wanted.scale_name().and_then(|scale| {
            let name = format!("{}{scale}", name.strip_suffix(wanted.name)?);
            let bytes = self.file.tensor_bytes(&self.file.tensor(&name)?).expect("the factor can be read");
            Some(f64::from(f32::from_le_bytes(bytes[4 * index..][..4].try_into().expect("four bytes"))))
        });
        // The parts of a fused tensor follow each other, or alternate.
        let first = wanted.fused.map_or(0, |fused| fused.first * if wanted.is_list() { 1 } else { columns });
        let (length, period) = match wanted.cut {
            Cut::Rows(Share::Alternating(length)) => (length * columns, 2 * length * columns),
            _ => (rows * columns, rows * columns),
        };
        let values = values.skip(first).enumerate().filter(|(index, _)| index % period < length);
        let values = values.take(rows * columns).map(|(_, value)| value * scale.unwrap_or(1.0));
        Some(Matrix { rows, columns, values: values.collect() })
    }

    fn vector(&self, layer: Option<usize>, role: TensorRole) -> Option<Vec<f64>> {
        self.part(layer, role, 0).map(|matrix| matrix.values.clone())
    }

    /// The norm with this weight, if there is one.
    fn norm(&self, x: &[f64], layer: Option<usize>, role: TensorRole) -> Vec<f64> {
        let Some(weight) = self.vector(layer, role) else { return x.to_vec() };
        let is_of_head = matches!(role, TensorRole::QueryNorm | TensorRole::KeyNorm);
        let centre = match self.spec.norm {
            NormKind::Layer if !is_of_head => x.iter().sum::<f64>() / x.len() as f64,
            _ => 0.0,
        };
        let mean = x.iter().map(|x| (x - centre).powi(2)).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + f64::from(self.spec.norm_epsilon)).sqrt();
        x.iter().zip(weight).map(|(x, weight)| (x - centre) * scale * weight).collect()
    }

    fn project(&self, layer: usize, role: TensorRole, bias: TensorRole, x: &[f64]) -> Vec<f64> {
        let mut out = self.part(Some(layer), role, 0).expect("the weight exists").times(x);
        if let Some(bias) = self.vector(Some(layer), bias) {
            out.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias);
        }
        out
    }

    /// Logits after each token `[token, vocabulary]`.
    pub fn logits(&self, tokens: &[u32]) -> Vec<Vec<f32>> {
        self.routed_logits(tokens).0
    }

    /// Like `logits`, with the routes `[layer, token]` of a model with experts.
    pub fn routed_logits(&self, tokens: &[u32]) -> (Vec<Vec<f32>>, Vec<Vec<Route>>) {
        let spec = &self.spec;
        let (hidden, routes) = self.hidden(tokens);
        let output = self.part(None, TensorRole::Output, 0).expect("the output exists");
        let logits = hidden.iter().map(|hidden| {
            let logits = output.times(hidden).into_iter();
            let logits = logits.map(|logit| logit * f64::from(spec.logit_scale));
            match spec.logit_cap.map(f64::from) {
                None => logits.map(|logit| logit as f32).collect(),
                Some(cap) => logits.map(|logit| (cap * (logit / cap).tanh()) as f32).collect(),
            }
        });
        (logits.collect(), routes)
    }

    /// Hidden states after the output norm `[token, embedding_length]`, and the routes `[layer, token]`.
    fn hidden(&self, tokens: &[u32]) -> (Vec<Vec<f64>>, Vec<Vec<Route>>) {
        let spec = &self.spec;
        let embedding = self.part(None, TensorRole::Embedding, 0).expect("the embedding exists");
        let row = |token: &u32| &embedding.values[*token as usize * embedding.columns..][..embedding.columns];
        let scaled = tokens.iter().map(row).map(|row| row.iter().map(|value| value * f64::from(spec.embedding_scale)));
        let mut hidden: Vec<Vec<f64>> = scaled.map(Iterator::collect).collect();
        let mut routes = vec![Vec::new(); spec.block_count()];
        let (inputs, mut all) = (self.inputs(tokens, &hidden), Vec::new());
        for (layer, routes) in routes.iter_mut().enumerate() {
            self.layer(layer, &mut hidden, &inputs[layer], &mut all, routes);
        }
        let normed = hidden.iter().map(|hidden| self.norm(hidden, None, TensorRole::OutputNorm));
        (normed.collect(), routes)
    }

    /// The embedding of a text, of length 1; `None` if the model is not made for embeddings.
    pub fn embedding(&self, tokens: &[u32]) -> Option<Vec<f32>> {
        let pooling = self.spec.pooling?;
        let hidden = self.hidden(tokens).0;
        let pooled = match pooling {
            Pooling::First => hidden.first()?.clone(),
            Pooling::Last => hidden.last()?.clone(),
            Pooling::Mean => {
                (0..hidden[0].len()).map(|column| hidden.iter().map(|state| state[column]).sum()).collect()
            }
        };
        let matrix = |role| self.part(None, role, 0);
        let pooled = match matrix(TensorRole::PooledInner).zip(matrix(TensorRole::PooledOutput)) {
            Some((inner, output)) => output.times(&inner.times(&pooled)),
            None => pooled,
        };
        let length = pooled.iter().map(|value| value * value).sum::<f64>().sqrt();
        Some(pooled.iter().map(|value| (value / length) as f32).collect())
    }

    /// Runs a layer on all tokens; `inputs` are theirs for this layer, `all` the keys and values of all layers so far.
    fn layer(
        &self,
        layer: usize,
        hidden: &mut [Vec<f64>],
        inputs: &[Vec<f64>],
        all: &mut Vec<KeysValues>,
        routes: &mut Vec<Route>,
    ) {
        let LayerSpec { mixer, feed_forward, residual_scale, .. } = self.spec.layer(layer);
        let [mixes, feeds] = self.spec.layer(layer).halves();
        let inner = match mixer {
            Mixer::Attention(attention) => {
                all.push(match attention.keys_of {
                    Some(source) => all[usize::from(source)].clone(),
                    None => self.keys_values(layer, attention, hidden),
                });
                self.attended(layer, attention, hidden, &all[layer])
            }
            _ => {
                all.push([Vec::new(), Vec::new()]);
                match mixer {
                    Mixer::Latent(latent) => self.latent(layer, latent, hidden),
                    _ if mixes => self.recurred(layer, mixer, hidden),
                    _ => Vec::new(),
                }
            }
        };
        for (position, hidden) in hidden.iter_mut().enumerate() {
            let before = hidden.clone();
            if mixes {
                let bias = TensorRole::AttentionOutputBias;
                let out = self.project(layer, TensorRole::MixerOutput, bias, &inner[position]);
                let out = self.norm(&out, Some(layer), TensorRole::MixerPostNorm);
                hidden.iter_mut().zip(out).for_each(|(hidden, out)| *hidden += f64::from(*residual_scale) * out);
            }
            if !feeds {
                continue;
            }
            let x = match self.spec.layer(layer).is_parallel() {
                true => self.norm(&before, Some(layer), TensorRole::MixerNorm),
                false => self.norm(hidden, Some(layer), TensorRole::FeedForwardNorm),
            };
            let out = match feed_forward.experts() {
                None => self.network(layer, 0, feed_forward.activation(), &x),
                Some(experts) => self.mixture(layer, experts, hidden, &x, routes),
            };
            let out = self.norm(&out, Some(layer), TensorRole::FeedForwardPostNorm);
            hidden.iter_mut().zip(out).for_each(|(hidden, out)| *hidden += f64::from(*residual_scale) * out);
            if let Some(gate) = self.part(Some(layer), TensorRole::InputGate, 0) {
                let gate = gate.times(hidden).into_iter().zip(&inputs[position]);
                let inner: Vec<f64> = gate.map(|(gate, input)| activate(Activation::Gelu, gate, *input)).collect();
                let out = self.part(Some(layer), TensorRole::InputOutput, 0).expect("the weight exists").times(&inner);
                let out = self.norm(&out, Some(layer), TensorRole::InputPostNorm);
                hidden.iter_mut().zip(out).for_each(|(hidden, out)| *hidden += out);
            }
            if let Some(scale) = self.vector(Some(layer), TensorRole::OutputScale) {
                hidden.iter_mut().for_each(|hidden| *hidden *= scale[0]);
            }
        }
    }

    /// A vector divided by its root mean square.
    fn unit(&self, x: &[f64]) -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + f64::from(self.spec.norm_epsilon)).sqrt();
        x.iter().map(|x| x * scale).collect()
    }

    /// The inputs that each token has for each layer, `[layer, token]`, from the scaled embeddings.
    fn inputs(&self, tokens: &[u32], hidden: &[Vec<f64>]) -> Vec<Vec<Vec<f64>>> {
        let length = self.spec.input_length();
        let Some(table) = self.part(None, TensorRole::InputEmbedding, 0) else {
            return vec![Vec::new(); self.spec.block_count()];
        };
        let projection = self.part(None, TensorRole::InputProjection, 0).expect("the weight exists");
        let root = (self.spec.embedding_length as f64).sqrt();
        let mut inputs = vec![Vec::new(); self.spec.block_count()];
        for (token, hidden) in tokens.iter().zip(hidden) {
            let own = projection.times(hidden);
            let row = &table.values[*token as usize * table.columns..][..table.columns];
            for (layer, inputs) in inputs.iter_mut().enumerate() {
                let own: Vec<f64> = own[layer * length..][..length].iter().map(|own| own / root).collect();
                let own = self.norm(&own, None, TensorRole::InputNorm);
                let both = own.iter().zip(&row[layer * length..]);
                inputs.push(both.map(|(own, row)| (own + row * (length as f64).sqrt()) / 2_f64.sqrt()).collect());
            }
        }
        inputs
    }

    /// A gated network, or one of the experts.
    fn network(&self, layer: usize, index: usize, activation: Activation, x: &[f64]) -> Vec<f64> {
        let times = |role, bias, x: &[f64]| {
            let mut out = self.part(Some(layer), role, index).expect("the weight exists").times(x);
            if let Some(biases) = self.vector(Some(layer), bias) {
                let length = out.len();
                out.iter_mut().zip(&biases[index * length..]).for_each(|(out, bias)| *out += bias);
            }
            out
        };
        let up = times(TensorRole::Up, TensorRole::UpBias, x);
        let inner: Vec<f64> = if activation.is_gated() {
            let gate = times(TensorRole::Gate, TensorRole::GateBias, x);
            gate.iter().zip(up).map(|(gate, up)| activate(activation, *gate, up)).collect()
        } else {
            up.into_iter().map(|up| activate(activation, 0.0, up)).collect()
        };
        times(TensorRole::Down, TensorRole::DownBias, &inner)
    }

    /// The shared expert.
    fn shared_expert(&self, layer: usize, x: &[f64]) -> Option<Vec<f64>> {
        let times = |role, x: &[f64]| self.part(Some(layer), role, 0).map(|matrix| matrix.times(x));
        let up = times(TensorRole::SharedUp, x)?;
        let gate = times(TensorRole::SharedGate, x).unwrap_or_else(|| vec![0.0; up.len()]);
        let activation = self.spec.layer(layer).feed_forward.activation();
        let inner: Vec<f64> = gate.iter().zip(up).map(|(gate, up)| activate(activation, *gate, up)).collect();
        let weight = self.vector(Some(layer), TensorRole::SharedRouter).map_or(1.0, |router| {
            let logit: f64 = router.iter().zip(x).map(|(weight, x)| weight * x).sum();
            1.0 / (1.0 + (-logit).exp())
        });
        times(TensorRole::SharedDown, &inner).map(|out| out.iter().map(|value| value * weight).collect())
    }

    /// The weighted sum of a token's experts.
    fn mixture(
        &self,
        layer: usize,
        experts: &ExpertsSpec,
        hidden: &[f64],
        x: &[f64],
        routes: &mut Vec<Route>,
    ) -> Vec<f64> {
        let seen = self.vector(Some(layer), TensorRole::RouterScale).map(|weight| {
            let root = (weight.len() as f64).sqrt();
            self.unit(hidden).iter().zip(weight).map(|(x, weight)| x / root * weight).collect::<Vec<f64>>()
        });
        let logits = self.project(layer, TensorRole::Router, TensorRole::RouterBias, seen.as_deref().unwrap_or(x));
        let total: f64 = logits.iter().map(|logit| logit.exp()).sum();
        let scores: Vec<f64> = match experts.router.scores {
            Scores::Softmax => logits.iter().map(|logit| logit.exp() / total).collect(),
            Scores::Sigmoid => logits.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect(),
        };
        let bias = self.vector(Some(layer), TensorRole::SelectionBias).unwrap_or_else(|| vec![0.0; experts.count]);
        let mut ranked: Vec<f64> = scores.iter().zip(&bias).map(|(score, bias)| score + bias).collect();
        if let Some(groups) = experts.router.groups {
            let length = experts.count / groups.count;
            let sums = ranked.chunks(length).map(|scores| {
                let mut scores = scores.to_vec();
                scores.sort_by(|a, b| b.total_cmp(a));
                scores[0] + scores[1]
            });
            let sums: Vec<f64> = sums.collect();
            for (group, scores) in ranked.chunks_mut(length).enumerate() {
                if sums.iter().filter(|sum| **sum > sums[group]).count() >= groups.used_count {
                    scores.fill(f64::NEG_INFINITY);
                }
            }
        }
        let mut order: Vec<usize> = (0..experts.count).collect();
        order.sort_by(|a, b| ranked[*b].total_cmp(&ranked[*a]));
        let (chosen, others) = order.split_at(experts.used_count);
        let sum: f64 = chosen.iter().map(|expert| scores[*expert]).sum();
        let factor = f64::from(experts.router.scale) / if experts.router.is_normalised { sum } else { 1.0 };
        let last = logits[*chosen.last().expect("an expert is chosen")];
        let margin = others.first().map_or(f64::INFINITY, |next| last - logits[*next]);
        routes.push(Route { experts: chosen.to_vec(), margin });
        let mut out = vec![0.0; x.len()];
        for expert in chosen {
            let own = self.network(layer, *expert, experts.activation, x);
            out.iter_mut().zip(own).for_each(|(out, own)| *out += scores[*expert] * factor * own);
        }
        if experts.shared.as_ref().is_some_and(|shared| shared.is_branch) {
            let own = self.shared_expert(layer, &self.norm(hidden, Some(layer), TensorRole::SharedNorm));
            let own = self.norm(&own.expect("the weights exist"), Some(layer), TensorRole::SharedPostNorm);
            out = self.norm(&out, Some(layer), TensorRole::ExpertsPostNorm);
            out.iter_mut().zip(own).for_each(|(out, own)| *out += own);
        } else if let Some(own) = self.shared_expert(layer, x) {
            out.iter_mut().zip(own).for_each(|(out, own)| *out += own);
        }
        out
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// What a network computes from its products.
fn activate(activation: Activation, gate: f64, up: f64) -> f64 {
    match activation {
        Activation::Silu => gate / (1.0 + (-gate).exp()) * up,
        Activation::Gelu => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044715 * gate.powi(3));
            0.5 * gate * (1.0 + inner.tanh()) * up
        }
        Activation::SquaredRelu => up.max(0.0).powi(2),
        Activation::ClampedSwiglu => {
            let gate = gate.min(7.0);
            gate / (1.0 + (-1.702 * gate).exp()) * (up.clamp(-7.0, 7.0) + 1.0)
        }
    }
}

/// Mean Kullback-Leibler divergence of the softmax of `found` from that of `exact`, per token.
pub fn kl_divergence(exact: &[Vec<f32>], found: &[Vec<f32>]) -> f64 {
    exact
        .iter()
        .zip(found)
        .map(|(exact, found)| {
            log_softmax(exact).iter().zip(log_softmax(found)).map(|(p, q)| p.exp() * (p - q)).sum::<f64>()
        })
        .sum::<f64>()
        / exact.len() as f64
}
