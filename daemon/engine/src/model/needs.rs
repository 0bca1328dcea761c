//! Memory that a rank's weights need, computed from the tensor table alone, for the check before loading; and the time
//! to read experts that stay on the disk.
use std::{ops::Range, sync::Arc, time::Duration};

use gguf::GgufFile;
use kernels::Kernels;
use models::{ModelSpec, TensorRole};
use topology::ShardPlan;

use super::{
    LoadError,
    expert_cache::{ExpertCache, READERS},
    slices::{Residence, Slices, TensorSlice},
};

/// Bytes of weights that a rank holds.
///
/// # Errors
/// A tensor is missing.
pub fn shard_bytes(
    file: &GgufFile,
    spec: &ModelSpec,
    plan: &ShardPlan,
    kernels: &'static Kernels,
) -> Result<u64, LoadError> {
    Ok(Slices::of(file, spec, plan, kernels, Residence::Whole)?.bytes as u64)
}

/// What a rank needs whose experts stay on the disk.
#[derive(Debug)]
pub struct ExpertNeeds {
    /// Bytes of the weights that stay in memory.
    pub resident: u64,
    /// Bytes of the buffers to read with.
    pub buffers: u64,
    /// Bytes of the slot of an expert.
    pub slot: u64,
    /// Experts of all layers of which the rank has a part.
    pub count: usize,
    /// Most experts of the rank that a token uses in a layer.
    pub used_at_once: usize,
    /// Experts of the rank that a token uses in all layers, on average.
    pub used: f64,
    slices: Slices,
    layers: Range<usize>,
}

impl ExpertNeeds {
    /// The needs of a rank; `None`: it has no experts.
    ///
    /// # Errors
    /// A tensor is missing.
    pub fn of(
        file: &GgufFile,
        spec: &ModelSpec,
        plan: &ShardPlan,
        kernels: &'static Kernels,
    ) -> Result<Option<Self>, LoadError> {
        let slices = Slices::of(file, spec, plan, kernels, Residence::WithoutExperts)?;
        let (mut count, mut used_at_once, mut used, mut widest) = (0, 0, 0.0, 0);
        for layer in plan.layers.clone() {
            let Some(experts) = spec.layer(layer).feed_forward.experts() else { continue };
            let roles = [TensorRole::Gate, TensorRole::Up, TensorRole::Down];
            let own = roles.into_iter().filter_map(|role| slices.find((Some(layer), role)));
            widest = own.map(TensorSlice::piece_bytes).fold(widest, usize::max);
            let held = slices.find((Some(layer), TensorRole::Down)).map_or(0, |down| down.count);
            count += held;
            used_at_once = used_at_once.max(experts.used_count.min(held));
            used += (experts.used_count * held) as f64 / experts.count.max(1) as f64;
        }
        let (resident, slot) = (slices.bytes as u64, slices.slot_bytes as u64);
        if count == 0 || slot == 0 {
            return Ok(None);
        }
        let (buffers, layers) = ((widest * READERS) as u64, plan.layers.clone());
        Ok(Some(Self { resident, buffers, slot, count, used_at_once, used, slices, layers }))
    }

    /// Seconds that an expert takes to be read if those that a token uses in a layer are read together; measured for
    /// about this long, past the page cache.
    ///
    /// # Errors
    /// There is no memory for them, or the file cannot be read.
    pub fn read_seconds(&self, file: &Arc<GgufFile>, limit: Duration) -> Result<f64, LoadError> {
        let bytes = self.slot as usize * self.used_at_once;
        let cache = ExpertCache::new(file, &self.slices, self.layers.clone(), bytes)?;
        let Some(mut cache) = cache else { return Ok(0.0) };
        cache.read_seconds(self.used_at_once, limit).map_err(LoadError::Experts)
    }
}
