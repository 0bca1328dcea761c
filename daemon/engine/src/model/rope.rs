//! Rotary position embedding (Su et al. 2021), with linear scaling and the per-dimension factors of llama-3 files.
use models::{RopeSpec, Rotation, Scaling, YarnSpec};

/// Angles of the positions of one step: computed once, used by every layer and head.
#[derive(Debug)]
pub struct Rope {
    rotation: Rotation,
    /// `[dimensions / 2]`: angle per position.
    frequencies: Vec<f32>,
    /// Factor of sines and cosines.
    magnitude: f32,
    /// `[token, dimensions / 2]` cosine and sine.
    angles: Vec<(f32, f32)>,
}

impl Rope {
    /// Computes the frequencies of a table; `factors` divide them.
    pub fn new(spec: &RopeSpec, factors: Option<&[f32]>) -> Self {
        let dimensions = spec.dimension_count;
        let factors = factors.filter(|_| spec.has_factors || matches!(spec.scaling, Scaling::Long(_)));
        let frequencies = (0..dimensions / 2).map(|pair| {
            if !spec.rotates(pair) {
                return 0.0;
            }
            let exponent = -(2.0 * pair as f64) / dimensions as f64;
            let factor = factors.and_then(|factors| factors.get(pair)).copied().unwrap_or(1.0);
            let base = f64::from(spec.freq_base).powf(exponent);
            let angle = base / f64::from(factor);
            match &spec.scaling {
                Scaling::None | Scaling::Long(_) => angle as f32,
                Scaling::Linear(scale) => (angle / f64::from(*scale)) as f32,
                Scaling::Yarn(yarn) => {
                    let keep = kept(yarn, f64::from(spec.freq_base), dimensions, pair);
                    (angle * (keep + (1.0 - keep) / f64::from(yarn.factor))) as f32
                }
            }
        });
        let magnitude = match &spec.scaling {
            Scaling::Yarn(yarn) => yarn.magnitude,
            Scaling::Long(long) => long.magnitude,
            Scaling::None | Scaling::Linear(_) => 1.0,
        };
        Self { rotation: spec.rotation, frequencies: frequencies.collect(), magnitude, angles: Vec::new() }
    }

    /// Computes the angles of a step's positions.
    pub fn load(&mut self, positions: impl Iterator<Item = u32>) {
        self.angles.clear();
        for position in positions {
            self.angles.extend(self.frequencies.iter().map(|frequency| {
                let (sine, cosine) = (position as f32 * frequency).sin_cos();
                if self.magnitude == 1.0 { (cosine, sine) } else { (cosine * self.magnitude, sine * self.magnitude) }
            }));
        }
    }

    /// Rotates one head of the step's token number `token` in place.
    pub fn rotate(&self, token: usize, head: &mut [f32]) {
        let pairs = self.frequencies.len();
        let angles = &self.angles[token * pairs..][..pairs];
        for (pair, (cosine, sine)) in angles.iter().enumerate() {
            let (first, second) = match self.rotation {
                Rotation::Neighbours => (2 * pair, 2 * pair + 1),
                Rotation::Halves => (pair, pair + pairs),
            };
            let (a, b) = (head[first], head[second]);
            head[first] = a * cosine - b * sine;
            head[second] = a * sine + b * cosine;
        }
    }
}

/// The part of a pair's angle that YaRN keeps: 1 for fast pairs, 0 for slow ones (Peng et al. 2023, with the bounds of
/// llama.cpp, `ggml_rope_yarn_corr_dims`).
fn kept(yarn: &YarnSpec, base: f64, dimensions: usize, pair: usize) -> f64 {
    let pairs = |beta: f32| {
        let turns = f64::from(yarn.original_context) / (f64::from(beta) * std::f64::consts::TAU);
        dimensions as f64 * turns.ln() / (2.0 * base.ln())
    };
    let low = pairs(yarn.beta_fast).floor().max(0.0);
    let high = pairs(yarn.beta_slow).ceil().min(dimensions as f64 - 1.0);
    1.0 - ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0)
}
