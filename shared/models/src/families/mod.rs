//! The model families, one file each: how a family's keys become a [`ModelSpec`]. No other code names a family.
mod arcee;
mod bailingmoe2;
mod cohere2;
mod common;
mod deepseek2;
mod ernie4_5;
mod ernie4_5_moe;
mod exaone4;
mod gemma2;
mod gemma3;
mod gemma4;
mod gemma_embedding;
mod glm4;
mod glm4moe;
mod gpt_oss;
mod granite;
mod granitehybrid;
mod granitemoe;
mod hunyuan_dense;
mod lfm2;
mod lfm2moe;
mod llama;
mod mistral3;
mod nemotron_h;
mod nemotron_h_moe;
mod olmo2;
mod olmoe;
mod phi3;
mod qwen2;
mod qwen2moe;
mod qwen3;
mod qwen35;
mod qwen35moe;
mod qwen3moe;
mod qwen3next;
mod qwen3vl;
mod qwen3vlmoe;
mod seed_oss;
mod smollm3;

use gguf::GgufError;

use crate::{keys::Keys, spec::ModelSpec};

/// A model family.
pub struct Family {
    /// As in `general.architecture`, which is also the prefix of its keys.
    pub name: &'static str,
    /// Reads the keys.
    pub spec: fn(&Keys<'_>) -> Result<ModelSpec, GgufError>,
}

/// Every family.
pub const ALL: &[&Family] = &[
    &arcee::FAMILY,
    &bailingmoe2::FAMILY,
    &cohere2::FAMILY,
    &deepseek2::FAMILY,
    &ernie4_5::FAMILY,
    &ernie4_5_moe::FAMILY,
    &exaone4::FAMILY,
    &gemma2::FAMILY,
    &gemma3::FAMILY,
    &gemma4::FAMILY,
    &gemma_embedding::FAMILY,
    &glm4::FAMILY,
    &glm4moe::FAMILY,
    &gpt_oss::FAMILY,
    &granite::FAMILY,
    &granitehybrid::FAMILY,
    &granitemoe::FAMILY,
    &hunyuan_dense::FAMILY,
    &lfm2::FAMILY,
    &lfm2moe::FAMILY,
    &llama::FAMILY,
    &mistral3::FAMILY,
    &nemotron_h::FAMILY,
    &nemotron_h_moe::FAMILY,
    &olmo2::FAMILY,
    &olmoe::FAMILY,
    &phi3::FAMILY,
    &qwen2::FAMILY,
    &qwen2moe::FAMILY,
    &qwen3::FAMILY,
    &qwen35::FAMILY,
    &qwen35moe::FAMILY,
    &qwen3moe::FAMILY,
    &qwen3next::FAMILY,
    &qwen3vl::FAMILY,
    &qwen3vlmoe::FAMILY,
    &seed_oss::FAMILY,
    &smollm3::FAMILY,
];

/// The family of this name.
pub fn named(name: &str) -> Option<&'static Family> {
    ALL.iter().copied().find(|family| family.name == name)
}

/// The names of all families, for messages.
pub fn names() -> String {
    let names: Vec<&str> = ALL.iter().map(|family| family.name).collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => names.concat(),
    }
}
