//! Incomplete or mismatched splits of GGUF files are refused by name.

use gguf::{BlockFormat, GgufFile};
use harness::gguf_writer::{GgufWriter, Value};

use crate::gguf_hostile::{llama, one_tensor, open_bytes, said};

#[test]
fn splits_that_do_not_belong_together_are_refused() {
    let splits = llama().finish_splits(3);
    let refused = |parts: Vec<&Vec<u8>>, words: &[&str]| {
        said(open_bytes(parts.into_iter().cloned().collect()).map(drop), words);
    };
    let [a, b, c] = &splits[..] else { panic!("three splits") };
    refused(vec![a, b], &["split.count is 3", "expected 2"]);
    refused(vec![a, c, b], &["split.no is 2", "expected 1"]);
    refused(vec![a, a, c], &["split.no is 0", "expected 1"]);
    refused(vec![a, b, b], &["split.no is 1", "expected 2"]);
    let other = GgufWriter::new(3).finish_splits(3);
    refused(vec![a, b, &other[2]], &["split.tensors.count"]);
    let twice = one_tensor().tensor("t", &[4, 2], BlockFormat::F32, vec![0; 32]).finish_splits(2);
    refused(twice.iter().collect(), &["tensor t appears twice"]);
    let many = GgufWriter::new(3).value("split.count", Value::U16(2000)).finish();
    refused(vec![&many], &["split.count", "2000", "1024"]);
    let beyond = GgufWriter::new(3).value("split.no", Value::U16(1)).finish();
    refused(vec![&beyond], &["split.no", "at most 0"]);
    refused(vec![], &["empty"]);
}

#[test]
fn splits_on_disk_that_are_missing_or_misnamed_are_refused() {
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let path = |name: &str| folder.path().join(name);
    let splits = llama().finish_splits(3);
    for (part, bytes) in splits.iter().enumerate() {
        std::fs::write(path(&format!("m-0000{}-of-00003.gguf", part + 1)), bytes).unwrap();
    }
    let open = |name: &str| GgufFile::open(&path(name)).map(drop);
    open("m-00001-of-00003.gguf").expect("all parts are there");
    said(open("m-00002-of-00003.gguf"), &["part 2 of", "3 parts", "m-00001-of-00003.gguf"]);
    std::fs::copy(path("m-00003-of-00003.gguf"), path("other.gguf")).unwrap();
    said(open("other.gguf"), &["other.gguf", "part 3", "open the first"]);
    std::fs::copy(path("m-00001-of-00003.gguf"), path("m.gguf")).unwrap();
    said(open("m.gguf"), &["m.gguf", "3 parts", "NAME-00001-of-00003.gguf"]);
    std::fs::write(path("m-00003-of-00003.gguf"), &splits[2][..100]).unwrap();
    said(open("m-00001-of-00003.gguf"), &["m-00003-of-00003.gguf", "truncated"]);
    std::fs::remove_file(path("m-00002-of-00003.gguf")).unwrap();
    said(open("m-00001-of-00003.gguf"), &["part 2 of 3 is missing", "m-00002-of-00003.gguf"]);
}
