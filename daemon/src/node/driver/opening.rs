//! Opens model files and checks their content, for a model and for its draft model; the parts of a load that both share.
use std::{
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use common::{fault::FaultKind, ids::ContentRoot, units::Bytes};
use engine::model::{Pace, PacedShard};
use gguf::{Content, GgufError, GgufFile};
use models::ModelSpec;
use planner::{
    holding::Holding,
    simulate::Noise,
    working::{Seat, working_bytes},
};
use protocol::{message::Prepare, models::PART};
use telemetry::LoadProgress;
use topology::{ShardPlan, Topology, sizes::ModelSizes};

use crate::{
    config::{Config, Paced},
    store::Contents,
};

/// Path of a model file. Only plain names below one of the folders are accepted.
fn find(folders: &[PathBuf], model: &str) -> Result<PathBuf, FaultKind> {
    let path = Path::new(model);
    // Partial files are never opened.
    let is_plain = !model.is_empty()
        && !model.ends_with(PART)
        && path.components().all(|part| matches!(part, Component::Normal(_)));
    let found = folders.iter().map(|folder| folder.join(path)).find(|path| path.is_file());
    found.filter(|_| is_plain).ok_or_else(|| {
        let names: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
        FaultKind::ModelMissing { model: model.into(), folders: names.join(", ") }
    })
}

/// An open model file.
#[derive(Debug)]
pub(super) struct ModelFile {
    pub(super) path: PathBuf,
    pub(super) file: Arc<GgufFile>,
    pub(super) spec: ModelSpec,
}

/// Opens a model by its name.
pub(super) fn open(folders: &[PathBuf], model: &str) -> Result<ModelFile, FaultKind> {
    let path = find(folders, model)?;
    let invalid = |error: GgufError| FaultKind::ModelInvalid { model: model.into(), reason: error.to_string() };
    let file = GgufFile::open(&path).map_err(invalid)?;
    let spec = models::read(&file).map_err(invalid)?;
    Ok(ModelFile { path, file: Arc::new(file), spec })
}

/// Working memory in bytes, without weights and KV cache.
pub(super) fn working(sizes: &ModelSizes, plan: &ShardPlan, seat: &Seat) -> u64 {
    working_bytes(&Holding { sizes, plan }, seat)
}

/// The pace of a node that waits for the simulated compute time instead of computing its shard.
pub(super) fn pace(paced: &Paced, sizes: ModelSizes, plan: &ShardPlan, topology: &Topology) -> Pace {
    let noise = if paced.jitter_ppm > 0 { Noise::Random { mean_ppm: paced.jitter_ppm } } else { Noise::None };
    let shard = PacedShard { sizes, plan: plan.clone(), kv: topology.kv };
    Pace::new(paced.machine.clone(), shard, noise, paced.seed)
}

/// The assignment was abandoned during its load.
pub(super) fn not_prepared(prepare: &Prepare) -> FaultKind {
    FaultKind::NotPrepared { epoch: prepare.epoch }
}

/// Forgets the stored content hash of a model.
pub(super) fn distrust(config: &Config, model: &str) {
    // Without its header there is no hash to forget.
    if let Ok(ModelFile { file, .. }) = open(&config.models, model) {
        Contents::new(&config.state).forget(&file);
    }
}

/// Content hash of a model's file, computed now if it is not known. Fails if the topology requires other weights.
pub(super) fn content(
    config: &Config,
    required: (&str, Option<ContentRoot>),
    file: &GgufFile,
    progress: &(dyn Fn(LoadProgress) -> bool + Sync),
) -> Result<Content, FaultKind> {
    let contents = Contents::new(&config.state).hollow(config.paced.is_some());
    let content =
        contents.of(file, &mut |done, total| progress(LoadProgress { done: Bytes(done), total: Bytes(total) }))?;
    let (model, expected) = required;
    match expected {
        Some(expected) if expected != content.root => Err(FaultKind::ContentDiffers {
            model: model.to_owned(),
            expected: Box::new(expected),
            actual: content.root,
            holders: String::new(),
        }),
        _ => Ok(content),
    }
}
