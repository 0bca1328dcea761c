//! The states of recurrent layers: for each slot, and saved ones, which plans copy. For each layer of the stage the state
//! of this rank's units.
use std::{io, ops::Range};

use models::ModelSpec;
use topology::{ShardPlan, StateCount};

use crate::model::{batch::BatchToken, region::Region};

/// The states of one rank.
#[derive(Debug)]
pub struct StateCache {
    /// Where each layer's part of a state is, in floats.
    layers: Vec<Range<usize>>,
    /// Floats of a state.
    length: usize,
    count: usize,
    /// `None`: no layer has a state.
    region: Option<Region>,
}

impl StateCache {
    /// The states of a model without recurrent layers.
    pub const fn none() -> Self {
        Self { layers: Vec::new(), length: 0, count: 0, region: None }
    }

    /// Creates the states of a rank; the system allocates the memory when it is first written.
    ///
    /// # Errors
    /// The system has no address space for it.
    pub fn new(spec: &ModelSpec, plan: &ShardPlan, count: StateCount) -> io::Result<Self> {
        let mut length = 0;
        let layers = plan.layers.clone().map(|layer| {
            let begin = length;
            length += plan.state_length(spec, layer);
            begin..length
        });
        let layers = layers.collect();
        let bytes = length.checked_mul(count.all()).and_then(|floats| floats.checked_mul(size_of::<f32>()));
        let bytes = bytes.ok_or(io::ErrorKind::OutOfMemory)?;
        let region = (bytes > 0).then(|| Region::new(bytes)).transpose()?;
        Ok(Self { layers, length, count: count.all(), region })
    }

    /// The state of a sequence in a layer, as it is before the first token of this run: zeros at the beginning of a text.
    pub(super) fn before(&mut self, layer: usize, run: &[BatchToken]) -> &mut [f32] {
        let (Some(first), part) = (run.first(), self.layers[layer].clone()) else { return &mut [] };
        let begin = first.slot.index() * self.length;
        let state = &mut self.floats()[begin + part.start..begin + part.end];
        if first.position == 0 {
            state.fill(0.0);
        }
        state
    }

    /// Copies a state.
    pub fn copy(&mut self, from: usize, to: usize) {
        let length = self.length;
        self.floats().copy_within(from * length..(from + 1) * length, to * length);
    }

    fn floats(&mut self) -> &mut [f32] {
        let floats = self.length * self.count;
        let bytes = self.region.as_mut().map_or(&mut [][..], Region::bytes_mut);
        &mut bytemuck::cast_slice_mut(bytes)[..floats]
    }
}
