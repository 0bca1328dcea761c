//! Tables whose rows are read from the file one at a time and not kept: the embedding, and the inputs of tokens for each
//! layer.
use std::{io, sync::Arc};

use gguf::{BlockFormat, GgufFile, Stamp};
use kernels::Kernels;

use super::LoadError;
use crate::collective::WorkCounter;

/// A row of a table cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read row {token} of {tensor}: {source}; check the model file and its disk, then assign again")]
pub struct RowError {
    /// The table.
    tensor: String,
    /// The token, which is the row.
    token: u32,
    /// The error of the system.
    source: io::Error,
}

/// `[vocabulary, columns]`
#[derive(Debug)]
pub(super) struct Embedding {
    file: Arc<GgufFile>,
    name: String,
    format: BlockFormat,
    split: usize,
    offset: usize,
    row: Vec<u8>,
    /// Stamp of the file when it was hashed: rows of a changed file are never used.
    stamp: Option<Stamp>,
    /// Counts each row that was read.
    work: WorkCounter,
}

impl Embedding {
    pub(super) fn new(file: &Arc<GgufFile>, name: &str) -> Result<Self, LoadError> {
        let tensor = file.tensor(name).ok_or_else(|| LoadError::Missing(name.into()))?;
        let (format, split, offset, row) = (tensor.format, tensor.split, tensor.offset, vec![0; tensor.row_bytes()]);
        let (file, name, work) = (Arc::clone(file), name.into(), WorkCounter::default());
        Ok(Self { file, name, format, split, offset, row, stamp: None, work })
    }

    /// Counts reads as work of an engine.
    pub(super) fn report_to(&mut self, work: &WorkCounter) {
        self.work = work.clone();
    }

    /// Sets the stamps of the file's splits when it was hashed.
    pub(super) fn stamp_with(&mut self, stamps: &[Stamp]) {
        self.stamp = stamps.get(self.split).copied();
    }

    /// Reads a token's row; `out` is `[columns]`.
    pub(super) fn read(&mut self, token: u32, out: &mut [f32]) -> Result<(), RowError> {
        self.read_row(token).map_err(|source| RowError { tensor: self.name.clone(), token, source })?;
        self.work.advance();
        Kernels::SCALAR.dequantise_row(self.format, &self.row, out);
        Ok(())
    }

    fn read_row(&mut self, token: u32) -> io::Result<()> {
        let Self { file, split, offset, row, stamp, .. } = self;
        file.read(*split, *offset + token as usize * row.len(), row)?;
        // Checked after the read: a write changes the file's times before its bytes.
        if stamp.is_some() && file.stamp(*split)? != *stamp {
            return Err(io::Error::other(
                "the model file changed while in use; it is hashed again before it is used again",
            ));
        }
        Ok(())
    }
}
