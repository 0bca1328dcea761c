//! GGUF files, one or several splits: header, metadata, tensor table, the spec of the model and its tensors.
#![no_main]
use bramble_fuzz::{
    gguf_file::{self, PADDING_MAX, padded},
    memory::bounded,
};
use gguf::{GgufFile, Metadata};
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

/// Divides an input into splits.
const BETWEEN: &[u8] = b"\0NEXT SPLIT\0";

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    gguf_file::mutate(data, size, max_size, seed, fuzzer_mutate)
});

fn splits(data: &[u8]) -> Vec<Vec<u8>> {
    let (mut rest, mut splits, mut left) = (data, Vec::new(), PADDING_MAX);
    while let Some(at) = rest.windows(BETWEEN.len()).position(|part| part == BETWEEN) {
        splits.push(padded(&rest[..at], &mut left));
        rest = &rest[at + BETWEEN.len()..];
    }
    splits.push(padded(rest, &mut left));
    splits
}

/// Reads every key as every type.
fn read_all(metadata: Metadata<'_>) {
    for key in metadata.keys() {
        let _ = metadata.text(key);
        let _ = metadata.unsigned(key);
        let _ = metadata.float(key);
        let _ = metadata.flag(key);
        let _ = metadata.flags(key);
        let _ = metadata.floats(key);
        let _ = metadata.integers(key);
        let _ = metadata.texts(key).map(|texts| texts.map(Iterator::count));
    }
}

fuzz_target!(|data: &[u8]| {
    // The bytes as they are, which are seldom whole, and then with room for the tensors.
    if let Ok(file) = GgufFile::from_bytes(vec![data.to_vec()]) {
        read_all(file.metadata());
    }
    let splits = splits(data);
    let length = data.len();
    let Ok(file) = bounded(8 * length + (1 << 20), || GgufFile::from_bytes(splits)) else { return };
    bounded(8 * length + (1 << 20), || read_all(file.metadata()));
    let _ = (file.identity(), file.file_bytes());
    for tensor in file.tensors() {
        assert!(file.tensor(tensor.name).is_some(), "a tensor of the table is found by its name");
    }
    for piece in gguf::content::pieces(&file).take(4) {
        let _ = format!("{piece:?}");
    }
    // A layer has a spec of its own: some hundred bytes for each of at most a few thousand layers.
    let Ok(spec) = bounded(8 * length + (64 << 20), || models::read(&file)) else { return };
    assert!(spec.is_sound(), "a spec that was read is sound");
    let _ = (models::read::unused(&file, &spec), models::read::read_predictor(&file, &spec));
    let layers = (0..spec.layers.len()).map(|layer| spec.layer_tensors(layer));
    let tensors = || spec.tensors().into_iter().chain(layers.clone().flatten());
    assert!(layers.clone().all(|layer| !layer.is_empty()), "every layer has tensors");
    let sizes = topology::sizes::ModelSizes::of_file(&file, &spec);
    assert!(sizes.is_sound(), "the sizes of a sound spec are sound");
    for ranks in 1..=4 {
        let Ok(plans) = topology::cut(&spec, &vec![1; ranks]) else { continue };
        for plan in &plans {
            let parts = tensors().map(|tensor| plan.part(&tensor)).count();
            assert!(parts > 0 && topology::StateCount::in_model(&spec, 4).floats(&spec, plan) < u64::MAX / 4);
        }
    }
});
