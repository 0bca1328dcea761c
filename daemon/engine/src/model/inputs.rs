//! The inputs that tokens have for each layer: rows of a table in the file, and products with the embedding. Every rank
//! computes those of its stage.
use std::f32::consts::FRAC_1_SQRT_2;

use kernels::{Compute, Kernels, matmul};
use models::ModelSpec;
use topology::ShardPlan;

use super::{
    BatchToken,
    batch::Scratch,
    embedding::{Embedding, RowError},
    matrix::Matrix,
    norm::same_norm,
};

/// The inputs of tokens for the layers of a stage.
#[derive(Debug)]
pub struct LayerInputs {
    /// `[layers of the stage * input_length, embedding_length]`
    projection: Matrix,
    /// `[input_length]` of the norm of those products.
    norm: Vec<f32>,
    epsilon: f32,
    /// `[vocabulary, layers * input_length]`
    table: Embedding,
    /// A row of it.
    row: Vec<f32>,
    /// The first value of a row that belongs to the stage.
    first: usize,
    /// `[input_length]`: a normed product.
    normed: Vec<f32>,
}

/// What a layer does with the input that a token has for it alone. Every rank has all of it.
#[derive(Debug)]
pub struct LayerInput {
    /// `[input_length, embedding_length]`
    pub gate: Matrix,
    /// `[embedding_length, input_length]`
    pub output: Matrix,
    /// `[embedding_length]` of the norm behind it.
    pub norm: Vec<f32>,
}

impl LayerInputs {
    pub(super) fn new(
        projection: Matrix,
        norm: Vec<f32>,
        table: Embedding,
        spec: &ModelSpec,
        plan: &ShardPlan,
    ) -> Self {
        let length = norm.len();
        let (row, normed) = (vec![0.0; length * spec.block_count()], vec![0.0; length]);
        let (epsilon, first) = (spec.norm_epsilon, plan.layers.start * length);
        Self { projection, norm, epsilon, table, row, first, normed }
    }

    pub(super) fn table(&mut self) -> &mut Embedding {
        &mut self.table
    }

    /// Writes the inputs of a step's tokens `[token, layer of the stage, input_length]` from their embeddings
    /// `[token, embedding_length]`.
    ///
    /// # Errors
    /// The file cannot be read any more, or was written to since it was hashed.
    pub(super) fn load(
        &mut self,
        compute: &Compute,
        tokens: &[BatchToken],
        embeddings: &[f32],
        scratch: &mut Scratch,
    ) -> Result<(), RowError> {
        let Self { projection, norm, epsilon, table, row, first, normed } = self;
        let Scratch { activations, inputs, .. } = scratch;
        activations.load(compute, embeddings, projection.columns, projection.wanted());
        inputs.resize(tokens.len() * projection.rows, 0.0);
        matmul(compute, projection.view(), activations, inputs);
        projection.scale(inputs);
        let (root, scale) = ((projection.columns as f32).sqrt(), (norm.len() as f32).sqrt());
        for (token, inputs) in tokens.iter().zip(inputs.chunks_exact_mut(projection.rows)) {
            table.read(token.token, row)?;
            for (input, row) in inputs.chunks_exact_mut(norm.len()).zip(row[*first..].chunks_exact(norm.len())) {
                input.iter_mut().for_each(|value| *value /= root);
                // Not the kernel table's norm: see `same_norm`.
                (Kernels::SCALAR.rms_norm)(input, norm, *epsilon, normed);
                let values = input.iter_mut().zip(&*normed).zip(row);
                values.for_each(|((out, own), row)| *out = (own + row * scale) * FRAC_1_SQRT_2);
            }
        }
        Ok(())
    }
}

impl LayerInput {
    /// Adds the tokens' inputs for layer `index` of the stage to the hidden states `[token, embedding_length]`.
    pub(super) fn add(&self, compute: &Compute, index: usize, epsilon: f32, hidden: &mut [f32], scratch: &mut Scratch) {
        let Scratch { normed, activations, gate, summed, inputs, .. } = scratch;
        let (length, columns) = (self.output.rows, self.gate.rows);
        let tokens = hidden.len() / length;
        activations.load(compute, hidden, length, self.gate.wanted());
        gate.resize(tokens * columns, 0.0);
        matmul(compute, self.gate.view(), activations, gate);
        self.gate.scale(gate);
        let of_token = inputs.len() / tokens;
        for (token, gate) in gate.chunks_exact_mut(columns).enumerate() {
            (Kernels::SCALAR.gelu_multiply)(gate, &inputs[token * of_token + index * columns..][..columns]);
        }
        activations.load(compute, gate, columns, self.output.wanted());
        summed.resize(hidden.len(), 0.0);
        matmul(compute, self.output.view(), activations, summed);
        self.output.scale(summed);
        same_norm(compute, summed, &self.norm, epsilon, normed);
        hidden.iter_mut().zip(normed).for_each(|(hidden, value)| *hidden += *value);
    }
}
