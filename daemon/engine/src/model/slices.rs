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
/// Alignment of an expert's matrices in its slot, in bytes.
const SLOT_ALIGNMENT: usize = 64;
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
    /// Its bytes in the region; of an expert's matrix that stays on the disk, those in the expert's slot.
    pub place: Range<usize>,
    /// Whether it has no place in the region: its matrices are read when they are used.
    pub is_on_disk: bool,
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
    /// The part of a tensor in panels of `height` rows, without a place.
    fn new(tensor: &Tensor<'_>, part: TensorPart, is_by_rows: bool, height: usize) -> Self {
        let [matrix_rows, matrix_count] = [1, 2].map(|dimension| tensor.dimensions[dimension] as usize);
        let TensorPart { rows, columns, matrices } = part;
        Self {
            name: tensor.name.to_owned(),
            scales: Vec::new(),
            format: tensor.format,
            rows,
            columns,
            count: matrices.len(),
            matrices,
            is_by_rows,
            place: 0..0,
            is_on_disk: false,
            matrix_rows,
            matrix_count,
            split: tensor.split,
            offset: tensor.offset,
            row_bytes: tensor.row_bytes(),
            height,
        }
    }

    /// Bytes of one of its matrices in memory.
    pub fn matrix_bytes(&self) -> usize {
        packed_bytes(self.rows.len(), self.block_count() * self.format.block_bytes(), self.height)
    }

    /// Most bytes of the file that are read at a time for one of its matrices.
    pub fn piece_bytes(&self) -> usize {
        (self.panels_at_once() * self.height).min(self.rows.len()) * self.row_bytes
    }

    /// Panels that are read at a time.
    fn panels_at_once(&self) -> usize {
        (READ_BYTES / (self.row_bytes * self.height).max(1)).max(1)
    }

    /// The place of a matrix in the pieces that are read at a time, each with the number of its first panel.
    pub fn pieces<'a>(&self, out: &'a mut [u8]) -> impl Iterator<Item = (usize, &'a mut [u8])> {
        let at_once = self.panels_at_once();
        (0..).step_by(at_once).zip(out.chunks_mut((self.panel_bytes() * at_once).max(1)))
    }

    /// The tensor's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The split of the file that has the tensor.
    pub fn split(&self) -> usize {
        self.split
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

    /// Packs panels of a matrix into `out`, starting with panel `first`. `rows` is a buffer.
    ///
    /// # Errors
    /// The file cannot be read, or has become shorter.
    pub fn fill(
        &self,
        file: &GgufFile,
        matrix: usize,
        first: usize,
        rows: &mut Vec<u8>,
        out: &mut [u8],
    ) -> std::io::Result<()> {
        let matrix = self.matrix(matrix);
        let panel_bytes = self.panel_bytes();
        let begin = first * self.height;
        let end = (begin + out.len() / panel_bytes * self.height).min(self.rows.len());
        rows.resize((end - begin) * self.row_bytes, 0);
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

    /// Where the rows of a matrix are in the split's file.
    pub fn file_places(&self, matrix: usize) -> impl Iterator<Item = Range<usize>> {
        let matrix = self.matrix(matrix);
        self.rows_between(0, self.rows.len()).map(move |rows| {
            let first = matrix.number * self.matrix_rows + matrix.row;
            let at = |row: usize| self.offset + (first + row) * self.row_bytes;
            at(rows.start)..at(rows.end)
        })
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

/// Which weights have a place in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residence {
    /// All.
    Whole,
    /// All but the experts of mixtures.
    WithoutExperts,
}

/// All slices of a rank.
#[derive(Debug)]
pub struct Slices {
    /// Bytes of the region.
    pub bytes: usize,
    /// Bytes of the slot of an expert that stays on the disk: of the largest.
    pub slot_bytes: usize,
    /// End of the matrices so far in the slot of the current layer's experts.
    slot_end: usize,
    slices: HashMap<SliceKey, TensorSlice>,
}

impl Slices {
    /// Lays out the slices of one rank of a model for the panels of some kernels.
    ///
    /// # Errors
    /// A tensor is missing, or a matrix's factors cannot be read.
    pub fn of(
        file: &GgufFile,
        spec: &ModelSpec,
        plan: &ShardPlan,
        kernels: &Kernels,
        residence: Residence,
    ) -> Result<Self, LoadError> {
        let mut slices = Self { bytes: 0, slot_bytes: 0, slot_end: 0, slices: HashMap::new() };
        for layer in plan.layers.clone() {
            let cut = plan.cut_of(spec, layer);
            let has_experts = spec.layer(layer).feed_forward.experts().is_some();
            slices.slot_end = 0;
            for tensor in spec.layer_tensors(layer) {
                let name = spec.layer_tensor(layer, tensor.name);
                let Some(slice) = slice(file, &name, &tensor, cut.part(&tensor), kernels)? else { continue };
                let is_on_disk = residence == Residence::WithoutExperts && has_experts && tensor.role.is_per_expert();
                slices.add((Some(layer), tensor.role), TensorSlice { is_on_disk, ..slice });
            }
        }
        for tensor in spec.tensors() {
            if let Some(slice) = slice(file, tensor.name, &tensor, plan.part(&tensor), kernels)? {
                slices.add((None, tensor.role), slice);
            }
        }
        Ok(slices)
    }

    /// Gives a slice its place.
    fn add(&mut self, key: SliceKey, mut slice: TensorSlice) {
        if slice.is_on_disk {
            let begin = self.slot_end.next_multiple_of(SLOT_ALIGNMENT);
            self.slot_end = begin + slice.matrix_bytes();
            self.slot_bytes = self.slot_bytes.max(self.slot_end.next_multiple_of(SLOT_ALIGNMENT));
            slice.place = begin..self.slot_end;
        } else {
            let begin = self.bytes.next_multiple_of(ALIGNMENT);
            self.bytes = begin + slice.matrix_bytes() * slice.count;
            slice.place = begin..self.bytes;
        }
        self.slices.insert(key, slice);
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
        let mut slices: Vec<&TensorSlice> = self.slices.values().filter(|slice| !slice.is_on_disk).collect();
        slices.sort_by_key(|slice| (slice.place.start, slice.place.end));
        let mut parts = Vec::new();
        let (mut rest, mut at) = (region, 0);
        for slice in slices {
            let (_, from) = std::mem::take(&mut rest).split_at_mut(slice.place.start - at);
            let (own, behind) = from.split_at_mut(slice.place.len());
            (rest, at) = (behind, slice.place.end);
            let matrix_bytes = own.len() / slice.count.max(1);
            if slice.panel_bytes() == 0 || matrix_bytes == 0 {
                continue;
            }
            for (matrix, own) in own.chunks_mut(matrix_bytes).enumerate() {
                for (first, out) in slice.pieces(own) {
                    parts.push((slice, matrix, first, out));
                }
            }
        }
        let is_given_up = AtomicBool::new(false);
        parts.into_par_iter().try_for_each_init(Vec::new, |rows, (slice, matrix, first, out)| {
            if is_given_up.load(Ordering::Relaxed) {
                return Err(LoadError::Cancelled);
            }
            let filled = slice.fill(file, matrix, first, rows, out);
            filled.map_err(|source| LoadError::Read { tensor: slice.name.clone(), source })?;
            is_given_up.fetch_or(!progress(out.len() as u64), Ordering::Relaxed);
            Ok(())
        })?;
        if is_given_up.into_inner() { Err(LoadError::Cancelled) } else { Ok(()) }
    }
}

/// The rank's part of a tensor, without a place, if it has one. A super-block across a cut is included whole.
fn slice(
    file: &GgufFile,
    name: &str,
    wanted: &TensorSpec,
    part: Option<TensorPart>,
    kernels: &Kernels,
) -> Result<Option<TensorSlice>, LoadError> {
    let Some(mut part) = part else { return Ok(None) };
    if let Some(fused) = wanted.fused {
        let ranges = if wanted.is_list() { &mut part.columns } else { &mut part.rows };
        *ranges = ranges.behind(fused.first);
    }
    let Some(tensor) = file.tensor(name) else {
        return if wanted.is_optional { Ok(None) } else { Err(LoadError::Missing(name.into())) };
    };
    let is_by_rows = matches!(wanted.cut, Cut::Rows(_));
    let height = if wanted.is_vector { 1 } else { kernels.panel_rows };
    let mut slice = TensorSlice::new(&tensor, part, is_by_rows, height);
    let prefix = name.strip_suffix(wanted.name).unwrap_or_default();
    let scale_name = wanted.scale_name().map(|scale| format!("{prefix}{scale}"));
    if let Some(tensor) = scale_name.and_then(|name| file.tensor(&name)) {
        let all = read_floats(file, &tensor)?;
        slice.scales = (0..slice.count).map(|matrix| all[slice.matrix(matrix).number]).collect();
    }
    Ok(Some(slice))
}

/// Reads a small tensor of floats.
fn read_floats(file: &GgufFile, tensor: &Tensor<'_>) -> Result<Vec<f32>, LoadError> {
    let bytes = file.tensor_bytes(tensor);
    let bytes = bytes.map_err(|source| LoadError::Read { tensor: tensor.name.into(), source })?;
    Ok(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}
