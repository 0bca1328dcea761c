//! Options for a hypothetical model and cluster, shared by `console topology simulate` and `plan`.
use std::path::Path;

use anyhow::Context;
use clap::Args;
use collectives::Choice;
use common::precision::{Exchange, KvFormat};
use gguf::GgufFile;
use planner::simulate::{Link, NodeProfile};
use serde_json::{Value, json};
use topology::sizes::{ModelSizes, Quantisation};

use crate::cli::Failure;
use assignment::planner_query::LINK;

/// Memory that Raspberry Pi OS Lite uses on a Pi: kernel, GPU and services.
const SYSTEM_BYTES: u64 = 512 << 20;
/// Bounds of the link rate in Mb/s.
const MEGABITS: [u64; 2] = [1, 1_000_000];

fn exchange(text: &str) -> Result<Exchange, String> {
    text.parse()
}

fn choice(text: &str) -> Result<Choice, String> {
    text.parse()
}

fn quantisation(text: &str) -> Result<Quantisation, String> {
    text.parse()
}

/// Parses a size such as `8G` or `512M` (binary units).
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(['G', 'M', 'g', 'm']);
    let unit = match &text[digits.len()..] {
        "G" | "g" => 1_u64 << 30,
        "M" | "m" => 1 << 20,
        _ => return Err("expected a number with G or M, for example 8G".into()),
    };
    let number: u64 = digits.parse().map_err(|_| "expected a number with G or M, for example 8G".to_owned())?;
    let bytes = number.checked_mul(unit).filter(|bytes| (1 << 20..=1 << 44).contains(bytes));
    bytes.ok_or_else(|| "expected 1M to 16384G".into())
}

/// The model, the nodes, and the links between them.
#[derive(Clone, Debug, Args)]
pub(crate) struct Hypothetical {
    /// Built-in model, for example llama-3.1-8b (an unknown name lists all), or a GGUF file on this machine
    #[arg(long, value_name = "SHAPE|FILE", default_value = "llama-3.1-8b")]
    pub(crate) model: String,
    /// Quantization of a built-in model: f16, q8_0, q4_0 or q4_k_m
    #[arg(long, value_name = "MIX", default_value = "q4_k_m", value_parser = quantisation)]
    quant: Quantisation,
    /// Hardware of the nodes: pi4 or pi5
    #[arg(long, value_name = "NAME", default_value = "pi5", value_parser = NodeProfile::named)]
    pub(crate) profile: NodeProfile,
    /// One-way latency between programs, half of a small message's round trip [default: as measured by nodes, else 60]
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    alpha_us: Option<u64>,
    /// Rate of each node's Ethernet link [default: as measured by nodes, else 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(MEGABITS[0]..=MEGABITS[1]))]
    bandwidth_mbit: Option<u64>,
    /// All-reduce algorithm: auto, direct, rs-ag, doubling, ring, star or two-level
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = choice)]
    pub(crate) collective: Choice,
    /// Format of the partial sums that nodes exchange: f32, f16 or q80
    #[arg(long, default_value = "f32", value_parser = exchange)]
    pub(crate) exchange: Exchange,
    /// Format of the KV cache: f16, q8_0, q4_0 or f32
    #[arg(long, default_value = "f16", value_parser = <KvFormat as std::str::FromStr>::from_str)]
    pub(crate) kv: KvFormat,
    /// Prompt length in tokens
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1 << 17))]
    pub(crate) prompt: u32,
    #[arg(from_global)]
    pub(crate) json: bool,
}

impl Hypothetical {
    /// The sizes of the model.
    ///
    /// # Errors
    /// There is no such built-in model or file, or the file is not a valid model.
    pub(crate) fn sizes(&self) -> Result<ModelSizes, Failure> {
        self.sizes_of(&self.model)
    }

    /// The sizes of another model, in the same way.
    ///
    /// # Errors
    /// As [`Self::sizes`].
    pub(crate) fn sizes_of(&self, model: &str) -> Result<ModelSizes, Failure> {
        let path = Path::new(model);
        if !path.is_file() {
            let next = "use a built-in model or a local GGUF file";
            return ModelSizes::known(model, self.quant).map_err(|message| Failure::Usage { message, next });
        }
        let file = GgufFile::open(path).map_err(anyhow::Error::from)?;
        let spec = models::read(&file).with_context(|| format!("{} is not a valid model", path.display()))?;
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        Ok(ModelSizes { name: name.unwrap_or_default(), ..ModelSizes::of_file(&file, &spec) })
    }

    /// The link between nodes: the options, otherwise the defaults.
    pub(crate) fn link(&self) -> Link {
        self.over(LINK)
    }

    /// `link` with the values of the options in place of measured or assumed ones.
    pub(crate) fn over(&self, link: Link) -> Link {
        Link {
            alpha_ns: self.alpha_us.map_or(link.alpha_ns, |us| us * 1000),
            bits_per_second: self.bandwidth_mbit.map_or(link.bits_per_second, |megabits| megabits * 1_000_000),
            ..link
        }
    }

    /// Whether the options override all measurements.
    pub(crate) fn types_link(&self) -> bool {
        self.alpha_us.is_some() && self.bandwidth_mbit.is_some()
    }

    /// The assumptions for JSON. `measured`: the nodes have measured links, so only values given by options apply to
    /// all of them.
    pub(crate) fn object(&self, sizes: &ModelSizes, measured: bool) -> Value {
        let link = self.link();
        let [alpha_us, megabits] = [link.alpha_ns / 1000, link.bits_per_second / 1_000_000];
        json!({"model": sizes.name, "profile": self.profile.name,
            "alpha_us": if measured { self.alpha_us } else { Some(alpha_us) },
            "bandwidth_mbit": if measured { self.bandwidth_mbit } else { Some(megabits) },
            "collective": self.collective.to_string(), "exchange": self.exchange.to_string(),
            "kv": self.kv.to_string(), "prompt": self.prompt})
    }

    /// The assumptions as a line of text; `measured` as in [`Self::object`].
    pub(crate) fn line(&self, sizes: &ModelSizes, measured: bool) -> String {
        let link = self.link();
        let alpha = (!measured || self.alpha_us.is_some()).then(|| format!(", {} us", link.alpha_ns / 1000));
        let rate = (!measured || self.bandwidth_mbit.is_some())
            .then(|| format!(", {} Mb/s", link.bits_per_second / 1_000_000));
        format!(
            "{} on {}{}{}, collective {}, exchange {}, kv {}, prompt {}",
            sizes.name,
            self.profile.name,
            alpha.unwrap_or_default(),
            rate.unwrap_or_default(),
            self.collective,
            self.exchange,
            self.kv,
            self.prompt
        )
    }
}

/// Memory for a shard on a machine with `memory` bytes.
pub(crate) fn free(memory: u64) -> u64 {
    memory.saturating_sub(SYSTEM_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_sizes_need_a_unit() {
        assert_eq!((bytes("8G"), bytes("512m")), (Ok(8 << 30), Ok(512 << 20)));
        for text in ["8", "G", "", "-1G", "0G", "99999999999G", "8GB", "8 G"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        assert_eq!((free(8 << 30), free(1)), (7680 << 20, 0));
    }
}
