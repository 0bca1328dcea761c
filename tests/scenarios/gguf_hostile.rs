//! Every kind of defect in a GGUF file is refused with an error that names the defect.

use std::path::Path;

use gguf::{BlockFormat, GgufError, GgufFile};
use harness::gguf_writer::{GgufWriter, Value};
use harness::tiny_model::Architecture;
use harness::tiny_model::TinyModel;
use models::ModelSpec;

pub(crate) fn open_bytes(splits: Vec<Vec<u8>>) -> Result<ModelSpec, GgufError> {
    models::read(&GgufFile::from_bytes(splits)?)
}

/// Asserts that the bytes are refused with a message that contains all of `words`.
#[track_caller]
fn refused(bytes: Vec<u8>, words: &[&str]) {
    said(open_bytes(vec![bytes]).map(drop), words);
}

#[track_caller]
pub(crate) fn said(result: Result<(), GgufError>, words: &[&str]) {
    let message = result.expect_err("it must be refused").to_string();
    for word in words {
        assert!(message.contains(word), "{word:?} is not in {message:?}");
    }
}

pub(crate) fn llama() -> GgufWriter {
    TinyModel::new(Architecture::Llama).writer()
}

/// A valid file with one F32 tensor.
pub(crate) fn one_tensor() -> GgufWriter {
    GgufWriter::new(3).tensor("t", &[4, 2], BlockFormat::F32, vec![0; 32])
}

#[test]
fn non_gguf_file_is_reported_as_what_it_resembles() {
    refused(vec![], &["empty", "download it again"]);
    refused(b"hello\nworld\n".to_vec(), &["a text file"]);
    refused(b"<!DOCTYPE html><html>".to_vec(), &["a web page"]);
    refused(b"version https://git-lfs.github.com/spec/v1\n".to_vec(), &["Git LFS", "git lfs pull"]);
    refused(b"\x40\0\0\0\0\0\0\0{\"__metadata__\":{}}".to_vec(), &["safetensors", "convert"]);
    refused(b"PK\x03\x04\0\0\0\0".to_vec(), &["PyTorch", "convert"]);
    refused(b"tjgg\x03\0\0\0".to_vec(), &["GGML", "convert"]);
    refused(vec![0; 100], &["does not start with GGUF"]);
    refused(b"GG".to_vec(), &["ends at byte 2", "version", "truncated"]);
}

#[test]
fn other_versions_are_refused_by_name() {
    refused(GgufWriter::new(1).finish(), &["version 1", "2 and 3"]);
    refused(GgufWriter::new(0).finish(), &["version 0"]);
    refused(GgufWriter::new(4).finish(), &["version 4"]);
    refused(GgufWriter::new(3u32.swap_bytes()).finish(), &["big-endian"]);
}

#[test]
fn unopenable_file_is_named() {
    let open = |path: &Path| GgufFile::open(path).map(drop);
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let path = |name: &str| folder.path().join(name);
    said(open(folder.path()), &["not a regular file", folder.path().to_str().unwrap()]);
    said(open(&path("absent.gguf")), &["cannot open", "absent.gguf", "check the path"]);
    std::fs::write(path("empty.gguf"), b"").unwrap();
    said(open(&path("empty.gguf")), &["empty.gguf", "empty", "download"]);
    std::fs::write(path("short.gguf"), &one_tensor().finish()[..50]).unwrap();
    said(open(&path("short.gguf")), &["short.gguf", "ends at byte 50", "truncated"]);
    std::os::unix::net::UnixListener::bind(path("socket.gguf")).unwrap();
    said(open(&path("socket.gguf")), &["not a regular file"]);
}

#[test]
fn counts_beyond_the_file_are_refused() {
    let with_counts = |tensors: u64, metadata: u64| {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(tensors.to_le_bytes());
        bytes.extend(metadata.to_le_bytes());
        bytes
    };
    refused(with_counts(u64::MAX, 0), &["number of tensors", "18446744073709551615"]);
    refused(with_counts(0, 1 << 63), &["number of metadata entries"]);
    refused(with_counts(1, 0), &["name of a tensor", "ends at byte 24"]);
    refused(with_counts(0, 1), &["metadata key", "ends at byte 24"]);
    let mut long_key = with_counts(0, 1);
    long_key.extend(u64::MAX.to_le_bytes());
    refused(long_key, &["a metadata key is 18446744073709551615"]);
}

#[test]
fn damaged_metadata_are_refused_with_their_key() {
    let file = |value| GgufWriter::new(3).value("the.key", value).finish();
    let array = |kind, values| Value::Array(kind, values);
    refused(file(array(13, vec![])), &["the.key", "type 13"]);
    let mut deep = Value::Array(0, vec![]);
    for _ in 0..4 {
        deep = array(9, vec![deep]);
    }
    refused(file(deep), &["depth of nested arrays is 5"]);
    let twice = GgufWriter::new(3).u32("b", 1).u32("a", 1).u32("b", 2);
    refused(twice.finish(), &["key b appears twice"]);
    refused(GgufWriter::new(3).u32("", 1).finish(), &["metadata key", "UTF-8"]);

    let mut type_13 = GgufWriter::new(3).u32("k", 1).finish();
    type_13[24 + 9] = 13;
    refused(type_13, &["key k", "type 13"]);
    let mut not_utf8 = GgufWriter::new(3).u32("k", 1).finish();
    not_utf8[24 + 8] = 0xff;
    refused(not_utf8, &["metadata key at byte 24", "UTF-8"]);
    let mut flag = GgufWriter::new(3).flag("k", true).finish();
    *flag.last_mut().unwrap() = 2;
    refused(flag, &["key k", "flag"]);
    // A list of 2^61 u64 has 2^64 bytes, which an unchecked multiplication turns into 0.
    let mut long = GgufWriter::new(3).value("k", array(10, vec![])).finish();
    let at = long.len() - 8;
    long[at..].copy_from_slice(&(1u64 << 61).to_le_bytes());
    refused(long, &["metadata array", "2305843009213693952"]);
    let text = llama().replace("general.architecture", Value::Text(vec![0xff]));
    refused(text.finish(), &["general.architecture", "UTF-8"]);
}

#[test]
fn invalid_alignment_is_refused() {
    for alignment in [0, 1, 4, 24, 1 << 21, u32::MAX] {
        let bytes = one_tensor().u32("general.alignment", alignment).finish();
        refused(bytes, &["general.alignment", &alignment.to_string(), "a power of two"]);
    }
    refused(one_tensor().text("general.alignment", "32").finish(), &["general.alignment is a text"]);
}

#[test]
fn damaged_tensors_are_refused_with_their_name() {
    let file = |dimensions: &[u64], kind| {
        GgufWriter::new(3).tensor_of_type("the.tensor", dimensions, kind, vec![0; 64]).finish()
    };
    for (kind, name) in
        [(9, "Q8_1"), (19, "IQ1_S"), (40, "NVFP4"), (138, "IQ3_K, of ik_llama.cpp only"), (1000, "unknown")]
    {
        refused(file(&[256], kind), &["the.tensor", &kind.to_string(), name, "Q8_0"]);
    }
    refused(file(&[48], 8), &["the.tensor", "rows of 48", "Q8_0"]);
    refused(file(&[128, 2], 12), &["the.tensor", "rows of 128", "Q4_K"]);
    refused(file(&[], 0), &["the.tensor", "no dimension"]);
    refused(file(&[1; 5], 0), &["the.tensor", "more than 4 dimensions"]);
    refused(file(&[4, 0], 0), &["the.tensor", "dimension of 0"]);
    refused(file(&[1 << 32, 1 << 32], 0), &["the.tensor", "too large"]);
    refused(file(&[1 << 62], 0), &["the.tensor", "too large"]);
    refused(file(&[1 << 61], 0), &["the.tensor", "needs 9223372036854775808 bytes"]);
    refused(file(&[17], 0), &["the.tensor", "needs 68 bytes", "truncated"]);
    let twice = one_tensor().tensor("t", &[1], BlockFormat::F32, vec![0; 4]);
    refused(twice.finish(), &["tensor t appears twice"]);
    let long = "n".repeat(65);
    refused(GgufWriter::new(3).tensor(&long, &[1], BlockFormat::F32, vec![0; 4]).finish(), &["name of a tensor is 65"]);
    refused(one_tensor().at_offset(8).finish(), &["tensor t", "offset 8", "alignment 32"]);
    refused(one_tensor().at_offset(32).finish(), &["tensor t", "needs 32 bytes", "truncated"]);
    let many = (0..3).fold(one_tensor(), |file, number| {
        file.tensor(&format!("u{number}"), &[4, 2], BlockFormat::F32, vec![]).at_offset(0)
    });
    refused(many.finish(), &["tensor u0 overlaps others", "damaged"]);
    for offset in [1 << 63, u64::MAX - 31] {
        refused(one_tensor().at_offset(offset).finish(), &["tensor t", "needs 32 bytes"]);
    }
}

#[test]
fn bytes_after_the_last_tensor_are_allowed() -> Result<(), GgufError> {
    let mut bytes = llama().finish();
    bytes.extend([0xaa; 1000]);
    open_bytes(vec![bytes]).map(drop)
}

#[test]
fn model_without_a_required_key_is_refused_with_it() {
    for key in [
        "general.architecture",
        "llama.block_count",
        "llama.context_length",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
    ] {
        refused(llama().without(key).finish(), &[key, "is missing"]);
    }
}

#[test]
fn invalid_hyper_parameter_is_refused_with_its_key_and_value() {
    let number = |key: &str, value: u32, words: &[&str]| {
        let key = format!("llama.{key}");
        let shown = value.to_string();
        let words = [&[key.as_str(), &shown], words].concat();
        refused(llama().replace(&key, Value::U32(value)).finish(), &words);
    };
    for key in ["block_count", "context_length", "embedding_length", "feed_forward_length"] {
        number(key, 0, &["it must be 1 to"]);
        number(key, u32::MAX, &["it must be 1 to"]);
    }
    for value in [0, 1025] {
        number("attention.head_count", value, &["it must be 1 to 1024"]);
        number("attention.head_count_kv", value, &["it must be 1 to 1024"]);
    }
    number("attention.head_count_kv", 3, &["does not divide the 4 heads"]);
    number("attention.key_length", 31, &["even length"]);
    number("attention.value_length", 64, &["as long as their keys (32)"]);
    number("rope.dimension_count", 34, &["at most the head length 32"]);
    number("rope.dimension_count", 31, &["even"]);
    let no_length = llama().without("llama.attention.key_length");
    let three_heads =
        no_length.replace("llama.attention.head_count", Value::U32(3)).without("llama.attention.head_count_kv");
    refused(three_heads.finish(), &["llama.attention.head_count", "does not divide embedding_length 128"]);
    let list = llama().replace("llama.attention.head_count_kv", Value::Array(5, vec![Value::I32(2); 2]));
    refused(list.finish(), &["llama.attention.head_count_kv is an array", "an integer"]);
    for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        for key in ["llama.rope.freq_base", "llama.attention.layer_norm_rms_epsilon"] {
            refused(llama().replace(key, Value::F32(value)).finish(), &[key, "above 0"]);
        }
    }
}

#[test]
fn unsupported_features_are_refused_by_name() {
    let other = llama().replace("general.architecture", Value::Text(b"mamba".into()));
    refused(other.finish(), &["mamba", "supported are", "gpt-oss, granite", "and smollm3"]);
    let dense = TinyModel::new(Architecture::Qwen2).writer().u32("qwen2.expert_count", 8);
    refused(dense.finish(), &["qwen2.expert_count", "mixture of experts"]);
    let scaled = llama().text("llama.rope.scaling.type", "other");
    refused(scaled.finish(), &["llama.rope.scaling.type", "other", "not supported"]);
    let long = llama().text("llama.rope.scaling.type", "longrope");
    refused(long.finish(), &["llama.rope.scaling.original_context_length", "missing"]);
    let yarn = llama().text("llama.rope.scaling.type", "yarn");
    refused(yarn.finish(), &["llama.rope.scaling.factor", "missing"]);
    let experts = llama().u32("llama.expert_count", 8);
    refused(experts.finish(), &["llama.expert_used_count", "missing"]);
    let linear = llama().text("llama.rope.scaling.type", "linear");
    refused(linear.finish(), &["llama.rope.scaling.factor", "missing"]);
    let adapter = llama().replace("general.type", Value::Text(b"adapter".into()));
    refused(adapter.finish(), &["general.type", "adapter"]);
    let bias = vec![0; 512];
    let more = llama().tensor("blk.0.attn_sinks.weight", &[4], BlockFormat::F32, vec![0; 16]);
    refused(more.finish(), &["blk.0.attn_sinks.weight", "not part of the llama architecture"]);
    let behind = llama().tensor("blk.2.nextn.eh_proj.weight", &[128], BlockFormat::F32, bias.clone());
    open_bytes(vec![behind.finish()]).expect("blocks that predict further tokens are not used");
    for name in ["blk.2.attn_q.weight", "blk.00.attn_q.weight", "blk.0.attn_q", "other"] {
        let more = llama().tensor(name, &[128], BlockFormat::F32, bias.clone());
        refused(more.finish(), &[name, "not part of"]);
    }
    let mut hidden = "evil\x1b[2J".to_owned();
    hidden.push_str(&"x".repeat(10_000));
    let named = llama().replace("general.architecture", Value::Text(hidden.into()));
    let message = open_bytes(vec![named.finish()]).expect_err("no such architecture").to_string();
    assert!(!message.contains('\x1b') && message.len() < 700, "{message:?}");
}

#[test]
fn inconsistent_mixture_of_experts_is_refused_by_name() {
    let moe = || TinyModel::new(Architecture::Qwen3Moe).writer();
    for key in ["expert_count", "expert_used_count", "expert_feed_forward_length"] {
        let key = format!("qwen3moe.{key}");
        refused(moe().without(&key).finish(), &[&key, "is missing"]);
        for value in [0, u32::MAX] {
            refused(moe().replace(&key, Value::U32(value)).finish(), &[&key, "it must be 1 to"]);
        }
    }
    let used = "qwen3moe.expert_used_count";
    refused(moe().replace(used, Value::U32(9)).finish(), &[used, "is 9", "8 experts"]);
    refused(moe().replace(used, Value::F32(2.0)).finish(), &[used, "an integer"]);
    // Among the experts' tensors, the router is the first that does not fit.
    let router = "blk.0.ffn_gate_inp.weight";
    refused(moe().replace("qwen3moe.expert_count", Value::U32(7)).finish(), &[router, "[128, 8]", "[128, 7]"]);
    let narrow = moe().replace("qwen3moe.expert_feed_forward_length", Value::U32(128));
    refused(narrow.finish(), &["blk.0.ffn_gate_exps.weight", "[128, 256, 8]", "[128, 128, 8]"]);
    let half = moe().without_tensor(router).tensor(router, &[128, 8], BlockFormat::F16, vec![0; 2048]);
    refused(half.finish(), &[router, "is F16", "must be F32"]);
    let dense = moe().tensor("blk.0.ffn_up.weight", &[128, 256], BlockFormat::F32, vec![0; 131_072]);
    refused(dense.finish(), &["blk.0.ffn_up.weight", "not part of the qwen3moe architecture"]);
    let shared = moe().tensor("blk.0.ffn_up_shexp.weight", &[128], BlockFormat::F32, vec![0; 512]);
    refused(shared.finish(), &["blk.0.ffn_up_shexp.weight", "not part of the qwen3moe architecture"]);
    let other = moe().u32("qwen3moe.expert_gating_func", 4);
    refused(other.finish(), &["qwen3moe.expert_gating_func", "softmax and sigmoid"]);
    let scaled = moe().f32("qwen3moe.expert_weights_scale", -2.5);
    refused(scaled.finish(), &["qwen3moe.expert_weights_scale", "-2.5", "above 0"]);
    let grouped = moe().u32("qwen3moe.expert_group_count", 3);
    refused(grouped.finish(), &["qwen3moe.expert_group_count", "does not divide 8 experts"]);
    let grouped = || moe().u32("qwen3moe.expert_group_count", 4);
    refused(grouped().finish(), &["qwen3moe.expert_group_used_count", "missing"]);
    let used = grouped().u32("qwen3moe.expert_group_used_count", 5);
    refused(used.finish(), &["qwen3moe.expert_group_used_count", "4 groups"]);
    let usual = moe().u32("qwen3moe.expert_gating_func", 1).f32("qwen3moe.expert_weights_scale", 1.0);
    open_bytes(vec![usual.finish()]).expect("softmax without a scale is supported");
    let experts = llama().tensor("blk.0.ffn_gate_inp.weight", &[128, 8], BlockFormat::F32, vec![0; 4096]);
    refused(experts.finish(), &["blk.0.ffn_gate_inp.weight", "not part of the llama architecture"]);
}

#[test]
fn every_missing_tensor_is_named() {
    for architecture in Architecture::ALL {
        let writer = TinyModel::new(architecture).writer();
        let file = GgufFile::from_bytes(vec![writer.finish()]).expect("a whole model");
        let mut refusals = 0;
        for tensor in file.tensors().filter(|tensor| tensor.name != "output.weight") {
            let without = writer.clone().without_tensor(tensor.name);
            refused(without.finish(), &[tensor.name, "is missing", architecture.name()]);
            refusals += 1;
        }
        assert!(refusals >= 20, "{refusals} tensors in a model of two layers");
    }
    let no_tensor = llama();
    let file = GgufFile::from_bytes(vec![no_tensor.finish()]).expect("a whole model");
    let vocabulary_only = file.tensors().fold(llama(), |writer, tensor| writer.without_tensor(tensor.name));
    refused(vocabulary_only.finish(), &["token_embd.weight is missing"]);
}

#[test]
fn every_tensor_of_another_size_is_named() {
    for architecture in Architecture::ALL {
        let model = TinyModel { rope_factors: true, ..TinyModel::new(architecture) };
        let writer = model.writer();
        let file = GgufFile::from_bytes(vec![writer.finish()]).expect("a whole model");
        for tensor in file.tensors() {
            for (index, length) in tensor.dimensions.iter().enumerate() {
                // The embedding's rows are the vocabulary, which may be longer than the token list.
                if (tensor.name, index) == ("token_embd.weight", 1) {
                    continue;
                }
                let mut dimensions = tensor.dimensions;
                dimensions[index] = length + 32;
                let bytes = vec![0; dimensions.iter().product::<u64>() as usize * 4];
                let other = writer.clone().without_tensor(tensor.name);
                let other = other.tensor(tensor.name, &dimensions, BlockFormat::F32, bytes);
                refused(other.finish(), &[tensor.name, &format!("{}", length + 32)]);
            }
        }
    }
}

#[test]
fn norms_and_tokens_must_fit_the_model() {
    let half = llama().without_tensor("output_norm.weight");
    let half = half.tensor("output_norm.weight", &[128], BlockFormat::F16, vec![0; 256]);
    refused(half.finish(), &["output_norm.weight is F16", "must be F32"]);
    let tokens = vec!["t"; 301];
    let more = llama().without("tokenizer.ggml.tokens").texts("tokenizer.ggml.tokens", &tokens);
    refused(more.finish(), &["tokenizer.ggml.tokens", "301 tokens", "300 rows"]);
    let cubic = llama().without_tensor("output_norm.weight");
    let cubic = cubic.tensor("output_norm.weight", &[128, 1, 1, 2], BlockFormat::F32, vec![0; 1024]);
    refused(cubic.finish(), &["output_norm.weight", "[128, 1, 1, 2]", "[128, 1]"]);
}
