//! Matrices of weights in the region of a shard.
use std::{ops::Range, sync::Arc};

use gguf::BlockFormat;
use kernels::{MatrixPanels, MatrixStack, Wanted};

use super::{expert_cache::Slots, region::Region, slices::TensorSlice};

/// A weight matrix, or the rows or columns of it that this rank holds: `[rows, columns]`; with experts, as many of that
/// shape as a layer has.
#[derive(Debug)]
pub struct Matrix {
    /// Format of its blocks.
    pub format: BlockFormat,
    /// Outputs.
    pub rows: usize,
    /// Inputs; with gaps between the rank's columns, all columns in whole blocks.
    pub columns: usize,
    /// Number of consecutive matrices.
    pub count: usize,
    /// Blocks of 32 columns at the start of each row that belong to the previous rank.
    skip: usize,
    /// Where the rank's columns are, if there are gaps between them.
    places: Vec<Range<usize>>,
    /// Columns in whole blocks.
    padded: usize,
    /// Factors of the products of each matrix; empty: 1.
    scales: Vec<f32>,
    region: Arc<Region>,
    /// Its bytes in the region, or of one of its matrices in an expert's slot.
    place: Range<usize>,
    is_on_disk: bool,
}

impl Matrix {
    pub(super) fn new(slice: &TensorSlice, region: &Arc<Region>) -> Self {
        let (places, padded) = (slice.places(), slice.block_count() * slice.format.block_length());
        let has_gaps = places.windows(2).any(|pair| pair[0].end < pair[1].start);
        let first = places.first().map_or(0, |place| place.start);
        Self {
            format: slice.format,
            rows: slice.rows.len(),
            columns: if has_gaps { padded } else { slice.columns.len() },
            count: slice.count,
            skip: if has_gaps { 0 } else { first / 32 },
            places: if has_gaps { places } else { Vec::new() },
            padded,
            scales: slice.scales.clone(),
            region: Arc::clone(region),
            place: slice.place.clone(),
            is_on_disk: slice.is_on_disk,
        }
    }

    /// In place of a matrix that a model lacks.
    pub(super) fn without_rows(region: &Arc<Region>) -> Self {
        let (format, region) = (BlockFormat::F32, Arc::clone(region));
        Self {
            format,
            rows: 0,
            columns: 0,
            count: 1,
            skip: 0,
            places: Vec::new(),
            padded: 0,
            scales: Vec::new(),
            region,
            place: 0..0,
            is_on_disk: false,
        }
    }

    /// The matrix as a kernel argument.
    pub fn view(&self) -> MatrixPanels<'_> {
        let bytes = &self.region.bytes()[self.place.clone()];
        MatrixPanels { format: self.format, bytes, rows: self.rows, columns: self.padded }
    }

    /// All matrices as a kernel argument.
    pub fn stack(&self) -> MatrixStack<'_> {
        let MatrixPanels { format, bytes, rows, columns } = self.view();
        MatrixStack { format, bytes, rows, columns, count: self.count, places: None }
    }

    /// The matrices of those experts that have a slot, as a kernel argument.
    pub(super) fn stack_in<'a>(&self, slots: Slots<'a>) -> MatrixStack<'a> {
        let bytes = &slots.bytes[self.place.start..];
        let places = Some(slots.places);
        MatrixStack { format: self.format, bytes, rows: self.rows, columns: self.padded, count: self.count, places }
    }

    /// Factors of the products of each matrix; empty: 1.
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// Multiplies products with the first matrix by its factor.
    pub fn scale(&self, products: &mut [f32]) {
        if let Some(scale) = self.scales.first() {
            products.iter_mut().for_each(|product| *product *= scale);
        }
    }

    /// The rank's inputs of some tokens at the places of their columns, with zeros in the gaps.
    pub(super) fn spread<'a>(&self, inputs: &'a [f32], out: &'a mut Vec<f32>) -> &'a [f32] {
        let columns: usize = self.places.iter().map(ExactSizeIterator::len).sum();
        if columns == 0 {
            return inputs;
        }
        out.clear();
        out.resize(inputs.len() / columns * self.columns, 0.0);
        for (row, out) in inputs.chunks_exact(columns).zip(out.chunks_exact_mut(self.columns)) {
            let mut rest = row;
            for place in &self.places {
                let (own, behind) = rest.split_at(place.len());
                out[place.clone()].copy_from_slice(own);
                rest = behind;
            }
        }
        out
    }

    /// The form of activations that it is multiplied with.
    pub fn wanted(&self) -> Wanted {
        wanted_by(&[self])
    }

    /// The region that it is in, with the other weights of the shard.
    pub(super) fn region_bytes(&self) -> &[u8] {
        self.region.bytes()
    }

    /// Whether its matrices stay on the disk: they have no place in the region.
    pub fn is_on_disk(&self) -> bool {
        self.is_on_disk
    }

    /// Bytes of one of its matrices.
    pub fn matrix_bytes(&self) -> u64 {
        self.place.len() as u64 / if self.is_on_disk { 1 } else { self.count.max(1) as u64 }
    }
}

/// The form of activations for several matrices with the same columns; those without rows need none.
pub(super) fn wanted_by(matrices: &[&Matrix]) -> Wanted {
    let mut present = matrices.iter().filter(|matrix| matrix.rows > 0);
    let quantised = present.clone().any(|matrix| matrix.format.is_quantised());
    let floats = present.clone().any(|matrix| !matrix.format.is_quantised());
    Wanted { skip: present.next().map_or(0, |matrix| matrix.skip), quantised, floats }
}
