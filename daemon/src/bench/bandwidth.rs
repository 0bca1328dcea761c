//! Read bandwidth of the machine by number of threads: the best of several methods of reading a buffer that exceeds all
//! caches. The upper bound for decoding.
use std::{io, time::Instant};

use engine::model::region::Region;
use kernels::{Kernels, Pool, PoolOptions};
use telemetry::bench::Bandwidth;

use super::{median, progress::Reporter};
use crate::health::memory;

/// Bytes to read, on machines with at least four times as much memory: more than any cache holds.
const BYTES_MAX: usize = 1 << 30;
/// Bytes to read in a quick measurement.
const QUICK_BYTES: usize = 64 << 20;
/// Streams that a thread reads in parallel.
const STREAMS: [u32; 3] = [1, 2, 4];
/// Prefetch distances in bytes; 0: no prefetch.
const AHEAD: [u32; 4] = [0, 2048, 4096, 8192];
/// Measurements per method; the median counts. On a shared machine, a single measurement may coincide with a moment
/// when no other process reads.
const ROUNDS: usize = 3;

/// Thread counts to measure: 1 to 4, then powers of two, and finally all.
pub(super) fn counts(threads: usize) -> Vec<usize> {
    let doubled = std::iter::successors(Some(8), |count| Some(count * 2));
    let fewer = (1..=4).chain(doubled.take_while(|count| *count < threads)).filter(|count| *count < threads);
    fewer.chain([threads]).collect()
}

/// Memory to read, with and without huge pages.
struct Probe<'a> {
    kernels: &'a Kernels,
    options: &'a PoolOptions,
    small: Vec<u8>,
    huge: Region,
}

/// Measures each thread count. One thread and all threads try every method; the counts between use the methods that
/// were best for these two. If `before` is given, its methods are measured again instead, and the higher rates are
/// kept.
pub(super) fn measure(
    kernels: &Kernels,
    options: &PoolOptions,
    read_mib: Option<u32>,
    before: Option<Vec<Bandwidth>>,
    reporter: &mut Reporter,
) -> anyhow::Result<Vec<Bandwidth>> {
    let probe = Probe::new(kernels, options, read_mib)?;
    if let Some(before) = before {
        reporter.begin("read bandwidth, second measurement");
        return before.into_iter().map(|one| Ok(better(one, probe.rate(one)?))).collect();
    }
    let counts = counts(options.threads);
    let mut search = |threads: usize| {
        reporter.begin(format_args!("read bandwidth with {threads} of {} threads", options.threads));
        let ways = probe.ways(threads)?;
        io::Result::Ok(ways.fold(Bandwidth { bytes_per_second: 0.0, ..way(threads) }, better))
    };
    let (one, all) = (search(1)?, search(options.threads)?);
    let rates = counts.into_iter().map(|threads| match threads {
        1 => Ok(one),
        threads if threads == options.threads => Ok(all),
        threads => {
            let [one, all] = [one, all].map(|way| probe.rate(Bandwidth { threads: threads as u16, ..way }));
            Ok(better(one?, all?))
        }
    });
    rates.collect()
}

fn way(threads: usize) -> Bandwidth {
    Bandwidth { threads: threads as u16, bytes_per_second: 0.0, streams: 1, ahead: 0, huge_pages: false }
}

fn better(a: Bandwidth, b: Bandwidth) -> Bandwidth {
    if b.bytes_per_second > a.bytes_per_second { b } else { a }
}

impl<'a> Probe<'a> {
    fn new(kernels: &'a Kernels, options: &'a PoolOptions, read_mib: Option<u32>) -> anyhow::Result<Self> {
        let bytes = match read_mib {
            Some(mib) => (mib as usize) << 20,
            None => (memory::available().0 as usize / 4).clamp(1 << 26, BYTES_MAX),
        };
        let mut huge = Region::new(bytes)?;
        huge.bytes_mut().fill(1);
        Ok(Self { kernels, options, small: vec![1; bytes], huge })
    }

    /// Every method with this number of threads.
    fn ways(&self, threads: usize) -> io::Result<impl Iterator<Item = Bandwidth>> {
        let pool = self.pool(threads)?;
        let ways = [true, false].into_iter().flat_map(move |huge_pages| {
            STREAMS.into_iter().flat_map(move |streams| {
                AHEAD.into_iter().map(move |ahead| Bandwidth { streams, ahead, huge_pages, ..way(threads) })
            })
        });
        Ok(ways.map(move |way| self.rate_on(&pool, way)))
    }

    fn pool(&self, threads: usize) -> io::Result<Pool> {
        let pool = Pool::new(PoolOptions { threads, ..self.options.clone() })?;
        pool.pin_caller();
        Ok(pool)
    }

    /// Measures the same method again.
    fn rate(&self, way: Bandwidth) -> io::Result<Bandwidth> {
        Ok(self.rate_on(&self.pool(usize::from(way.threads))?, way))
    }

    fn rate_on(&self, pool: &Pool, way: Bandwidth) -> Bandwidth {
        let bytes = if way.huge_pages { self.huge.bytes() } else { &self.small };
        let readings = (0..ROUNDS).map(|_| read(self.kernels, pool, bytes, way));
        Bandwidth { bytes_per_second: median(readings.collect()), ..way }
    }
}

fn read(kernels: &Kernels, pool: &Pool, bytes: &[u8], way: Bandwidth) -> f64 {
    let begin = Instant::now();
    let share = bytes.len() / pool.threads();
    pool.run(&|thread| {
        let part = &bytes[thread * share..(thread + 1) * share];
        std::hint::black_box((kernels.read)(part, way.streams as usize, way.ahead as usize));
    });
    (share * pool.threads()) as f64 / begin.elapsed().as_secs_f64()
}

/// Current read rate of a pool's threads in bytes per second, without other work: the best of the prefetching methods.
pub(super) fn now(kernels: &Kernels, pool: &Pool, bytes: &[u8]) -> f64 {
    let bytes = &bytes[..bytes.len().min(BYTES_MAX)];
    let ways = STREAMS.into_iter().flat_map(|streams| {
        let prefetching = AHEAD.into_iter().filter(|ahead| *ahead > 0);
        prefetching.map(move |ahead| Bandwidth { streams, ahead, ..way(0) })
    });
    ways.map(|way| read(kernels, pool, bytes, way)).fold(0.0, f64::max)
}

/// Read rate of this many threads in bytes per second, measured in some milliseconds.
///
/// # Errors
/// There is no memory to read, or a thread cannot be started.
pub(crate) fn quick(kernels: &Kernels, threads: usize) -> io::Result<f64> {
    let mut memory = Region::new(QUICK_BYTES)?;
    memory.bytes_mut().fill(1);
    let pool = Pool::new(PoolOptions { threads, cores: Vec::new(), spin: false })?;
    Ok(now(kernels, &pool, memory.bytes()))
}

#[cfg(test)]
mod tests {
    use super::counts;

    #[test]
    fn thread_counts_grow_and_end_with_all() {
        assert_eq!(counts(1), [1]);
        assert_eq!(counts(2), [1, 2]);
        assert_eq!(counts(4), [1, 2, 3, 4]);
        assert_eq!(counts(6), [1, 2, 3, 4, 6]);
        assert_eq!(counts(8), [1, 2, 3, 4, 8]);
        assert_eq!(counts(48), [1, 2, 3, 4, 8, 16, 32, 48]);
        assert_eq!(counts(256).len(), 10);
    }
}
