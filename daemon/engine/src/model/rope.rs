//! Rotary position embedding (Su et al. 2021), with linear scaling and the per-dimension factors of llama-3 files.
use gguf::Shape;

use super::arch::{Rotation, rotation};

/// Angles of the positions of one step: computed once, used by every layer and head.
#[derive(Debug)]
pub struct Rope {
    rotation: Rotation,
    /// `[dimensions / 2]`: angle per position.
    frequencies: Vec<f32>,
    /// `[token, dimensions / 2]` cosine and sine.
    angles: Vec<(f32, f32)>,
}

impl Rope {
    /// Computes the frequencies of a model; `factors` (`rope_freqs.weight`) divide them.
    pub fn new(shape: &Shape, factors: Option<&[f32]>) -> Self {
        let dimensions = shape.rope_dimension_count;
        let frequencies = (0..dimensions / 2).map(|pair| {
            let exponent = -(2.0 * pair as f64) / dimensions as f64;
            let factor = factors.and_then(|factors| factors.get(pair)).copied().unwrap_or(1.0);
            let base = f64::from(shape.rope_freq_base).powf(exponent);
            (base / f64::from(factor) / f64::from(shape.rope_scale_linear)) as f32
        });
        Self { rotation: rotation(shape.architecture), frequencies: frequencies.collect(), angles: Vec::new() }
    }

    /// Computes the angles of a step's positions.
    pub fn load(&mut self, positions: impl Iterator<Item = u32>) {
        self.angles.clear();
        for position in positions {
            self.angles.extend(self.frequencies.iter().map(|frequency| {
                let (sine, cosine) = (position as f32 * frequency).sin_cos();
                (cosine, sine)
            }));
        }
    }

    /// Rotates one head of the step's token number `token` in place and multiplies it by `scale`.
    pub fn rotate(&self, token: usize, head: &mut [f32], scale: f32) {
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
        if scale != 1.0 {
            head.iter_mut().for_each(|value| *value *= scale);
        }
    }
}
