//! Embeddings over the API: of a model that is made for them against the independent forward pass, and of one that
//! continues texts.
use std::{fs, sync::Arc};

use common::sampling::SamplingParameters;
use gguf::{BlockFormat, GgufFile};
use harness::{
    engines::Replica,
    families::shapes,
    http::{beside, get, post},
    oracle::Oracle,
    programs::{Cluster, wait_until},
    tiny_model::{Architecture, TinyModel},
};
use protocol::message::{Generate, Prompt};
use serde_json::{Value, json};

const MODEL: &str = "embedding.gguf";

fn tokens(seed: u32, count: u32) -> Vec<u32> {
    (0..count).map(|index| 3 + (index * 37 + seed * 31) % 290).collect()
}

/// The cosine of the angle between two vectors of length 1.
fn cosine(one: &[f32], other: &[f32]) -> f64 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

fn vectors(answer: &Value) -> Vec<Vec<f32>> {
    let list = answer["data"].as_array().expect("a list").iter();
    list.map(|one| serde_json::from_value(one["embedding"].clone()).expect("a vector")).collect()
}

#[test]
fn embedding_model_gives_the_vectors_of_the_reference_pass() {
    let (_, model) = shapes().into_iter().find(|(name, _)| name == "gemma-embedding-ordinary").expect("the family");
    let bytes = model.with_format(BlockFormat::F32).bytes();
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join(MODEL), &bytes).expect("the folder has room");
    let file = GgufFile::from_bytes(vec![bytes]).expect("a whole model");
    for (nodes, layout) in [(1, "tp1"), (2, "tp2"), (2, "pp2")] {
        let cluster = Cluster::with(nodes, folder.path(), "");
        // Assigns the model; the completion itself is refused.
        let run = ["--model", MODEL, "--prompt", "ab", "--max-tokens", "1", "--context", "256", "--topology", layout];
        cluster.generate(nodes, &run);
        let address = beside(&cluster.addresses[0]);
        wait_until("it serves", || get(&address, "/health").status == 200);
        let texts = [tokens(1, 20), tokens(2, 1), tokens(3, 64)];
        let answer = post(&address, "/v1/embeddings", &json!({"input": texts, "model": MODEL})).good();
        assert_eq!(answer["usage"]["prompt_tokens"], 85, "{answer}");
        for (found, text) in vectors(&answer).iter().zip(&texts) {
            let expected = Oracle::new(&file).embedding(text).expect("it embeds");
            assert!(cosine(found, &expected) > 0.9999, "{layout}: {found:?}, expected {expected:?}");
        }
        let again = post(&address, "/v1/embeddings", &json!({"input": texts})).good();
        assert_eq!(again["data"], answer["data"], "{layout}: whatever was computed before");
        let short = post(&address, "/v1/embeddings", &json!({"input": texts[0], "dimensions": 4})).good();
        let short = &vectors(&short)[0];
        assert!(short.len() == 4 && (cosine(short, short) - 1.0).abs() < 1e-5, "{short:?}");
        let packed = post(&address, "/v1/embeddings", &json!({"input": texts[1], "encoding_format": "base64"})).good();
        assert!(packed["data"][0]["embedding"].is_string(), "{packed}");
        // As /api/tags lists it.
        let name = format!("{}:latest", MODEL.trim_end_matches(".gguf"));
        let named = post(&address, "/api/embed", &json!({"model": name, "input": ["a", "b"]})).good();
        assert_eq!(named["embeddings"].as_array().map(Vec::len), Some(2), "{named}");
        assert_eq!(named["model"], name, "the client's name");
        let refused = post(&address, "/v1/completions", &json!({"prompt": "a", "max_tokens": 1}));
        refused.assert_error(400, "parameter_invalid", "embeddings");
        let long = post(&address, "/v1/embeddings", &json!({"input": tokens(4, 200)}));
        assert_eq!(long.status, 400, "{}", long.json());
        // Clients of Ollama send texts of any length.
        let [text, longer] = [400, 450].map(|count| "ab ".repeat(count));
        let cut = post(&address, "/api/embed", &json!({"input": [text, longer]})).good();
        assert_eq!(cut["embeddings"][0], cut["embeddings"][1], "{layout}: the same beginning is left");
        assert!(cut["prompt_eval_count"].as_u64().is_some_and(|count| (64..=256).contains(&count)), "{layout}: {cut}");
        let older = post(&address, "/api/embeddings", &json!({"model": name, "prompt": text})).good();
        assert_eq!(older["embedding"], cut["embeddings"][0], "{layout}");
        let refused = post(&address, "/api/embed", &json!({"input": text, "truncate": false}));
        assert_eq!(refused.status, 400, "{}", refused.body);
        let refused = post(&address, "/v1/embeddings", &json!({"input": text}));
        refused.assert_error(400, "context_length_exceeded", "maximum");
    }
}

#[test]
fn embeddings_do_not_depend_on_layout_or_company() {
    let model = TinyModel { context_length: 1024, ..TinyModel::new(Architecture::Llama) };
    let bytes = model.with_format(BlockFormat::F32).bytes();
    let file = Arc::new(GgufFile::from_bytes(vec![bytes]).expect("the model is valid"));
    let request = |prompt: Vec<u32>, embeds: bool| {
        let sampling = SamplingParameters { temperature: 0.0, embeds, ..SamplingParameters::default() };
        Generate::new(Prompt::Tokens(prompt), 20, sampling, Vec::new())
    };
    let mut requests: Vec<Generate> =
        [(1, 300), (2, 5), (1, 300), (3, 1)].map(|(seed, count)| request(tokens(seed, count), true)).into();
    requests.extend((0..3).map(|seed| request(tokens(seed, 40), false)));
    let alone = Replica::of(1).each_alone(&file, &requests);
    for replica in [Replica::of(1), Replica::of(2), Replica::pipeline()] {
        let found = replica.answers(&file, &[requests.clone(), requests.clone()]);
        for (answer, alone) in found.iter().flat_map(|batch| batch.iter().zip(&alone)) {
            assert_eq!(answer.embedding.len(), alone.embedding.len());
            if !alone.embedding.is_empty() {
                let same = cosine(&answer.embedding, &alone.embedding);
                assert!(same > 0.9999 && answer.ids.is_empty(), "{same}");
                assert_eq!(answer.end().times.cached_tokens, 0, "cached positions have no hidden states");
            }
            assert_eq!(answer.ids, alone.ids);
        }
    }
}
