//! A small GGUF file cut at every byte, and 10 000 mutants of it: no panic, and never more memory than 4 times the file
//! size.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::mem::Discriminant;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use gguf::{BlockFormat, GgufError, GgufFile};
use harness::gguf_writer::{GgufWriter, Value};
use harness::random::Random;
use harness::tiny_model::Architecture;
use harness::tiny_model::TinyModel;
use models::ModelSpec;

use crate::peak_of;

/// Memory that does not depend on the file size: paths and names in error messages.
const MESSAGE_MAX: usize = 512;
const MUTANTS: u64 = 10_000;

fn small_file() -> Vec<u8> {
    let model = TinyModel {
        embedding_length: 32,
        feed_forward_length: 32,
        head_count: 2,
        head_count_kv: 1,
        head_length: 16,
        rope_dimension_count: 16,
        block_count: 1,
        rope_factors: true,
        ..TinyModel::new(Architecture::Llama).with_format(BlockFormat::Q4_0)
    };
    model.bytes()
}

/// Opens a file and reads everything except the dequantised weights.
fn read_all(path: &Path) -> Result<ModelSpec, GgufError> {
    let file = GgufFile::open(path)?;
    for tensor in file.tensors() {
        assert_eq!(tensor.byte_length, tensor.rows() * tensor.row_bytes());
        // The first and the last byte must be inside the file.
        let mut ends = [0; 1];
        for at in [tensor.offset, tensor.offset + tensor.byte_length - 1] {
            file.read(tensor.split, at, &mut ends).expect("every byte of a tensor must be in the file");
        }
    }
    let metadata = file.metadata();
    for key in metadata.keys() {
        // Most keys have another type; no read may panic or allocate more than its bytes.
        let _ = metadata.text(key);
        let _ = metadata.unsigned(key);
        let _ = metadata.float(key);
        let _ = metadata.flag(key);
        let _ = metadata.floats(key);
        let _ = metadata.integers(key);
        let bytes: usize = metadata.texts(key).into_iter().flatten().flatten().map(<[u8]>::len).sum();
        assert!(bytes as u64 <= file.file_bytes());
    }
    std::hint::black_box(file.identity());
    models::read(&file)
}

/// Reads a file under the counter; `case` names it in messages.
#[track_caller]
fn check(path: &Path, length: usize, case: &str) -> Result<ModelSpec, GgufError> {
    let (result, peak) =
        catch_unwind(AssertUnwindSafe(|| peak_of(|| read_all(path)))).unwrap_or_else(|_| panic!("{case}: panicked"));
    let most = (4 * length).max(MESSAGE_MAX);
    assert!(peak <= most, "{case}: {peak} bytes at once for a file of {length}");
    result
}

/// The kind of the error, regardless of the file name.
fn kind(error: &GgufError) -> Discriminant<GgufError> {
    match error {
        GgufError::InFile { source, .. } => kind(source),
        other => std::mem::discriminant(other),
    }
}

#[test]
fn truncated_file_is_refused_within_four_times_its_size() {
    let bytes = small_file();
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let path = folder.path().join("cut.gguf");
    std::fs::write(&path, &bytes).expect("write to the folder");
    check(&path, bytes.len(), "the whole file").expect("the complete file is valid");
    let file = OpenOptions::new().write(true).open(&path).expect("it was just written");
    // The last byte belongs to a tensor: the writer pads only between tensors.
    for length in (0..bytes.len()).rev() {
        file.set_len(length as u64).expect("a file can be cut");
        let result = check(&path, length, &format!("cut at byte {length}"));
        assert!(result.is_err(), "a file cut at byte {length} was accepted");
    }
}

/// Damages a file in one to four places.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    // 2^16 is the largest count that the reader accepts.
    const NUMBERS: [u64; 6] = [0, 1, u64::MAX, 1 << 31, (1 << 63) - 1, 1 << 16];
    // The numbers are in the header, which is less than half of the file.
    let header = 9_000.min(bytes.len());
    for _ in 0..=random.below(4) {
        let length = bytes.len();
        let within = if random.below(10) > 0 { header.min(length) } else { length };
        let at = random.below(within.saturating_sub(16).max(1));
        match random.below(6) {
            0 | 1 => bytes[at] ^= 1 << random.below(8),
            2 => {
                let number = NUMBERS[random.below(NUMBERS.len())] as u32;
                bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
            }
            3 => {
                let number = NUMBERS[random.below(NUMBERS.len())];
                bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
            }
            // Splices: a piece copied over another place, inserted twice, or removed.
            4 => {
                let from = random.below(length - 64);
                let piece = bytes[from..from + random.below(64)].to_vec();
                let end = length.min(at + piece.len() * random.below(2));
                bytes.splice(at..end, piece);
            }
            _ => {
                let end = (at + random.below(64)).min(length);
                bytes.drain(at..end);
            }
        }
    }
}

#[test]
fn ten_thousand_mutants_neither_panic_nor_use_much_memory() {
    let original = small_file();
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let path = folder.path().join("mutant.gguf");
    let mut accepted = 0;
    let mut refused: HashMap<Discriminant<GgufError>, u64> = HashMap::new();
    for seed in 0..MUTANTS {
        let mut bytes = original.clone();
        mutate(&mut bytes, &mut Random::new(seed));
        std::fs::write(&path, &bytes).expect("write to the folder");
        match check(&path, bytes.len(), &format!("mutant {seed}")) {
            Ok(_) => accepted += 1,
            Err(error) => *refused.entry(kind(&error)).or_default() += 1,
        }
    }
    println!("{accepted} accepted, {} refused with {} kinds of errors", MUTANTS - accepted, refused.len());
    // Otherwise the mutants would not reach the reader's checks.
    assert!(accepted > 100, "only {accepted} mutants are still valid models");
    assert!(refused.len() >= 15, "mutants are refused with only {} kinds of errors", refused.len());
}

/// Extreme numbers in the places where they matter: counts, lengths and types of lists, dimensions and offsets.
#[test]
fn extreme_header_numbers_cost_no_more_than_the_file() {
    let original = small_file();
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let path = folder.path().join("number.gguf");
    for at in 0..2_000.min(original.len() - 8) {
        for number in [0, u64::MAX, 1 << 16] {
            let mut bytes = original.clone();
            bytes[at..at + 8].copy_from_slice(&u64::to_le_bytes(number));
            std::fs::write(&path, &bytes).expect("write to the folder");
            // Some are valid nevertheless: a name may consist of any letters.
            let _ = check(&path, bytes.len(), &format!("{number} at byte {at}"));
        }
    }
}

/// The index is largest relative to the file if every entry is as short as possible and the tensors have four bytes each.
#[test]
fn shortest_entries_cost_no_more_than_four_times_the_file() {
    let name = |number: usize| String::from_utf8(vec![33 + (number / 90) as u8, 33 + (number % 90) as u8]);
    let names: Vec<String> = (0..5_000).map(|n| name(n).expect("ASCII")).collect();
    let numbers = Value::Array(4, vec![Value::U32(u32::MAX); 10_000]);
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let path = folder.path().join("dense.gguf");
    for (case, writer) in [
        ("flags", names.iter().fold(GgufWriter::new(3), |writer, name| writer.flag(name, true))),
        (
            "tensors",
            names.iter().fold(GgufWriter::new(3), |writer, name| {
                writer.tensor(name, &[1], BlockFormat::F32, vec![]).at_offset(0)
            }),
        ),
        ("numbers", GgufWriter::new(3).value("numbers", numbers)),
    ] {
        let mut bytes = writer.finish();
        // All of them begin at the same offset, but together they have no more bytes than the file.
        bytes.resize(bytes.len() + 4 * names.len() + 64, 0);
        std::fs::write(&path, &bytes).expect("write to the folder");
        let refusal = check(&path, bytes.len(), case).expect_err("the file is not a model");
        assert!(refusal.to_string().contains("general.architecture is missing"), "{case}: {refusal}");
    }
}
