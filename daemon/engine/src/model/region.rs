//! The memory of a shard: anonymous pages, huge ones if the system has them.
use std::io;

use memmap2::{Advice, MmapMut};

/// The weights of a shard.
#[derive(Debug)]
pub struct Region(MmapMut);

impl Region {
    /// Allocates `bytes` zeros.
    ///
    /// # Errors
    /// The system has no address space for them.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let pages = MmapMut::map_anon(bytes.max(1))?;
        // Optional: if the system has no huge pages, small ones suffice.
        if let Err(error) = pages.advise(Advice::HugePage) {
            tracing::debug!("cannot use huge pages for the weights: {error}");
        }
        Ok(Self(pages))
    }

    /// The weights.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The weights, for filling.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
