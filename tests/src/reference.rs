//! Reference outputs: compares the logits of a file on n ranks with the exact ones, within the bounds of its format.
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use gguf::GgufFile;
use serde_json::Value;
use tokenizer::Tokenizer;

use crate::ranks::{Run, max_error, rms_error, run};

/// Unquantised files: largest error relative to the largest logit.
const MAX_ERROR: f64 = 1e-3;
/// Quantised files: rms error as a multiple of llama.cpp's error on the same file and prompt.
const RMS_RATIO: f64 = 1.25;

/// The result for one prompt.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Index of the prompt.
    pub prompt: usize,
    /// World size.
    pub world: usize,
    /// Largest error relative to the largest logit.
    pub max_error: f64,
    /// rms error relative to the rms of the logits, as a multiple of llama.cpp's; `None` for unquantised files.
    pub rms_ratio: Option<f64>,
    /// Whether the bound of the format is met.
    pub holds: bool,
    /// Number of greedy ids that were compared with the reference; all are equal.
    pub greedy_ids: usize,
}

/// Checks one model (`model` is its file, `json` its references) on each world size.
///
/// # Panics
/// If a file cannot be read, or the prompt's ids or a greedy id differ.
pub fn check(model: &Path, json: &Path, worlds: &[usize], kernels: Option<&'static str>) -> Vec<Finding> {
    let file = Arc::new(GgufFile::open(model).expect("the model can be opened"));
    let tokenizer = Tokenizer::from_metadata(file.metadata()).expect("the model has a tokenizer");
    let text = fs::read_to_string(json).expect("the references can be read");
    let prompts: Value = serde_json::from_str(&text).expect("the references are JSON");
    let mut findings = Vec::new();
    for (number, prompt) in prompts.as_array().expect("a list of prompts").iter().enumerate() {
        let ids = |field: &str| -> Vec<u32> {
            let list = prompt[field].as_array().expect("a list of ids");
            list.iter().map(|id| id.as_u64().expect("an id") as u32).collect()
        };
        let (tokens, greedy) = (ids("prompt_token_ids"), ids("greedy_token_ids"));
        let text = prompt["prompt"].as_str().expect("a prompt");
        assert_eq!(tokenizer.encode(text, true, true), tokens, "{text:?}");
        let exact = logits(&json.with_file_name(prompt["logits_file"].as_str().expect("a file")), tokens.len());
        let theirs = prompt["llama_cpp_rms_error_relative"].as_f64().filter(|error| *error > 1e-5);
        let sequence: Vec<u32> = tokens.iter().chain(&greedy).copied().collect();
        for world in worlds {
            let found = run(&file, &sequence, &Run { kernels, ..Run::exact(*world) }).logits;
            let greedy_ids = greedy_ids(&found[tokens.len() - 1..], &greedy);
            let found = &found[..tokens.len()];
            let (max_error, rms) = (max_error(found, &exact), rms_error(found, &exact));
            let rms_ratio = theirs.map(|theirs| rms / theirs);
            let holds = rms_ratio.map_or(max_error <= MAX_ERROR, |ratio| ratio <= RMS_RATIO);
            findings.push(Finding { prompt: number, world: *world, max_error, rms_ratio, holds, greedy_ids });
        }
    }
    findings
}

/// Asserts that the best id of each row is the reference's; returns the number of rows.
fn greedy_ids(rows: &[Vec<f32>], expected: &[u32]) -> usize {
    for (row, id) in rows.iter().zip(expected) {
        let best = row.iter().enumerate().fold(0, |best, (index, logit)| if *logit > row[best] { index } else { best });
        assert_eq!(best as u32, *id, "greedy id");
    }
    expected.len()
}

fn logits(path: &Path, tokens: usize) -> Vec<Vec<f32>> {
    let bytes = fs::read(path).expect("the logits can be read");
    let all: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    all.chunks(all.len() / tokens).map(<[f32]>::to_vec).collect()
}

/// The models of a folder that have references next to them: (name, file, references).
///
/// # Panics
/// If the folder cannot be read.
pub fn models(folder: &Path) -> Vec<(String, PathBuf, PathBuf)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("the folder can be read").flatten() {
        let json = entry.path();
        let model = json.with_extension("gguf");
        if json.extension().is_some_and(|kind| kind == "json") && model.is_file() {
            let name = json.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            found.push((name, model, json));
        }
    }
    found.sort();
    found
}
