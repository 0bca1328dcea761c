//! Writes a GGUF file with the shape of a real model and seeded random weights, for benchmarks where none can be downloaded:
//! `cargo run --release -p bramble-tests --bin make_model -- tinyllama-1.1b q4_k_m OUT.gguf`.
use std::{
    fs::File,
    io::{BufWriter, Write},
    path::PathBuf,
};

use anyhow::{Context, bail};
use clap::Parser;
use harness::tiny_model::TinyModel;
use shared::gguf::{Architecture, BlockFormat, Experts};

/// Writes a GGUF file with a real model's shape and random weights.
#[derive(Debug, Parser)]
struct Arguments {
    /// tinyllama-1.1b, llama-3.2-1b, llama-3.2-3b, qwen3-0.6b, qwen3-30b-a3b or qwen2.5-7b
    shape: String,
    /// f16, q8_0, q4_0 or q4_k_m
    format: String,
    /// The file
    out: PathBuf,
    /// Another number of layers
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Another longest sequence
    #[arg(long, value_name = "TOKENS")]
    context: Option<usize>,
    /// Of every weight
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut model = formatted(shape(&arguments.shape)?, &arguments.format)?;
    model.seed = arguments.seed;
    model.block_count = arguments.layers.unwrap_or(model.block_count);
    model.context_length = arguments.context.unwrap_or(model.context_length);
    let path = arguments.out.display();
    let write = || {
        let mut out = BufWriter::with_capacity(1 << 20, File::create(&arguments.out)?);
        model.writer().write_to(&mut out)?;
        out.flush()?;
        out.get_ref().metadata()
    };
    let written = write().with_context(|| format!("cannot write {path}"))?;
    println!("{path}: {} MB", written.len() / 1_000_000);
    Ok(())
}

/// Layers, embedding, feed-forward (of an expert), heads, KV heads, head length, vocabulary, whether the output is tied.
type Sizes = (usize, usize, usize, usize, usize, usize, usize, bool);

/// Shapes as their published files have them (config.json of each model).
fn shape(name: &str) -> anyhow::Result<TinyModel> {
    let (architecture, sizes): (Architecture, Sizes) = match name {
        "tinyllama-1.1b" => (Architecture::Llama, (22, 2048, 5632, 32, 4, 64, 32_000, false)),
        "llama-3.2-1b" => (Architecture::Llama, (16, 2048, 8192, 32, 8, 64, 128_256, true)),
        "llama-3.2-3b" => (Architecture::Llama, (28, 3072, 8192, 24, 8, 128, 128_256, true)),
        "qwen3-0.6b" => (Architecture::Qwen3, (28, 1024, 3072, 16, 8, 128, 151_936, true)),
        "qwen3-30b-a3b" => (Architecture::Qwen3Moe, (48, 2048, 768, 32, 4, 128, 151_936, false)),
        "qwen2.5-7b" => (Architecture::Qwen2, (28, 3584, 18_944, 28, 4, 128, 152_064, false)),
        _ => bail!("no shape {name}; make_model --help lists them"),
    };
    let mut model = TinyModel::new(architecture);
    (
        model.block_count,
        model.embedding_length,
        model.feed_forward_length,
        model.head_count,
        model.head_count_kv,
        model.head_length,
        model.vocabulary_length,
        model.tied,
    ) = sizes;
    (model.rope_dimension_count, model.context_length) = (model.head_length, 8192);
    if name == "qwen3-30b-a3b" {
        (model.experts, model.rope_freq_base) = (Experts { count: 128, used_count: 8 }, 1_000_000.0);
    }
    model.rope_factors = name.starts_with("llama-3.2");
    Ok(model)
}

/// Formats as llama.cpp mixes them.
fn formatted(model: TinyModel, name: &str) -> anyhow::Result<TinyModel> {
    let one = |format| model.clone().with_format(format);
    Ok(match name {
        "f16" => one(BlockFormat::F16),
        "q8_0" => one(BlockFormat::Q8_0),
        "q4_0" => TinyModel {
            output_format: BlockFormat::Q6K,
            // A tied matrix is the output.
            embedding_format: if model.tied { BlockFormat::Q6K } else { BlockFormat::Q4_0 },
            ..one(BlockFormat::Q4_0)
        },
        "q4_k_m" => TinyModel {
            output_format: BlockFormat::Q6K,
            embedding_format: if model.tied { BlockFormat::Q6K } else { BlockFormat::Q4K },
            finer_format: Some(BlockFormat::Q6K),
            ..one(BlockFormat::Q4K)
        },
        _ => bail!("no format {name}; f16, q8_0, q4_0 or q4_k_m"),
    })
}
