//! The second half of a layer: a feed-forward network, or a mixture of experts.
use serde::{Deserialize, Serialize};

/// The second half of a layer: `down(activation(gate(x), up(x)))`, or `down(activation(up(x)))` without a gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FeedForward {
    /// One network.
    Dense(DenseSpec),
    /// A mixture of experts.
    Experts(ExpertsSpec),
    /// Nothing: the layer has only a mixer.
    None,
}

/// A feed-forward network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DenseSpec {
    /// Inner columns.
    pub columns: usize,
    /// Its activation.
    pub activation: Activation,
    /// Whether gate and up are the rows of one tensor.
    pub is_fused: bool,
}

/// The shared expert: every token uses it in addition to its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedSpec {
    /// Inner columns.
    pub columns: usize,
    /// Whether its output is multiplied by a sigmoid of the hidden state.
    pub is_weighted: bool,
    /// Whether it is a branch of its own next to the experts: each has norms before and behind, and the router reads
    /// the hidden state divided by its root mean square and multiplied by weights.
    #[serde(default)]
    pub is_branch: bool,
}

/// How a router chooses experts and weights them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RouterSpec {
    /// What becomes of its logits.
    pub scores: Scores,
    /// Whether a bias is added to the scores for the choice, but not for the weights.
    pub has_selection_bias: bool,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub is_normalised: bool,
    /// Factor of the weights.
    pub scale: f32,
    /// Experts are chosen from the best of several groups of equal size.
    pub groups: Option<ExpertGroups>,
}

/// Groups of experts: those with the largest sums of their two best scores are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertGroups {
    /// Number of groups; divides the number of experts.
    pub count: usize,
    /// Groups used for each token.
    pub used_count: usize,
}

/// What becomes of a router's logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scores {
    /// The softmax over all experts.
    Softmax,
    /// The sigmoid of each.
    Sigmoid,
}

/// What a network computes from its inner products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Activation {
    /// `silu(gate) * up` (SwiGLU, Shazeer 2020).
    Silu,
    /// `gelu(gate) * up`, with the approximation by tanh.
    Gelu,
    /// `max(up, 0)^2` without a gate (So et al. 2021).
    SquaredRelu,
    /// gpt-oss: `g sigmoid(1.702 g) (u + 1)` with `g = min(gate, 7)` and `u = clamp(up, -7, 7)`.
    ClampedSwiglu,
}

/// A mixture of experts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExpertsSpec {
    /// Experts of a layer.
    pub count: usize,
    /// Experts used for each token, at most `count`.
    pub used_count: usize,
    /// Inner columns of each expert.
    pub columns: usize,
    /// Its activation.
    pub activation: Activation,
    /// How they are chosen.
    pub router: RouterSpec,
    /// Whether the router and the experts have biases.
    pub has_biases: bool,
    /// Whether gate and up are the rows of one tensor.
    #[serde(default)]
    pub is_fused: bool,
    /// The shared expert.
    pub shared: Option<SharedSpec>,
    /// Columns in a block of the weights of `down`, which is held whole or not at all.
    #[serde(default)]
    pub block: usize,
}

impl SharedSpec {
    /// A shared expert of so many columns, as it is.
    pub const fn new(columns: usize) -> Self {
        Self { columns, is_weighted: false, is_branch: false }
    }
}

impl FeedForward {
    /// Inner columns of the network, or of each expert.
    pub const fn columns(&self) -> usize {
        match self {
            Self::Dense(DenseSpec { columns, .. }) | Self::Experts(ExpertsSpec { columns, .. }) => *columns,
            Self::None => 0,
        }
    }

    /// Whether the shared expert is a branch of its own.
    pub fn has_branch(&self) -> bool {
        self.experts().and_then(|experts| experts.shared.as_ref()).is_some_and(|shared| shared.is_branch)
    }

    /// What it computes from its inner products.
    pub const fn activation(&self) -> Activation {
        match self {
            Self::Dense(DenseSpec { activation, .. }) | Self::Experts(ExpertsSpec { activation, .. }) => *activation,
            Self::None => Activation::Silu,
        }
    }

    /// Inner columns of the shared expert; 0 if there is none.
    pub fn shared_columns(&self) -> usize {
        let shared = self.experts().and_then(|experts| experts.shared.as_ref());
        shared.map_or(0, |shared| shared.columns)
    }

    /// The experts, if there are any.
    pub const fn experts(&self) -> Option<&ExpertsSpec> {
        match self {
            Self::Dense(_) | Self::None => None,
            Self::Experts(experts) => Some(experts),
        }
    }
}

impl Activation {
    /// Whether networks have a gate.
    pub const fn is_gated(self) -> bool {
        !matches!(self, Self::SquaredRelu)
    }
}
