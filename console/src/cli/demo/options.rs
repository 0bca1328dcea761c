//! Options of `console demo`.
use std::path::PathBuf;

use clap::Args;

use crate::cli::{
    dashboard::preferences::Session,
    shared::{options::Assignment, sampling::Sampling},
};

/// Largest number of daemons of a demo.
pub(crate) const DEMO_NODES_MAX: u16 = 8;

impl Demo {
    /// Number of daemons to start, if it was given.
    ///
    /// # Errors
    /// `--nodes` has addresses instead of a number.
    pub(crate) fn count(&self) -> Result<Option<u16>, String> {
        self.nodes
            .as_deref()
            .map(|text| daemons(text).and_then(|_| text.parse().map_err(|_| String::new())))
            .transpose()
    }
}

fn daemons(text: &str) -> Result<String, String> {
    let count = text.parse::<u16>().ok().filter(|count| (1..=DEMO_NODES_MAX).contains(count));
    match count {
        Some(_) => Ok(text.to_owned()),
        None => Err(format!("{text} is not a number of daemons: use 1 to {DEMO_NODES_MAX}")),
    }
}

/// Options of `console demo`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Demo {
    /// Number of daemons to start, 1 to 8 [default: as many as the topology has nodes, otherwise 4]
    // A string, because the global option of the same name is one.
    #[arg(long, value_name = "N", value_parser = daemons)]
    nodes: Option<String>,
    /// A GGUF file [default: the demo model]
    #[arg(long, value_name = "FILE")]
    pub(crate) model: Option<PathBuf>,
    /// Walk through the features and failure modes step by step (exit 1 if a step fails)
    #[arg(long, conflicts_with_all = ["nodes", "topology"])]
    pub(crate) tour: bool,
    /// Text to complete
    #[arg(long, default_value = "ROMEO:")]
    pub(crate) prompt: String,
    #[arg(from_global)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) session: Session,
    #[command(flatten)]
    pub(crate) assignment: Assignment,
    #[command(flatten)]
    pub(crate) sampling: Sampling,
}
