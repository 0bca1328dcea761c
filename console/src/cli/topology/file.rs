//! The topology file of a command.
use std::{
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::Args;

use crate::{
    cli::Failure,
    operator::desired::DesiredTopology,
    operator::topology_file::{FILE_BYTES_MAX, FileError, TopologyFile},
};

/// The arguments of a command that reads a topology file.
#[derive(Clone, Debug, Args)]
pub(crate) struct TopologyFileOptions {
    /// Topology file (TOML): the model, and for each stage a [[stage]] with nodes, weights and layers
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,
    #[arg(from_global)]
    pub(super) json: bool,
}

/// Reads a topology file: its nodes, and the topology.
pub(super) fn read(path: &Path) -> Result<(Vec<String>, DesiredTopology), Failure> {
    let mut text = String::new();
    let file = std::fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    read.with_context(|| format!("cannot read {}", path.display()))?;
    let parsed = if text.len() as u64 > FILE_BYTES_MAX {
        Err(FileError::Value(format!("the file is longer than {FILE_BYTES_MAX} bytes")))
    } else {
        TopologyFile::parse(&text).and_then(|file| file.wanted())
    };
    parsed.map_err(|error| Failure::Usage {
        message: format!("{}: {error}", path.display()),
        next: "run console topology show for an example of a valid file",
    })
}
