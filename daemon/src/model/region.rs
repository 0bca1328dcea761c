//! The memory that holds a shard: anonymous pages, huge ones where the system has them.
use std::io;

use memmap2::{Advice, MmapMut};

/// All weights of a shard.
#[derive(Debug)]
pub struct Region(MmapMut);

impl Region {
    /// `bytes` zeros.
    ///
    /// # Errors
    /// The system has no address space for them.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let pages = MmapMut::map_anon(bytes.max(1))?;
        // A wish: where the system has no huge pages, small ones do.
        if let Err(error) = pages.advise(Advice::HugePage) {
            tracing::debug!("no huge pages for weights: {error}");
        }
        Ok(Self(pages))
    }

    /// The weights.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The weights, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
