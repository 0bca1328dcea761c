//! Memory requirements of a model for re-planning: from its file, or estimated from the sizes of its shards. Pure.
use std::{cell::RefCell, collections::HashMap, ops::Range};

use common::{ids::MemberIndex, units::Bytes};
use topology::{Layout, Topology, cut, shard::cut_stage, sizes::ModelSizes, split_layers_where, split_model};

use crate::{
    holding::{Holding, PANEL_ROWS, kv_bytes, state_bytes},
    memory,
    working::{RankMemory, Seat, working_bytes},
};

/// Memory of a rank relative to its even part of a replica: cuts are uneven, and every rank holds the norms.
const UNEVEN: f64 = 1.1;
/// Working memory of a rank if the model's shape is unknown: that of an 8B model on four ranks.
pub(super) const WORKING_ASSUMED: u64 = 64 << 20;

/// Memory requirements of a model: from its file, or estimated.
pub(super) trait Needs {
    /// The layers of `count` stages of equal cost; `None` if the model has fewer layers.
    fn stages(&self, count: u16) -> Option<Vec<Range<u32>>>;
    /// The layers of the stages of a single replica, as nearly of equal cost as the free memory of its members allows
    /// with equal shares; `None` if no division of the layers fits.
    fn stages_within(&self, desired: &Topology, layout: Layout, free: &[Bytes]) -> Option<Vec<Range<u32>>>;
    /// Memory that each member of a replica needs, in order.
    ///
    /// # Errors
    /// The model cannot be cut like this.
    fn of_replica(&self, topology: &Topology, replica: u16) -> Result<Vec<Bytes>, String>;
}

/// Requirements from the sizes in the model's file.
pub(super) struct OfFile<'a> {
    pub(super) sizes: &'a ModelSizes,
}

impl OfFile<'_> {
    /// Bytes that a token reads in each layer, and in the output.
    fn reads(&self) -> Option<(Vec<u64>, u64)> {
        let whole = cut(&self.sizes.spec, &[1]).ok()?;
        let holding = Holding { sizes: self.sizes, plan: &whole[0] };
        let layers = (0..self.sizes.spec.block_count())
            .map(|layer| holding.attention(layer).bytes + holding.feed_forward(layer, 1).bytes);
        Some((layers.collect(), holding.output().bytes))
    }

    /// For each of `ranks` ranks with equal shares: the bytes of weights, KV cache and states in the layers before each
    /// layer, and in all of them with the output. Other tensors outside the layers are small and count in each layer.
    /// `None` if the model cannot be cut like this.
    fn held(&self, desired: &Topology, ranks: usize) -> Option<Vec<Vec<u64>>> {
        let spec = &self.sizes.spec;
        let (blocks, slots) = (desired.kv_blocks(spec.window()), usize::from(desired.slots));
        let mut held = vec![vec![0_u64]; ranks];
        for layer in 0..spec.block_count() {
            let plans = cut_stage(spec, &(layer..layer + 1), &vec![1; ranks]).ok()?;
            for (sums, plan) in held.iter_mut().zip(&plans) {
                let weights = Holding { sizes: self.sizes, plan }.shard_bytes(PANEL_ROWS);
                let besides = kv_bytes(desired.kv, spec, plan, blocks).saturating_add(state_bytes(spec, plan, slots));
                sums.push(sums[layer].saturating_add(weights).saturating_add(besides));
            }
        }
        Some(held)
    }

    /// Working memory of each member of a single replica with equal shares.
    fn working(&self, desired: &Topology, layout: Layout) -> Option<Vec<u64>> {
        let (stages, ranks) = (usize::from(layout.stages), usize::from(layout.ranks));
        let spec = &self.sizes.spec;
        let mut working = Vec::with_capacity(stages * ranks);
        for stage in 0..stages {
            // It hardly depends on the number of layers, so one layer of the stage is enough.
            let layer = if stage + 1 == stages { spec.block_count() - 1 } else { stage };
            let plans = cut_stage(spec, &(layer..layer + 1), &vec![1; ranks]).ok()?;
            for plan in &plans {
                let seat = Seat::of(desired, &layout.place(MemberIndex(working.len() as u16)));
                working.push(working_bytes(&Holding { sizes: self.sizes, plan }, &seat));
            }
        }
        Some(working)
    }
}

impl Needs for OfFile<'_> {
    fn stages(&self, count: u16) -> Option<Vec<Range<u32>>> {
        let (reads, output) = self.reads()?;
        split_model(&self.sizes.spec, &reads, output, &vec![1; usize::from(count)])
    }

    fn stages_within(&self, desired: &Topology, layout: Layout, free: &[Bytes]) -> Option<Vec<Range<u32>>> {
        let (stages, ranks) = (usize::from(layout.stages), usize::from(layout.ranks));
        let spec = &self.sizes.spec;
        if stages == 1 || stages > spec.block_count() {
            return self.stages(layout.stages);
        }
        let (reads, output) = self.reads()?;
        let (held, working) = (self.held(desired, ranks)?, self.working(desired, layout)?);
        split_layers_where(&reads, output, &vec![1; stages], |stage, layers| {
            let mut places = stage * ranks..(stage + 1) * ranks;
            spec.can_begin_stage(layers.start)
                && places.all(|place| {
                    let sums = &held[place % ranks];
                    let shard = sums[layers.end] - sums[layers.start];
                    shard.saturating_add(working[place]) <= free[place].0
                })
        })
    }

    fn of_replica(&self, topology: &Topology, replica: u16) -> Result<Vec<Bytes>, String> {
        let memory = memory::of_replica(self.sizes, topology, replica).map_err(|error| error.to_string())?;
        Ok(memory.iter().map(RankMemory::total).collect())
    }
}

/// Layers and shares of each stage of a replica.
type ReplicaCut = Vec<(Range<usize>, Vec<u32>)>;

/// Requirements from a file, each computed once: for many plans of one desired topology, which differ only in its
/// members.
pub(super) struct Remembered<'a> {
    of_file: OfFile<'a>,
    found: RefCell<HashMap<ReplicaCut, Result<Vec<Bytes>, String>>>,
}

impl<'a> Remembered<'a> {
    /// Nothing is computed yet.
    pub(super) fn new(sizes: &'a ModelSizes) -> Self {
        Self { of_file: OfFile { sizes }, found: RefCell::default() }
    }
}

impl Needs for Remembered<'_> {
    fn stages(&self, count: u16) -> Option<Vec<Range<u32>>> {
        self.of_file.stages(count)
    }

    fn stages_within(&self, desired: &Topology, layout: Layout, free: &[Bytes]) -> Option<Vec<Range<u32>>> {
        self.of_file.stages_within(desired, layout, free)
    }

    fn of_replica(&self, topology: &Topology, replica: u16) -> Result<Vec<Bytes>, String> {
        let mut found = self.found.borrow_mut();
        let of_cut = found.entry(topology.stages(replica));
        of_cut.or_insert_with(|| self.of_file.of_replica(topology, replica)).clone()
    }
}

/// Requirements estimated from the shards of a whole replica.
pub(super) struct Estimated {
    pub(super) whole: u64,
    pub(super) layers: u32,
}

impl Estimated {
    pub(super) fn needed(&self, ranks: usize) -> Bytes {
        Bytes((self.whole as f64 * UNEVEN / ranks.max(1) as f64) as u64 + WORKING_ASSUMED)
    }
}

impl Needs for Estimated {
    /// Equal costs need no search; `layers` comes from a node's report.
    fn stages(&self, count: u16) -> Option<Vec<Range<u32>>> {
        let (layers, count) = (u64::from(self.layers), u64::from(count));
        let cut = |stage: u64| (stage * layers / count) as u32;
        (1..=layers).contains(&count).then(|| (0..count).map(|stage| cut(stage)..cut(stage + 1)).collect())
    }

    /// Estimates do not contain how much a layer needs.
    fn stages_within(&self, _: &Topology, layout: Layout, _: &[Bytes]) -> Option<Vec<Range<u32>>> {
        self.stages(layout.stages)
    }

    fn of_replica(&self, topology: &Topology, replica: u16) -> Result<Vec<Bytes>, String> {
        let ranks = topology.layout.members(replica).len();
        Ok(vec![self.needed(ranks); ranks])
    }
}
