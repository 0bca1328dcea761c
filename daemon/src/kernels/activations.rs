//! Activations of a step as kernels read them: f32, and int8 in groups of 16 columns.
use super::Kernels;

/// Columns that share a scale. With 32, the demo model misses its reference bound (rms error 1.27 to 1.33 of llama.cpp's,
/// bound 1.25); with 16 it is 0.7 to 1.1.
pub const GROUP: usize = 16;
/// The largest value of a group becomes this. With 127 the demo model's shortest prompt is 1 % beyond the bound.
pub const LEVELS: f32 = 126.0;
/// Columns are padded to a multiple of this with zeros.
const PAD: usize = 64;
/// Columns of a lane: what a byte dot product adds up.
const LANE: usize = 4;

/// One token's activations.
#[derive(Clone, Copy, Debug)]
pub struct ActivationRow<'a> {
    /// `[columns]`
    pub values: &'a [f32],
    /// `[columns padded to 64]`; empty, as all below, where they were loaded as f32 only.
    pub quants: &'a [i8],
    /// `[columns padded to 32, / 16]`
    pub scales: &'a [f32],
    /// As `scales`: sum of each group's quants.
    pub sums: &'a [i16],
    /// `[columns padded to 64, / 4]`: each group's scale, four times; empty without tiles.
    pub lane_scales: &'a [f32],
    /// As `lane_scales`: minus the sum of each 4 quants.
    pub lane_sums: &'a [i32],
}

/// `[token, columns]`; the storage is kept from step to step.
#[derive(Debug, Default)]
pub struct Activations {
    columns: usize,
    padded: usize,
    values: Vec<f32>,
    quants: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i16>,
    lane_scales: Vec<f32>,
    lane_sums: Vec<i32>,
}

impl Activations {
    /// Takes `[token, columns]` values over, quantised too if a weight format wants it.
    pub fn load(&mut self, kernels: &Kernels, values: &[f32], columns: usize, quantise: bool) {
        assert!(columns > 0 && values.len().is_multiple_of(columns), "whole tokens");
        let tokens = values.len() / columns;
        self.columns = columns;
        self.values.clear();
        self.values.extend_from_slice(values);
        // Without the int8 values there is nothing a quantised format could take for them.
        self.padded = if quantise { columns.next_multiple_of(PAD) } else { 0 };
        let groups = self.padded / GROUP;
        self.quants.resize(tokens * self.padded, 0);
        self.scales.resize(tokens * groups, 0.0);
        self.sums.resize(tokens * groups, 0);
        if quantise {
            let rows = values.chunks_exact(columns).zip(self.quants.chunks_exact_mut(self.padded));
            let groups = self.scales.chunks_exact_mut(groups).zip(self.sums.chunks_exact_mut(groups));
            for ((row, quants), (scales, sums)) in rows.zip(groups) {
                (kernels.quantize)(row, quants, scales, sums);
            }
        }
        let lanes = if kernels.has_tiles() { self.quants.len() / LANE } else { 0 };
        self.lane_scales.resize(lanes, 0.0);
        self.lane_sums.resize(lanes, 0);
        let quants = self.quants.as_chunks::<LANE>().0;
        let (scales, sums) = (self.lane_scales.iter_mut(), self.lane_sums.iter_mut());
        for (index, ((scale, sum), quants)) in scales.zip(sums).zip(quants).enumerate() {
            *scale = self.scales[index * LANE / GROUP];
            *sum = -quants.iter().map(|quant| i32::from(*quant)).sum::<i32>();
        }
    }

    /// Tokens.
    pub fn tokens(&self) -> usize {
        self.values.len().checked_div(self.columns).unwrap_or(0)
    }

    /// Columns of a token.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// One token.
    pub fn row(&self, token: usize) -> ActivationRow<'_> {
        let (columns, padded, groups) = (self.columns, self.padded, self.padded / GROUP);
        let lanes = self.lane_sums.len() / self.tokens().max(1);
        let given = if padded == 0 { 0 } else { columns.next_multiple_of(32) / GROUP };
        ActivationRow {
            values: &self.values[token * columns..][..columns],
            quants: &self.quants[token * padded..][..padded],
            scales: &self.scales[token * groups..][..given],
            sums: &self.sums[token * groups..][..given],
            lane_scales: &self.lane_scales[token * lanes..][..lanes],
            lane_sums: &self.lane_sums[token * lanes..][..lanes],
        }
    }
}
