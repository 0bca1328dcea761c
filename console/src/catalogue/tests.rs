//! Every row of the table is plausible, and names mean what they say.
use std::collections::BTreeSet;

use assignment::source::url_at;
use topology::sizes::{ModelSizes, Quantisation};

use super::*;

/// Bits of a weight, from and to, embeddings and unquantised tensors included.
fn bits(quantisation: &str) -> [f64; 2] {
    match quantisation {
        "Q8_0" => [8.0, 9.2],
        "MXFP4" => [4.2, 5.0],
        _ => [4.4, 6.5],
    }
}

#[test]
fn every_entry_is_plausible_and_its_sources_are_valid() {
    let names: BTreeSet<String> = ENTRIES.iter().map(|entry| folded(entry.name)).collect();
    assert_eq!(names.len(), ENTRIES.len(), "names differ in more than punctuation");
    let mut sources = BTreeSet::new();
    for entry in ENTRIES {
        let name = entry.name;
        assert!(name == name.to_lowercase() && !name.contains([' ', ':', '/']), "{name}");
        assert!(models::families::named(entry.family).is_some(), "{name}: no family {}", entry.family);
        assert!(entry.licence.len() <= 11 && entry.context >= 2048 && !entry.files.is_empty(), "{name}");
        assert!(entry.active.is_none_or(|active| active < entry.parameters), "{name}");
        for file in entry.files {
            let url = url_at(file.source, "https://huggingface.co");
            assert_eq!(url.map(|(_, file_name)| file_name).as_deref(), Ok(file.file_name()), "{name}");
            assert!(sources.insert(file.source), "{} twice", file.source);
            assert!(protocol::models::check_name(file.file_name()).is_ok(), "{}", file.source);
            let of_weight = file.bytes as f64 * 8.0 / (f64::from(entry.parameters) * 1e9);
            let [least, most] = bits(file.quantisation);
            assert!((least..=most).contains(&of_weight), "{} has {of_weight:.2} bits a weight", file.source);
            assert!(folded(file.file_name()).contains(&folded(file.quantisation)), "{}", file.source);
        }
    }
}

#[test]
fn shapes_are_built_in_and_of_the_same_family() {
    for entry in ENTRIES {
        let Some(shape) = entry.shape else { continue };
        for file in entry.files {
            let mix: Quantisation = file.mix().parse().expect("the planner knows the mix");
            let sizes = ModelSizes::known(shape, mix).expect("the planner knows the shape");
            assert_eq!(sizes.spec.architecture, entry.family, "{}", entry.name);
            assert!(sizes.spec.context_length >= 2048);
        }
    }
}

fn one(typed: &str) -> String {
    match resolve(typed) {
        Resolved::One(entry, file) => format!("{} {}", entry.name, file.quantisation),
        Resolved::Several(entries) => {
            format!("several: {}", entries.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", "))
        }
        Resolved::NoSuchFile(entry) => format!("no such file of {}", entry.name),
        Resolved::Unknown(alike) => format!("unknown: {}", alike.join(", ")),
    }
}

#[test]
fn short_names_choose_a_model_and_a_quantisation() {
    for (typed, meant) in [
        ("qwen3.5-4b", "qwen3.5-4b Q4_K_M"),
        ("Qwen3.5-4B:q8_0", "qwen3.5-4b Q8_0"),
        ("qwen3.5:4b", "qwen3.5-4b Q4_K_M"),
        ("gpt-oss", "gpt-oss-20b MXFP4"),
        ("gpt-oss-20b", "gpt-oss-20b MXFP4"),
        ("qwen3-0.6b", "qwen3-0.6b Q8_0"),
        ("phi-4", "phi-4 Q4_K_M"),
        ("coder", "qwen3-coder-30b-a3b Q4_K_M"),
        ("qwen3.5-4b:q2_k", "no such file of qwen3.5-4b"),
        ("llama3.2", "several: llama-3.2-1b, llama-3.2-3b"),
        ("qwen3.5-3", "several: qwen3.5-35b-a3b"),
        ("lama-3.2-1b", "several: llama-3.2-1b"),
        ("lamma-3.2-1b", "unknown: llama-3.2-1b, gemma-3-1b, llama-3.2-3b"),
        ("bloom", "unknown: "),
        ("", "unknown: "),
        ("..", "unknown: "),
    ] {
        assert_eq!(one(typed), meant, "{typed}");
    }
}

#[test]
fn quantisation_is_kept_where_a_name_matches_several_models() {
    let Resolved::Several(entries) = resolve("llama3.2:q8_0") else { panic!("it matches two models") };
    assert_eq!(file_of(entries[0], "llama3.2:q8_0").map(|file| file.quantisation), Some("Q8_0"));
    assert_eq!(file_of(entries[0], "llama3.2:q2_k"), None);
    assert_eq!(file_of(entries[0], "llama3.2"), Some(entries[0].usual()));
}

#[test]
fn search_ranks_names_before_families_and_licences() {
    let names = |query: &str| search(query).iter().map(|entry| entry.name).collect::<Vec<&str>>();
    assert_eq!(names("").len(), ENTRIES.len());
    assert_eq!(names("qwen3.5")[0], "qwen3.5-0.8b");
    assert_eq!(names("llama 1b")[..2], ["llama-3.2-1b", "tinyllama-1.1b"]);
    assert!(names("mit").contains(&"phi-4"));
    assert_eq!(names("gpt mxfp4"), ["gpt-oss-20b"]);
    assert_eq!(names("nothing like it"), [] as [&str; 0]);
}

#[test]
fn sizes_are_written_as_on_the_hub() {
    let size = |typed: &str| match resolve(typed) {
        Resolved::One(_, file) => file.size(),
        _ => String::new(),
    };
    assert_eq!(size("qwen3.5-4b"), "2.7 GB");
    assert_eq!(size("llama-3.2-1b"), "808 MB");
    assert_eq!(size("gemma-4-26b-a4b"), "about 17 GB");
    let [small, large] = ["qwen3.5-4b", "qwen3.5-35b-a3b"].map(|typed| match resolve(typed) {
        Resolved::One(entry, _) => entry.size_text(),
        _ => String::new(),
    });
    assert_eq!((small.as_str(), large.as_str()), ("4.2B", "35B, 3B active"));
}
