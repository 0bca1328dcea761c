//! Vocabularies from the metadata of GGUF files, and texts and ids in them: encode, decode, stream.
//! An input is a header, then `\0TEXT\0` and a text; without a header, a real vocabulary encodes the text.
#![no_main]
use std::{cell::OnceCell, io::Read, path::Path};

use bramble_fuzz::{
    gguf_file::{self, PADDING_MAX, padded},
    memory::bounded,
};
use gguf::GgufFile;
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use tokenizer::Tokenizer;

/// Between header and text.
const TEXT: &[u8] = b"\0TEXT\0";
/// Stored vocabularies; byte 0 of an input without a header chooses one.
const STORED: [&str; 3] = ["ggml-vocab-llama-bpe", "ggml-vocab-llama-spm", "ggml-vocab-qwen2"];

thread_local! {
    static LOADED: [OnceCell<Tokenizer>; 3] = const { [const { OnceCell::new() }; 3] };
}

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let end = data[..size].windows(TEXT.len()).position(|part| part == TEXT);
    match end.filter(|_| data.starts_with(b"GGUF") && seed % 3 != 0) {
        // The header grows or shrinks in front of the text.
        Some(end) => {
            let behind = data[end..size].to_vec();
            let mut header = data[..end].to_vec();
            let most = max_size.saturating_sub(behind.len());
            header.resize(most.max(end), 0);
            let length = gguf_file::mutate(&mut header, end, most.max(end), seed, fuzzer_mutate);
            let length = length.min(most);
            data[..length].copy_from_slice(&header[..length]);
            data[length..length + behind.len()].copy_from_slice(&behind);
            length + behind.len()
        }
        None => fuzzer_mutate(data, size, max_size),
    }
});

fn stored(name: &str) -> Tokenizer {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/vocab");
    let packed = std::fs::read(folder.join(format!("{name}.gguf.gz"))).expect("the repository has it");
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(packed.as_slice()).read_to_end(&mut bytes).expect("it is gzip");
    let file = GgufFile::from_bytes(vec![bytes]).expect("it is GGUF");
    Tokenizer::from_metadata(file.metadata()).expect("it has a tokenizer")
}

/// Encodes a text, and decodes it at once and as a stream.
fn round_trip(tokenizer: &Tokenizer, text: &str, is_whole: bool) {
    for special in [false, true] {
        // A word of one byte for each token: a symbol (40 bytes), a pair (32) and an id (4), each in a list that has
        // just doubled.
        let room = 160 * text.len() + (1 << 16);
        let ids = bounded(room, || tokenizer.encode(text, true, special));
        assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocabulary_length()), "an id is in the vocabulary");
        let (mut stream, mut streamed) = (tokenizer.stream(), String::new());
        for id in &ids {
            stream.push(tokenizer, *id, special, &mut streamed);
        }
        streamed.push_str(&stream.finish());
        let decoded = tokenizer.decode(&ids, special);
        assert!(streamed.ends_with(&decoded), "{streamed:?} ends with {decoded:?}");
        if is_whole && !special {
            assert_eq!(decoded, text, "a real vocabulary keeps every text");
        }
    }
}

fuzz_target!(init: {
    // Takes seconds, which count for no input here.
    LOADED.with(|loaded| {
        for (place, name) in loaded.iter().zip(STORED) {
            place.get_or_init(|| stored(name));
        }
    });
}, |data: &[u8]| {
    if !data.starts_with(b"GGUF") {
        let Some((which, text)) = data.split_first() else { return };
        let which = usize::from(*which) % STORED.len();
        let text = String::from_utf8_lossy(text);
        LOADED.with(|loaded| {
            round_trip(loaded[which].get().expect("they are loaded"), &text, which != 1);
        });
        return;
    }
    let end = data.windows(TEXT.len()).position(|part| part == TEXT);
    let (header, text) = end.map_or((data, &[][..]), |end| (&data[..end], &data[end + TEXT.len()..]));
    let Ok(file) = GgufFile::from_bytes(vec![padded(header, &mut { PADDING_MAX })]) else { return };
    let metadata = file.metadata();
    let Ok(tokenizer) = bounded(64 * data.len() + (1 << 20), || Tokenizer::from_metadata(metadata)) else { return };
    round_trip(&tokenizer, &String::from_utf8_lossy(text), false);
    let ids: Vec<u32> = text.chunks(2).map(|two| two.iter().fold(0, |id, byte| id << 8 | u32::from(*byte))).collect();
    let _ = (tokenizer.decode(&ids, true), tokenizer.decode(&ids, false));
    for id in ids.iter().chain([&u32::MAX]) {
        let _ = (tokenizer.is_end(*id), tokenizer.piece(*id, true), tokenizer.text_end());
    }
    let _ = tokenizer.control_token(&String::from_utf8_lossy(text));
    if let Ok(Some(template)) = tokenizer::template::ChatTemplate::from_metadata(metadata, &tokenizer) {
        let _ = template.begins_with_bos("<s>");
    }
});
