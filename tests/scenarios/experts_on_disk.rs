//! Experts that stay on the disk: answers have the same bits as with all weights in memory, whatever the size of the
//! cache, and a file that changes is an error.
use std::{fs, path::Path, sync::Arc};

use common::{
    ids::{LayerIndex, Slot},
    precision::KvFormat,
};
use daemon::store::Contents;
use engine::{
    collective::{Collective, CollectiveError},
    model::{Batch, BatchToken, BlockTables, Cached, KvCache, Model, Shard, Source, StateCache},
};
use gguf::{BlockFormat, GgufFile};
use harness::{
    families::shapes,
    family_model::FamilyModel,
    ranks::{Run, run},
};
use kernels::{Compute, Kernels, Pool, PoolOptions};
use telemetry::SyncKind;
use topology::{KvBlocks, StateCount, cut};

/// A rank alone: its partial sums are the sums.
struct Alone;

impl Collective for Alone {
    fn all_reduce(
        &mut self,
        _: LayerIndex,
        _: SyncKind,
        partial: &[f32],
        hidden: &mut [f32],
    ) -> Result<(), CollectiveError> {
        hidden.iter_mut().zip(partial).for_each(|(hidden, partial)| *hidden += partial);
        Ok(())
    }
}

fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32).map(|index| (index * 37 + 5) % 290 + 3).collect()
}

/// The small models with experts, one of each family.
fn mixtures() -> Vec<(String, FamilyModel)> {
    let all = shapes().into_iter().filter(|(_, model)| {
        let file = GgufFile::from_bytes(vec![model.bytes()]).expect("a whole model");
        let spec = models::read(&file).expect("a valid model");
        model.block_count() <= 8 && spec.kinds.iter().any(|kind| kind.feed_forward.experts().is_some())
    });
    let mut all: Vec<_> = all.collect();
    all.dedup_by_key(|(_, model)| model.architecture);
    all
}

#[test]
fn experts_on_disk_give_the_same_bits_with_any_number_of_slots() {
    let tokens = tokens(24);
    let mixtures = mixtures();
    assert!(mixtures.len() > 5, "{} families have experts", mixtures.len());
    for (index, (name, model)) in mixtures.into_iter().enumerate() {
        let format = [BlockFormat::Q4K, BlockFormat::F16, BlockFormat::Q8_0][index % 3];
        let file = Arc::new(GgufFile::from_bytes(vec![model.with_format(format).bytes()]).expect("a whole model"));
        for (stages, world) in [(1, 1), (1, 3), (2, 1)] {
            let whole = run(&file, &tokens, &Run { stages, ..Run::exact(world) }).logits;
            // One slot, some, and more than there are experts; a prompt in chunks, then single tokens.
            for (bytes, threads) in [(1, 1), (400_000, 2), (1 << 30, 1)] {
                let how =
                    Run { stages, threads, expert_memory: Some(bytes), chunks: vec![9, 6, 1], ..Run::exact(world) };
                let found = run(&file, &tokens, &how).logits;
                let bits = |rows: &[Vec<f32>]| rows.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert!(bits(&found) == bits(&whole), "{name} on pp{stages}-tp{world} with {bytes} bytes for experts");
            }
        }
    }
}

/// A model in a file with the experts on the disk, and room for some of them.
fn load(path: &Path, state: &Path) -> Model {
    let file = Arc::new(GgufFile::open(path).expect("the model is valid"));
    let spec = models::read(&file).expect("the model is valid");
    let plan = cut(&spec, &[1]).expect("one rank holds all").swap_remove(0);
    let kernels = Kernels::choose(None).expect("this machine has a kernel table");
    let content = Contents::new(state).of(&file, &mut |_, _| true).expect("the model can be read");
    let source = Source {
        file: &file,
        spec: &spec,
        plan: &plan,
        kernels,
        cache: Some(Cached { cache: None, content: &content }),
        expert_memory: Some(400_000),
        is_hollow: false,
        progress: &|_| true,
    };
    let shard = Shard::load(source).expect("the shard can be loaded");
    let [slots, experts] = shard.experts.as_ref().expect("they stay on the disk").counts();
    assert!(0 < slots && slots < experts, "{slots} of {experts}");
    let cache = KvCache::new(KvFormat::F32, &spec, &plan, KvBlocks::alike(4)).expect("enough memory");
    let states = StateCache::new(&spec, &plan, StateCount::of(1)).expect("enough memory");
    let pool = Pool::new(PoolOptions { threads: 1, cores: Vec::new(), spin: false });
    Model::new(shard, cache, Compute { kernels, pool }, spec.context_length).with_states(states)
}

fn step(model: &mut Model, position: u32) -> Result<(), String> {
    let token = BatchToken { slot: Slot(0), position, token: 3 + position % 290, wants_logits: true, is_speculative: false };
    let tables = vec![vec![0, 1, 2, 3]];
    let batch = Batch { tokens: &[token], tables: BlockTables::alike(&tables) };
    model.forward(batch, &mut Alone).map(drop).map_err(|error| error.to_string())
}

fn written(folder: &Path) -> std::path::PathBuf {
    let (_, model) = mixtures().into_iter().find(|(name, _)| name.contains("qwen3moe")).expect("it is a family");
    let path = folder.join("experts.gguf");
    fs::write(&path, model.with_format(BlockFormat::Q8_0).bytes()).expect("it is written");
    path
}

#[test]
fn a_cut_or_changed_file_is_an_error_and_no_wrong_token() {
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let path = written(folder.path());
    let good = fs::read(&path).expect("it is there");
    for is_cut in [true, false] {
        fs::write(&path, &good).expect("it is written");
        let mut model = load(&path, &folder.path().join("state"));
        for position in 0..8 {
            step(&mut model, position).expect("the file is whole");
        }
        let [hits, misses] = model.shard().experts.as_ref().expect("they stay on the disk").uses();
        assert!(hits > 0 && misses > 0, "{hits} of {misses}");
        let file = fs::OpenOptions::new().write(true).open(&path).expect("it is ours");
        if is_cut {
            file.set_len(good.len() as u64 / 8).expect("it is ours");
        } else {
            std::os::unix::fs::FileExt::write_all_at(&file, &[1], good.len() as u64 / 2).expect("it is ours");
        }
        let error = (8..40).find_map(|position| step(&mut model, position).err());
        let error = error.expect("some expert or row is read");
        assert!(error.contains("check the model file and its disk"), "{error}");
    }
}
