//! Writes a GGUF file with the shape of a real model and seeded random weights, for benchmarks on machines that cannot
//! download one: `cargo run --release -p bramble-tests --bin make_model -- tinyllama-1.1b q4_k_m OUT.gguf`.
use std::{
    fs::{File, Metadata},
    io::{BufWriter, Write},
    path::PathBuf,
};

use anyhow::Context;
use clap::Parser;
use gguf::BlockFormat;
use harness::{
    chain::Chain,
    family_model::FamilyModel,
    gguf_writer::{GgufWriter, Value},
    tiny_model::{Architecture, Experts, TinyModel},
};
use models::known::{self, KnownModel, KnownValue};

/// Write a GGUF file with a real model's shape and random weights.
#[derive(Debug, Parser)]
struct Arguments {
    /// Shape: tinyllama-1.1b, llama-3.2-1b, qwen3-0.6b, ..; an unknown name lists all
    shape: String,
    /// Format: f16, q8_0, q4_0, q4_k_m, q2_k, q3_k, iq2_xxs, iq2_xs, iq2_s, iq3_xxs, iq3_s, iq4_xs, or mxfp4 for the
    /// experts of gpt-oss
    format: String,
    /// File to write
    out: PathBuf,
    /// Override the number of layers
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Override the length of hidden states; heads and columns of the feed-forward networks change with it
    #[arg(long, value_name = "N")]
    embedding: Option<usize>,
    /// Override the context length
    #[arg(long, value_name = "TOKENS")]
    context: Option<usize>,
    /// Write only the header and leave a hole in place of the weights, for paced nodes, which read none
    #[arg(long)]
    hollow: bool,
    /// Continue every text along a chain of all tokens in an order given by this seed
    #[arg(long, value_name = "S")]
    chain: Option<u64>,
    /// Leave the chain after a part of the tokens: the share of the others
    #[arg(long, default_value_t = 1.0, value_name = "SHARE", requires = "chain")]
    agreement: f32,
    /// Seed of the weights
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let known = known(&arguments.shape)?;
    let writer = match architecture(known) {
        None => of_family(known, &arguments)?.writer(),
        Some(architecture) => {
            let mut model = formatted(shape(known, architecture), &arguments.format)?;
            model.seed = arguments.seed;
            if let Some(embedding) = arguments.embedding {
                narrow(&mut model, embedding);
            }
            if let Some(seed) = arguments.chain {
                model = model.with_chain(Chain { seed, agreement: arguments.agreement });
            }
            model.block_count = arguments.layers.unwrap_or(model.block_count);
            model.context_length = arguments.context.unwrap_or(model.context_length);
            model.writer()
        }
    };
    let path = arguments.out.display();
    let written = write(&arguments, &writer).with_context(|| format!("cannot write {path}"))?;
    println!("{path}: {} MB", written.len() / 1_000_000);
    Ok(())
}

/// Makes a model narrower, with heads of the same length, and columns in whole super-blocks.
fn narrow(model: &mut TinyModel, embedding: usize) {
    let columns = model.feed_forward_length * embedding / model.embedding_length;
    model.feed_forward_length = (columns / 256).max(1) * 256;
    model.embedding_length = embedding;
    model.head_count = (embedding / model.head_length).max(1);
    model.head_count_kv = model.head_count_kv.min(model.head_count);
    while !model.head_count.is_multiple_of(model.head_count_kv) {
        model.head_count_kv -= 1;
    }
}

/// Writes the model's file and returns its metadata.
fn write(arguments: &Arguments, writer: &GgufWriter) -> std::io::Result<Metadata> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(&arguments.out)?);
    if arguments.hollow {
        let length = writer.write_header(&mut out)?;
        out.flush()?;
        out.get_ref().set_len(length)?;
    } else {
        writer.write_to(&mut out)?;
    }
    out.flush()?;
    out.get_ref().metadata()
}

/// The known model of this name.
fn known(name: &str) -> anyhow::Result<&'static KnownModel> {
    let names = known::MODELS.iter().map(|known| known.name).collect::<Vec<_>>().join(", ");
    let known = known::MODELS.iter().find(|known| known.name == name);
    known.with_context(|| format!("unknown shape {name}; choose one of {names}"))
}

/// Its family, if that is one of the first four.
fn architecture(known: &KnownModel) -> Option<Architecture> {
    let found = Architecture::ALL.into_iter().find(|architecture| architecture.name() == known.architecture)?;
    (found.has_experts() == known.experts.is_some()).then_some(found)
}

/// A model of another family, with a context of 8192.
fn of_family(known: &KnownModel, arguments: &Arguments) -> anyhow::Result<FamilyModel> {
    let layers = arguments.layers.unwrap_or(known.block_count);
    let keys = known.keys(layers).into_iter().map(|(key, value)| match (key, value) {
        ("context_length", _) => (key, Value::U32(arguments.context.unwrap_or(8192) as u32)),
        (_, KnownValue::Number(number)) => (key, Value::U32(number as u32)),
        (_, KnownValue::Float(number)) => (key, Value::F32(number)),
        (_, KnownValue::Numbers(numbers)) => {
            (key, Value::Array(5, numbers.into_iter().map(|number| Value::I32(number as i32)).collect()))
        }
        (_, KnownValue::Flags(flags)) => (key, Value::Array(7, flags.into_iter().map(Value::Flag).collect())),
    });
    let keys: Vec<_> = keys.collect();
    let model = FamilyModel::new(known.architecture, &keys);
    let (format, output, finer, expert) = match arguments.format.as_str() {
        "f16" => (BlockFormat::F16, None, None, None),
        "q8_0" => (BlockFormat::Q8_0, None, None, None),
        "q4_0" => (BlockFormat::Q4_0, Some(BlockFormat::Q6K), None, None),
        "q4_k_m" => (BlockFormat::Q4K, Some(BlockFormat::Q6K), Some(BlockFormat::Q6K), None),
        "mxfp4" => (BlockFormat::Q8_0, None, None, Some(BlockFormat::Mxfp4)),
        other => (few_bits(other)?, Some(BlockFormat::Q6K), None, None),
    };
    Ok(FamilyModel {
        optional: known.optional_tensors(),
        keyed: (0..layers).filter(|layer| known.values_are_keys(*layer)).collect(),
        format,
        output_format: output,
        finer_format: finer,
        expert_format: expert,
        vocabulary_length: known.vocabulary_length,
        seed: arguments.seed,
        ..model
    })
}

/// Formats of 2 to 4 bits, of all matrices but the output.
const FEW_BITS: [BlockFormat; 8] = [
    BlockFormat::Q2K,
    BlockFormat::Q3K,
    BlockFormat::Iq2Xxs,
    BlockFormat::Iq2Xs,
    BlockFormat::Iq2S,
    BlockFormat::Iq3Xxs,
    BlockFormat::Iq3S,
    BlockFormat::Iq4Xs,
];

/// One of these formats by its name.
fn few_bits(name: &str) -> anyhow::Result<BlockFormat> {
    let found = FEW_BITS.into_iter().find(|format| format.name().eq_ignore_ascii_case(name));
    found.with_context(|| {
        let names = FEW_BITS.map(|format| format.name().to_lowercase()).join(", ");
        format!("unknown format {name}; choose f16, q8_0, q4_0, q4_k_m, {names} or mxfp4 (of gpt-oss)")
    })
}

/// A known model of the first families, with a context of 8192.
fn shape(known: &KnownModel, architecture: Architecture) -> TinyModel {
    let mut model = TinyModel::new(architecture);
    model.block_count = known.block_count;
    model.embedding_length = known.embedding_length;
    model.feed_forward_length = known.feed_forward_length;
    model.head_count = known.head_count;
    model.head_count_kv = known.head_count_kv;
    (model.head_length, model.rope_dimension_count) = (known.head_length, known.head_length);
    model.vocabulary_length = known.vocabulary_length;
    (model.tied, model.rope_factors) = (known.tied_output, known.has_rope_factors);
    model.context_length = 8192;
    if let Some((count, used_count)) = known.experts {
        (model.experts, model.rope_freq_base) = (Experts { count, used_count }, 1_000_000.0);
        model.wide_embedding = !known.tied_output;
    }
    model
}

/// Applies a format to the tensors in the same mixture as llama.cpp.
fn formatted(model: TinyModel, name: &str) -> anyhow::Result<TinyModel> {
    let one = |format| model.clone().with_format(format);
    Ok(match name {
        "f16" => one(BlockFormat::F16),
        "q8_0" => one(BlockFormat::Q8_0),
        "q4_0" => TinyModel {
            output_format: BlockFormat::Q6K,
            // With tied embeddings this matrix is also the output.
            embedding_format: if model.tied { BlockFormat::Q6K } else { BlockFormat::Q4_0 },
            ..one(BlockFormat::Q4_0)
        },
        "q4_k_m" => TinyModel {
            output_format: BlockFormat::Q6K,
            embedding_format: if model.tied { BlockFormat::Q6K } else { BlockFormat::Q4K },
            finer_format: Some(BlockFormat::Q6K),
            ..one(BlockFormat::Q4K)
        },
        _ => TinyModel {
            output_format: BlockFormat::Q6K,
            embedding_format: if model.tied { BlockFormat::Q6K } else { BlockFormat::Q4K },
            ..one(few_bits(name)?)
        },
    })
}
