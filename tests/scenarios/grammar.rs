//! Structured output: JSON or a schema, on one rank and on several, resumed in the middle; hostile schemas.
use std::{
    sync::Arc,
    thread::Builder,
    time::{Duration, Instant},
};

use common::{
    chat::{Chat, FinishReason, Grammar},
    fault::{Fault, FaultKind},
    ids::Slot,
    precision::KvFormat,
    sampling::SamplingParameters,
};
use daemon::text::vocabulary;
use engine::{
    plan::{Constraint, Opened, Plan},
    structured_output::{TokenMasks, check},
};
use gguf::GgufFile;
use harness::tiny_model::Architecture;
use harness::{
    engines::Replica,
    programs::{Cluster, root},
    tiny_model::TinyModel,
};
use protocol::message::{Generate, Prompt, RequestBody, ResponseBody};
use serde_json::Value;
use tokenizer::Tokenizer;

const SCHEMA: &str = r##"{"type": "object", "additionalProperties": false, "required": ["count", "colour", "tags"], "properties": {
    "count": {"type": "integer", "minimum": 3, "maximum": 250}, "colour": {"enum": ["red", "green"]},
    "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "minItems": 1, "maxItems": 2}},
    "$defs": {"tag": {"type": "string", "minLength": 1, "maxLength": 3}}}"##;

/// The outcome of a request.
#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    prompt: Vec<u32>,
    ids: Vec<u32>,
    text: String,
    reason: Option<FinishReason>,
}

/// A replica of `stages` stages with `ranks` ranks each.
fn replica(stages: u16, ranks: u16) -> Replica {
    Replica { stages, kv: KvFormat::F32, context_length: 512, ..Replica::of(ranks) }
}

/// The answers to requests that are submitted together.
fn answers(file: &Arc<GgufFile>, how: Replica, requests: &[Generate]) -> Vec<Result<Answer, Fault>> {
    how.answers(file, &[requests.to_vec()])
        .remove(0)
        .into_iter()
        .map(|answer| match answer.refused {
            Some(fault) => Err(fault),
            None => {
                let reason = Some(answer.end().reason);
                Ok(Answer { prompt: answer.prompt, ids: answer.ids, text: answer.text, reason })
            }
        })
        .collect()
}

fn tiny(architecture: Architecture) -> Arc<GgufFile> {
    let mut model = TinyModel::new(architecture);
    (model.block_count, model.context_length) = (4, 512);
    Arc::new(GgufFile::from_bytes(vec![model.bytes()]).expect("the model is valid"))
}

fn bard() -> Arc<GgufFile> {
    Arc::new(GgufFile::open(&root().join("packaging/demo/bard-q8_0.gguf")).expect("the demo's model"))
}

fn request(seed: u64, max_tokens: u32, sampling: SamplingParameters, grammar: Option<Grammar>) -> Generate {
    let sampling = SamplingParameters { seed, ..sampling };
    Generate { grammar, ..Generate::new("ab", max_tokens, sampling, Vec::new()) }
}

fn one(file: &Arc<GgufFile>, how: Replica, request: &Generate) -> Answer {
    let found = answers(file, how, std::slice::from_ref(request)).remove(0);
    found.expect("the request is valid")
}

/// Sampling parameters: greedy, plain sampling, and those that need further rounds.
fn samplings() -> [SamplingParameters; 4] {
    let plain = SamplingParameters { temperature: 1.0, top_p: 1.0, min_p: 0.0, top_k: 0, ..Default::default() };
    [
        SamplingParameters { temperature: 0.0, ..plain.clone() },
        plain.clone(),
        SamplingParameters { temperature: 1.5, top_p: 0.7, repeat_penalty: 1.3, logprobs: 3, ..plain.clone() },
        SamplingParameters { temperature: 2.0, top_k: 200, presence_penalty: 0.5, ..plain },
    ]
}

/// Asserts that a complete answer is an object, and that a truncated one is the beginning of an object.
#[track_caller]
fn assert_object(answer: &Answer) -> Option<Value> {
    match (serde_json::from_str::<Value>(&answer.text), answer.reason) {
        (Ok(value), _) => {
            assert!(value.is_object(), "{answer:?}");
            Some(value)
        }
        (Err(error), Some(FinishReason::Length | FinishReason::Context)) => {
            // A truncated character or surrogate at the end is not an error.
            let text = answer.text.trim_end_matches('\u{fffd}');
            assert!(text.is_empty() || text.starts_with('{'), "{answer:?}");
            assert!(error.is_eof() || answer.text.ends_with('\u{fffd}'), "{error}: {answer:?}");
            None
        }
        (Err(error), _) => panic!("{error}: {answer:?}"),
    }
}

#[test]
fn every_json_answer_is_an_object_or_its_beginning() {
    let mut whole = 0;
    for (file, seeds) in [(tiny(Architecture::Llama), 3), (tiny(Architecture::Qwen3), 3), (bard(), 2)] {
        let requests: Vec<Generate> = (0..seeds)
            .flat_map(|seed| samplings().map(|sampling| request(seed, 120, sampling, Some(Grammar::Json))))
            .collect();
        for answer in answers(&file, replica(1, 1), &requests) {
            let answer = answer.expect("the request is valid");
            assert!(!answer.ids.is_empty());
            whole += usize::from(assert_object(&answer).is_some());
        }
    }
    assert!(whole >= 2, "{whole} answers came to their end");
}

#[test]
fn answer_by_a_schema_has_its_keys_and_values() {
    for file in [tiny(Architecture::Llama), bard()] {
        let grammar = Grammar::JsonSchema(SCHEMA.into());
        let requests = samplings().map(|sampling| request(11, 450, sampling, Some(grammar.clone())));
        for answer in answers(&file, replica(1, 1), &requests) {
            let answer = answer.expect("the request is valid");
            assert_eq!(answer.reason, Some(FinishReason::Stop), "{answer:?}");
            let value = assert_object(&answer).expect("it is whole");
            let object = value.as_object().expect("it is an object");
            assert_eq!(object.len(), 3, "{value}");
            assert!(value["count"].as_i64().is_some_and(|count| (3..=250).contains(&count)), "{value}");
            assert!(value["colour"] == "red" || value["colour"] == "green", "{value}");
            let tags = value["tags"].as_array().expect("a list");
            assert!(
                (1..=2).contains(&tags.len())
                    && tags.iter().all(|tag| tag.as_str().is_some_and(|tag| (1..=3).contains(&tag.chars().count()))),
                "{value}"
            );
        }
    }
}

#[test]
fn ranks_stages_and_resumption_give_the_same_json_answer() {
    let file = tiny(Architecture::Qwen3);
    for sampling in samplings() {
        let wanted = request(5, 80, sampling, Some(Grammar::JsonSchema(SCHEMA.into())));
        let alone = one(&file, replica(1, 1), &wanted);
        for how in [replica(1, 2), replica(1, 3), replica(2, 1), replica(2, 2)] {
            let found = one(&file, how, &wanted);
            assert_eq!(found, alone, "{how:?}");
        }
        for (cut, how) in [(1, replica(1, 1)), (alone.ids.len() / 2, replica(1, 2)), (7, replica(2, 1))] {
            let resumed = alone.ids[..cut].to_vec();
            let found = one(&file, how, &Generate { resumed, ..wanted.clone() });
            assert_eq!((found.ids.as_slice(), found.reason), (&alone.ids[cut..], alone.reason), "from {cut} on");
        }
    }
}

#[test]
fn constrained_answer_does_not_change_concurrent_ones() {
    let file = tiny(Architecture::Llama);
    let [_, plain, ..] = samplings();
    let free = request(3, 40, plain.clone(), None);
    let alone = one(&file, replica(1, 2), &free);
    let beside = request(3, 40, plain, Some(Grammar::Json));
    let mut found = answers(&file, replica(1, 2), &[beside.clone(), free.clone(), beside]).into_iter();
    let mut next = || found.next().expect("an answer each").expect("it is valid");
    let (first, middle, last) = (next(), next(), next());
    assert_eq!(middle, alone);
    assert_eq!(first, last);
    assert_object(&first);
}

#[test]
fn reported_probabilities_are_those_of_permitted_tokens() {
    let file = tiny(Architecture::Llama);
    let schema = Grammar::JsonSchema(r#"{"const": {"a": 1}}"#.into());
    let [_, _, sampling, _] = samplings();
    let wanted = request(1, 250, sampling, Some(schema));
    let answer = replica(1, 2).each_alone(&file, &[wanted]).remove(0);
    let value: Value = serde_json::from_str(&answer.text).expect("it is whole");
    assert_eq!((value["a"].as_i64(), answer.end().reason), (Some(1), FinishReason::Stop));
    assert!(answer.logprobs.len() == answer.ids.len() && answer.logprobs.iter().all(|list| !list.is_empty()));
    for told in answer.logprobs.iter().flatten().map(|told| &told.text) {
        let is_part = told.chars().all(|letter| letter.is_whitespace() || r#"{"a":1}"#.contains(letter));
        assert!(is_part || told == "</s>", "{told:?}");
    }
}

#[test]
fn answer_ends_where_nothing_may_follow() {
    let file = tiny(Architecture::Llama);
    let how = Replica { knows_pieces: false, ..replica(1, 2) };
    let [greedy, ..] = samplings();
    let free = request(1, 10, greedy.clone(), None);
    let expected = one(&file, how, &free);
    let mut found = answers(&file, how, &[request(1, 10, greedy, Some(Grammar::Json)), free]).into_iter();
    let mut next = || found.next().expect("an answer each").expect("it is valid");
    let (stopped, other) = (next(), next());
    assert_eq!((stopped.ids.len(), stopped.reason), (0, Some(FinishReason::Stop)));
    assert_eq!(other, expected);
}

#[test]
fn unsupported_schema_is_refused_before_the_answer_begins() {
    let file = tiny(Architecture::Llama);
    let [greedy, ..] = samplings();
    let schemas = [
        "",
        "[]",
        "true",
        r#"{"type": "nothing"}"#,
        r#"{"not": {}}"#,
        r#"{"type": "integer", "minimum": 3, "maximum": 2}"#,
    ];
    let requests = schemas.map(|schema| request(1, 10, greedy.clone(), Some(Grammar::JsonSchema(schema.into()))));
    for (found, schema) in answers(&file, replica(1, 1), &requests).into_iter().zip(schemas) {
        let Err(Fault { kind: FaultKind::ParameterInvalid { reason }, .. }) = found else {
            panic!("{schema:?} gives {found:?}");
        };
        assert!(reason.starts_with("response format: ") && reason.len() < 400, "{schema:?}: {reason}");
    }
}

/// A daemon's answer to a request.
fn ask(cluster: &Cluster, generate: Generate) -> Result<Answer, Fault> {
    let address = cluster.nodes().split(',').next().expect("there is a node").to_owned();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let session = console::client::session::open(&address).await?;
        let mut reply = session.ask(RequestBody::Generate(Box::new(generate))).await?;
        let mut answer = Answer::default();
        loop {
            match reply.next("a token", Duration::from_secs(120)).await? {
                ResponseBody::Started { prompt_token_ids, .. } => answer.prompt = prompt_token_ids,
                ResponseBody::Token(event) => {
                    answer.ids.extend(event.id);
                    answer.text.push_str(&event.text);
                }
                ResponseBody::Finished(finished) => return Ok(Answer { reason: Some(finished.reason), ..answer }),
                other => panic!("the node answers {other:?}"),
            }
        }
    })
}

#[test]
fn pipelines_of_daemons_answer_chats_in_the_requested_form() {
    let cluster = Cluster::of(4);
    let begun = cluster.generate(4, &["--topology", "pp2-tp2", "--prompt", "ROMEO:", "--max-tokens", "2"]);
    assert_eq!(begun.code, Some(0), "{}", begun.err);
    let chat = |messages: &str| Prompt::Chat(Box::new(Chat { messages: messages.into(), ..Chat::default() }));
    let [_, plain, ..] = samplings();
    let wanted = Generate {
        prompt: chat(r#"[{"role": "system", "content": "Verona."}, {"role": "user", "content": "But soft!"}]"#),
        ..request(3, 450, plain, Some(Grammar::JsonSchema(SCHEMA.into())))
    };
    let answer = ask(&cluster, wanted.clone()).expect("the conversation is valid");
    let tokenizer = Tokenizer::from_metadata(bard().metadata()).expect("the demo's model has one");
    assert_eq!(answer.prompt, tokenizer.encode("Chorus:\nVerona.\n\nROMEO:\nBut soft!\n\nJULIET:\n", true, true));
    let value = assert_object(&answer).expect("it is whole");
    assert!(value["count"].is_i64() && value["colour"].is_string(), "{value}");
    let prompt = chat(r#"[{"role": "user", "content": [{"type": "image_url"}]}]"#);
    let refused = ask(&cluster, Generate { prompt, ..wanted });
    let kind = refused.expect_err("the content is an image").kind;
    assert!(matches!(&kind, FaultKind::ParameterInvalid { reason } if reason.contains("image_url")), "{kind:?}");
    cluster.assert_alive();
}

/// Schemas that are each large in one respect; `Some(false)` must be refused, `Some(true)` accepted.
fn hostile() -> Vec<(String, Option<bool>)> {
    let chain = |count: usize, link: &dyn Fn(usize) -> String| {
        let links: String = (0..count).map(|index| format!(r#""d{index}": {},"#, link(index + 1))).collect();
        format!(r##"{{"$defs": {{{links} "d{count}": {{"type": "integer"}}}}, "$ref": "#/$defs/d0"}}"##)
    };
    let list = |index: usize| format!(r##"{{"type": "array", "items": {{"$ref": "#/$defs/d{index}"}}}}"##);
    let nested = (0..6).fold(r#"{"type": "integer"}"#.to_owned(), |inner, _| {
        format!(r#"{{"type": "array", "items": {inner}, "minItems": 1000, "maxItems": 1000}}"#)
    });
    let any: Vec<String> = (0..8)
        .map(|key| format!(r#"{{"properties": {{"p{key}": {{"type": "integer"}}}}, "required": ["p{key}"]}}"#))
        .collect();
    let any = format!(r#"{{"anyOf": [{}]}}"#, any.join(","));
    let all = |count: usize| format!(r#"{{"type": "object", "allOf": [{}]}}"#, vec![any.as_str(); count].join(","));
    let keys = |count: usize| {
        let keys: Vec<String> = (0..count).map(|key| format!(r#""p{key}": {{"type": "integer"}}"#)).collect();
        format!(r#"{{"type": "object", "properties": {{{}}}}}"#, keys.join(","))
    };
    let pattern = |pattern: &str| format!(r#"{{"type": "string", "pattern": "{pattern}"}}"#);
    vec![
        (r##"{"$ref": "#"}"##.into(), Some(false)),
        (r##"{"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}"##.into(), Some(false)),
        (r##"{"allOf": [{"$ref": "#"}, {"$ref": "#"}]}"##.into(), Some(false)),
        (r##"{"type": "object", "properties": {"a": {"$ref": "#"}}}"##.into(), Some(true)),
        (r#"{"$ref": "http://127.0.0.1:1/x"}"#.into(), Some(false)),
        (chain(300, &list), Some(true)),
        (chain(4000, &list), Some(false)),
        (chain(498, &list), None),
        (
            chain(240, &|index: usize| {
                format!(r##"{{"allOf": [{{"$ref": "#/$defs/d{index}"}}, {{"$ref": "#/$defs/d{index}"}}]}}"##)
            }),
            None,
        ),
        (
            chain(240, &|index: usize| {
                format!(r##"{{"anyOf": [{{"$ref": "#/$defs/d{index}"}}, {{"$ref": "#/$defs/d{index}"}}]}}"##)
            }),
            None,
        ),
        (nested, Some(true)),
        (all(4), None),
        (all(12), Some(false)),
        (keys(300), Some(true)),
        (keys(900), None),
        (keys(10_000), Some(false)),
        (pattern(&"(a|b|ab)*".repeat(10_000)), Some(false)),
        (pattern("^((a{1,1000}){1,1000}){1,1000}$"), None),
        (pattern("(a|b)*a(a|b){1000}$"), None),
        (r#"{"type": "string", "minLength": 1000000000}"#.into(), None),
        (r#"{"type": "integer", "multipleOf": 1000000007}"#.into(), None),
        (format!("{}{}", "[".repeat(200), "]".repeat(200)), Some(false)),
    ]
}

#[test]
fn hostile_schema_is_bounded_in_time_and_stack() {
    // The stack of the child process that checks schemas.
    let thread = Builder::new()
        .stack_size(24 << 20)
        .spawn(|| {
            for (schema, expected) in hostile() {
                let begin = Instant::now();
                let found = check(&Grammar::JsonSchema(schema.clone()));
                let (took, start) = (begin.elapsed(), &schema[..schema.len().min(150)]);
                assert!(took < Duration::from_secs(5), "{took:?} for {start}");
                if let Some(is_good) = expected {
                    assert_eq!(found.is_ok(), is_good, "{found:?} for {start}");
                }
            }
        })
        .expect("start a thread");
    thread.join().expect("no schema breaks the child");
}

#[test]
fn rejected_speculative_tokens_leave_no_trace() {
    let file = tiny(Architecture::Llama);
    let tokenizer = Tokenizer::from_metadata(file.metadata()).expect("the model has one");
    let opened = || {
        // Grammars are compiled at once, on this thread.
        let mut masks = TokenMasks::new(Some(vocabulary(Arc::clone(&file), 300, |job| {
            job();
            true
        })));
        let grammar = Some(Constraint { grammar: Grammar::JsonSchema(SCHEMA.into()).into(), begin: 2 });
        let (slot, sampling) = (Slot(3), SamplingParameters::default());
        let opened = Opened { slot, sampling, cached: 0, prompt: vec![1, 5], grammar };
        masks.apply(&Plan { opened: vec![opened], ..Plan::default() });
        masks
    };
    let history = |text: &str| {
        let mut ids = vec![1, 5];
        ids.extend(text.bytes().map(|byte| u32::from(byte) + 3));
        assert_eq!(tokenizer.decode(&ids[2..], false), text);
        ids
    };
    let mut masks = opened();
    assert!(masks.holds(Slot(3)) && !masks.holds(Slot(2)) && masks.mask(Slot(2), &[1]).is_none());
    for text in [
        "",
        "{",
        "{\"count\"",
        "{\"c",
        "{x",
        "{\"count\": 25",
        "{\"count\": 7, \"colour\": \"red\"",
        "{\"count\": 2",
        "",
    ] {
        let expected = opened().mask(Slot(3), &history(text)).map(<[u32]>::to_vec);
        assert_eq!(masks.mask(Slot(3), &history(text)), expected.as_deref(), "{text:?}");
        let may_follow = expected.is_some_and(|mask| mask.iter().any(|word| *word != 0));
        assert_eq!(may_follow, text != "{x", "{text:?}");
    }
    masks.apply(&Plan { closed: vec![Slot(3)], ..Plan::default() });
    assert!(masks.mask(Slot(3), &history("")).is_none());
}
