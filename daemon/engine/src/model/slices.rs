//! Which parts of which tensors a rank holds, and their places in its region; fills the region from the file.
use std::{
    collections::HashMap,
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
};

use gguf::{BlockFormat, GgufFile, Shape, Tensor};
use kernels::{Kernels, pack_panel, packed_bytes};
use rayon::prelude::*;
use topology::ShardPlan;

use super::LoadError;

/// Alignment of slices in bytes.
const ALIGNMENT: usize = 4096;
/// Bytes read from the file at a time; at least one panel.
const READ_BYTES: usize = 1 << 20;

/// A rank's rows and columns of a tensor, the same in each of its matrices.
#[derive(Clone, Debug)]
pub struct TensorSlice {
    /// Format of its blocks.
    pub format: BlockFormat,
    /// The rank's rows.
    pub rows: Range<usize>,
    /// The rank's columns.
    pub columns: Range<usize>,
    /// Number of consecutive matrices: the experts of a layer, or one.
    pub count: usize,
    /// Its bytes in the region.
    pub place: Range<usize>,
    /// Rows of a full matrix.
    matrix_rows: usize,
    split: usize,
    offset: usize,
    row_bytes: usize,
    /// Rows in a panel.
    height: usize,
}

impl TensorSlice {
    /// Blocks of a row that contain the rank's columns.
    pub fn blocks(&self) -> Range<usize> {
        let length = self.format.block_length();
        if self.columns.is_empty() { 0..0 } else { self.columns.start / length..self.columns.end.div_ceil(length) }
    }

    /// Blocks of 32 columns before the rank's first column.
    pub fn skip(&self) -> usize {
        (self.columns.start - (self.blocks().start * self.format.block_length()).min(self.columns.start)) / 32
    }

    /// A norm, bias or factor as f32. These have one row, which is a panel of its own.
    pub fn floats(&self, region: &[u8]) -> Vec<f32> {
        let mut values = vec![0.0; self.columns.len()];
        Kernels::SCALAR.dequantise_row(self.format, &region[self.place.clone()], &mut values);
        values
    }

    fn panel_bytes(&self) -> usize {
        self.blocks().len() * self.format.block_bytes() * self.height
    }

    /// Packs panels of a matrix into `out`, starting with panel `first`.
    fn fill(&self, file: &GgufFile, matrix: usize, first: usize, out: &mut [u8]) -> std::io::Result<()> {
        let panel_bytes = self.panel_bytes();
        let begin = self.rows.start + first * self.height;
        let end = (begin + out.len() / panel_bytes * self.height).min(self.rows.end);
        let mut rows = vec![0; (end - begin) * self.row_bytes];
        file.read(self.split, self.offset + (matrix * self.matrix_rows + begin) * self.row_bytes, &mut rows)?;
        for (panel, out) in out.chunks_exact_mut(panel_bytes).enumerate() {
            let rows = rows.chunks_exact(self.row_bytes).skip(panel * self.height);
            pack_panel(self.format, self.height, self.blocks(), |lane| rows.clone().nth(lane), out);
        }
        Ok(())
    }
}

/// All slices of a rank.
#[derive(Debug)]
pub struct Slices {
    /// Bytes of the region.
    pub bytes: usize,
    names: HashMap<String, TensorSlice>,
}

impl Slices {
    /// Lays out the slices of one rank of a model for the panels of some kernels.
    ///
    /// # Errors
    /// A tensor is missing.
    pub fn of(file: &GgufFile, shape: &Shape, plan: &ShardPlan, kernels: &Kernels) -> Result<Self, LoadError> {
        let mut slices = Self { bytes: 0, names: HashMap::new() };
        let head = shape.head_length;
        let of_heads = |heads: &Range<usize>| heads.start * head..heads.end * head;
        let (queries, keys) = (of_heads(&plan.heads), of_heads(&plan.heads_kv));
        let height = kernels.panel_rows;
        for layer in plan.layers.clone() {
            let tensor = |name: &str| format!("blk.{layer}.{name}");
            for (name, rows) in [("attn_q", &queries), ("attn_k", &keys), ("attn_v", &keys)] {
                slices.rows(file, &tensor(&format!("{name}.weight")), rows, height)?;
                slices.vector(file, &tensor(&format!("{name}.bias")), Some(rows));
            }
            slices.columns(file, &tensor("attn_output.weight"), &queries, height)?;
            let [gate, up, down] = feed_forward_names(shape);
            for name in [gate, up] {
                slices.rows(file, &tensor(&format!("{name}.weight")), &plan.columns, height)?;
            }
            slices.columns(file, &tensor(&format!("{down}.weight")), &plan.columns, height)?;
            if let Some(experts) = shape.experts {
                slices.rows(file, &tensor("ffn_gate_inp.weight"), &(0..experts.count), height)?;
            }
            for name in ["attn_norm.weight", "ffn_norm.weight", "attn_q_norm.weight", "attn_k_norm.weight"] {
                slices.vector(file, &tensor(name), None);
            }
        }
        let output = if shape.tied_output { "token_embd.weight" } else { "output.weight" };
        slices.rows(file, output, &plan.vocabulary, height)?;
        slices.vector(file, "output_norm.weight", None);
        slices.vector(file, "rope_freqs.weight", None);
        Ok(slices)
    }

    /// A slice by the name of its tensor.
    ///
    /// # Errors
    /// There is no such slice.
    pub fn get(&self, name: &str) -> Result<&TensorSlice, LoadError> {
        self.names.get(name).ok_or_else(|| LoadError::Missing(name.into()))
    }

    /// Adds some rows of a tensor, or of each of its matrices.
    fn rows(&mut self, file: &GgufFile, name: &str, rows: &Range<usize>, height: usize) -> Result<(), LoadError> {
        let tensor = file.tensor(name).ok_or_else(|| LoadError::Missing(name.into()))?;
        self.add(&tensor, rows.clone(), 0..tensor.columns(), height);
        Ok(())
    }

    /// Adds some columns of a tensor, cut at multiples of 32. A super-block across a cut is included whole.
    fn columns(&mut self, file: &GgufFile, name: &str, columns: &Range<usize>, height: usize) -> Result<(), LoadError> {
        let tensor = file.tensor(name).ok_or_else(|| LoadError::Missing(name.into()))?;
        self.add(&tensor, 0..tensor.dimensions[1] as usize, columns.clone(), height);
        Ok(())
    }

    /// Adds a tensor of one row or a part of it, if the model has it.
    fn vector(&mut self, file: &GgufFile, name: &str, part: Option<&Range<usize>>) {
        if let Some(tensor) = file.tensor(name) {
            self.add(&tensor, 0..1, part.cloned().unwrap_or(0..tensor.columns()), 1);
        }
    }

    fn add(&mut self, tensor: &Tensor<'_>, rows: Range<usize>, columns: Range<usize>, height: usize) {
        let begin = self.bytes.next_multiple_of(ALIGNMENT);
        let (format, split, offset, row_bytes) = (tensor.format, tensor.split, tensor.offset, tensor.row_bytes());
        let [matrix_rows, count] = [1, 2].map(|dimension| tensor.dimensions[dimension] as usize);
        let place = begin..begin;
        let mut slice =
            TensorSlice { format, rows, columns, count, place, matrix_rows, split, offset, row_bytes, height };
        let bytes = packed_bytes(slice.rows.len(), slice.blocks().len() * format.block_bytes(), height);
        slice.place.end += bytes * count;
        self.bytes = slice.place.end;
        self.names.insert(tensor.name.into(), slice);
    }

    /// Fills a region from the file, on all cores.
    ///
    /// # Errors
    /// The file cannot be read, or `progress` returned false.
    pub fn fill(
        &self,
        file: &GgufFile,
        region: &mut [u8],
        progress: &(dyn Fn(u64) -> bool + Sync),
    ) -> Result<(), LoadError> {
        let mut slices: Vec<(&String, &TensorSlice)> = self.names.iter().collect();
        slices.sort_by_key(|(_, slice)| (slice.place.start, slice.place.end));
        let mut parts = Vec::new();
        let (mut rest, mut at) = (region, 0);
        for (name, slice) in slices {
            let (_, from) = std::mem::take(&mut rest).split_at_mut(slice.place.start - at);
            let (own, behind) = from.split_at_mut(slice.place.len());
            (rest, at) = (behind, slice.place.end);
            let at_once = (READ_BYTES / (slice.row_bytes * slice.height).max(1)).max(1);
            let panel_bytes = slice.panel_bytes();
            let matrix_bytes = own.len() / slice.count;
            if panel_bytes == 0 || matrix_bytes == 0 {
                continue;
            }
            for (matrix, own) in own.chunks_mut(matrix_bytes).enumerate() {
                let chunks = own.chunks_mut(panel_bytes * at_once).enumerate();
                parts.extend(chunks.map(|(index, out)| (name, slice, matrix, index * at_once, out)));
            }
        }
        let is_given_up = AtomicBool::new(false);
        parts.into_par_iter().try_for_each(|(name, slice, matrix, first, out)| {
            if is_given_up.load(Ordering::Relaxed) {
                return Err(LoadError::Cancelled);
            }
            slice.fill(file, matrix, first, out).map_err(|source| LoadError::Read { tensor: name.clone(), source })?;
            is_given_up.fetch_or(!progress(out.len() as u64), Ordering::Relaxed);
            Ok(())
        })?;
        if is_given_up.into_inner() { Err(LoadError::Cancelled) } else { Ok(()) }
    }
}

/// Names of the matrices of the feed-forward network, or of its experts: gate, up, down.
pub(super) fn feed_forward_names(shape: &Shape) -> [&'static str; 3] {
    match shape.experts {
        None => ["ffn_gate", "ffn_up", "ffn_down"],
        Some(_) => ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"],
    }
}
