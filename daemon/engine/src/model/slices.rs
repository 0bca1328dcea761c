//! Which parts of which tensors a rank holds, and their places in its region; fills the region from the file.
use std::{
    collections::HashMap,
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
};

use gguf::{BlockFormat, GgufFile, Tensor};
use kernels::{Kernels, pack_panel, packed_bytes};
use models::{Cut, ModelSpec, TensorRole, TensorSpec};
use rayon::prelude::*;
use topology::{ExpertPart, Matrices, Ranges, ShardPlan, TensorPart};

use super::LoadError;

/// Alignment of slices in bytes.
const ALIGNMENT: usize = 4096;
/// In place of the number of a matrix that a slice does not have.
pub const NOT_HELD: usize = usize::MAX;
/// Bytes read from the file at a time; at least one panel.
const READ_BYTES: usize = 1 << 20;

/// The tensor of a layer, numbered in the whole model, or one outside the layers.
pub type SliceKey = (Option<usize>, TensorRole);

/// A rank's rows and columns of a tensor, equally many in each of its matrices.
#[derive(Clone, Debug)]
pub struct TensorSlice {
    /// The tensor's name.
    name: String,
    /// Format of its blocks.
    pub format: BlockFormat,
    /// The rank's rows.
    pub rows: Ranges,
    /// The rank's columns.
    pub columns: Ranges,
    /// Number of consecutive matrices: the experts of a layer that the rank has a part of, the rank's heads, or one.
    pub count: usize,
    /// Which of the tensor's matrices these are.
    matrices: Matrices,
    /// Whether experts are cut by rows; otherwise by columns.
    is_by_rows: bool,
    /// Factors of the products of each matrix; empty if the file has none.
    pub scales: Vec<f32>,
    /// Its bytes in the region.
    pub place: Range<usize>,
    /// Rows of a full matrix.
    matrix_rows: usize,
    /// Matrices of the tensor.
    matrix_count: usize,
    split: usize,
    offset: usize,
    row_bytes: usize,
    /// Rows in a panel.
    height: usize,
}

impl TensorSlice {
    /// The part of a tensor in panels of `height` rows, from this byte of the region on.
    fn new(tensor: &Tensor<'_>, part: TensorPart, is_by_rows: bool, height: usize, begin: usize) -> Self {
        let [matrix_rows, matrix_count] = [1, 2].map(|dimension| tensor.dimensions[dimension] as usize);
        let TensorPart { rows, columns, matrices } = part;
        let mut slice = Self {
            name: tensor.name.to_owned(),
            scales: Vec::new(),
            format: tensor.format,
            rows,
            columns,
            count: matrices.len(),
            matrices,
            is_by_rows,
            place: begin..begin,
            matrix_rows,
            matrix_count,
            split: tensor.split,
            offset: tensor.offset,
            row_bytes: tensor.row_bytes(),
            height,
        };
        let (format, count) = (slice.format, slice.count);
        let bytes = packed_bytes(slice.rows.len(), slice.block_count() * format.block_bytes(), height);
        slice.place.end += bytes * count;
        slice
    }

    /// Blocks of a row that contain the rank's columns, for each range of these.
    fn blocks(&self) -> impl Iterator<Item = Range<usize>> {
        let length = self.format.block_length();
        self.columns.iter().map(move |columns| columns.start / length..columns.end.div_ceil(length))
    }

    /// Number of these blocks.
    pub fn block_count(&self) -> usize {
        self.blocks().map(|blocks| blocks.len()).sum()
    }

    /// Where the rank's columns are in the columns of these blocks.
    pub fn places(&self) -> Vec<Range<usize>> {
        let length = self.format.block_length();
        let places = self.columns.iter().zip(self.blocks()).scan(0, |begin, (columns, blocks)| {
            let first = *begin + columns.start - blocks.start * length;
            *begin += blocks.len() * length;
            Some(first..first + columns.len())
        });
        places.collect()
    }

    /// Norms, biases or factors as f32, row by row: each row is a panel of its own.
    pub fn floats(&self, region: &[u8]) -> Vec<f32> {
        let mut values = vec![0.0; self.rows.len() * self.columns.len()];
        Kernels::SCALAR.dequantise_row(self.format, &region[self.place.clone()], &mut values);
        values
    }

    /// For each of the tensor's matrices its number in the slice, or [`NOT_HELD`]; empty if the slice has all.
    pub fn numbers(&self) -> Vec<usize> {
        let Matrices::Experts(parts) = &self.matrices else { return Vec::new() };
        let mut numbers = vec![NOT_HELD; self.matrix_count];
        parts.iter().enumerate().for_each(|(number, part)| numbers[part.expert] = number);
        numbers
    }

    /// A matrix of the slice in its tensor.
    fn matrix(&self, index: usize) -> PlacedMatrix {
        match &self.matrices {
            Matrices::Consecutive(range) => PlacedMatrix { number: range.start + index, row: 0, column: 0 },
            Matrices::Experts(parts) => {
                let ExpertPart { expert: number, first } = parts[index];
                let (row, column) = if self.is_by_rows { (first, 0) } else { (0, first) };
                PlacedMatrix { number, row, column }
            }
        }
    }

    fn panel_bytes(&self) -> usize {
        self.block_count() * self.format.block_bytes() * self.height
    }

    /// Packs panels of a matrix into `out`, starting with panel `first`.
    fn fill(&self, file: &GgufFile, matrix: usize, first: usize, out: &mut [u8]) -> std::io::Result<()> {
        let matrix = self.matrix(matrix);
        let panel_bytes = self.panel_bytes();
        let begin = first * self.height;
        let end = (begin + out.len() / panel_bytes * self.height).min(self.rows.len());
        let mut rows = vec![0; (end - begin) * self.row_bytes];
        let mut read = &mut rows[..];
        for range in self.rows_between(begin, end) {
            let (part, rest) = read.split_at_mut(range.len() * self.row_bytes);
            let row = matrix.number * self.matrix_rows + matrix.row + range.start;
            file.read(self.split, self.offset + row * self.row_bytes, part)?;
            read = rest;
        }
        for (panel, out) in out.chunks_exact_mut(panel_bytes).enumerate() {
            let rows = rows.chunks_exact(self.row_bytes).skip(panel * self.height);
            let mut out = out;
            for blocks in self.blocks() {
                let skipped = matrix.column / self.format.block_length();
                let blocks = blocks.start + skipped..blocks.end + skipped;
                let (own, rest) = out.split_at_mut(blocks.len() * self.format.block_bytes() * self.height);
                pack_panel(self.format, self.height, blocks, |lane| rows.clone().nth(lane), own);
                out = rest;
            }
        }
        Ok(())
    }

    /// The rank's rows `begin` to `end`, numbered in the file's tensor.
    fn rows_between(&self, begin: usize, end: usize) -> impl Iterator<Item = Range<usize>> {
        let before = self.rows.iter().scan(0, |before, rows| {
            let own = *before;
            *before += rows.len();
            Some(own)
        });
        let ranges = self.rows.iter().zip(before).map(move |(rows, before)| {
            let inside = |row: usize| rows.start + row.clamp(before, before + rows.len()) - before;
            inside(begin)..inside(end)
        });
        ranges.filter(|range| !range.is_empty())
    }
}

/// A matrix of a tensor.
#[derive(Clone, Copy, Debug)]
struct PlacedMatrix {
    /// Its number in the tensor.
    number: usize,
    /// Its row with which the slice's row 0 is meant.
    row: usize,
    /// Its column with which the slice's column 0 is meant.
    column: usize,
}

/// All slices of a rank.
#[derive(Debug)]
pub struct Slices {
    /// Bytes of the region.
    pub bytes: usize,
    slices: HashMap<SliceKey, TensorSlice>,
}

impl Slices {
    /// Lays out the slices of one rank of a model for the panels of some kernels.
    ///
    /// # Errors
    /// A tensor is missing, or a matrix's factors cannot be read.
    pub fn of(file: &GgufFile, spec: &ModelSpec, plan: &ShardPlan, kernels: &Kernels) -> Result<Self, LoadError> {
        let mut slices = Self { bytes: 0, slices: HashMap::new() };
        for layer in plan.layers.clone() {
            let cut = plan.cut_of(spec, layer);
            for tensor in spec.layer_tensors(layer) {
                let name = format!("blk.{layer}.{}", tensor.name);
                slices.add(file, &name, Some(layer), &tensor, cut.part(&tensor), kernels)?;
            }
        }
        for tensor in spec.tensors() {
            slices.add(file, tensor.name, None, &tensor, plan.part(&tensor), kernels)?;
        }
        Ok(slices)
    }

    /// A slice, if the file has its tensor and the rank a part of it.
    pub fn find(&self, key: SliceKey) -> Option<&TensorSlice> {
        self.slices.get(&key)
    }

    /// A slice that every model has.
    ///
    /// # Errors
    /// There is no such slice.
    pub fn get(&self, key: SliceKey) -> Result<&TensorSlice, LoadError> {
        self.find(key).ok_or_else(|| LoadError::Missing(format!("{:?} of layer {:?}", key.1, key.0)))
    }

    /// Adds the rank's part of a tensor. A super-block across a cut is included whole.
    fn add(
        &mut self,
        file: &GgufFile,
        name: &str,
        layer: Option<usize>,
        wanted: &TensorSpec,
        part: Option<TensorPart>,
        kernels: &Kernels,
    ) -> Result<(), LoadError> {
        let Some(mut part) = part else { return Ok(()) };
        if let Some(fused) = wanted.fused {
            let ranges = if wanted.is_list() { &mut part.columns } else { &mut part.rows };
            *ranges = ranges.behind(fused.first);
        }
        let Some(tensor) = file.tensor(name) else {
            return if wanted.is_optional { Ok(()) } else { Err(LoadError::Missing(name.into())) };
        };
        let begin = self.bytes.next_multiple_of(ALIGNMENT);
        let (is_by_rows, height) =
            (matches!(wanted.cut, Cut::Rows(_)), if wanted.is_vector { 1 } else { kernels.panel_rows });
        let mut slice = TensorSlice::new(&tensor, part, is_by_rows, height, begin);
        let prefix = name.strip_suffix(wanted.name).unwrap_or_default();
        let scale_name = wanted.scale_name().map(|scale| format!("{prefix}{scale}"));
        if let Some(tensor) = scale_name.and_then(|name| file.tensor(&name)) {
            let all = read_floats(file, &tensor)?;
            slice.scales = (0..slice.count).map(|matrix| all[slice.matrix(matrix).number]).collect();
        }
        self.bytes = slice.place.end;
        self.slices.insert((layer, wanted.role), slice);
        Ok(())
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
        let mut slices: Vec<&TensorSlice> = self.slices.values().collect();
        slices.sort_by_key(|slice| (slice.place.start, slice.place.end));
        let mut parts = Vec::new();
        let (mut rest, mut at) = (region, 0);
        for slice in slices {
            let (_, from) = std::mem::take(&mut rest).split_at_mut(slice.place.start - at);
            let (own, behind) = from.split_at_mut(slice.place.len());
            (rest, at) = (behind, slice.place.end);
            let at_once = (READ_BYTES / (slice.row_bytes * slice.height).max(1)).max(1);
            let panel_bytes = slice.panel_bytes();
            let matrix_bytes = own.len() / slice.count.max(1);
            if panel_bytes == 0 || matrix_bytes == 0 {
                continue;
            }
            for (matrix, own) in own.chunks_mut(matrix_bytes).enumerate() {
                let chunks = own.chunks_mut(panel_bytes * at_once).enumerate();
                parts.extend(chunks.map(|(index, out)| (slice, matrix, index * at_once, out)));
            }
        }
        let is_given_up = AtomicBool::new(false);
        parts.into_par_iter().try_for_each(|(slice, matrix, first, out)| {
            if is_given_up.load(Ordering::Relaxed) {
                return Err(LoadError::Cancelled);
            }
            let filled = slice.fill(file, matrix, first, out);
            filled.map_err(|source| LoadError::Read { tensor: slice.name.clone(), source })?;
            is_given_up.fetch_or(!progress(out.len() as u64), Ordering::Relaxed);
            Ok(())
        })?;
        if is_given_up.into_inner() { Err(LoadError::Cancelled) } else { Ok(()) }
    }
}

/// Reads a small tensor of floats.
fn read_floats(file: &GgufFile, tensor: &Tensor<'_>) -> Result<Vec<f32>, LoadError> {
    let bytes = file.tensor_bytes(tensor);
    let bytes = bytes.map_err(|source| LoadError::Read { tensor: tensor.name.into(), source })?;
    Ok(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}
