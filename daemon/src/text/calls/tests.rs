//! Dice answers within the masks of every format are calls that its parser reads; tools that are not supported.
use std::sync::Arc;

use common::{
    chat::{Thinking, ToolFormat},
    ids::Slot,
    sampling::SamplingParameters,
    tool_use::{AnswerGrammar, ToolUse},
};
use engine::{
    plan::{Constraint, Opened, Plan},
    structured_output::{TokenBytes, TokenMasks, TokenText, VocabularySource},
};
use serde_json::{Map, Value, json};
use tokenizer::answer::{AnswerParser, AnswerPart, CHAT_FORMATS, ChatFormat, ToolSchemas};

use super::*;
use crate::text::{inline::Inline, prepare::tests::model};

const SLOT: Slot = Slot(1);
/// The token that ends an answer, behind those of single bytes.
const END: u32 = 255;
/// Tokens of several letters.
const PIECES: [&str; 8] = ["\":", "</", "{\"", "\"}", "><", "_call", ">\n", "l>"];
/// What a walk tries to write now and then, because letters at random would hardly form it.
const CLOSINGS: [&str; 5] = ["</parameter>", "</arg_value>", "<|\"|>", "\n</parameter>", "\""];
/// Longest walk in tokens.
const STEPS_MAX: usize = 6000;

fn tools() -> Value {
    json!([
        {"name": "weather", "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"enum": ["C", "F"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
                "exact": {"type": "boolean"},
                "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "minItems": 1, "maxItems": 3},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "place": {"type": "object", "properties": {"lat": {"type": "integer", "minimum": -9, "maximum": 90},
                    "name": {"type": "string"}}, "required": ["lat"], "additionalProperties": false},
            },
            "required": ["city", "days"],
            "additionalProperties": false,
        }},
        {"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": false}},
        {"name": "get-time", "parameters": {
            "type": "object",
            "properties": {"zone": {"$ref": "#/$defs/zone"}, "code": {"type": "string", "pattern": "^[a-c]{2}$"},
                "short": {"type": "string", "minLength": 1, "maxLength": 4}},
            "required": ["zone"],
            "$defs": {"zone": {"enum": ["UTC", "CET"]}},
            "additionalProperties": false,
        }},
    ])
}

fn grammar_tools() -> Vec<GrammarTool> {
    GrammarTool::read(&ToolUse { tools: tools().to_string(), ..ToolUse::default() }).expect("tools")
}

/// Whether a value is valid under a schema, for the keywords that the tools have.
fn is_valid(value: &Value, schema: &Value, root: &Value) -> bool {
    if let Some(reference) = schema["$ref"].as_str() {
        return is_valid(value, root.pointer(&reference[1..]).expect("it resolves"), root);
    }
    if let Some(choices) = schema["anyOf"].as_array() {
        return choices.iter().any(|choice| is_valid(value, choice, root));
    }
    let allowed = schema["enum"].as_array().is_none_or(|values| values.contains(value));
    let kind = match schema["type"].as_str() {
        Some("string") => value.is_string(),
        // "-0" is one, too.
        Some("integer") => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        Some("boolean") => value.is_boolean(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        Some("null") => value.is_null(),
        _ => true,
    };
    let between = |least: &str, most: &str, of: Option<i64>| {
        of.is_none_or(|of| {
            schema[least].as_i64().is_none_or(|least| of >= least)
                && schema[most].as_i64().is_none_or(|most| of <= most)
        })
    };
    let letters = value.as_str().map(|text| text.chars().count() as i64);
    let code = value.as_str().filter(|_| schema.get("pattern").is_some());
    let is_code = code.is_none_or(|text| text.len() == 2 && text.chars().all(|letter| ('a'..='c').contains(&letter)));
    let items = value.as_array().is_none_or(|list| list.iter().all(|item| is_valid(item, &schema["items"], root)));
    let count = value.as_array().map(|list| list.len() as i64);
    let members = value.as_object().is_none_or(|map| {
        let required = schema["required"].as_array().into_iter().flatten();
        map.iter().all(|(key, value)| schema["properties"].get(key).is_some_and(|schema| is_valid(value, schema, root)))
            && required.filter_map(Value::as_str).all(|key| map.contains_key(key))
    });
    allowed
        && kind
        && is_code
        && items
        && members
        && between("minimum", "maximum", value.as_i64())
        && between("minLength", "maxLength", letters)
        && between("minItems", "maxItems", count)
}

/// A small vocabulary: bytes, marks as control tokens, and pieces.
struct Words {
    texts: Vec<TokenText>,
    marks: Vec<&'static str>,
}

impl Words {
    fn of(row: &ChatFormat, has_controls: bool) -> Self {
        let marks: Vec<&'static str> = if has_controls { row.preserved.to_vec() } else { Vec::new() };
        let bytes = (0..=254).map(|byte| TokenText::Text(vec![byte]));
        let controls = ["</s>"].iter().chain(&marks).map(|mark| TokenText::Control(mark.as_bytes().to_vec()));
        let pieces = PIECES.iter().map(|piece| TokenText::Text(piece.as_bytes().to_vec()));
        let texts = bytes.chain(controls).chain(pieces).collect();
        Self { texts, marks }
    }

    fn control(&self, text: &str) -> Option<u32> {
        Some(256 + self.marks.iter().position(|mark| *mark == text)? as u32)
    }

    fn text(&self, id: u32) -> &[u8] {
        match &self.texts[id as usize] {
            TokenText::Text(bytes) | TokenText::Control(bytes) if id != END => bytes,
            _ => b"",
        }
    }

    /// The tokens of a text, marks as control tokens.
    fn encode(&self, mut text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        while let Some(letter) = text.chars().next() {
            match self.marks.iter().find(|mark| text.starts_with(**mark)) {
                Some(mark) => {
                    ids.extend(self.control(mark));
                    text = &text[mark.len()..];
                }
                None => {
                    let (bytes, rest) = text.split_at(letter.len_utf8());
                    ids.extend(bytes.bytes().map(u32::from));
                    text = rest;
                }
            }
        }
        ids
    }

    fn masks(&self, calls: &CallGrammar) -> TokenMasks {
        fn spawn(job: engine::structured_output::Job) -> bool {
            job();
            true
        }
        let texts = self.texts.clone();
        let read = Arc::new(move || Ok(TokenBytes::new(texts.clone().into_iter(), vec![END])));
        let mut masks = TokenMasks::new(Some(VocabularySource { spawn, read }));
        let grammar = Some(Constraint { grammar: AnswerGrammar::Calls(Box::new(calls.clone())), begin: 1 });
        let sampling = SamplingParameters::default();
        let opened = Opened { slot: SLOT, sampling, cached: 0, prompt: vec![0], grammar };
        masks.apply(&Plan { opened: vec![opened], ..Plan::default() });
        masks
    }
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % end
    }
}

/// A walk through the masks of an answer.
struct Walk<'w> {
    words: &'w Words,
    random: Dice,
    /// Letters that it is about to write.
    typing: Vec<u32>,
    history: Vec<u32>,
}

impl Walk<'_> {
    /// One of the allowed tokens; those that end something more often.
    fn choose(&mut self, mask: &[u32]) -> u32 {
        let is_allowed = |id: u32| mask.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1);
        if self.typing.is_empty() && self.random.below(6) == 0 {
            let closing = CLOSINGS[self.random.below(CLOSINGS.len())];
            self.typing = closing.bytes().rev().map(u32::from).collect();
        }
        match self.typing.pop() {
            Some(next) if is_allowed(next) => return next,
            _ => self.typing.clear(),
        }
        let allowed: Vec<u32> = (0..self.words.texts.len() as u32).filter(|id| is_allowed(*id)).collect();
        assert!(!allowed.is_empty(), "nothing may follow {:?}", self.answer());
        let closing: Vec<u32> =
            allowed.iter().copied().filter(|id| *id >= END || b"\"}])>".contains(&(*id as u8))).collect();
        let list = if closing.is_empty() || self.random.below(3) == 0 { &allowed } else { &closing };
        list[self.random.below(list.len())]
    }

    fn answer(&self) -> String {
        let bytes: Vec<u8> = self.history[1..].iter().flat_map(|id| self.words.text(*id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Walks to the end of the answer; `free` is written as soon as anything may follow, then at random.
    fn run(&mut self, calls: &CallGrammar, free: &[Vec<u32>]) {
        let (mut masks, mut free, mut seen) = (self.words.masks(calls), free.iter(), Vec::new());
        for _ in 0..STEPS_MAX {
            let mask = masks.mask(SLOT, &self.history).map(<[u32]>::to_vec);
            match &mask {
                Some(mask) => {
                    let next = self.choose(mask);
                    seen.push((self.history.len(), mask.clone()));
                    self.history.push(next);
                    if next == END {
                        return self.replay(calls, &seen);
                    }
                }
                None => self.history.extend(free.next().expect("no more free text is expected")),
            }
        }
        panic!("no end: {:?}", self.answer());
    }

    /// Another rank, or one after a loss, has the same masks.
    fn replay(&mut self, calls: &CallGrammar, seen: &[(usize, Vec<u32>)]) {
        let (length, mask) = &seen[self.random.below(seen.len())];
        let again = self.words.masks(calls).mask(SLOT, &self.history[..*length]).map(<[u32]>::to_vec);
        assert_eq!(again.as_ref(), Some(mask), "{:?}", self.answer());
    }
}

/// The calls of an answer, all of which are whole, and its other text.
fn read(row: &ChatFormat, thinking: Thinking, answer: &str) -> (Vec<(String, Value)>, String, String) {
    let tools: Vec<Value> = tools().as_array().expect("a list").iter().map(|tool| json!({"function": tool})).collect();
    let mut parser = AnswerParser::new(row.format, thinking, Some(Arc::new(ToolSchemas::read(&tools))));
    let mut parts = parser.push(answer);
    parts.extend(parser.finish());
    let (mut calls, mut texts) = (Vec::<(String, String)>::new(), [String::new(), String::new()]);
    for part in parts {
        match part {
            AnswerPart::Thought(text) => texts[1].push_str(&text),
            AnswerPart::Content(text) => texts[0].push_str(&text),
            AnswerPart::Call { name, .. } => calls.push((name, String::new())),
            AnswerPart::Arguments { index, text } => calls[index].1.push_str(&text),
            AnswerPart::Broken { .. } => panic!("a broken call: {answer:?}"),
        }
    }
    let calls = calls.into_iter().map(|(name, arguments)| {
        let arguments = serde_json::from_str(&arguments).unwrap_or_else(|_| panic!("{arguments:?} of {answer:?}"));
        (name, arguments)
    });
    let [content, thought] = texts;
    (calls.collect(), content, thought)
}

/// The rows of all formats with calls.
fn rows() -> impl Iterator<Item = &'static ChatFormat> {
    let mut seen = Vec::new();
    CHAT_FORMATS.iter().filter(move |row| {
        let is_new = !seen.contains(&row.format);
        seen.push(row.format);
        is_new
    })
}

fn check_calls(calls: &[(String, Value)], is_one: bool, answer: &str) {
    assert!(!calls.is_empty() && (!is_one || calls.len() == 1), "{answer:?}");
    for (name, arguments) in calls {
        let tools = tools();
        let tool = tools.as_array().expect("a list").iter().find(|tool| tool["name"] == **name);
        let schema = &tool.unwrap_or_else(|| panic!("{name} is no tool: {answer:?}"))["parameters"];
        assert!(is_valid(arguments, schema, schema), "{name} {arguments}: {answer:?}");
    }
}

#[test]
fn random_required_answers_are_calls_in_every_format() {
    for row in rows() {
        for (has_controls, thinking, is_one) in [
            (false, Thinking::None, false),
            (true, Thinking::None, true),
            (true, Thinking::Marked, false),
            (false, Thinking::Marked, true),
            (true, Thinking::Open, true),
            (false, Thinking::Open, false),
        ] {
            if row.format == ToolFormat::Harmony && thinking == Thinking::Open {
                continue;
            }
            let words = Words::of(row, has_controls);
            let how = GrammarUse { is_required: true, is_one, thinking };
            let calls = call_grammar(row, &grammar_tools(), how, &|text| words.control(text)).expect("a grammar");
            // A thought ends when it has become free.
            let end = format!("m{}", row.thinking.end);
            for seed in 0..4 {
                let (random, typing) = (Dice(seed * 7919 + row.format as u64), Vec::new());
                let mut walk = Walk { words: &words, random, typing, history: vec![0] };
                if thinking == Thinking::Marked && seed % 2 == 0 {
                    walk.history.extend(words.encode(row.thinking.begin));
                }
                walk.run(&calls, &[words.encode(&end)]);
                let answer = walk.answer();
                let (found, content, thought) = read(row, thinking, &answer);
                check_calls(&found, is_one, &answer);
                assert!(content.trim().is_empty(), "{:?}: {content:?} of {answer:?}", row.format);
                let thinks = thinking == Thinking::Open || answer.trim_start().starts_with(row.thinking.begin);
                assert_eq!(!thought.is_empty(), thinks, "{answer:?}");
            }
        }
    }
}

/// The schema of an answer that is no call.
fn verdict() -> Value {
    let properties = json!({"verdict": {"enum": ["yes", "no"]}, "count": {"type": "integer", "minimum": 0}});
    json!({"type": "object", "properties": properties, "required": ["verdict", "count"], "additionalProperties": false})
}

/// A text of the format that begins a call.
fn trigger(row: &ChatFormat) -> &'static str {
    match row.format {
        ToolFormat::Harmony => "<|channel|>commentary to=functions.",
        ToolFormat::Llama3 => "\n{\"name\"",
        ToolFormat::Mistral => "[TOOL_CALLS]",
        ToolFormat::Gemma => "<|tool_call>",
        ToolFormat::Lfm2 => "<|tool_call_start|>",
        ToolFormat::DeepSeek => "<｜tool▁calls▁begin｜>",
        ToolFormat::Capitals => "<TOOLCALL>",
        ToolFormat::Olmo => "<function_calls>",
        ToolFormat::Listed => "<|tool_call|>",
        _ => "<tool_call>",
    }
}

#[test]
fn free_answers_are_constrained_from_the_trigger_on() {
    for row in rows() {
        for (has_controls, is_one) in [(false, true), (true, false)] {
            let words = Words::of(row, has_controls);
            let how = GrammarUse { is_required: false, is_one, thinking: Thinking::Marked };
            let calls = call_grammar(row, &grammar_tools(), how, &|text| words.control(text)).expect("a grammar");
            for seed in 0..4 {
                let (random, typing) = (Dice(seed * 104_729 + row.format as u64), Vec::new());
                let mut walk = Walk { words: &words, random, typing, history: vec![0] };
                let thought = match row.format {
                    ToolFormat::Harmony => "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant".to_owned(),
                    _ => format!("{}Hm{}", row.thinking.begin, row.thinking.end),
                };
                // A call in the middle of a text is one, except in the formats that have no mark for it.
                let text =
                    if matches!(row.format, ToolFormat::Llama3 | ToolFormat::Harmony) { "" } else { "I <can> {" };
                let free = [thought.as_str(), text, "", trigger(row)].map(|text| words.encode(text));
                walk.run(&calls, &free);
                let answer = walk.answer();
                let (found, content, thought) = read(row, Thinking::Marked, &answer);
                check_calls(&found, is_one, &answer);
                assert_eq!((content.trim(), thought.as_str()), (text, "Hm"), "{:?}: {answer:?}", row.format);
            }
        }
    }
}

#[test]
fn random_answers_are_calls_or_values_in_every_format() {
    for row in rows() {
        for (has_controls, is_one) in [(false, true), (true, false)] {
            let words = Words::of(row, has_controls);
            let how = GrammarUse { is_required: false, is_one, thinking: Thinking::None };
            let (tools, control) = (grammar_tools(), |text: &str| words.control(text));
            let calls = call_or_value_grammar(row, &tools, how, &verdict(), &control).expect("a grammar");
            let value = if row.format == ToolFormat::Harmony { "<|channel|>final<|message|>{" } else { "{" };
            for (seed, begin) in [trigger(row), value, trigger(row), value].into_iter().enumerate() {
                let (random, typing) = (Dice(seed as u64 * 7919), words.encode(begin).into_iter().rev().collect());
                let mut walk = Walk { words: &words, random, typing, history: vec![0] };
                walk.run(&calls, &[]);
                let answer = walk.answer();
                let (found, content, _) = read(row, Thinking::None, &answer);
                let is_value =
                    serde_json::from_str(&content).is_ok_and(|value: Value| is_valid(&value, &verdict(), &verdict()));
                assert!(is_value == found.is_empty() && (is_value || content.trim().is_empty()), "{answer:?}");
                if !is_value {
                    check_calls(&found, is_one, &answer);
                }
                // Where calls have no mark, both begin in the same way.
                assert!(row.format == ToolFormat::Llama3 || is_value == (begin == value), "{answer:?}");
            }
        }
    }
}

/// A preparer for a model of this format, in this process.
fn preparer(format: ToolFormat) -> Preparer<Inline> {
    let mut model = model();
    model.format = ChatFormat::of(format);
    let work = Inline::new(None, model.path.clone(), None);
    Preparer::new(Arc::new(model), work)
}

fn generate(tools: &Value, is_required: bool) -> Generate {
    let mut generate = Generate::new("a", 1, SamplingParameters::default(), Vec::new());
    generate.tool_use = Some(Box::new(ToolUse { tools: tools.to_string(), is_required, ..ToolUse::default() }));
    generate
}

#[test]
fn tools_that_are_not_supported_constrain_names_only() {
    let bad = [
        json!({"type": "object", "properties": {"n": {"const": 1e300}}}),
        json!({"type": "object", "properties": {"t": {"type": "string", "pattern": "(?=x)x"}}}),
        json!({"$ref": "#/nowhere"}),
        json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 2, "maximum": 1}}, "required": ["n"]}),
    ];
    for format in [ToolFormat::Hermes, ToolFormat::Xml, ToolFormat::Lfm2] {
        let mut preparer = preparer(format);
        for bad in &bad {
            let good =
                json!({"name": "good", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}});
            let generate = generate(&json!([{"name": "bad", "parameters": bad}, good]), false);
            let prompt = preparer.prepare(&generate, 0).expect("no tool is refused").ids;
            let known = preparer.memory.tools(&key(&generate).expect("tools")).flatten().expect("names at least");
            assert!(known[1].parameters.is_some(), "{format:?} {bad}: the other tool keeps its schema");
            let calls = preparer.call_grammar(&generate, &prompt).expect("a grammar");
            assert!(calls.lark.contains("bad") && calls.lark.contains("good") && !calls.is_required);
        }
    }
}

#[test]
fn answers_have_a_format_instead_of_calls_if_both_fit() {
    for format in [ToolFormat::Hermes, ToolFormat::Llama3, ToolFormat::Harmony] {
        let mut preparer = preparer(format);
        let mut asked = generate(&tools(), false);
        asked.grammar = Some(Grammar::JsonSchema(verdict().to_string()));
        let prompt = preparer.prepare(&asked, 0).expect("it is good").ids;
        assert!(preparer.knows_form(&asked), "nothing is left to be tried");
        let calls = preparer.call_grammar(&asked, &prompt).expect("a grammar");
        assert!(calls.is_required && ["verdict", "weather"].iter().all(|part| calls.lark.contains(part)), "{format:?}");
        asked.grammar = Some(Grammar::JsonSchema(json!({"title": "x".repeat(GRAMMAR_BYTES_MAX - 100)}).to_string()));
        assert!(preparer.prepare(&asked, 0).is_ok() && preparer.call_grammar(&asked, &prompt).is_none(), "{format:?}");
        asked.grammar = Some(Grammar::JsonSchema(r##"{"$ref": "#/nowhere"}"##.into()));
        assert!(preparer.prepare(&asked, 0).is_err(), "a format is not left out");
    }
}

#[test]
fn models_without_calls_have_plain_objects() {
    let mut preparer = preparer(ToolFormat::None);
    let mut asked = generate(&tools(), true);
    asked.grammar = Some(Grammar::Json);
    let prompt = preparer.prepare(&asked, 0).expect("it is good").ids;
    assert_eq!(preparer.call_grammar(&asked, &prompt), None);
    let mut preparer = self::preparer(ToolFormat::Hermes);
    for nonsense in [json!([]), json!([{"name": ""}]), json!(1), Value::Object(Map::new())] {
        let asked = generate(&nonsense, false);
        let prompt = preparer.prepare(&asked, 0).expect("it is good").ids;
        assert_eq!(preparer.call_grammar(&asked, &prompt), None, "{nonsense}");
    }
    let many: Vec<Value> = (0..3000).map(|number| json!({"name": format!("tool{number}")})).collect();
    let asked = generate(&many.into(), false);
    assert!(preparer.prepare(&asked, 0).is_ok() && preparer.call_grammar(&asked, &[1]).is_none());
}

#[test]
fn grammars_of_small_schemas_cannot_grow_without_bound() {
    let mut doubling = json!({"type": "string"});
    for _ in 0..28 {
        doubling = json!({"type": ["array", "array"], "items": doubling});
    }
    let mut both = json!({"type": "string"});
    for depth in 0..14 {
        both = json!({"type": ["array", "object"], "items": both.clone(), "properties": {(format!("p{depth}")): both}});
    }
    let text = "x".repeat(4 << 10);
    let texts: Vec<String> = (0..50).map(|number| format!("{text}{number}")).collect();
    let referring: Map<String, Value> =
        (0..900).map(|number| (format!("p{number}"), json!({"$ref": "#/$defs/a"}))).collect();
    let referring = json!({"type": "object", "properties": referring, "$defs": {"a": {"enum": texts}}});
    let names: Vec<String> = (0..20_000).map(|number| format!("n{number}")).collect();
    let requiring = json!({"type": "object", "required": names});
    let nested = |schema| json!({"type": "object", "properties": {"a": schema}});
    for parameters in [nested(doubling), nested(both), referring, requiring] {
        let tools = [GrammarTool { name: "f".into(), parameters: Some(parameters) }];
        for row in rows() {
            let how = GrammarUse { is_required: true, is_one: false, thinking: Thinking::None };
            let begin = Instant::now();
            let grammar = call_grammar(row, &tools, how, &|_| None);
            assert!(grammar.is_none_or(|grammar| grammar.lark.len() <= GRAMMAR_BYTES_MAX));
            assert!(begin.elapsed() < Duration::from_secs(5), "{:?}: {:?}", row.format, begin.elapsed());
        }
    }
}
