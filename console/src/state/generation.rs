//! Generations from the prompt box: the current or last one, the parameters of the next one, and the pinned result.
use common::sampling::SamplingParameters;
use protocol::message::Generate;
use serde::{Deserialize, Serialize};
use topology::Topology;

use super::{request::Request, result::GenerationResult};

/// Default parameters of generations from the prompt box.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GenerateDefaults {
    /// Maximum number of tokens.
    pub max_tokens: u32,
    /// Sampling parameters. The seed is that of the first generation; later ones count up from it.
    pub sampling: SamplingParameters,
    /// Stop strings.
    pub stop: Vec<String>,
}

impl GenerateDefaults {
    /// The request for a prompt; `count` is the number of earlier generations of this session.
    pub fn request(&self, prompt: &str, count: u64) -> Generate {
        let mut sampling = self.sampling.clone();
        sampling.seed = sampling.seed.wrapping_add(count);
        Generate::new(prompt, self.max_tokens, sampling, self.stop.clone())
    }
}

/// Generations from the prompt box.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationState {
    /// The current or last generation.
    pub request: Request,
    /// The topology that it was sent to; its times do not apply to others.
    pub topology: Option<Topology>,
    /// The model that it was sent to.
    pub sent_model: Option<String>,
    /// Number of generations sent.
    pub sent: u64,
    /// Default parameters of generations.
    pub defaults: GenerateDefaults,
    /// The pinned result, compared with later ones.
    pub pinned: Option<GenerationResult>,
}

impl GenerationState {
    /// Before the first generation.
    pub fn new(defaults: GenerateDefaults) -> Self {
        Self { request: Request::nothing(), topology: None, sent_model: None, sent: 0, defaults, pinned: None }
    }
}
