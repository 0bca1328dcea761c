//! Reads topology files.
use std::{io::Read, path::Path};

use anyhow::Context;

use crate::{
    cli::Failure,
    operator::desired::DesiredTopology,
    operator::topology_file::{FILE_BYTES_MAX, FileError, TopologyFile},
};

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
