//! temp
use std::{fs, path::PathBuf, sync::Arc};
use harness::ranks::{Run, max_error, rms_error, run};
use shared::gguf::GgufFile;
fn main() {
    let dir = PathBuf::from(std::env::args().nth(1).unwrap());
    let worlds: Vec<usize> = std::env::args().nth(2).unwrap().split(',').map(|w| w.parse().unwrap()).collect();
    let mut names: Vec<_> = fs::read_dir(&dir).unwrap().flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "json")).collect();
    names.sort();
    for json in names {
        let text = fs::read_to_string(&json).unwrap();
        let prompts: serde_json::Value = serde_json::from_str(&text).unwrap();
        let file = Arc::new(GgufFile::open(&json.with_extension("gguf")).unwrap());
        for world in &worlds {
            let mut line = String::new();
            for p in prompts.as_array().unwrap() {
                let ids: Vec<u32> = p["prompt_token_ids"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();
                let bytes = fs::read(dir.join(p["logits_file"].as_str().unwrap())).unwrap();
                let all: Vec<f32> = bytes.chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect();
                let exact: Vec<Vec<f32>> = all.chunks(all.len() / ids.len()).map(<[f32]>::to_vec).collect();
                let out = run(&file, &ids, &Run::exact(*world));
                let theirs = p["llama_cpp_rms_error_relative"].as_f64().unwrap();
                let (m, r) = (max_error(&out.logits, &exact), rms_error(&out.logits, &exact));
                line += &format!(" {m:.1e}/{:.2}", r / theirs);
            }
            println!("{} tp{world}:{line}", json.file_stem().unwrap().display());
        }
    }
}
