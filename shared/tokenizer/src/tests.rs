//! Tokenizers with synthetic vocabularies: hostile metadata, merges compared with a slow reference, special tokens.

use gguf::read;

use super::*;

/// A metadata value.
#[derive(Clone)]
enum Value {
    Text(&'static str),
    Unsigned(u32),
    Flag(bool),
    Texts(Vec<String>),
    Floats(Vec<f32>),
    Integers(Vec<i32>),
}

use Value::{Flag, Floats, Integers, Text, Texts as List, Unsigned};

type Pairs = Vec<(&'static str, Value)>;

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

fn put_array(bytes: &mut Vec<u8>, element: u32, length: usize) {
    bytes.extend(9_u32.to_le_bytes());
    bytes.extend(element.to_le_bytes());
    bytes.extend((length as u64).to_le_bytes());
}

/// A GGUF file without tensors.
fn gguf(pairs: &Pairs) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0".to_vec();
    bytes.extend((pairs.len() as u64).to_le_bytes());
    for (key, value) in pairs {
        put_text(&mut bytes, &format!("tokenizer.ggml.{key}"));
        match value {
            Text(text) => {
                bytes.extend(8_u32.to_le_bytes());
                put_text(&mut bytes, text);
            }
            Unsigned(number) => {
                bytes.extend(4_u32.to_le_bytes());
                bytes.extend(number.to_le_bytes());
            }
            Flag(flag) => {
                bytes.extend(7_u32.to_le_bytes());
                bytes.push(u8::from(*flag));
            }
            List(texts) => {
                put_array(&mut bytes, 8, texts.len());
                texts.iter().for_each(|text| put_text(&mut bytes, text));
            }
            Floats(floats) => {
                put_array(&mut bytes, 6, floats.len());
                floats.iter().for_each(|float| bytes.extend(float.to_le_bytes()));
            }
            Integers(integers) => {
                put_array(&mut bytes, 5, integers.len());
                integers.iter().for_each(|integer| bytes.extend(integer.to_le_bytes()));
            }
        }
    }
    bytes
}

fn load(bytes: &[u8]) -> Result<Tokenizer, TokenizerError> {
    let index = read::parse(bytes).map_err(TokenizerError::Metadata)?;
    Tokenizer::from_metadata(Metadata::new(bytes, &index))
}

fn list(texts: &[&str]) -> Value {
    List(texts.iter().map(|&text| text.to_owned()).collect())
}

fn spm() -> Pairs {
    vec![
        ("model", Text("llama")),
        ("tokens", list(&["<unk>", "<s>", "</s>", "a", "b", "▁", "▁a", "ab", "<0xC3>", "<0xA9>", "<end>", "XY"])),
        ("scores", Floats(vec![0.0, 0.0, 0.0, -3.0, -4.0, -2.0, -1.5, -1.0, 0.0, 0.0, 0.0, 0.0])),
        ("token_type", Integers(vec![2, 3, 3, 1, 1, 1, 1, 1, 6, 6, 3, 4])),
    ]
}

fn bpe() -> Pairs {
    vec![
        ("model", Text("gpt2")),
        ("pre", Text("gpt-2")),
        ("tokens", list(&["a", "b", "Ġ", "ab", "Ġab", "<|im_end|>", "é", "Ã", "©", "XY"])),
        ("token_type", Integers(vec![1, 1, 1, 1, 1, 3, 1, 1, 1, 4])),
        ("merges", list(&["a b", "Ġ ab", "b b", "é é"])),
        ("bos_token_id", Unsigned(5)),
    ]
}

fn gemma4() -> Pairs {
    vec![
        ("model", Text("gemma4")),
        (
            "tokens",
            list(&["<unk>", "<bos>", "a", "b", "▁", "▁a", "▁ab", "\n", "\n\n", "<0xC3>", "<0xA9>", "</s>", "<turn|>"]),
        ),
        ("token_type", Integers(vec![2, 3, 1, 1, 1, 1, 1, 1, 1, 6, 6, 3, 3])),
        ("merges", list(&["▁ a", "▁a b", "a b", "b \n"])),
        ("bos_token_id", Unsigned(1)),
        ("unknown_token_id", Unsigned(0)),
        ("add_bos_token", Flag(false)),
    ]
}

/// The vocabulary with one key changed, added or, without a value, removed.
fn with(mut pairs: Pairs, key: &'static str, value: Option<Value>) -> Pairs {
    pairs.retain(|(known, _)| *known != key);
    pairs.extend(value.map(|value| (key, value)));
    pairs
}

#[track_caller]
fn check_refused(pairs: Pairs, key: &'static str, value: Option<Value>, words: &[&str]) {
    let Err(error) = load(&gguf(&with(pairs, key, value))) else {
        panic!("{key} was accepted, expected {words:?}");
    };
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "`{message}` does not contain `{word}`");
    }
}

#[test]
fn missing_or_mistyped_key_is_rejected_by_name() {
    for (pairs, key) in
        [(spm(), "scores"), (spm(), "token_type"), (bpe(), "merges"), (bpe(), "tokens"), (bpe(), "model")]
    {
        check_refused(pairs.clone(), key, None, &[&format!("no tokenizer.ggml.{key}")]);
        check_refused(pairs, key, Some(Flag(true)), &[&format!("tokenizer.ggml.{key}")]);
    }
}

#[test]
fn unknown_tokenizer_model_is_rejected_with_the_supported_ones() {
    check_refused(spm(), "model", Some(Text("bert")), &["bert", "llama", "gpt2", "gemma4"]);
    check_refused(bpe(), "pre", Some(Text("qwen9\u{1b}[2J")), &["qwen9\\u{1b}[2J", "qwen2, "]);
}

#[test]
fn invalid_list_is_rejected_by_name() {
    check_refused(spm(), "tokens", Some(list(&[])), &["tokens is an empty list"]);
    check_refused(spm(), "scores", Some(Floats(vec![0.0; 11])), &["scores has 11 elements for 12 tokens"]);
    check_refused(spm(), "scores", Some(Floats(vec![f32::NAN; 12])), &["score of token 0"]);
    check_refused(bpe(), "token_type", Some(Integers(vec![1; 11])), &["token_type has 11 elements for 10 tokens"]);
    for number in [0, 7, -1] {
        let kinds = Integers(vec![number; 10]);
        check_refused(bpe(), "token_type", Some(kinds), &["token_type", &number.to_string()]);
    }
}

#[test]
fn the_id_of_no_token_is_refused_by_name() {
    for key in ["bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id", "unknown_token_id"] {
        check_refused(bpe(), key, Some(Unsigned(10)), &[key, "is 10", "10 tokens"]);
        check_refused(spm(), key, Some(Unsigned(u32::MAX)), &[key, "4294967295"]);
    }
    let without_bos = with(bpe(), "bos_token_id", None);
    check_refused(without_bos, "add_bos_token", Some(Flag(true)), &["add_bos_token", "bos_token_id"]);
}

#[test]
fn suppressed_tokens_are_those_of_the_vocabulary() {
    let suppressed = |ids: Vec<i32>| {
        let pairs = with(gemma4(), "suppress_tokens", Some(Integers(ids)));
        load(&gguf(&pairs)).expect("the vocabulary is good").suppressed().to_vec()
    };
    assert_eq!(suppressed(vec![12, 13, 3, -1, i32::MAX]), [12, 3]);
    assert_eq!(load(&gguf(&gemma4())).expect("the vocabulary is good").suppressed(), [0; 0]);
    let many = Integers(vec![1; SUPPRESSED_MAX + 1]);
    check_refused(gemma4(), "suppress_tokens", Some(many), &["suppress_tokens has 257 elements"]);
    check_refused(gemma4(), "suppress_tokens", Some(Text("1")), &["tokenizer.ggml.suppress_tokens"]);
}

#[test]
fn a_bad_merge_token_or_byte_is_refused_by_name() {
    for bad in ["ab", "", " ", "a b c", "a "] {
        check_refused(bpe(), "merges", Some(list(&["a b", bad])), &["element 1 of tokenizer.ggml.merges", bad]);
    }
    let long = "a".repeat(TOKEN_BYTES_MAX + 1);
    check_refused(bpe(), "merges", Some(List(vec![long])), &["element 0", "4097 bytes"]);
    let twice = with(with(bpe(), "token_type", None), "bos_token_id", None);
    check_refused(twice, "tokens", Some(list(&["a", "b", "a"])), &["tokens 0 and 2", "`a`"]);
    let mut kinds = vec![1; 12];
    kinds[3] = 6;
    check_refused(spm(), "token_type", Some(Integers(kinds)), &["token 3 is a byte", "`a`"]);
}

#[test]
fn metadata_cut_or_changed_anywhere_never_panics() {
    let mut state = 1_u64;
    let mut accepted = 0;
    for pairs in [spm(), bpe(), gemma4()] {
        let whole = gguf(&pairs);
        for end in 0..whole.len() {
            assert!(load(&whole[..end]).is_err(), "cut at {end}");
        }
        for round in 0..10_000 {
            let mut bytes = whole.clone();
            for _ in 0..1 + round % 2 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (state >> 40) as usize % bytes.len();
                bytes[at] = (state >> 32) as u8;
            }
            if let Ok(tokenizer) = load(&bytes) {
                accepted += 1;
                let ids = tokenizer.encode("ab aé XY<s>中", true, true);
                assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocabulary_length()));
                tokenizer.decode(&ids, true);
            }
        }
    }
    assert!(accepted > 1000, "only {accepted} mutants came as far as encoding");
}

#[test]
fn non_tokens_become_bytes_or_the_unknown_token() {
    let tokenizer = load(&gguf(&spm())).expect("the vocabulary is good");
    // ▁a b: the merge "ab" is better than "▁a".
    assert_eq!(tokenizer.encode("ab", true, false), [1, 5, 7]);
    assert_eq!(tokenizer.encode("a", false, false), [6]);
    assert_eq!(tokenizer.encode("é", false, false), [5, 8, 9]);
    assert_eq!(tokenizer.encode("è", false, false), [5, 0]);
    assert_eq!(tokenizer.decode(&[5, 8, 9], false), "é");
    let tokenizer = load(&gguf(&bpe())).expect("the vocabulary is good");
    assert_eq!(tokenizer.encode("ab ab", false, false), [3, 4]);
    // A merge gives "bb", which is not a token.
    assert_eq!(tokenizer.encode("bbé", false, false), [1, 1, 7, 8]);
    assert_eq!(tokenizer.encode("c", false, false), [0; 0]);
}

#[test]
fn gemma4_merges_characters_within_lines() {
    let tokenizer = load(&gguf(&gemma4())).expect("the vocabulary is good");
    // BOS comes even though the file denies it; no space is put before the text.
    assert_eq!(tokenizer.encode("ab ab", true, false), [1, 2, 3, 6]);
    assert_eq!(tokenizer.encode("  ab", false, false), [4, 6]);
    assert_eq!(tokenizer.encode("b\n\n\n a", false, false), [3, 7, 7, 7, 5], "three newlines are no token");
    assert_eq!(tokenizer.encode("\n\na", false, false), [8, 2]);
    assert_eq!(tokenizer.encode("éè", false, false), [9, 10, 0]);
    assert_eq!(tokenizer.encode("<turn|>", false, true), [12]);
    assert!(!tokenizer.encode("<turn|><0xC3>", false, false).iter().any(|id| [9, 12].contains(id)));
    assert_eq!(tokenizer.decode(&[1, 5, 9, 10, 8, 6], false), " aé\n\n ab");
    let (mut stream, mut text) = (tokenizer.stream(), String::new());
    for (id, expected) in [(5, " a"), (9, " a"), (10, " aé"), (4, " aé ")] {
        stream.push(&tokenizer, id, false, &mut text);
        assert_eq!(text, expected);
    }
    check_refused(gemma4(), "merges", Some(list(&["▁ a", "ab"])), &["element 1 of tokenizer.ggml.merges"]);
    check_refused(gemma4(), "merges", None, &["no tokenizer.ggml.merges"]);
}

#[test]
fn user_defined_tokens_always_match_control_tokens_on_demand() {
    let tokenizer = load(&gguf(&spm())).expect("the vocabulary is good");
    assert_eq!(tokenizer.encode("aXYa", false, false), [6, 11, 6]);
    assert_eq!(tokenizer.encode("<end>XY", false, true), [10, 11]);
    assert!(!tokenizer.encode("<end>", false, false).contains(&10));
    let tokenizer = load(&gguf(&bpe())).expect("the vocabulary is good");
    assert_eq!(tokenizer.encode("aXY<|im_end|>", false, true), [0, 9, 5]);
    assert!(tokenizer.is_end(5) && !tokenizer.is_end(9));
}

#[test]
fn ends_depend_on_the_other_tokens_of_the_vocabulary() {
    let ends = |tokens: &[&str]| {
        let kinds = Some(Integers(vec![3; tokens.len()]));
        let pairs =
            with(with(with(bpe(), "tokens", Some(list(tokens))), "token_type", kinds), "merges", Some(list(&[])));
        let tokenizer = load(&gguf(&with(pairs, "bos_token_id", None))).expect("the vocabulary is good");
        let ids = (0..tokens.len() as u32).filter(|id| tokenizer.is_end(*id));
        ids.map(|id| tokens[id as usize].to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ends(&["<|end|>", "<|user|>"]), ["<|end|>"]);
    assert_eq!(ends(&["<|end|>", "<|return|>"]), ["<|end|>", "<|return|>"]);
    assert_eq!(ends(&["<|end|>", "<|return|>", "<|call|>"]), ["<|return|>", "<|call|>"], "gpt-oss");
    assert_eq!(ends(&["<|end|>", "<|calls|>", "<|flush|>"]), ["<|calls|>", "<|flush|>"]);
    assert_eq!(ends(&["</s>", "<turn|>", "<|tool_response>"]), ["<turn|>", "<|tool_response>"], "gemma 4");
    assert_eq!(ends(&["<|fim_middle|>", "<|fim_pad|>", "<|file_sep|>"]), ["<|fim_pad|>", "<|file_sep|>"]);
    let tokenizer = load(&gguf(&with(bpe(), "fim_sep_token_id", Some(Unsigned(3))))).expect("the vocabulary is good");
    assert!(tokenizer.is_end(3) && !tokenizer.is_end(2));
}

#[test]
fn a_bos_comes_as_the_file_says() {
    for (flag, expected) in [(None, false), (Some(false), false), (Some(true), true)] {
        let pairs = with(bpe(), "add_bos_token", flag.map(Flag));
        let tokenizer = load(&gguf(&pairs)).expect("the vocabulary is good");
        let ids: &[u32] = if expected { &[5, 0] } else { &[0] };
        assert_eq!(tokenizer.encode("a", true, false), ids);
        assert_eq!(tokenizer.encode("a", false, false), [0]);
    }
    let pairs = with(spm(), "add_space_prefix", Some(Flag(false)));
    let tokenizer = load(&gguf(&pairs)).expect("the vocabulary is good");
    assert_eq!(tokenizer.encode("a", true, false), [1, 3]);
}

/// Merges the best pair, found by linear search, until there is none.
fn merge_slowly(vocabulary: &Vocabulary, text: &str) -> Vec<u32> {
    let find = |text: &str| vocabulary.tokens.iter().position(|token| token == text.as_bytes());
    let mut parts: Vec<String> = text.chars().map(String::from).collect();
    loop {
        let mut best: Option<(f32, usize)> = None;
        for left in 1..parts.len() {
            if let Some(id) = find(&(parts[left - 1].clone() + &parts[left])) {
                let score = vocabulary.scores[id];
                if best.is_none_or(|(most, _)| score > most) {
                    best = Some((score, left));
                }
            }
        }
        let Some((_, left)) = best else { break };
        let right = parts.remove(left);
        parts[left - 1] += &right;
    }
    parts.iter().map(|part| find(part).expect("each letter is a token") as u32).collect()
}

#[test]
fn the_heap_merges_as_the_slow_reference_does() {
    let mut state = 9_u64;
    let mut below = |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % bound
    };
    let mut merged = 0;
    for _ in 0..200 {
        let mut texts = vec!["a".to_owned(), "b".to_owned(), "c".to_owned()];
        for _ in 0..below(30) {
            let text = texts[below(texts.len())].clone() + &texts[below(texts.len())];
            if !texts.contains(&text) && text.len() < 20 {
                texts.push(text);
            }
        }
        let vocabulary = Vocabulary {
            model: Model::Spm,
            pre: "default".to_owned(),
            // Few different scores give many ties.
            scores: texts.iter().map(|_| below(5) as f32 - 2.0).collect(),
            kinds: vec![Kind::Normal; texts.len()],
            tokens: texts.iter().collect(),
            merges: Texts::default(),
            bos: None,
            eos: None,
            eot: None,
            eom: None,
            fim_ends: [None; 3],
            unknown: None,
            add_bos: false,
            add_eos: false,
            add_space_prefix: false,
            strips_after_special: false,
            suppressed: Vec::new(),
        };
        let text: String = (0..60).map(|_| ['a', 'b', 'c'][below(3)]).collect();
        let expected = merge_slowly(&vocabulary, &text);
        merged += 60 - expected.len();
        let tokenizer = Tokenizer::new(vocabulary).expect("the vocabulary is good");
        assert_eq!(tokenizer.encode(&text, false, false), expected, "{texts:?}: {text}");
    }
    assert!(merged > 1000, "only {merged} merges were checked");
}
