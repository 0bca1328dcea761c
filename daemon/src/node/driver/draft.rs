//! Opens and loads the draft model of an assignment: a smaller model with the vocabulary of the target model, or the
//! predictor in the file of the target model. Refused before anything is loaded if it cannot draft for that model.
use std::sync::Arc;

use common::{fault::FaultKind, ids::ModelIdentity, units::Bytes};
use engine::model::{Cached, KvCache, LoadError, Model, Pace, PackedCache, Shard, Source, needs::shard_bytes};
use gguf::{GgufError, GgufFile};
use kernels::{Compute, Kernels};
use models::ModelSpec;
use planner::{
    holding::kv_bytes,
    working::{BASE_BYTES, Seat},
};
use protocol::message::Prepare;
use telemetry::LoadProgress;
use topology::{Draft, KvBlocks, Role, ShardPlan, Topology, cut_stages, sizes::ModelSizes};

use super::opening::{ModelFile, content, not_prepared, open, pace, working};
use crate::{config::Config, health::memory};

/// Metadata that must be equal in both files.
const TOKENS: &str = "tokenizer.ggml.tokens";

/// A draft model whose file is open.
pub(super) struct OpenDraft<'a> {
    of: &'a Draft,
    topology: &'a Topology,
    file: Arc<GgufFile>,
    spec: ModelSpec,
    plan: ShardPlan,
    blocks: KvBlocks,
    /// Bytes of weights, and of everything else.
    weights: u64,
    besides: u64,
}

/// A loaded draft model.
#[derive(Debug)]
pub(super) struct LoadedDraft {
    shard: Shard,
    cache: KvCache,
    pace: Option<Pace>,
}

impl LoadedDraft {
    /// The model, which computes with these threads.
    pub(super) fn model(self, compute: &Compute, context_length: usize) -> Model {
        Model::new(self.shard, self.cache, compute.clone(), context_length).paced(self.pace)
    }
}

impl<'a> OpenDraft<'a> {
    /// Opens the draft model of an assignment and checks it against the target model.
    ///
    /// # Errors
    /// The file is missing or another one than that of the head, or it cannot draft for the target model.
    pub(super) fn new(
        config: &Config,
        kernels: &'static Kernels,
        prepare: &'a Prepare,
        target: &GgufFile,
    ) -> Result<Option<Self>, FaultKind> {
        let (topology, place) = (&prepare.topology, prepare.topology.place(prepare.member));
        let Some(draft) = topology.draft.as_ref().filter(|_| place.role != Role::Prefill) else { return Ok(None) };
        let ModelFile { file, spec, .. } = open(&config.models, &draft.model)?;
        let (model, actual) = (draft.model.clone(), ModelIdentity(file.identity()));
        if actual != draft.identity {
            return Err(FaultKind::ModelDiffers { model, expected: draft.identity, actual });
        }
        let spec = if draft.model == topology.model {
            predictor(config, &file, &spec, topology)?
        } else if let Some(reason) = unfit(&file, &spec, target) {
            let reason = format!("{model} cannot draft for {}: {reason}", topology.model);
            return Err(FaultKind::TopologyInvalid { reason });
        } else {
            spec
        };
        if spec.context_length < topology.context_length as usize {
            let (trained, context) = (spec.context_length, topology.context_length);
            tracing::warn!(
                "{model} was trained for {trained} tokens, {context} are requested: few of its proposals are accepted \
                 beyond {trained}"
            );
        }
        let refuse = |reason: String| FaultKind::TopologyInvalid { reason };
        let stages: Vec<_> = topology.stages(place.replica);
        let stages = [(0..spec.block_count(), stages[0].1.clone())];
        let plans = cut_stages(&spec, &stages).map_err(|error| refuse(format!("{model}: {error}")))?;
        let plan = plans.into_iter().nth(place.rank.index());
        let plan = plan.ok_or_else(|| refuse("this node's rank is not part of the draft model's cut".into()))?;
        // All of its layers use the blocks of layers that attend to everything.
        let blocks = KvBlocks::alike(topology.kv_blocks(None).whole);
        let weights = shard_bytes(&file, &spec, &plan, kernels)
            .map_err(|error| FaultKind::ModelInvalid { model, reason: error.to_string() })?;
        let kv = kv_bytes(topology.kv, &spec, &plan, blocks);
        let working = working(&ModelSizes::of_file(&file, &spec), &plan, &Seat::of(topology, &place));
        let besides = kv + working.saturating_sub(BASE_BYTES);
        Ok(Some(Self { of: draft, topology, file, spec, plan, blocks, weights, besides }))
    }

    /// Bytes that it takes in memory.
    pub(super) fn bytes(&self) -> u64 {
        self.weights + self.besides
    }

    /// Loads it. Calls `progress` periodically; loading stops when it returns false.
    ///
    /// # Errors
    /// The file cannot be read or has another content, there is no memory, or the load was stopped.
    pub(super) fn load(
        self,
        config: &Config,
        kernels: &'static Kernels,
        prepare: &Prepare,
        progress: &(dyn Fn(LoadProgress) -> bool + Sync),
    ) -> Result<LoadedDraft, FaultKind> {
        let short = || FaultKind::MemoryShort { needed: Bytes(self.bytes()), available: memory::available() };
        let is_paced = config.paced.is_some();
        let content = content(config, (&self.of.model, self.of.content), &self.file, progress)
            .map_err(|kind| if kind == FaultKind::StoreCancelled { not_prepared(prepare) } else { kind })?;
        let packed = PackedCache::new(&config.state);
        let total = Bytes(self.weights.max(1));
        let source = Source {
            file: &self.file,
            spec: &self.spec,
            plan: &self.plan,
            kernels,
            cache: Some(Cached { cache: (config.packed_shards && !is_paced).then_some(&packed), content: &content }),
            expert_memory: None,
            is_hollow: is_paced,
            progress: &|_| progress(LoadProgress { done: total, total }),
        };
        let shard = Shard::load(source).map_err(|error| match error {
            LoadError::Memory { .. } => short(),
            LoadError::Cancelled => not_prepared(prepare),
            error => FaultKind::ModelInvalid { model: self.of.model.clone(), reason: error.to_string() },
        })?;
        let cache = KvCache::new(self.topology.kv, &self.spec, &self.plan, self.blocks).map_err(|_| short())?;
        let sizes = ModelSizes::of_file(&self.file, &self.spec);
        let pace = config.paced.as_ref().map(|paced| pace(paced, sizes, &self.plan, self.topology));
        Ok(LoadedDraft { shard, cache, pace })
    }
}

/// The predictor in the file of the target model.
fn predictor(config: &Config, file: &GgufFile, spec: &ModelSpec, topology: &Topology) -> Result<ModelSpec, FaultKind> {
    let refuse = |why: String| FaultKind::TopologyInvalid {
        reason: format!("{why}; omit --draft mtp, or draft = \"mtp\" in a file"),
    };
    if config.paced.is_some() {
        return Err(refuse("paced nodes run no block that predicts further tokens".into()));
    }
    let model = &topology.model;
    models::read_predictor(file, spec).map_err(|error| match error {
        // The file is complete without it.
        GgufError::MissingTensor { tensor, .. } => {
            refuse(format!("{model} has no block that predicts further tokens: it has no tensor {tensor}"))
        }
        error => refuse(format!("the block of {model} that predicts further tokens cannot be used: {error}")),
    })
}

/// Why a model cannot draft for a target model; `None` if it can.
fn unfit(file: &GgufFile, spec: &ModelSpec, target: &GgufFile) -> Option<String> {
    if !spec.generates() {
        return Some("it does not continue texts".into());
    }
    if spec.has_state() {
        return Some("its recurrent layers cannot take tokens back; choose a model of attention layers".into());
    }
    let (own, theirs) = (file.metadata(), target.metadata());
    let (Ok(Some(own)), Ok(Some(theirs))) = (own.texts(TOKENS), theirs.texts(TOKENS)) else {
        return Some("one of the files has no vocabulary".into());
    };
    // Files pad their vocabularies to different lengths.
    own.zip(theirs).enumerate().find(|(_, (own, theirs))| own != theirs).map(|(id, (own, theirs))| {
        let [own, theirs] = [own, theirs].map(String::from_utf8_lossy);
        format!("token {id} is {own:?}, in the model {theirs:?}; choose a draft model with the same vocabulary")
    })
}
