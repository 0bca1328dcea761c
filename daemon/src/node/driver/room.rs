//! Whether a shard fits into memory. If it would only with its experts on the disk: for how many of them there is room,
//! and how fast the node would decode.
use std::{sync::Arc, time::Duration};

use common::{fault::FaultKind, latency::ratio, units::Bytes};
use engine::model::{
    LoadError,
    needs::{ExpertNeeds, shard_bytes},
};
use gguf::GgufFile;
use kernels::Kernels;
use models::ModelSpec;
use planner::on_disk::ExpertsOnDisk;
use topology::ShardPlan;

use crate::{bench::bandwidth, config::Config, health::memory};

/// How long the disk is measured, about.
const MEASURED: Duration = Duration::from_secs(2);
/// One part in so many of the memory stays free: for the pages that a read passes through, and for what the prediction
/// of working memory leaves out.
const SPARE: u64 = 16;
/// Share of the memory's read rate that decoding reaches.
const DECODE_SHARE: f64 = 0.9;

/// A shard that is about to be loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unloaded<'a> {
    /// The model's name.
    pub(super) model: &'a str,
    pub(super) file: &'a Arc<GgufFile>,
    pub(super) spec: &'a ModelSpec,
    pub(super) plan: &'a ShardPlan,
    pub(super) kernels: &'static Kernels,
    /// Compute threads.
    pub(super) threads: usize,
    /// Bytes of everything but its weights.
    pub(super) besides: u64,
}

/// Memory of a shard's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// Bytes of the weights that are loaded at once.
    pub(super) weights: u64,
    /// Bytes of the cache of experts; `None`: they are loaded with the others.
    pub(super) experts: Option<u64>,
}

impl Room {
    /// All of it.
    pub(super) fn total(&self) -> u64 {
        self.weights + self.experts.unwrap_or(0)
    }
}

impl Unloaded<'_> {
    /// The room for its weights.
    ///
    /// # Errors
    /// It does not fit, or only with its experts on the disk, which the operator has not allowed: the fault offers it.
    pub(super) fn room(&self, config: &Config) -> Result<Room, FaultKind> {
        let Self { file, spec, plan, kernels, besides, .. } = *self;
        let weights = shard_bytes(file, spec, plan, kernels).map_err(|error| self.invalid(&error))?;
        let needed = weights + besides;
        let fits = match config.paced {
            // A paced node needs no memory for weights: only its configured limit counts.
            Some(_) if config.memory_max.is_none_or(|most| needed <= most) => Ok(()),
            _ => preflight(needed, config.memory_max),
        };
        let Err(short) = fits else { return Ok(Room { weights, experts: None }) };
        let &FaultKind::MemoryShort { needed, available } = &short else { return Err(short) };
        let needs = ExpertNeeds::of(file, spec, plan, kernels).map_err(|error| self.invalid(&error))?;
        let Some(needs) = needs.filter(|_| config.paced.is_none()) else { return Err(short) };
        let Some(slots) = slots(&needs, available.0, besides) else { return Err(short) };
        let read_seconds = needs.read_seconds(file, MEASURED).map_err(|error| self.invalid(&error))?;
        let speed = format!("about {:.2} tokens/s", self.tokens_per_second(&needs, slots, read_seconds));
        if !config.experts_on_disk {
            return Err(FaultKind::ExpertsFitOnDisk { needed, available, speed });
        }
        tracing::info!(
            "{}: memory holds {slots} of {} experts, the others stay on the disk; one of {:.2} MB is read in {:.2} ms; {speed} \
                are expected",
            self.model,
            needs.count,
            needs.slot as f64 / 1e6,
            read_seconds * 1e3,
        );
        Ok(Room { weights: needs.resident, experts: Some(slots as u64 * needs.slot) })
    }

    fn invalid(&self, error: &LoadError) -> FaultKind {
        FaultKind::ModelInvalid { model: self.model.to_owned(), reason: error.to_string() }
    }

    /// Expected speed of one sequence.
    fn tokens_per_second(&self, needs: &ExpertNeeds, slots: usize, read_seconds: f64) -> f64 {
        // Without a measurement only the disk counts.
        let rate = bandwidth::quick(self.kernels, self.threads).unwrap_or(f64::INFINITY);
        let token_bytes = needs.resident as f64 + needs.used * needs.slot as f64;
        let token_seconds = ratio(token_bytes, rate * DECODE_SHARE);
        let ExpertNeeds { count, used, .. } = *needs;
        ExpertsOnDisk { slots, count, used, read_seconds, token_seconds }.tokens_per_second()
    }
}

/// Experts for which memory has room besides the rest; `None`: fewer than a token uses in a layer.
fn slots(needs: &ExpertNeeds, available: u64, besides: u64) -> Option<usize> {
    let taken = needs.resident + needs.buffers + besides + available / SPARE;
    let slots = (available.saturating_sub(taken) / needs.slot).min(needs.count as u64) as usize;
    (slots >= needs.used_at_once).then_some(slots)
}

/// Refuses a load that would end in swapping or in the out-of-memory killer.
pub(super) fn preflight(needed: u64, memory_max: Option<u64>) -> Result<(), FaultKind> {
    let available = memory::available().0;
    let available = memory_max.map_or(available, |most| most.min(available));
    if available > 0 && needed > available {
        return Err(FaultKind::MemoryShort { needed: Bytes(needed), available: Bytes(available) });
    }
    Ok(())
}
