//! An independent forward pass in f64, straight from the papers: one token at a time with whole matrices, no cache
//! format and no sharding; slow. Shares the GGUF reader and its model shape with the product, but no arithmetic.
use gguf::{Architecture, Experts, GgufFile, Shape};

use crate::dequantise::dequantise;

/// A model with all weights as f64.
pub struct Oracle<'a> {
    file: &'a GgufFile,
    shape: Shape,
}

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
}

impl<'a> Oracle<'a> {
    /// Opens a model.
    ///
    /// # Panics
    /// If the file is not a valid model.
    pub fn new(file: &'a GgufFile) -> Self {
        Self { file, shape: Shape::read(file).expect("the model is valid") }
    }

    fn matrix(&self, name: &str) -> Option<Matrix> {
        self.part(name, 0)
    }

    /// One of the matrices of a tensor.
    fn part(&self, name: &str, index: usize) -> Option<Matrix> {
        let tensor = self.file.tensor(name)?;
        let bytes = self.file.tensor_bytes(&tensor).expect("the tensor can be read");
        let length = bytes.len() / tensor.dimensions[2] as usize;
        let bytes = &bytes[index * length..][..length];
        let values = dequantise(tensor.format, bytes).into_iter().map(f64::from).collect();
        Some(Matrix { rows: tensor.dimensions[1] as usize, columns: tensor.columns(), values })
    }

    fn vector(&self, name: &str) -> Option<Vec<f64>> {
        self.matrix(name).map(|matrix| matrix.values)
    }

    fn norm(&self, x: &[f64], name: &str) -> Vec<f64> {
        let Some(weight) = self.vector(name) else { return x.to_vec() };
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + f64::from(self.shape.layer_norm_rms_epsilon)).sqrt();
        x.iter().zip(weight).map(|(x, weight)| x * scale * weight).collect()
    }

    fn project(&self, layer: usize, name: &str, x: &[f64]) -> Vec<f64> {
        let mut out = self.matrix(&format!("blk.{layer}.{name}.weight")).expect("the weight exists").times(x);
        if let Some(bias) = self.vector(&format!("blk.{layer}.{name}.bias")) {
            out.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias);
        }
        out
    }

    /// Norms of each head (Qwen3) and RoPE.
    fn turn(&self, layer: usize, norm: &str, position: usize, heads: Vec<f64>) -> Vec<f64> {
        let shape = &self.shape;
        let factors = self.vector("rope_freqs.weight");
        let pairs = shape.rope_dimension_count / 2;
        let mut out = Vec::new();
        for head in heads.chunks(shape.head_length) {
            let mut head = self.norm(head, &format!("blk.{layer}.{norm}.weight"));
            for pair in 0..pairs {
                let exponent = -2.0 * pair as f64 / shape.rope_dimension_count as f64;
                let factor = factors.as_ref().map_or(1.0, |factors| factors[pair]);
                let frequency = f64::from(shape.rope_freq_base).powf(exponent) / factor;
                let angle = position as f64 * frequency / f64::from(shape.rope_scale_linear);
                let (a, b) = match shape.architecture {
                    Architecture::Llama => (2 * pair, 2 * pair + 1),
                    Architecture::Qwen2 | Architecture::Qwen3 | Architecture::Qwen3Moe => (pair, pair + pairs),
                };
                let (x, y) = (head[a], head[b]);
                head[a] = x * angle.cos() - y * angle.sin();
                head[b] = x * angle.sin() + y * angle.cos();
            }
            out.extend(head);
        }
        out
    }

    /// Logits after each token `[token, vocabulary]`.
    pub fn logits(&self, tokens: &[u32]) -> Vec<Vec<f32>> {
        self.routed_logits(tokens).0
    }

    /// Like `logits`, with the routes `[layer, token]` of a model with experts.
    pub fn routed_logits(&self, tokens: &[u32]) -> (Vec<Vec<f32>>, Vec<Vec<Route>>) {
        let shape = &self.shape;
        let embedding = self.matrix("token_embd.weight").expect("the embedding exists");
        let mut hidden: Vec<Vec<f64>> = tokens
            .iter()
            .map(|token| embedding.values[*token as usize * embedding.columns..][..embedding.columns].to_vec())
            .collect();
        let mut routes = vec![Vec::new(); shape.block_count];
        routes.iter_mut().enumerate().for_each(|(layer, routes)| self.layer(layer, &mut hidden, routes));
        let output = self.matrix("output.weight").unwrap_or(embedding);
        (
            hidden
                .iter()
                .map(|hidden| {
                    output
                        .times(&self.norm(hidden, "output_norm.weight"))
                        .into_iter()
                        .map(|logit| logit as f32)
                        .collect()
                })
                .collect(),
            routes,
        )
    }

    fn layer(&self, layer: usize, hidden: &mut [Vec<f64>], routes: &mut Vec<Route>) {
        let shape = &self.shape;
        let (mut keys, mut values): (Vec<Vec<f64>>, Vec<Vec<f64>>) = (Vec::new(), Vec::new());
        for (position, hidden) in hidden.iter_mut().enumerate() {
            let x = self.norm(hidden, &format!("blk.{layer}.attn_norm.weight"));
            let query = self.turn(layer, "attn_q_norm", position, self.project(layer, "attn_q", &x));
            keys.push(self.turn(layer, "attn_k_norm", position, self.project(layer, "attn_k", &x)));
            values.push(self.project(layer, "attn_v", &x));
            let mut attended = Vec::new();
            for (head, query) in query.chunks(shape.head_length).enumerate() {
                let begin = head / (shape.head_count / shape.head_count_kv) * shape.head_length;
                let part = |row: &Vec<f64>| row[begin..begin + shape.head_length].to_vec();
                let weights: Vec<f64> = keys
                    .iter()
                    .map(|key| {
                        let dot: f64 = query.iter().zip(part(key)).map(|(q, k)| q * k).sum();
                        (dot / (shape.head_length as f64).sqrt()).exp()
                    })
                    .collect();
                let total: f64 = weights.iter().sum();
                let mut out = vec![0.0; shape.head_length];
                for (weight, value) in weights.iter().zip(&values) {
                    out.iter_mut().zip(part(value)).for_each(|(out, value)| *out += weight / total * value);
                }
                attended.extend(out);
            }
            let out = self.project(layer, "attn_output", &attended);
            hidden.iter_mut().zip(out).for_each(|(hidden, out)| *hidden += out);
            let x = self.norm(hidden, &format!("blk.{layer}.ffn_norm.weight"));
            let chosen = match shape.experts {
                None => vec![(1.0, gated(&x, |name, x| self.project(layer, name, x)))],
                Some(experts) => self.mixture(layer, experts, &x, routes),
            };
            for (weight, out) in chosen {
                hidden.iter_mut().zip(out).for_each(|(hidden, out)| *hidden += weight * out);
            }
        }
    }

    /// The weights and outputs of a token's experts (Qwen3-MoE with `norm_topk_prob`).
    fn mixture(&self, layer: usize, experts: Experts, x: &[f64], routes: &mut Vec<Route>) -> Vec<(f64, Vec<f64>)> {
        let logits = self.project(layer, "ffn_gate_inp", x);
        let total: f64 = logits.iter().map(|logit| logit.exp()).sum();
        let probabilities: Vec<f64> = logits.iter().map(|logit| logit.exp() / total).collect();
        let mut order: Vec<usize> = (0..experts.count).collect();
        order.sort_by(|a, b| probabilities[*b].total_cmp(&probabilities[*a]));
        let (chosen, others) = order.split_at(experts.used_count);
        let sum: f64 = chosen.iter().map(|expert| probabilities[*expert]).sum();
        let last = logits[*chosen.last().expect("an expert is chosen")];
        let margin = others.first().map_or(f64::INFINITY, |next| last - logits[*next]);
        routes.push(Route { experts: chosen.to_vec(), margin });
        chosen
            .iter()
            .map(|expert| {
                (
                    probabilities[*expert] / sum,
                    gated(x, |name, x| {
                        let name = format!("blk.{layer}.{name}_exps.weight");
                        self.part(&name, *expert).expect("the weight exists").times(x)
                    }),
                )
            })
            .collect()
    }
}

/// A gated feed-forward network; `project` computes the products.
fn gated(x: &[f64], project: impl Fn(&str, &[f64]) -> Vec<f64>) -> Vec<f64> {
    let (gate, up) = (project("ffn_gate", x), project("ffn_up", x));
    let inner: Vec<f64> = gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
    project("ffn_down", &inner)
}

/// Mean Kullback-Leibler divergence of the softmax of `found` from that of `exact`, per token.
pub fn kl_divergence(exact: &[Vec<f32>], found: &[Vec<f32>]) -> f64 {
    let log_softmax = |row: &Vec<f32>| {
        let largest = row.iter().fold(f64::NEG_INFINITY, |most, logit| most.max(f64::from(*logit)));
        let total: f64 = row.iter().map(|logit| (f64::from(*logit) - largest).exp()).sum();
        row.iter().map(|logit| f64::from(*logit) - largest - total.ln()).collect::<Vec<f64>>()
    };
    exact
        .iter()
        .zip(found)
        .map(|(exact, found)| {
            log_softmax(exact).iter().zip(log_softmax(found)).map(|(p, q)| p.exp() * (p - q)).sum::<f64>()
        })
        .sum::<f64>()
        / exact.len() as f64
}
