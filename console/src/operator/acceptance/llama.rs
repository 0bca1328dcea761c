//! What llama.cpp is asked, and how its answers are read: by llama-server (`/completion`), or by Python with llama_cpp.
use common::latency::ratio;
use serde_json::{Value, json};

use super::Speeds;

/// Room for prompts and answers in tokens.
pub const CONTEXT: u32 = 2048;

/// Tokens to complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LlamaPrompt {
    /// The prompt.
    pub ids: Vec<u32>,
    /// Tokens of the answer.
    pub answer: u32,
}

/// An answer of llama.cpp.
#[derive(Clone, Debug, PartialEq)]
pub struct LlamaAnswer {
    /// Its tokens.
    pub ids: Vec<u32>,
    /// As llama.cpp measured them.
    pub speeds: Speeds,
}

/// The body of a request to llama-server: greedy, without its cache.
pub fn server_body(prompt: &LlamaPrompt) -> String {
    json!({"prompt": prompt.ids, "n_predict": prompt.answer, "temperature": 0.0, "top_k": 1, "repeat_penalty": 1.0,
        "ignore_eos": true, "cache_prompt": false, "return_tokens": true, "stream": false})
    .to_string()
}

/// The answer of llama-server.
///
/// # Errors
/// It has no tokens: the server is too old, or another program.
pub fn read_server(answer: &Value) -> Result<LlamaAnswer, String> {
    let ids = ids(&answer["tokens"]).filter(|ids| !ids.is_empty());
    let ids = ids.ok_or("its answer has no tokens: use llama-server of December 2024 or later")?;
    let speed = |name: &str| answer["timings"][name].as_f64().filter(|speed| speed.is_finite()).unwrap_or(0.0);
    let speeds = Speeds { prefill: speed("prompt_per_second"), decode: speed("predicted_per_second") };
    Ok(LlamaAnswer { ids, speeds })
}

/// The program for Python: reads its standard input until the end, and prints a list of answers.
pub fn python_program(model: &str, prompts: &[LlamaPrompt]) -> String {
    let prompts: Vec<Value> =
        prompts.iter().map(|prompt| json!({"ids": prompt.ids, "answer": prompt.answer})).collect();
    let request = json!({"model": model, "context": CONTEXT, "prompts": prompts}).to_string();
    // A JSON string is a Python string, too.
    PYTHON.replace("REQUEST", &json!(request).to_string())
}

const PYTHON: &str = "\
import json
import time
from llama_cpp import Llama

request = json.loads(REQUEST)
model = Llama(model_path=request['model'], n_ctx=request['context'], verbose=False)
answers = []
for prompt in request['prompts']:
    ids = []
    model.reset()
    begun = first = time.monotonic()
    for token in model.generate(prompt['ids'], temp=0.0, top_k=1, repeat_penalty=1.0):
        if not ids:
            first = time.monotonic()
        ids.append(int(token))
        if len(ids) == prompt['answer']:
            break
    answers.append({'tokens': ids, 'prefill_s': first - begun, 'decode_s': time.monotonic() - first})
print(json.dumps(answers))
";

/// What the program printed, for as many prompts.
///
/// # Errors
/// It is no such list.
pub fn read_python(text: &str, prompts: &[LlamaPrompt]) -> Result<Vec<LlamaAnswer>, String> {
    let line = text.lines().rev().find(|line| line.starts_with('[')).unwrap_or_default();
    let found: Value = serde_json::from_str(line).map_err(|_| "Python printed no answers".to_owned())?;
    let found = found.as_array().filter(|found| found.len() == prompts.len()).ok_or("Python printed other answers")?;
    let read = found.iter().zip(prompts).map(|(answer, prompt)| {
        let ids = ids(&answer["tokens"]).filter(|ids| !ids.is_empty()).ok_or("an answer has no tokens")?;
        let seconds = |name: &str| answer[name].as_f64().filter(|seconds| seconds.is_finite()).unwrap_or(0.0);
        let prefill = ratio(prompt.ids.len() as f64, seconds("prefill_s"));
        let decode = ratio(ids.len().saturating_sub(1) as f64, seconds("decode_s"));
        Ok(LlamaAnswer { ids, speeds: Speeds { prefill, decode } })
    });
    read.collect()
}

fn ids(list: &Value) -> Option<Vec<u32>> {
    list.as_array()?.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts() -> Vec<LlamaPrompt> {
        vec![LlamaPrompt { ids: vec![1, 2, 3, 4], answer: 3 }, LlamaPrompt { ids: vec![5], answer: 1 }]
    }

    #[test]
    fn server_is_asked_for_tokens_and_their_speed() {
        let body: Value = serde_json::from_str(&server_body(&prompts()[0])).expect("JSON");
        assert_eq!((&body["prompt"], &body["n_predict"]), (&json!([1, 2, 3, 4]), &json!(3)));
        let answer = json!({"content": " x", "tokens": [7, 8, 9],
            "timings": {"prompt_per_second": 20.5, "predicted_per_second": 2.25}});
        let expected = LlamaAnswer { ids: vec![7, 8, 9], speeds: Speeds { prefill: 20.5, decode: 2.25 } };
        assert_eq!(read_server(&answer), Ok(expected));
        for odd in [json!({}), json!({"tokens": []}), json!({"tokens": [-1]}), json!({"tokens": ["a"]})] {
            assert!(read_server(&odd).is_err_and(|error| error.contains("no tokens")), "{odd}");
        }
    }

    #[test]
    fn python_gets_its_request_as_a_string_and_prints_answers() {
        let program = python_program("/models/it's \"m\".gguf", &prompts());
        assert!(program.contains(r#"json.loads("{\"model\":\"/models/it's \\\"m\\\".gguf\""#), "{program}");
        let text = "llama: noise\n[{\"tokens\": [7, 8, 9], \"prefill_s\": 2.0, \"decode_s\": 1.0}, \
            {\"tokens\": [4], \"prefill_s\": 0, \"decode_s\": 0}]\n";
        let read = read_python(text, &prompts()).expect("two answers");
        assert_eq!((read[0].speeds.prefill, read[0].speeds.decode), (2.0, 2.0));
        assert_eq!((read[1].ids.as_slice(), read[1].speeds.decode), (&[4][..], 0.0));
        for odd in ["", "[]", "[1, 2]", "Traceback"] {
            assert!(read_python(odd, &prompts()).is_err(), "{odd}");
        }
    }
}
