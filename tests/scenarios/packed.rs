//! Packed shards: a second load reads the cache and gives the same weights, and a damaged shard is rebuilt.
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use daemon::store::Contents;
use engine::model::{Cached, PackedCache, Shard, Source};
use gguf::{BlockFormat, GgufFile};
use harness::tiny_model::Architecture;
use harness::tiny_model::TinyModel;
use kernels::Kernels;
use topology::cut;

struct Loaded {
    matrices: Vec<Vec<u8>>,
    norms: Vec<Vec<f32>>,
    told: u64,
    /// Kept alive, because a dropped shard is no longer written.
    shard: Shard,
}

/// Loads one rank's shard.
fn load(model: &Path, state: &Path, world: usize, rank: usize) -> Loaded {
    let file = Arc::new(GgufFile::open(model).expect("the model is valid"));
    let spec = models::read(&file).expect("the model is valid");
    let plan = cut(&spec, &vec![1; world]).expect("the model can be cut").swap_remove(rank);
    let (told, cache) = (AtomicU64::new(0), PackedCache::new(state));
    let kernels = Kernels::choose(None).expect("this machine has a kernel table");
    let content = Contents::new(state).of(&file, &mut |_, _| true).expect("the model can be read");
    let cache = Some(Cached { cache: Some(&cache), content: &content });
    let source = Source {
        file: &file,
        spec: &spec,
        plan: &plan,
        kernels,
        cache,
        expert_memory: None,
        is_hollow: false,
        progress: &|bytes| {
            told.fetch_add(bytes, Ordering::Relaxed);
            true
        },
    };
    let shard = Shard::load(source).expect("the shard can be loaded");
    Loaded {
        matrices: shard
            .layers
            .iter()
            .flat_map(|layer| layer.matrices().map(|(matrix, _)| matrix.view().bytes.to_vec()))
            .chain([shard.output.view().bytes.to_vec()])
            .collect(),
        norms: shard.layers.iter().map(|layer| layer.mixer_norm.clone()).collect(),
        told: told.into_inner(),
        shard,
    }
}

/// Waits until a state folder has `count` packed shards, which are written in the background.
fn shards(state: &Path, count: usize) -> Vec<PathBuf> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let found: Vec<PathBuf> = fs::read_dir(state.join("packed"))
            .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
            .unwrap_or_default();
        let found: Vec<PathBuf> =
            found.into_iter().filter(|path| path.extension().is_some_and(|kind| kind == "shard")).collect();
        if found.len() == count {
            return found;
        }
        assert!(Instant::now() < deadline, "{found:?} instead of {count} packed shards");
        std::thread::yield_now();
    }
}

fn model(folder: &Path) -> PathBuf {
    let path = folder.join("tiny.gguf");
    fs::write(&path, TinyModel::new(Architecture::Llama).with_format(BlockFormat::Q4_0).bytes())
        .expect("it is written");
    path
}

#[test]
fn second_load_reads_the_packed_shard_with_equal_weights() {
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let model = model(folder.path());
    for (world, rank) in [(1, 0), (2, 1)] {
        let state = folder.path().join(format!("state{world}"));
        let first = load(&model, &state, world, rank);
        let [shard] = shards(&state, 1).try_into().expect("one");
        let second = load(&model, &state, world, rank);
        assert_eq!((&first.matrices, &first.norms), (&second.matrices, &second.norms));
        assert!(first.told > 0 && second.told > 0, "progress must be reported");
        let before = fs::metadata(&shard).expect("it is there").len();
        assert!(before >= first.matrices.iter().map(Vec::len).sum::<usize>() as u64);
    }
}

#[test]
fn damaged_packed_shard_is_rebuilt() {
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let (model, state) = (model(folder.path()), folder.path().join("state"));
    let first = load(&model, &state, 2, 0);
    let [shard] = shards(&state, 1).try_into().expect("one");
    let good = fs::read(&shard).expect("it can be read");
    let mut flipped = good.clone();
    *flipped.last_mut().expect("it is not empty") ^= 1;
    let mut other = good.clone();
    other[9] ^= 1;
    for broken in [&good[..good.len() - 1], &flipped, &other, &[]] {
        fs::write(&shard, broken).expect("it is written");
        let again = load(&model, &state, 2, 0);
        assert_eq!(first.matrices, again.matrices);
        // It is removed at once and rebuilt in the background.
        shards(&state, 1);
        let deadline = Instant::now() + Duration::from_secs(30);
        while fs::read(&shard).ok().as_ref() != Some(&good) {
            assert!(Instant::now() < deadline, "the shard was not rebuilt");
            std::thread::yield_now();
        }
    }
}

#[test]
fn other_file_of_the_same_shape_does_not_use_the_packed_shard() {
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let (path, state) = (model(folder.path()), folder.path().join("state"));
    let first = load(&path, &state, 1, 0);
    shards(&state, 1);
    let mut bytes = fs::read(&path).expect("it can be read");
    let modified = fs::metadata(&path).and_then(|file| file.modified()).expect("it is there");
    // The last weights of the file; metadata, tensor table and modification time stay.
    bytes.iter_mut().rev().take(4096).for_each(|byte| *byte ^= 0x11);
    fs::write(&path, bytes).expect("it is written");
    fs::File::options().write(true).open(&path).and_then(|file| file.set_modified(modified)).expect("it is set back");
    let second = load(&path, &state, 1, 0);
    assert!((&first.matrices, &first.norms) != (&second.matrices, &second.norms), "the new weights must be used");
}

#[test]
fn copy_of_the_model_uses_the_same_packed_shard() {
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let (path, state) = (model(folder.path()), folder.path().join("state"));
    let first = load(&path, &state, 1, 0);
    let [shard] = shards(&state, 1).try_into().expect("one");
    let written = fs::metadata(&shard).expect("it is there").created().ok();
    let copy = folder.path().join("copy.gguf");
    fs::copy(&path, &copy).expect("it is copied");
    let second = load(&copy, &state, 1, 0);
    assert_eq!((&first.matrices, &first.norms), (&second.matrices, &second.norms));
    let [again] = shards(&state, 1).try_into().expect("one");
    assert_eq!((&again, fs::metadata(&again).expect("it is there").created().ok()), (&shard, written));
}

#[test]
fn truncated_file_under_a_loaded_shard_is_an_error_not_a_signal() {
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let (path, state) = (model(folder.path()), folder.path().join("state"));
    let mut loaded = load(&path, &state, 1, 0);
    let mut row = vec![0.0; loaded.shard.spec.embedding_length];
    loaded.shard.embed(5, &mut row).expect("the file is whole");
    fs::File::options().write(true).open(&path).expect("it opens").set_len(64).expect("it is cut");
    let error = loaded.shard.embed(5, &mut row).expect_err("the row is gone");
    assert!(error.to_string().contains("row 5 of token_embd.weight"), "{error}");
}

#[test]
fn overwritten_rows_under_a_loaded_shard_are_not_used() {
    use std::os::unix::fs::FileExt;
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let (path, state) = (model(folder.path()), folder.path().join("state"));
    let mut loaded = load(&path, &state, 1, 0);
    let mut row = vec![0.0; loaded.shard.spec.embedding_length];
    loaded.shard.embed(5, &mut row).expect("the file is as it was");
    let file = fs::File::options().read(true).write(true).open(&path).expect("it opens");
    let before = file.metadata().expect("it is there");
    file.write_all_at(&[1], before.len() - 1).expect("it is written");
    file.set_modified(before.modified().expect("it has one")).expect("it is set back");
    let error = loaded.shard.embed(5, &mut row).expect_err("the weights may have changed");
    assert!(error.to_string().contains("changed while in use"), "{error}");
}

#[test]
fn only_the_latest_packed_shards_are_kept() {
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let (model, state) = (model(folder.path()), folder.path().join("state"));
    for (count, rank) in [(1, 0), (2, 1), (3, 2), (3, 3)] {
        let _loaded = load(&model, &state, 4, rank);
        shards(&state, count);
    }
}
