//! `bramble-bench collectives`: times all-reduces between the nodes of a topology, in their running engines on the
//! links of the topology, or between threads of this machine. Both print the same table, in the style of nccl-tests.
use std::str::FromStr;

use anyhow::{Context, anyhow};
use clap::Args;
use collectives::Algorithm;
use common::precision::Exchange;
use console::{
    cli::toolkit::{Assignment, Consent, Failure, Interrupts, Obtained, obtain, output},
    client::bench::bench_links,
};
use kernels::Kernels;
use protocol::{
    bench::{BENCH_RANKS, BENCH_REDUCES_MAX, BenchLinks, LINK_TOKENS_DEFAULT, REDUCES_DEFAULT},
    seal::Protection,
};
use serde_json::json;
use telemetry::bench::{CollectiveBench, collectives_table};
use tokio::task::spawn_blocking;

use crate::threads::{self, Namespace, TensorSize, ThreadBench};

const NEXT: &str = "bramble-bench collectives --help";
/// Default shapes of the tensors on this machine, as tokens and columns.
const SIZES_DEFAULT: [(usize, usize); 3] = [(1, 2048), (16, 2048), (128, 2048)];

/// Options of `bramble-bench collectives`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Collectives {
    /// Time threads of this machine, even if BRAMBLE_NODES names nodes
    #[arg(long)]
    pub(crate) local: bool,
    /// Model file (on nodes): assigned unless it is already served; the tensors have the size of its hidden vector
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "local")]
    model: Option<String>,
    /// Number of ranks on this machine [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(BENCH_RANKS))]
    ranks: Option<u16>,
    /// Tensor sizes: TOKENS on nodes [default: 1,16,128], TOKENSxCOLUMNS on this machine [default:
    /// 1x2048,16x2048,128x2048]
    #[arg(long, value_name = "T|TxC,..", value_delimiter = ',')]
    sizes: Vec<LinkSize>,
    /// Algorithms [default: all]
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_parser = <Algorithm as FromStr>::from_str)]
    algorithms: Vec<Algorithm>,
    /// All-reduces per algorithm and size; on nodes fewer if they would take longer than ten seconds
    #[arg(long, value_name = "N", default_value_t = REDUCES_DEFAULT,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(BENCH_REDUCES_MAX)))]
    repeats: u32,
    /// Let waiting threads of this machine spin; needs a core per rank
    #[arg(long)]
    spin: bool,
    /// On this machine: open each rank's sockets in the network namespace of a process, at an address there (needs
    /// root)
    #[arg(long = "in", value_name = "PID@ADDRESS,..", value_delimiter = ',', value_parser = <Namespace as FromStr>::from_str)]
    namespaces: Vec<Namespace>,
    /// On this machine: protection of the ranks' data: plain, authenticated or encrypted; the bare exchange stays plain
    #[arg(long, default_value = "plain", value_parser = <Protection as FromStr>::from_str)]
    protection: Protection,
    /// On this machine: use ChaCha20-Poly1305 even if the processor has AES instructions
    #[arg(long)]
    chacha: bool,
    #[command(flatten)]
    assignment: Assignment,
    #[command(flatten)]
    consent: Consent,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The shape of a tensor. Without `columns`, the model's hidden vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LinkSize {
    tokens: u32,
    columns: Option<u32>,
}

impl FromStr for LinkSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (tokens, columns) = text.split_once('x').map_or((text, None), |(tokens, columns)| (tokens, Some(columns)));
        let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number > 0);
        let columns = columns.map(|columns| number(columns).ok_or(())).transpose();
        match (number(tokens), columns) {
            (Some(tokens), Ok(columns)) => Ok(Self { tokens, columns }),
            _ => Err("a size is TOKENS, for example 16, or TOKENSxCOLUMNS, for example 16x2048".into()),
        }
    }
}

/// Runs the command on nodes, of which the first stage of the first replica is timed. Without nodes, this machine is
/// measured, without a daemon.
pub(crate) async fn run(options: Collectives, nodes: Vec<String>) -> Result<u8, Failure> {
    let mut interrupts = Interrupts::listen()?;
    if nodes.is_empty() {
        let bench = options.threads()?;
        let kernels = Kernels::choose(std::env::var("BRAMBLE_KERNELS").ok().as_deref()).context("--local")?;
        let measuring = async {
            spawn_blocking(move || threads::run(&bench, kernels)).await.map_err(|_| anyhow!("the benchmark failed"))?
        };
        let found = interrupts.end(measuring).await?;
        options.show(&found, &json!(found), &[]);
        return Ok(0);
    }
    let (model, wanted) = options.links()?;
    let asked = options.assignment.asked(&model);
    let obtained = obtain(&nodes, &asked, "time the all-reduces", options.consent, options.json);
    let Some(Obtained { sessions, assigned }) = interrupts.end(obtained).await? else { return Ok(0) };
    let found = interrupts.end(bench_links(&sessions[0], wanted)).await?;
    let topology = &assigned.topology;
    let stage = &topology.members[..usize::from(topology.layout.ranks)];
    let names = stage.iter().map(|member| member.name.clone()).collect();
    let found = CollectiveBench::of_links(&found, names, options.repeats);
    let mut object = json!(found);
    object["topology"] = json!(topology.layout.to_string());
    object["epoch"] = json!(assigned.epoch.0);
    let is_part = stage.len() < topology.members.len();
    let note = format!("measured only the first stage of the first replica of {}", topology.layout);
    options.show(&found, &object, if is_part { std::slice::from_ref(&note) } else { &[] });
    Ok(0)
}

impl Collectives {
    /// The model, and the request to its head.
    fn links(&self) -> Result<(String, BenchLinks), Failure> {
        let usage = |message: String| Failure::Usage { message, next: NEXT };
        if self.ranks.is_some() || self.spin || self.chacha || !self.namespaces.is_empty() {
            let message =
                "--ranks, --spin, --chacha and --in apply only to this machine; use --topology, or add --local";
            return Err(usage(message.into()));
        }
        let Some(model) = self.model.clone() else {
            return Err(usage("a benchmark on nodes needs a model: pass it with --model, or add --local".into()));
        };
        if let Some(columns) = self.sizes.iter().find_map(|size| size.columns) {
            return Err(usage(format!("{columns} columns: on nodes a size is TOKENS, the model sets the columns")));
        }
        let tokens: Vec<u32> = self.sizes.iter().map(|size| size.tokens).collect();
        let tokens = if tokens.is_empty() { LINK_TOKENS_DEFAULT.to_vec() } else { tokens };
        let wanted = BenchLinks { tokens, algorithms: self.algorithms(), repeats: self.repeats };
        wanted.check().map_err(usage)?;
        Ok((model, wanted))
    }

    /// The benchmark of threads.
    fn threads(&self) -> Result<ThreadBench, Failure> {
        let usage = |message: String| Failure::Usage { message, next: NEXT };
        if self.model.is_some() {
            return Err(usage("a benchmark of threads uses no model: remove --model, or pass --nodes".into()));
        }
        let mut sizes = Vec::with_capacity(self.sizes.len());
        for LinkSize { tokens, columns } in &self.sizes {
            let Some(columns) = columns else {
                return Err(usage(format!("size {tokens} has no columns: on this machine a size is TOKENSxCOLUMNS")));
            };
            sizes.push(TensorSize::new(*tokens as usize, *columns as usize).map_err(usage)?);
        }
        if sizes.is_empty() {
            for (tokens, columns) in SIZES_DEFAULT {
                sizes.push(TensorSize::new(tokens, columns).map_err(usage)?);
            }
        }
        Ok(ThreadBench {
            ranks: self.ranks.unwrap_or(2),
            sizes,
            algorithms: self.algorithms(),
            exchange: self.assignment.exchange.unwrap_or(Exchange::F32),
            repeats: self.repeats,
            namespaces: self.namespaces.clone(),
            protection: self.protection,
            chacha: self.chacha,
            spin: self.spin,
        })
    }

    fn algorithms(&self) -> Vec<Algorithm> {
        if self.algorithms.is_empty() { Algorithm::ALL.to_vec() } else { self.algorithms.clone() }
    }

    fn show(&self, found: &CollectiveBench, object: &serde_json::Value, notes: &[String]) {
        if self.json {
            return output::line(&object.to_string());
        }
        collectives_table(found).iter().chain(notes).for_each(|line| output::line(&output::clean(line)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_has_tokens_and_optional_columns() {
        assert_eq!("16".parse(), Ok(LinkSize { tokens: 16, columns: None }));
        assert_eq!("1x2048".parse(), Ok(LinkSize { tokens: 1, columns: Some(2048) }));
        for bad in ["", "0", "x", "1x", "x2", "1x0", "-1", "1x2x3", "99999999999"] {
            assert!(bad.parse::<LinkSize>().is_err(), "{bad}");
        }
    }
}
