//! Calls under a grammar in the syntax of the family, from models with random weights: only the grammar makes their answers
//! calls. Real daemons, over HTTP.
use gguf::BlockFormat;
use harness::{
    http::{beside, get, post, stream, with_fields},
    programs::{Cluster, DEEP, folder_with, wait_until},
    tiny_model::{Architecture, TinyModel},
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A family of chat formats.
struct Family {
    file: &'static str,
    /// What its template is recognized by, and how its prompts end.
    template: &'static str,
    /// Control tokens; the first one begins a call.
    marks: &'static [&'static str],
}

const FAMILIES: [Family; 4] = [
    Family { file: "hermes.gguf", template: "{# <tool_call> #}", marks: &["<tool_call>", "</tool_call>"] },
    Family {
        file: "tags.gguf",
        template: "{# <tool_call><function=<parameter= #}<think>",
        marks: &["<tool_call>", "</tool_call>", "<think>", "</think>"],
    },
    Family {
        file: "lfm2.gguf",
        template: "{# <|tool_call_start|> #}",
        marks: &["<|tool_call_start|>", "<|tool_call_end|>"],
    },
    Family {
        file: "gemma.gguf",
        template: "{# <|tool_call>call: #}",
        marks: &["<|tool_call>", "<tool_call|>", "<|\"|>"],
    },
];

/// The token that ends an answer.
const END: usize = 2;
/// The first mark in a vocabulary, behind the special tokens and the bytes.
const MARK: usize = 259;

/// A model of a family: of its weights only the vocabulary is made for it.
fn file(family: &Family, model: &TinyModel) -> Vec<u8> {
    let special = ["<unk>", "<s>", "</s>"].map(str::to_owned);
    let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    let marks = family.marks.iter().map(|mark| (*mark).to_owned());
    let others = (0..model.vocabulary_length).map(|number| format!("Z{number}"));
    let tokens: Vec<String> = special.into_iter().chain(bytes).chain(marks).chain(others).collect();
    let kinds: Vec<i32> = (0..model.vocabulary_length)
        .map(|id| match id {
            0 => 2,
            1 | 2 => 3,
            3..MARK => 6,
            // The marks of thoughts are text in the files of these families.
            _ if id < MARK + family.marks.len() => {
                if family.marks[id - MARK].contains("think") {
                    4
                } else {
                    3
                }
            }
            _ => 1,
        })
        .collect();
    let template = format!("{{% for message in messages %}}{{{{ message.content }}}}{{% endfor %}}{}", family.template);
    model
        .writer()
        .without("tokenizer.ggml.tokens")
        .without("tokenizer.ggml.token_type")
        .texts("tokenizer.ggml.tokens", &tokens[..model.vocabulary_length])
        .integers("tokenizer.ggml.token_type", &kinds)
        // The vocabulary has no token for the space that would stand before texts.
        .flag("tokenizer.ggml.add_space_prefix", false)
        .text("tokenizer.chat_template", &template)
        .finish()
}

fn models() -> TempDir {
    let mut model = TinyModel::new(Architecture::Llama);
    model.context_length = 4096;
    let files: Vec<(&str, Vec<u8>)> = FAMILIES.iter().map(|family| (family.file, file(family, &model))).collect();
    let files: Vec<(&str, &[u8])> = files.iter().map(|file| (file.0, file.1.as_slice())).collect();
    folder_with(&files)
}

fn body(more: Value) -> Value {
    let weather = json!({"type": "object", "properties": {
        "city": {"type": "string", "enum": ["Oslo", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    }, "required": ["city", "days"], "additionalProperties": false});
    let tools = json!([
        {"type": "function", "function": {"name": "weather", "parameters": weather}},
        {"type": "function", "function": {"name": "now"}},
    ]);
    let messages = json!([{"role": "user", "content": "ab"}]);
    let body =
        json!({"messages": messages, "tools": tools, "max_tokens": 2000, "temperature": 1, "thinking_budget": 8});
    with_fields(body, more)
}

/// The format of answers that call no tool.
fn verdict() -> Value {
    let properties = json!({"verdict": {"enum": ["yes", "no"]}});
    let schema = json!({
        "type": "object", "properties": properties, "required": ["verdict"], "additionalProperties": false,
    });
    json!({"type": "json_schema", "json_schema": {"name": "verdict", "schema": schema}})
}

/// The names of the calls, whose arguments are valid.
fn names(message: &Value) -> Vec<String> {
    message["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default().iter().map(checked).collect()
}

/// The name of a call, whose arguments are valid.
fn checked(call: &Value) -> String {
    let name = call["function"]["name"].as_str().expect("a name").to_owned();
    let arguments = call["function"]["arguments"].as_str().expect("arguments");
    let arguments: Value = serde_json::from_str(arguments).expect("JSON");
    let is_valid = match name.as_str() {
        "weather" => {
            ["Oslo", "Rome"].iter().any(|city| arguments["city"] == *city)
                && arguments["days"].as_i64().is_some_and(|days| (1..=9).contains(&days))
                && arguments.as_object().is_some_and(|map| map.len() == 2)
        }
        "now" => arguments == json!({}),
        _ => false,
    };
    assert!(is_valid, "{call}");
    name
}

fn answer(address: &str, more: Value) -> Value {
    post(address, "/v1/chat/completions", &body(more)).good()["choices"][0].clone()
}

/// The calls that a client puts together from a stream, as a message.
fn streamed(events: &[Value]) -> Value {
    let mut calls: Vec<Value> = Vec::new();
    let deltas = events.iter().filter_map(|event| event["choices"][0]["delta"]["tool_calls"].as_array()).flatten();
    for delta in deltas {
        match calls.get_mut(delta["index"].as_u64().expect("an index") as usize) {
            None => calls.push(delta.clone()),
            Some(call) => {
                let more = delta["function"]["arguments"].as_str().expect("arguments");
                let so_far = call["function"]["arguments"].as_str().expect("arguments").to_owned();
                call["function"]["arguments"] = (so_far + more).into();
            }
        }
    }
    json!({ "tool_calls": calls })
}

fn assign(cluster: &Cluster, count: usize, model: &str, more: &[&str]) -> String {
    let mut run = vec!["--model", model, "--prompt", "ab", "--max-tokens", "1", "--context", "4096"];
    run.extend(more);
    cluster.generate(count, &run).completion();
    beside(&cluster.addresses[count - 1])
}

#[test]
fn random_models_call_tools_in_the_syntax_of_their_family() {
    let models = models();
    let cluster = Cluster::with(1, models.path(), "");
    for family in &FAMILIES {
        let address = assign(&cluster, 1, family.file, &["--topology", "tp1"]);
        wait_until("it is served", || get(&address, "/v1/models").json()["data"][0]["id"] == family.file);
        let thinks = family.template.ends_with("<think>");
        for seed in 0..4 {
            // Without the bias, it may call until its tokens end; with it, it would not think.
            let ends = if thinks { json!({}) } else { json!({(END.to_string()): 100}) };
            let found = answer(&address, json!({"tool_choice": "required", "seed": seed, "logit_bias": ends}));
            let called = names(&found["message"]);
            assert!(!called.is_empty(), "{}: {found}", family.file);
            if found["finish_reason"] == "tool_calls" {
                assert!(found["message"]["content"].as_str().unwrap_or_default().is_empty(), "{found}");
            } else {
                assert!(thinks && found["finish_reason"] == "length", "{found}");
            }
            let thought = found["message"]["reasoning_content"].as_str().unwrap_or_default();
            assert_eq!(thought.is_empty(), !thinks, "{found}");
            let required = body(json!({"tool_choice": "required", "seed": seed, "logit_bias": ends, "stream": true}));
            let events = stream(&address, "/v1/chat/completions", &required).events();
            assert_eq!(names(&streamed(&events)), called, "{}: streamed", family.file);
            let named = json!({"type": "function", "function": {"name": "weather"}});
            let found = answer(&address, json!({"tool_choice": named, "seed": seed}));
            assert_eq!(names(&found["message"]), ["weather"], "{}: {found}", family.file);
            let one = json!({"tool_choice": "required", "parallel_tool_calls": false, "seed": seed});
            assert_eq!(names(&answer(&address, one)["message"]).len(), 1, "{}", family.file);
            // The bias makes it write the mark of a call at once; the call itself is the grammar's.
            let wanted = json!({(MARK.to_string()): 100});
            let auto = json!({"logit_bias": wanted, "parallel_tool_calls": false, "seed": seed});
            assert_eq!(names(&answer(&address, auto.clone())["message"]).len(), 1, "{}", family.file);
            let found = answer(&address, with_fields(auto, json!({"response_format": verdict()})));
            assert_eq!(names(&found["message"]).len(), 1, "{}: {found}", family.file);
            let unwanted = json!({(MARK.to_string()): -100});
            let either = json!({"logit_bias": unwanted, "seed": seed, "response_format": verdict()});
            let found = answer(&address, either)["message"].clone();
            let content: Value = serde_json::from_str(found["content"].as_str().expect("a text")).expect("JSON");
            assert!(content["verdict"].is_string() && names(&found).is_empty(), "{}: {found}", family.file);
            let plain = json!({"logit_bias": unwanted, "seed": seed, "max_tokens": 30});
            let auto = answer(&address, plain.clone());
            for without in [json!({"tool_choice": "none"}), json!({"tools": null})] {
                let without = answer(&address, with_fields(plain.clone(), without));
                assert_eq!(auto["message"], without["message"], "{}: free text is untouched", family.file);
            }
        }
    }
    cluster.assert_alive();
}

#[test]
fn required_call_continues_at_another_head() {
    let mut deep = TinyModel::new(Architecture::Llama);
    (deep.block_count, deep.context_length) = (96, 8192);
    let bytes = file(&FAMILIES[2], &deep.with_format(BlockFormat::Q8_0));
    let models = folder_with(&[(DEEP, &bytes)]);
    let mut cluster = Cluster::with(2, models.path(), "");
    let address = assign(&cluster, 2, DEEP, &["--topology", "dp2-tp1"]);
    wait_until("both serve", || get(&address, "/health").json()["replicas"] == json!({"serving": 2, "all": 2}));
    // Two strings of many letters: the heads are lost in the middle of a call.
    let text = json!({"type": "string", "minLength": 60, "maxLength": 80});
    let parameters = json!({"type": "object", "properties": {"a": text, "b": text}, "required": ["a", "b"]});
    let tools = json!([{"type": "function", "function": {"name": "note", "parameters": parameters}}]);
    let asked = |seed: usize| {
        // Prompts with other beginnings are spread over the heads.
        let messages = json!([{"role": "user", "content": "abcd"[..=seed]}]);
        let more =
            json!({"messages": messages, "tools": tools, "tool_choice": "required", "seed": seed, "stream": true});
        body(with_fields(more, json!({"parallel_tool_calls": false})))
    };
    let expected: Vec<Value> =
        (0..4).map(|seed| streamed(&stream(&address, "/v1/chat/completions", &asked(seed)).events())).collect();
    let mut running = Vec::new();
    for seed in 0..4 {
        let mut answer = stream(&address, "/v1/chat/completions", &asked(seed));
        let mut events: Vec<Value> = Vec::new();
        // The call has begun.
        while events.len() < 8 {
            events.push(serde_json::from_str(&answer.event().expect("tokens arrive")).expect("JSON"));
        }
        running.push((answer, events));
    }
    cluster.signal(0, Signal::SIGKILL);
    cluster.wait(0);
    let mut resumed = 0;
    for ((answer, mut events), expected) in running.into_iter().zip(&expected) {
        events.extend(answer.events());
        let found = streamed(&events);
        let call = &found["tool_calls"][0]["function"];
        assert_eq!(call["name"], "note");
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().expect("text")).expect("JSON");
        assert!(arguments["a"].is_string() && arguments["b"].is_string(), "{arguments}");
        assert_eq!(call, &expected["tool_calls"][0]["function"]);
        let end = events.last().expect("events");
        resumed += usize::from(end["timings"]["trace"]["resumed"].as_u64() > Some(0));
    }
    assert!(resumed > 0, "the killed node must have run some of them");
}
