//! Read bandwidth of the machine: the best of several ways to read memory that no cache holds. What a figure of decode is a
//! share of.
use std::time::Instant;

use serde::Serialize;

use super::median;
use crate::{
    health::memory,
    kernels::{Kernels, Pool},
    model::region::Region,
};

/// Bytes that are read, where the machine has four times as many: no cache holds them.
const BYTES_MAX: usize = 1 << 30;
/// Streams a thread reads side by side.
const STREAMS: [usize; 3] = [1, 2, 4];
/// How far ahead lines are asked for; 0: not at all.
const AHEAD: [usize; 4] = [0, 2048, 4096, 8192];

/// The best way to read and what it gave.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Bandwidth {
    /// Bytes a second.
    pub(super) bytes_per_second: f64,
    /// Streams a thread.
    pub(super) streams: usize,
    /// Bytes ahead.
    pub(super) ahead: usize,
    /// Whether huge pages were asked for.
    pub(super) huge_pages: bool,
}

impl Bandwidth {
    /// The higher one.
    pub(super) fn better(self, other: Self) -> Self {
        if other.bytes_per_second > self.bytes_per_second { other } else { self }
    }
}

/// Memory to read: with and without huge pages.
pub(super) struct Probe {
    small: Vec<u8>,
    huge: Region,
}

impl Probe {
    pub(super) fn new() -> anyhow::Result<Self> {
        let bytes = (memory::available().0 as usize / 4).clamp(1 << 26, BYTES_MAX);
        let mut huge = Region::new(bytes)?;
        huge.bytes_mut().fill(1);
        Ok(Self { small: vec![1; bytes], huge })
    }

    /// The best of all ways by the median of `rounds` readings.
    pub(super) fn best(&self, kernels: &Kernels, pool: &Pool, rounds: usize) -> Bandwidth {
        let mut best = Bandwidth { bytes_per_second: 0.0, streams: 0, ahead: 0, huge_pages: false };
        for (bytes, huge_pages) in [(self.huge.bytes(), true), (&self.small, false)] {
            for (streams, ahead) in STREAMS.into_iter().flat_map(|streams| AHEAD.map(|ahead| (streams, ahead))) {
                // The median: on a shared machine a single reading may catch the moment when nobody else reads.
                let readings = (0..rounds).map(|_| read(kernels, pool, bytes, streams, ahead));
                best =
                    best.better(Bandwidth { bytes_per_second: median(readings.collect()), streams, ahead, huge_pages });
            }
        }
        best
    }
}

fn read(kernels: &Kernels, pool: &Pool, bytes: &[u8], streams: usize, ahead: usize) -> f64 {
    let begin = Instant::now();
    let share = bytes.len() / pool.threads();
    pool.run(&|thread| {
        let part = &bytes[thread * share..(thread + 1) * share];
        std::hint::black_box((kernels.read)(part, streams, ahead));
    });
    (share * pool.threads()) as f64 / begin.elapsed().as_secs_f64()
}
