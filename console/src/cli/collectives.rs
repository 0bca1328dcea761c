//! `console bench collectives`: times all-reduces between the nodes of a topology, in their running engines on the
//! links of the topology, or between threads of this machine, with the brambled next to this program. Both print the
//! same table, in the style of nccl-tests.
use std::{ffi::OsString, str::FromStr};

use anyhow::Context;
use clap::Args;
use collectives::Algorithm;
use common::precision::Exchange;
use protocol::bench::{
    BENCH_RANKS, BENCH_REDUCES_MAX, BENCH_VALUES_MAX, BenchLinks, LINK_TOKENS_DEFAULT, REDUCES_DEFAULT,
};
use serde_json::json;
use telemetry::bench::{CollectiveBench, collectives_table};

use crate::cli::{
    Failure,
    shared::{brambled::printed, confirm::Consent, interrupts::Interrupts, options::Assignment, output},
    topology::ensure::{Obtained, obtain},
};
use crate::client::bench::bench_links;

const NEXT: &str = "console bench collectives --help";

/// Options of `console bench collectives`.
#[derive(Clone, Debug, Args)]
pub(super) struct Collectives {
    /// The nodes, of which the first stage of the first replica is timed. Without nodes, this machine is measured,
    /// without a daemon.
    #[arg(skip)]
    pub(super) nodes: Vec<String>,
    /// Time threads of this machine, even if BRAMBLE_NODES names nodes
    #[arg(long)]
    pub(super) local: bool,
    /// Model file (on nodes): assigned unless it is already served; the tensors have the size of its hidden vector
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "local")]
    model: Option<String>,
    /// Number of ranks on this machine [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(BENCH_RANKS))]
    ranks: Option<u16>,
    /// Tensor sizes: TOKENS on nodes [default: 1,16,128], TOKENSxCOLUMNS on this machine [default:
    /// 1x2048,16x2048,128x2048]
    #[arg(long, value_name = "T|TxC,..", value_delimiter = ',')]
    sizes: Vec<Size>,
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
    #[command(flatten)]
    assignment: Assignment,
    #[command(flatten)]
    consent: Consent,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// The shape of a tensor. Without `columns`, the model's hidden vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    tokens: u32,
    columns: Option<u32>,
}

impl FromStr for Size {
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

/// Runs the command.
pub(super) async fn run(options: Collectives) -> Result<u8, Failure> {
    let mut interrupts = Interrupts::listen()?;
    if options.local || options.nodes.is_empty() {
        // Dropping the future kills the child process.
        let arguments = options.arguments()?;
        let text = interrupts.end(printed(arguments, "here")).await?;
        let found: CollectiveBench =
            serde_json::from_slice(&text).context("brambled and console have different releases")?;
        options.show(&found, &json!(found), &[]);
        return Ok(0);
    }
    let (model, wanted) = options.links()?;
    let asked = options.assignment.asked(&model);
    let obtained = obtain(&options.nodes, &asked, "time the all-reduces", options.consent, options.json);
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
        if self.ranks.is_some() || self.spin {
            return Err(usage("--ranks and --spin apply only to this machine; use --topology, or add --local".into()));
        }
        let Some(model) = self.model.clone() else {
            return Err(usage("a benchmark on nodes needs a model: pass it with --model, or add --local".into()));
        };
        if let Some(columns) = self.sizes.iter().find_map(|size| size.columns) {
            return Err(usage(format!("{columns} columns: on nodes a size is TOKENS, the model sets the columns")));
        }
        let tokens: Vec<u32> = self.sizes.iter().map(|size| size.tokens).collect();
        let tokens = if tokens.is_empty() { LINK_TOKENS_DEFAULT.to_vec() } else { tokens };
        let named = self.algorithms.clone();
        let algorithms = if named.is_empty() { Algorithm::ALL.to_vec() } else { named };
        let wanted = BenchLinks { tokens, algorithms, repeats: self.repeats };
        wanted.check().map_err(usage)?;
        Ok((model, wanted))
    }

    /// The brambled arguments for a benchmark of threads.
    fn arguments(&self) -> Result<Vec<OsString>, Failure> {
        let usage = |message: String| Failure::Usage { message, next: NEXT };
        if self.model.is_some() {
            return Err(usage("a benchmark of threads uses no model: remove --model, or pass --nodes".into()));
        }
        let mut sizes = Vec::with_capacity(self.sizes.len());
        for Size { tokens, columns } in &self.sizes {
            let Some(columns) = columns else {
                return Err(usage(format!("size {tokens} has no columns: on this machine a size is TOKENSxCOLUMNS")));
            };
            if u64::from(*tokens) * u64::from(*columns) > BENCH_VALUES_MAX as u64 {
                return Err(usage(format!("size {tokens}x{columns}: a tensor has at most {BENCH_VALUES_MAX} values")));
            }
            sizes.push(format!("{tokens}x{columns}"));
        }
        let names: Vec<&str> = self.algorithms.iter().map(|algorithm| algorithm.name()).collect();
        let pairs = [
            ("ranks", self.ranks.map_or(String::new(), |ranks| ranks.to_string())),
            ("sizes", sizes.join(",")),
            ("algorithms", names.join(",")),
            ("exchange", self.assignment.exchange.unwrap_or(Exchange::F32).to_string()),
            ("repeats", self.repeats.to_string()),
        ];
        let given = pairs.into_iter().filter(|(_, value)| !value.is_empty());
        let mut list: Vec<OsString> =
            ["--exit-with-parent", "bench", "collectives", "--json"].map(OsString::from).into();
        list.extend(given.map(|(name, value)| format!("--{name}={value}").into()));
        list.extend(self.spin.then(|| "--spin".into()));
        Ok(list)
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
        assert_eq!("16".parse(), Ok(Size { tokens: 16, columns: None }));
        assert_eq!("1x2048".parse(), Ok(Size { tokens: 1, columns: Some(2048) }));
        for bad in ["", "0", "x", "1x", "x2", "1x0", "-1", "1x2x3", "99999999999"] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
    }
}
