//! Measures the read bandwidth of one core on demand: `read_bandwidth [MIB]` allocates memory larger than the caches.
//! For each line `SECONDS` on standard input it reads for that long and prints the bytes per second. Scripts pin it
//! with taskset and query two instances at once.
use std::{
    io::{BufRead, Write},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use engine::model::region::Region;
use kernels::Kernels;

/// Candidates: number of streams read in parallel, and prefetch distance in bytes.
const WAYS: [(usize, usize); 6] = [(1, 2048), (1, 4096), (2, 2048), (2, 4096), (4, 2048), (4, 4096)];
/// Bytes per read, small enough to check the clock often.
const PART: usize = 32 << 20;
/// Duration of each candidate's trial at the start.
const TRIAL: Duration = Duration::from_millis(60);

fn main() -> anyhow::Result<()> {
    let mib: usize = std::env::args().nth(1).map_or(Ok(512), |text| text.parse()).context("MIB must be a number")?;
    ensure!((64..=65_536).contains(&mib), "{mib} MiB is out of range: choose 64 to 65536");
    let kernels = Kernels::choose(None)?;
    let mut region = Region::new(mib << 20)?;
    region.bytes_mut().fill(1);
    let (mut at, bytes) = (0, region.bytes());
    let mut rate = |way: (usize, usize), duration| read(kernels, bytes, &mut at, way.0, way.1, duration);
    let best = WAYS.into_iter().map(|way| (rate(way, TRIAL), way)).max_by(|one, other| one.0.total_cmp(&other.0));
    let (_, way) = best.expect("the list of candidates is not empty");
    let mut out = std::io::stdout();
    writeln!(out, "ready")?;
    out.flush()?;
    for line in std::io::stdin().lock().lines() {
        let seconds: f64 = line?.trim().parse().context("each line must be a number of seconds")?;
        ensure!((0.001..=60.0).contains(&seconds), "{seconds} s is out of range: choose 0.001 to 60");
        writeln!(out, "{:.0}", rate(way, Duration::from_secs_f64(seconds)))?;
        out.flush()?;
    }
    Ok(())
}

/// Reads the memory part by part for `duration`, wrapping around; returns bytes per second.
fn read(kernels: &Kernels, bytes: &[u8], at: &mut usize, streams: usize, ahead: usize, duration: Duration) -> f64 {
    let (begin, mut done) = (Instant::now(), 0);
    while begin.elapsed() < duration {
        let part = &bytes[*at..*at + PART];
        std::hint::black_box((kernels.read)(part, streams, ahead));
        done += PART;
        *at = (*at + PART) % bytes.len();
    }
    done as f64 / begin.elapsed().as_secs_f64()
}
