//! The purposes of tensors.
use serde::{Deserialize, Serialize};

/// The purpose of a tensor. The engine finds its weights by role, not by the names in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TensorRole {
    /// Rows are the hidden states of tokens.
    Embedding,
    /// Weight of the norm before the output matrix.
    OutputNorm,
    /// Logits from the normed hidden state; the embedding if both are tied.
    Output,
    /// From an embedding to its inner columns.
    PooledInner,
    /// From these to the embedding.
    PooledOutput,
    /// Divisors of rotation angles.
    RopeFactors,
    /// Divisors of rotation angles in long contexts.
    RopeFactorsLong,
    /// Weight of the norm before the mixer.
    MixerNorm,
    /// Queries.
    Query,
    /// Keys.
    Key,
    /// Values.
    Value,
    /// Bias of the queries.
    QueryBias,
    /// Bias of the keys.
    KeyBias,
    /// Bias of the values.
    ValueBias,
    /// Weight of the norm of each query head.
    QueryNorm,
    /// Weight of the norm of each key head.
    KeyNorm,
    /// A score of each head without a value.
    Sinks,
    /// From the mixer to the hidden state.
    MixerOutput,
    /// Bias of the attention output.
    AttentionOutputBias,
    /// What a convolution mixes and its gates; queries, keys and values of a delta net; values of a state space.
    MixerInput,
    /// Filters of the convolution, one for each channel.
    Filter,
    /// Gate of the values read from states.
    StateGate,
    /// How much a delta net learns from a position.
    StateRate,
    /// How fast its states decay.
    StateDecay,
    /// Bias of the latter.
    DecayBias,
    /// Factor of the latter.
    DecayFactor,
    /// Weight of the norm of each head that is read from a state, or of each group.
    StateNorm,
    /// Weight of the norm behind the mixer.
    MixerPostNorm,
    /// Weight of the norm before the feed-forward network.
    FeedForwardNorm,
    /// Chooses experts.
    Router,
    /// Bias of the router.
    RouterBias,
    /// Inner columns that pass through the activation.
    Gate,
    /// Inner columns that the gate multiplies.
    Up,
    /// From the inner columns to the hidden state.
    Down,
    /// Bias of the gate.
    GateBias,
    /// Bias of what the gate multiplies.
    UpBias,
    /// Bias of what the network adds.
    DownBias,
    /// Added to the router's scores for the choice alone.
    SelectionBias,
    /// Gate of the shared expert.
    SharedGate,
    /// What that gate multiplies.
    SharedUp,
    /// From its inner columns to the hidden state.
    SharedDown,
    /// Weights its output.
    SharedRouter,
    /// Weight of the norm behind the feed-forward network.
    FeedForwardPostNorm,
    /// Weight of the norm before the shared expert, if it is a branch of its own.
    SharedNorm,
    /// Weight of the norm behind it.
    SharedPostNorm,
    /// Weight of the norm behind the experts next to such a branch.
    ExpertsPostNorm,
    /// Weights of what the router reads.
    RouterScale,
    /// From the hidden state to the size of the token's input for a layer.
    InputGate,
    /// From that input to the hidden state.
    InputOutput,
    /// Weight of the norm behind it.
    InputPostNorm,
    /// Factor of the layer's result.
    OutputScale,
    /// Rows are the inputs of tokens for all layers.
    InputEmbedding,
    /// From the embedding to further inputs for all layers.
    InputProjection,
    /// Weight of the norm of the latter.
    InputNorm,
    /// Keys and queries of a state space.
    StateKeys,
    /// What a state space adds of the value itself to what it reads.
    StateSkip,
    /// Filters of its keys and queries.
    KeyFilter,
    /// Bias of the convolution.
    FilterBias,
    /// Bias of the convolution of its keys and queries.
    KeyFilterBias,
    /// From the hidden state to the inner columns of the queries.
    QueryInner,
    /// Weight of the norm of these.
    QueryInnerNorm,
    /// From the hidden state to the latent and the rotated key.
    Latent,
    /// Weight of the norm of the latent.
    LatentNorm,
    /// From each query head to the factors of the latent.
    LatentQuery,
    /// From what each head read of the latent to its result.
    LatentValue,
    /// Weight of the norm of the embedding, in a predictor.
    JoinedTokenNorm,
    /// Weight of the norm of the hidden state before it, in a predictor.
    JoinedStateNorm,
    /// From both to the hidden state, in a predictor.
    Joined,
}

/// The part of a forward pass that reads a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Before the layers.
    Input,
    /// The first half of a layer, up to its first exchange with other ranks.
    Mixer,
    /// The second half of a layer.
    FeedForward,
    /// Behind the last layer.
    Output,
    /// Before the layers, once at start: tables.
    Tables,
}

impl TensorRole {
    /// The part of a forward pass that reads it.
    pub const fn part(self) -> Part {
        match self {
            Self::Embedding
            | Self::InputEmbedding
            | Self::InputProjection
            | Self::InputNorm
            | Self::JoinedTokenNorm
            | Self::JoinedStateNorm
            | Self::Joined => Part::Input,
            Self::OutputNorm | Self::Output | Self::PooledInner | Self::PooledOutput => Part::Output,
            Self::RopeFactors | Self::RopeFactorsLong => Part::Tables,
            Self::MixerNorm
            | Self::Query
            | Self::Key
            | Self::Value
            | Self::QueryBias
            | Self::KeyBias
            | Self::ValueBias
            | Self::QueryNorm
            | Self::KeyNorm
            | Self::Sinks
            | Self::MixerOutput
            | Self::AttentionOutputBias
            | Self::MixerInput
            | Self::Filter
            | Self::StateGate
            | Self::StateRate
            | Self::StateDecay
            | Self::DecayBias
            | Self::DecayFactor
            | Self::StateNorm
            | Self::StateKeys
            | Self::StateSkip
            | Self::KeyFilter
            | Self::FilterBias
            | Self::KeyFilterBias
            | Self::MixerPostNorm
            | Self::QueryInner
            | Self::QueryInnerNorm
            | Self::Latent
            | Self::LatentNorm
            | Self::LatentQuery
            | Self::LatentValue => Part::Mixer,
            Self::FeedForwardNorm
            | Self::Router
            | Self::RouterBias
            | Self::Gate
            | Self::Up
            | Self::Down
            | Self::GateBias
            | Self::UpBias
            | Self::DownBias
            | Self::SelectionBias
            | Self::SharedGate
            | Self::SharedUp
            | Self::SharedDown
            | Self::SharedRouter
            | Self::FeedForwardPostNorm
            | Self::SharedNorm
            | Self::SharedPostNorm
            | Self::ExpertsPostNorm
            | Self::RouterScale
            | Self::InputGate
            | Self::InputOutput
            | Self::InputPostNorm
            | Self::OutputScale => Part::FeedForward,
        }
    }

    /// Whether each token reads only some of its matrices: those of the experts that it uses.
    pub const fn is_per_expert(self) -> bool {
        matches!(self, Self::Gate | Self::Up | Self::Down)
    }
}
