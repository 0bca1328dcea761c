//! Experts that stay on the disk: answers have the same bits as with all weights in memory, whatever the size of the
//! cache, and a file that changes is an error.
use std::{fs, path::Path, sync::Arc};

use common::{
    ids::{LayerIndex, Slot},
    precision::KvFormat,
};
use daemon::store::Contents;
use engine::{
    collective::{Abort, Collective, CollectiveError},
    model::{Batch, BatchToken, BlockTables, Cached, KvCache, Model, Shard, Source, StateCache, needs::ExpertNeeds},
};
use gguf::{BlockFormat, GgufFile};
use harness::{
    families::shapes,
    family_model::FamilyModel,
    programs::{Cluster, folder_with},
    ranks::{Run, run},
    tiny_model::{Architecture, Experts, TinyModel},
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
        let has_experts = model.keys.iter().any(|(name, _)| *name == "expert_count");
        has_experts && model.block_count() <= 8
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
            let some = 3 * needs(&file).slot as usize;
            // One slot, some, and more than there are experts; a prompt in chunks, then single tokens.
            for (bytes, threads) in [(1, 1), (some, 2), (1 << 30, 1)] {
                let how =
                    Run { stages, threads, expert_memory: Some(bytes), chunks: vec![9, 6, 1], ..Run::exact(world) };
                let found = run(&file, &tokens, &how).logits;
                let bits = |rows: &[Vec<f32>]| rows.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert!(bits(&found) == bits(&whole), "{name} on pp{stages}-tp{world} with {bytes} bytes for experts");
            }
        }
    }
}

/// What a rank alone needs.
fn needs(file: &GgufFile) -> ExpertNeeds {
    let spec = models::read(file).expect("the model is valid");
    let plan = cut(&spec, &[1]).expect("one rank holds all").swap_remove(0);
    let kernels = Kernels::choose(None).expect("this machine has a kernel table");
    ExpertNeeds::of(file, &spec, &plan, kernels).expect("every tensor is there").expect("it has experts")
}

/// A model in a file with the experts on the disk, and room for some of them.
fn load(path: &Path, state: &Path) -> Model {
    let file = Arc::new(GgufFile::open(path).expect("the model is valid"));
    let spec = models::read(&file).expect("the model is valid");
    let plan = cut(&spec, &[1]).expect("one rank holds all").swap_remove(0);
    let kernels = Kernels::choose(None).expect("this machine has a kernel table");
    let needs = needs(&file);
    let content = Contents::new(state).of(&file, &mut |_, _| true).expect("the model can be read");
    let source = Source {
        file: &file,
        spec: &spec,
        plan: &plan,
        kernels,
        cache: Some(Cached { cache: None, content: &content }),
        expert_memory: Some(needs.slot as usize * needs.count / 2),
        is_hollow: false,
        progress: &|_| true,
    };
    let shard = Shard::load(source).expect("the shard can be loaded");
    let [slots, experts] = shard.experts.as_ref().expect("they stay on the disk").counts();
    assert!(0 < slots && slots < experts, "{slots} of {experts}");
    let cache = KvCache::new(KvFormat::F32, &spec, &plan, KvBlocks::alike(4)).expect("enough memory");
    let states = StateCache::new(&spec, &plan, StateCount::of(1)).expect("enough memory");
    let pool = Pool::new(PoolOptions { threads: 1, cores: Vec::new(), spin: false });
    let compute = Compute::new(kernels, pool.expect("threads can be started"));
    Model::new(shard, cache, compute, spec.context_length).with_states(states)
}

fn step(model: &mut Model, position: u32) -> Result<(), String> {
    let token =
        BatchToken { slot: Slot(0), position, token: 3 + position % 290, wants_logits: true, is_speculative: false };
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

/// A model with large experts in F32, each of three matrices `[256, length]`.
fn large(experts: Experts, length: usize) -> TinyModel {
    let mut model = TinyModel { experts, ..TinyModel::new(Architecture::Qwen3Moe) };
    (model.head_count, model.head_count_kv, model.head_length) = (8, 2, 32);
    (model.embedding_length, model.feed_forward_length) = (256, length);
    model
}

/// Two experts a layer, of three matrices of 2 MiB: each is read in two pieces.
fn of_two_pieces() -> Vec<u8> {
    large(Experts { count: 2, used_count: 1 }, 2048).bytes()
}

#[test]
fn every_piece_read_from_the_file_is_progress() {
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let path = folder.path().join("large.gguf");
    fs::write(&path, of_two_pieces()).expect("it is written");
    let mut model = load(&path, &folder.path().join("state"));
    let abort = Abort::new().expect("a file descriptor is free");
    model.report_to(abort.work());
    for position in 0..8 {
        let before = abort.progress();
        let [_, read_before] = model.shard().experts.as_ref().expect("they stay on the disk").uses();
        step(&mut model, position).expect("the file is whole");
        let [_, read] = model.shard().experts.as_ref().expect("they stay on the disk").uses();
        let (experts, row) = (read - read_before, 1);
        assert_eq!(abort.progress() - before, 3 * 2 * experts + row, "{experts} experts at {position}");
    }
}

#[test]
fn experts_read_in_pieces_give_the_same_bits() {
    let file = Arc::new(GgufFile::from_bytes(vec![of_two_pieces()]).expect("a whole model"));
    let tokens = tokens(6);
    for world in [1, 2] {
        let whole = run(&file, &tokens, &Run::exact(world)).logits;
        let pieces = run(&file, &tokens, &Run { expert_memory: Some(1), ..Run::exact(world) }).logits;
        assert!(pieces == whole && whole.iter().flatten().all(|logit| logit.is_finite()), "on {world} ranks");
    }
}

#[test]
fn node_without_memory_offers_the_disk_and_answers_the_same_with_it() {
    // 38 MB of experts, of 2.4 MB each.
    let model = large(Experts { count: 8, used_count: 2 }, 768);
    let folder = folder_with(&[("large.gguf", &model.bytes())]);
    let limit = "memory_max_mib = 50\npacked_shards = false\n";
    let run = ["--model", "large.gguf", "--prompt", "x", "--max-tokens", "12", "--temperature", "0", "--context", "64"];
    let offered = Cluster::with(1, folder.path(), limit).generate(1, &run);
    offered.assert_error(
        4,
        "memory_short",
        &["node pi1", "is free; with its experts on its disk it would decode about", "tokens/s"],
    );
    let allowed = Cluster::with(1, folder.path(), &format!("{limit}experts_on_disk = true\n"));
    let found = allowed.generate(1, &run).completion();
    let expected = Cluster::with(1, folder.path(), "packed_shards = false\n").generate(1, &run).completion();
    assert_eq!(found["token_ids"], expected["token_ids"]);
    assert_eq!(found["token_ids"].as_array().map(Vec::len), Some(12));
}
