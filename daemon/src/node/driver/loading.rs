//! Loads a shard, if it fits in memory. Runs on blocking threads.
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use common::{
    fault::FaultKind,
    ids::{ContentRoot, ModelIdentity},
    units::Bytes,
};
use engine::{
    kv_store::Space,
    model::{Cached, KvCache, LoadError, Pace, PackedCache, Shard, Source, StateCache},
    plan::Limits,
    structured_output::{Job, VocabularySource},
    transfer::Partners,
};
use gguf::GgufFile;
use kernels::Kernels;
use models::{ModelSpec, TensorRole};
use planner::{
    holding::{kv_bytes, state_bytes},
    working::Seat,
};
use protocol::{
    NUMERIC_VERSION,
    message::{ModelCard, Prepare},
};
use telemetry::LoadProgress;
use tokenizer::Tokenizer;
use topology::{
    CutError, Place, Role, StateCount, Topology, cut_stages,
    sizes::{ModelSizes, OlderSizes},
};

use super::{
    draft::{LoadedDraft, OpenDraft},
    opening::{ModelFile, content, not_prepared, open, pace, working},
    room::Unloaded,
};
use crate::{
    config::Config,
    health::memory,
    text::{self, ModelText, Program},
};

/// Stack of the thread that compiles a schema recursively: twice that of the child process that tried the schema first.
const SCHEMA_STACK_BYTES: usize = 48 << 20;

/// A shard, and what the engine needs in addition.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) shard: Shard,
    pub(super) cache: KvCache,
    /// The states of recurrent layers.
    pub(super) states: StateCache,
    /// On a paced node.
    pub(super) pace: Option<Pace>,
    pub(super) draft: Option<LoadedDraft>,
    /// In a topology whose groups have roles: the ranks that this member sends to, with the parts for each.
    pub(super) partners: Option<Partners>,
    /// On the head only.
    pub(super) text: Option<ModelText>,
    /// On the ranks of the last stage only.
    pub(super) vocabulary: Option<VocabularySource>,
    pub(super) bytes: Bytes,
    /// Everything that its keys and values depend on, except the tokens and its part of the model.
    pub(super) space: Space,
}

/// Identity and spec of a model.
pub(super) fn identify(folders: &[PathBuf], model: &str) -> Result<ModelCard, FaultKind> {
    let ModelFile { file, spec, .. } = open(folders, model)?;
    let output = spec.tensors().into_iter().find(|tensor| tensor.role == TensorRole::Output);
    let output = output.and_then(|tensor| file.tensor(tensor.name));
    let sizes = ModelSizes::of_file(&file, &spec);
    Ok(ModelCard {
        model: model.into(),
        identity: ModelIdentity(file.identity()),
        size: Bytes(file.file_bytes()),
        context_length: spec.context_length as u32,
        block_count: spec.block_count() as u32,
        embedding_length: spec.embedding_length as u32,
        head_count: spec.layer(0).mixer.units().0 as u32,
        layer_bytes: layer_bytes(&file, &spec),
        output_bytes: Bytes(output.map_or(0, |tensor| tensor.byte_length as u64)),
        older: OlderSizes::of(&sizes),
        sizes: Some(Box::new(sizes)),
    })
}

/// Bytes of the weights of each layer.
fn layer_bytes(file: &GgufFile, spec: &ModelSpec) -> Vec<Bytes> {
    let mut layers = vec![Bytes(0); spec.block_count()];
    for tensor in file.tensors() {
        let layer = tensor.name.strip_prefix("blk.").and_then(|name| name.split('.').next()?.parse::<usize>().ok());
        if let Some(bytes) = layer.and_then(|layer| layers.get_mut(layer)) {
            bytes.0 += tensor.byte_length as u64;
        }
    }
    layers
}

/// The tokenizer of a model; the error states the reason.
fn read_tokenizer(file: &GgufFile, spec: &ModelSpec) -> Result<Tokenizer, String> {
    let tokenizer = Tokenizer::from_metadata(file.metadata()).map_err(|error| error.to_string())?;
    let (tokens, rows) = (tokenizer.vocabulary_length(), spec.vocabulary_length);
    if tokens > rows {
        return Err(format!("the vocabulary has {tokens} tokens, token_embd.weight has {rows} rows"));
    }
    Ok(tokenizer)
}

/// Loads the shard of an assignment. Calls `progress` periodically; loading stops when it returns false.
pub(super) fn load(
    config: &Config,
    kernels: &'static Kernels,
    prepare: &Prepare,
    progress: &(dyn Fn(LoadProgress) -> bool + Sync),
) -> Result<Loaded, FaultKind> {
    let topology = &prepare.topology;
    let model = || topology.model.clone();
    let ModelFile { path, file, spec } = open(&config.models, &topology.model)?;
    let actual = ModelIdentity(file.identity());
    if actual != topology.identity {
        return Err(FaultKind::ModelDiffers { model: model(), expected: topology.identity, actual });
    }
    let unused = models::unused(&file, &spec);
    if let Some(first) = unused.first() {
        tracing::info!("{}: {} tensors are not used, the first is {first}", model(), unused.len());
    }
    let refuse = |reason: String| FaultKind::TopologyInvalid { reason };
    let place = topology.place(prepare.member);
    check_served(topology, &spec)?;
    let plans = cut_stages(&spec, &topology.stages(place.replica)).map_err(|error| refuse(error.to_string()))?;
    let partners = partners(topology, &spec, &place).map_err(|error| refuse(error.to_string()))?;
    let plan =
        plans.get(place.rank.index()).ok_or_else(|| refuse("this node's rank is not part of the shard plan".into()))?;
    let invalid = |reason: String| FaultKind::ModelInvalid { model: model(), reason };
    let tokenizer = place.is_head().then(|| read_tokenizer(&file, &spec)).transpose().map_err(invalid)?;
    let blocks = topology.kv_blocks(spec.window());
    let kv = kv_bytes(topology.kv, &spec, plan, blocks);
    let state = state_bytes(&spec, plan, usize::from(topology.slots));
    let paced = config.paced.as_ref();
    let draft = OpenDraft::new(config, kernels, prepare, &file)?;
    let of_draft = draft.as_ref().map_or(0, OpenDraft::bytes);
    let besides =
        kv + state + of_draft + working(&ModelSizes::of_file(&file, &spec), plan, &Seat::of(topology, &place));
    let threads = usize::from(config.threads.unwrap_or(topology.members[prepare.member.index()].threads));
    let unloaded = Unloaded { model: &topology.model, file: &file, spec: &spec, plan, kernels, threads, besides };
    let room = unloaded.room(config)?;
    let content = content(config, (&topology.model, topology.content), &file, progress)
        .map_err(|kind| if kind == FaultKind::StoreCancelled { not_prepared(prepare) } else { kind })?;
    let total = Bytes(room.weights.max(1));
    let done = AtomicU64::new(0);
    let packed = PackedCache::new(&config.state);
    let source = Source {
        file: &file,
        spec: &spec,
        plan,
        kernels,
        cache: Some(Cached { cache: (config.packed_shards && paced.is_none()).then_some(&packed), content: &content }),
        expert_memory: room.experts.map(|bytes| bytes as usize),
        is_hollow: paced.is_some(),
        progress: &|bytes| {
            let done = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
            progress(LoadProgress { done: Bytes(done.min(total.0)), total })
        },
    };
    let shard = Shard::load(source).map_err(|error| match error {
        LoadError::Missing(_) | LoadError::Read { .. } | LoadError::Experts(_) | LoadError::Changed => {
            invalid(error.to_string())
        }
        LoadError::Memory { .. } => {
            FaultKind::MemoryShort { needed: Bytes(room.total()), available: memory::available() }
        }
        LoadError::Cancelled => not_prepared(prepare),
    })?;
    let cache = KvCache::new(topology.kv, &spec, plan, blocks)
        .map_err(|_| FaultKind::MemoryShort { needed: Bytes(kv), available: memory::available() })?;
    let states = StateCache::new(&spec, plan, StateCount::in_model(&spec, usize::from(topology.slots)))
        .map_err(|_| FaultKind::MemoryShort { needed: Bytes(state), available: memory::available() })?;
    let draft = draft.map(|draft| draft.load(config, kernels, prepare, progress)).transpose()?;
    let limits = Limits::of(topology, &spec);
    let text = tokenizer.map(|tokenizer| checked(ModelText::new(model(), path, &file, Arc::new(tokenizer), limits)));
    let pace = paced.map(|paced| pace(paced, ModelSizes::of_file(&file, &spec), plan, topology));
    let vocabulary =
        place.is_last_stage().then(|| text::vocabulary(Arc::clone(&file), spec.vocabulary_length, spawn_compiler));
    let (space, bytes) = (space(topology, &spec, content.root), Bytes(room.total() + kv + state + of_draft));
    Ok(Loaded { shard, cache, states, pace, draft, partners, text, vocabulary, bytes, space })
}

/// Everything that keys and values depend on, except the tokens. Kernels and cuts change only their rounding: ids are the same, and
/// those of other nodes are of use after a loss.
fn space(topology: &Topology, spec: &ModelSpec, root: ContentRoot) -> Space {
    let mut descriptions = vec![
        root.to_string(),
        topology.identity.to_string(),
        format!("numbers {NUMERIC_VERSION}"),
        format!("keys and values as {}, sums as {:?}", topology.kv, topology.exchange),
    ];
    // Nothing is added for other ropes: what earlier releases stored of their models is still found.
    for (number, rope) in spec.ropes.iter().enumerate() {
        if let Some(is_long) = rope.takes_long_divisors(topology.context_length as usize) {
            descriptions.push(format!("{} divisors of rope {number}", if is_long { "long" } else { "short" }));
        }
    }
    let descriptions: Vec<&str> = descriptions.iter().map(String::as_str).collect();
    Space::of(&descriptions)
}

/// The texts of a model, with its template tried.
fn checked(mut text: ModelText) -> ModelText {
    text::check_template(&Program::of(program()), &mut text);
    text
}

/// Refuses a model that cannot answer requests, and too long a context.
fn check_served(topology: &Topology, spec: &ModelSpec) -> Result<(), FaultKind> {
    if !spec.generates() && spec.pooling.is_none() {
        let reason = "it neither continues texts nor computes embeddings; choose another model".into();
        return Err(FaultKind::ModelInvalid { model: topology.model.clone(), reason });
    }
    if topology.context_length as usize > spec.context_length {
        let (asked, trained) = (topology.context_length, spec.context_length);
        let reason = format!("a context of {asked} tokens is requested, the model was trained for {trained}");
        return Err(FaultKind::TopologyInvalid { reason });
    }
    Ok(())
}

/// Runs a job of an engine on a thread of its own. Returns false if no thread can be started.
fn spawn_compiler(job: Job) -> bool {
    let spawned = std::thread::Builder::new().name("grammar".into()).stack_size(SCHEMA_STACK_BYTES).spawn(job);
    spawned.map_err(|error| tracing::warn!("cannot start a thread to compile a grammar: {error}")).is_ok()
}

/// What a member of a group with a role sends to the others.
fn partners(topology: &Topology, spec: &ModelSpec, own: &Place) -> Result<Option<Partners>, CutError> {
    if own.role == Role::Both {
        return Ok(None);
    }
    let replicas = 0..topology.layout.replicas;
    let plans = replicas.map(|replica| cut_stages(spec, &topology.stages(replica))).collect::<Result<Vec<_>, _>>()?;
    Ok(Some(Partners::new(topology, own, &plans, spec.window())))
}

/// Path of this program. If an upgrade has replaced the file, the program that is running.
pub(super) fn program() -> PathBuf {
    let own = std::env::current_exe().ok().filter(|path| path.is_file());
    own.unwrap_or_else(|| "/proc/self/exe".into())
}

#[cfg(test)]
mod tests {
    use models::{LongSpec, Scaling, known};

    use super::*;
    use crate::node::tests::topology;

    const ROOT: ContentRoot = ContentRoot([1; 32]);

    /// The space of a model in a topology with this context.
    fn of(spec: &ModelSpec, context_length: u32) -> Space {
        space(&Topology { context_length, ..topology(1) }, spec, ROOT)
    }

    #[test]
    fn space_depends_on_the_context_only_by_the_choice_of_divisors() {
        let known = known::MODELS.iter().find(|known| known.name == "phi-4-mini").expect("it is known");
        let mut spec = known.spec();
        let former = Space::of(&[
            &ROOT.to_string(),
            &topology(1).identity.to_string(),
            &format!("numbers {NUMERIC_VERSION}"),
            "keys and values as f16, sums as F32",
        ]);
        assert_eq!([of(&spec, 4096), of(&spec, 4097)], [former; 2], "stores of other models stay valid");
        let scaling = Scaling::Long(LongSpec { original_context: 4096, magnitude: 1.0 });
        spec.ropes.iter_mut().for_each(|rope| rope.scaling = scaling.clone());
        let (short, long) = (of(&spec, 4096), of(&spec, 4097));
        assert_eq!([of(&spec, 512), of(&spec, 131_072)], [short, long]);
        assert!(short != long && short != former && long != former, "{short:?} {long:?} {former:?}");
    }
}
