//! Times steps of several tokens next to steps of one, on one thread and with weights in huge pages. Arguments: `FORMAT
//! COLUMNS MIB ROUNDS [TABLE]`; MIB of weights must exceed all caches. Prints the medians of the ratios and of the bytes
//! read per second, and the GMAC/s of the fastest round.
use std::{hint::black_box, sync::Arc, time::Instant};

use gguf::BlockFormat;
use kernels::{Activations, Compute, Kernels, MatrixPanels, Pool, PoolOptions, Wanted, matmul};
use memmap2::{Advice, MmapMut};

/// Tokens of the steps.
const TOKENS: [usize; 9] = [1, 2, 3, 4, 5, 6, 8, 12, 16];

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn seconds(run: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    run();
    begin.elapsed().as_secs_f64()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, columns, mib, rounds, table @ ..] = &arguments[..] else {
        return Err("expected FORMAT COLUMNS MIB ROUNDS [TABLE]".into());
    };
    let (columns, mib, rounds): (usize, usize, usize) = (columns.parse()?, mib.parse()?, rounds.parse()?);
    let kernels = Kernels::choose(table.first().map(String::as_str))?;
    let pool = Pool::new(PoolOptions { threads: 1, cores: Vec::new(), spin: false })?;
    let compute = Compute { kernels, pool: Arc::new(pool) };
    let format = BlockFormat::ALL.into_iter().find(|format| format.name().eq_ignore_ascii_case(name));
    let format = format.ok_or_else(|| format!("{name} is no format"))?;
    let row_bytes = format.row_bytes(columns).ok_or("columns are no whole blocks")?;
    let rows = (mib << 20) / row_bytes / kernels.panel_rows * kernels.panel_rows;
    let mut bytes = MmapMut::map_anon(rows * row_bytes)?;
    bytes.advise(Advice::HugePage)?;
    bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 7 + at / 113) as u8 & 0x3f);
    let matrix = MatrixPanels { format, bytes: &bytes, rows, columns };
    let is_quantised = format.is_quantised();
    let steps = TOKENS.map(|tokens| {
        let x: Vec<f32> = (0..tokens * columns).map(|at| (at as f32 * 0.37).sin()).collect();
        let mut activations = Activations::default();
        activations.load(&compute, &x, columns, Wanted { skip: 0, quantised: is_quantised, floats: !is_quantised });
        (activations, vec![0.0; tokens * rows])
    });
    let (mut steps, mut read, mut times) = (steps, Vec::new(), [const { Vec::new() }; TOKENS.len()]);
    for _ in 0..rounds {
        read.push(seconds(|| {
            black_box((kernels.read)(matrix.bytes, 4, 4096));
        }));
        for ((x, out), times) in steps.iter_mut().zip(&mut times) {
            times.push(seconds(|| matmul(&compute, matrix, x, out)));
        }
    }
    let gigabytes = matrix.bytes.len() as f64 / 1e9;
    println!("{name} {columns} columns, {}: read {:.1} GB/s", kernels.name, gigabytes / median(read));
    let one = times[0].clone();
    for (tokens, times) in TOKENS.into_iter().zip(times) {
        let ratio = median(times.iter().zip(&one).map(|(time, one)| time / one).collect());
        let fastest = times.iter().copied().fold(f64::INFINITY, f64::min);
        let rate = (rows * columns * tokens) as f64 / fastest / 1e9;
        println!("{tokens:3} tokens {ratio:5.2} of one, {:5.1} GB/s, {rate:4.0} GMAC/s", gigabytes / median(times));
    }
    Ok(())
}
