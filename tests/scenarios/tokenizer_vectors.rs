//! The tokenizers on real vocabularies: the same ids as llama.cpp, and the text decoded from them. Reads
//! tests/fixtures/vocab and the demo model.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use gguf::GgufFile;
use tokenizer::{Tokenizer, Vocabulary};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are a folder of the repository").to_owned()
}

fn fixture(name: &str) -> Vec<u8> {
    let path = repository().join("tests/fixtures/vocab").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn unpacked(name: &str) -> GgufFile {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(fixture(name).as_slice()).read_to_end(&mut bytes).expect("the fixture is gzip");
    GgufFile::from_bytes(vec![bytes]).expect("the fixture is GGUF")
}

fn vocabulary(name: &str) -> Tokenizer {
    let file = unpacked(&format!("ggml-vocab-{name}.gguf.gz"));
    Tokenizer::from_metadata(file.metadata()).expect("the fixture has a tokenizer")
}

fn bard() -> Tokenizer {
    let file =
        GgufFile::open(&repository().join("packaging/demo/bard-q8_0.gguf")).expect("the model of the demo is GGUF");
    Tokenizer::from_metadata(file.metadata()).expect("the model has a tokenizer")
}

/// A linear congruential generator; its upper bits are random enough for test texts.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound
    }

    /// A random text of words, spaces, several scripts and arbitrary characters.
    fn text(&mut self) -> String {
        const PARTS: &[&str] = &[
            " ",
            "  ",
            "\n",
            "\r\n",
            "\t",
            "the",
            " The",
            "Hello",
            "'s",
            "1",
            "2026",
            "🦙",
            "👍🏽",
            "é",
            "\u{301}",
            "中文",
            "ひ",
            "កាន់",
            "<|",
            "|>",
            "<s>",
            "</s>",
            "<0x0A>",
            "▁",
            "Ġ",
            "\0",
            "\u{200b}",
            "\u{fffd}",
            "...",
            "{\"a\":",
        ];
        let mut text = String::new();
        for _ in 0..self.below(30) {
            match self.below(4) {
                0 => text.extend(char::from_u32(self.below(0x11_0000) as u32)),
                _ => text.push_str(PARTS[self.below(PARTS.len())]),
            }
        }
        text
    }
}

#[track_caller]
fn check_vectors(name: &str) -> Tokenizer {
    let tokenizer = vocabulary(name);
    let texts = String::from_utf8(fixture(&format!("ggml-vocab-{name}.gguf.inp"))).expect("UTF-8");
    let ids = String::from_utf8(fixture(&format!("ggml-vocab-{name}.gguf.out"))).expect("UTF-8");
    // The last text is empty, and its line has no newline.
    let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
    let lines: Vec<&str> = ids.split('\n').collect();
    assert_eq!((texts.len(), lines.len()), (47, 47));
    for (text, line) in texts.into_iter().zip(lines) {
        let expected: Vec<u32> = line.split_whitespace().map(|id| id.parse().expect("an id")).collect();
        assert_eq!(tokenizer.encode(text, false, false), expected, "{name}: {text:?}");
        assert_eq!(tokenizer.decode(&expected, false), text, "{name}");
    }
    tokenizer
}

/// Decodes the ids of random texts, whole and token by token.
#[track_caller]
fn check_round_trip(tokenizer: &Tokenizer, prefix: &str) {
    let mut random = Random(7);
    let mut tokens = 0;
    for round in 0..3000 {
        let text = random.text();
        let ids = tokenizer.encode(&text, false, false);
        assert_eq!(tokenizer.decode(&ids, false), text, "round {round}");
        let mut stream = tokenizer.stream();
        let mut streamed = String::new();
        ids.iter().for_each(|&id| stream.push(tokenizer, id, false, &mut streamed));
        streamed += &stream.finish();
        let expected = if text.is_empty() { text } else { format!("{prefix}{text}") };
        assert_eq!(streamed, expected, "round {round}");
        tokens += ids.len();
    }
    assert!(tokens > 10_000, "only {tokens} tokens were checked");
}

#[test]
fn llama_bpe_gives_the_ids_of_llama_cpp_and_the_text_back() {
    let tokenizer = check_vectors("llama-bpe");
    check_round_trip(&tokenizer, "");
    assert_eq!(tokenizer.vocabulary_length(), 128_256);
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(128_000), Some(128_001)));
    // Implied by the pre-tokenizer, not by the file.
    assert_eq!(tokenizer.encode("", true, false), [128_000]);
}

#[test]
fn qwen2_gives_the_ids_of_llama_cpp_and_the_text_back() {
    let tokenizer = check_vectors("qwen2");
    check_round_trip(&tokenizer, "");
    // It has a BOS, which the model does not expect before a text.
    assert_eq!(tokenizer.bos(), Some(151_643));
    assert_eq!(tokenizer.encode("", true, true), [0; 0]);
}

#[test]
fn llama_spm_gives_the_ids_of_llama_cpp_and_the_text_back() {
    let tokenizer = check_vectors("llama-spm");
    // SPM writes a space as U+2581, so U+2581 decodes to a space; the round-trip texts avoid it.
    let text = "a▁b";
    assert_eq!(tokenizer.decode(&tokenizer.encode(text, false, false), false), "a b");
    assert_eq!(tokenizer.encode("", true, false), [1]);
}

#[test]
fn spm_gives_the_text_back_with_the_space_of_a_continuation() {
    for tokenizer in [vocabulary("llama-spm"), bard()] {
        let mut random = Random(11);
        for round in 0..3000 {
            let text = random.text().replace('▁', "_");
            let ids = tokenizer.encode(&text, false, false);
            assert_eq!(tokenizer.decode(&ids, false), text, "round {round}");
            assert!(!ids.contains(&1) && !ids.contains(&2), "text became a control token: {text:?}");
            let mut stream = tokenizer.stream();
            let mut streamed = String::new();
            ids.iter().for_each(|&id| stream.push(&tokenizer, id, false, &mut streamed));
            streamed += &stream.finish();
            let space = if text.is_empty() { "" } else { " " };
            assert_eq!(streamed, format!("{space}{text}"), "round {round}");
        }
    }
}

#[test]
fn parts_of_real_vocabularies_give_the_ids_of_llama_cpp() {
    let vectors: BTreeMap<String, Vec<(String, bool, Vec<u32>)>> =
        serde_json::from_slice(&fixture("parts/vectors.json")).expect("texts and ids");
    assert!(vectors.len() >= 8 && vectors.values().all(|texts| texts.len() >= 70));
    for (name, texts) in vectors {
        let file = unpacked(&format!("parts/{name}.gguf.gz"));
        let tokenizer = Tokenizer::from_metadata(file.metadata()).expect("the fixture has a tokenizer");
        for (text, special, expected) in texts {
            assert_eq!(tokenizer.encode(&text, false, special), expected, "{name}: {text:?}");
        }
    }
}

#[test]
fn every_pre_tokenizer_gives_the_ids_of_llama_cpp() {
    #[derive(serde::Deserialize)]
    struct Words {
        texts: Vec<String>,
        groups: Vec<Group>,
    }
    #[derive(serde::Deserialize)]
    struct Group {
        names: Vec<String>,
        ids: Vec<Vec<u32>>,
    }
    let words: Words = serde_json::from_slice(&fixture("parts/words.json")).expect("texts and ids");
    let file = unpacked("parts/words.gguf.gz");
    let vocabulary = Vocabulary::from_metadata(file.metadata()).expect("the fixture has a vocabulary");
    let unknown = Vocabulary { pre: "?".into(), ..vocabulary.clone() };
    let mut unchecked = Tokenizer::new(unknown).expect_err("no pre-tokenizer has this name").to_string();
    for group in &words.groups {
        for name in &group.names {
            unchecked = unchecked.replacen(&format!(" {name},"), "", 1);
            let tokenizer = Tokenizer::new(Vocabulary { pre: name.clone(), ..vocabulary.clone() }).expect("supported");
            assert!(group.ids.len() >= 40, "{name}");
            for (text, expected) in words.texts.iter().zip(&group.ids) {
                assert_eq!(tokenizer.encode(text, false, false), *expected, "{name}: {text:?}");
                assert_eq!(tokenizer.decode(expected, false), *text, "{name}");
            }
        }
    }
    let (_, unchecked) = unchecked.split_once("one of").expect("the error lists the names");
    assert_eq!(unchecked.trim(), "gemma4", "a name has no vector");
}

#[test]
fn prompts_of_the_demo_give_the_ids_of_llama_cpp() {
    let prompts: &[(&str, &[u32])] = &[
        ("ROMEO:\n", &[1, 870, 2007, 13]),
        (
            "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\n",
            &[
                1, 679, 1063, 2007, 13, 2026, 1985, 558, 340, 589, 1818, 804, 1960, 717, 1999, 680, 324, 618, 2008, 13,
                13, 2009, 277, 2007, 13,
            ],
        ),
        (
            "KING RICHARD II:\nWhat must the king do now?",
            &[1, 525, 644, 701, 2007, 13, 2022, 295, 580, 269, 542, 400, 509, 2027],
        ),
        (
            "The quality of mercy is not strain'd, It droppeth as the gentle rain from heaven",
            &[
                1, 367, 561, 378, 594, 304, 1760, 332, 328, 1536, 266, 2013, 1995, 1999, 799, 280, 385, 539, 1172, 380,
                269, 733, 808, 266, 487, 820,
            ],
        ),
        (
            "Né à Zürich, 42 café!",
            &[
                1, 386, 198, 172, 1984, 198, 163, 1984, 2043, 198, 191, 351, 330, 1999, 1984, 55, 53, 281, 1988, 2001,
                198, 172, 2029,
            ],
        ),
        ("ROMEO:\nBut, soft! what light", &[1, 870, 2007, 13, 2026, 322, 1999, 379, 1083, 2029, 452, 1261]),
        (
            "It is the east, and Juliet is the sun.\n\nJULIET:\n",
            &[1, 799, 332, 269, 344, 449, 1999, 301, 1807, 332, 269, 1345, 2008, 13, 13, 2041, 1014, 2007, 13],
        ),
        ("xyz 0123 ~ naïve", &[1, 1984, 2039, 1998, 2040, 1984, 51, 52, 53, 2045, 1984, 129, 282, 1988, 198, 178, 299]),
    ];
    let tokenizer = bard();
    for (prompt, ids) in prompts {
        assert_eq!(tokenizer.encode(prompt, true, false), *ids, "{prompt:?}");
        assert_eq!(tokenizer.decode(ids, false), *prompt);
    }
}

#[test]
fn special_tokens_are_parsed_on_demand_only() {
    let tokenizer = vocabulary("llama-bpe");
    let text = "<|begin_of_text|> hi<|eot_id|>\n<|eot_id";
    let ids = tokenizer.encode(text, true, true);
    assert_eq!(ids[..2], [128_000, 128_000]);
    assert_eq!(ids.iter().filter(|&&id| id >= 128_000).count(), 3);
    assert_eq!(tokenizer.decode(&ids[1..], true), text);
    assert_eq!(tokenizer.decode(&ids[1..], false), " hi\n<|eot_id");
    let plain = tokenizer.encode(text, false, false);
    assert!(plain.iter().all(|&id| id < 128_000), "{plain:?}");
    assert_eq!(tokenizer.decode(&plain, false), text);
    assert_eq!(tokenizer.piece(128_009, false), b"");
    assert_eq!(tokenizer.piece(128_009, true), b"<|eot_id|>");
    assert_eq!(tokenizer.piece(u32::MAX, true), b"");

    let spm = vocabulary("llama-spm");
    assert_eq!(spm.encode("<s>a</s> b", false, true), [1, 263, 2, 29871, 289]);
}

#[test]
fn generation_ends_at_every_end_of_turn_token() {
    let llama = vocabulary("llama-bpe");
    let ends: Vec<u32> = (0..128_256).filter(|&id| llama.is_end(id)).collect();
    // <|end_of_text|>, <|eot_id|>
    assert_eq!(ends, [128_001, 128_009]);
    let qwen = vocabulary("qwen2");
    let ends: Vec<u32> = (0..151_936).filter(|&id| qwen.is_end(id)).collect();
    // <|endoftext|>, <|im_end|>
    assert_eq!(ends, [151_643, 151_645]);
    assert!(bard().is_end(2) && !bard().is_end(1) && !bard().is_end(u32::MAX));
}

#[test]
fn text_of_a_megabyte_is_encoded_completely() {
    let mut random = Random(3);
    let mut text = String::new();
    while text.len() < 1 << 20 {
        text += &random.text().replace('▁', "_");
    }
    // A single word of a megabyte as well: the pre-tokenizer never splits letters.
    for text in [text, "ab".repeat(1 << 19)] {
        for tokenizer in [bard(), vocabulary("qwen2")] {
            let ids = tokenizer.encode(&text, false, false);
            assert!(tokenizer.decode(&ids, false) == text, "the text came back changed");
        }
    }
}
