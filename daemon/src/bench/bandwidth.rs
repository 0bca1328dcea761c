//! How fast this machine reads memory: the best of several patterns, so that no figure of real work should exceed it.
use std::{hint::black_box, time::Instant};

use crate::kernels::{Kernels, Pool};

/// Words that are read; far beyond any cache.
const WORDS: usize = 1 << 26;
/// Words that a thread reads at a time.
const CHUNK: usize = 1 << 17;
/// Words of one call of the kernel.
const CALL: usize = 64;

/// A buffer that is in no cache.
#[derive(Debug)]
pub(super) struct Probe {
    buffer: Vec<u64>,
    sums: Vec<f32>,
}

impl Probe {
    pub(super) fn new() -> Self {
        // Written, so that every page is there: the zero page would be read from the cache.
        Self { buffer: (0..WORDS as u64).collect(), sums: vec![0.0; WORDS / CHUNK] }
    }

    /// Bytes per second with all threads of the pool: 1 to 8 streams a thread.
    pub(super) fn read(&mut self, kernels: &Kernels, pool: &Pool) -> f64 {
        let patterns = [1, 2, 4, 8].map(|streams| {
            let begin = Instant::now();
            let buffer = &self.buffer;
            pool.chunks(&mut self.sums, 1, |chunk, out| {
                let part = &buffer[chunk * CHUNK..(chunk + 1) * CHUNK];
                let each = CHUNK / streams;
                let calls = (0..each).step_by(CALL).flat_map(|at| (0..streams).map(move |stream| stream * each + at));
                let sum = calls.fold(0, |sum, at| sum ^ (kernels.read)(&part[at..at + CALL]));
                out[0] = (black_box(sum) & 1) as f32;
            });
            (WORDS * 8) as f64 / begin.elapsed().as_secs_f64()
        });
        patterns.into_iter().fold(0.0, f64::max)
    }
}
