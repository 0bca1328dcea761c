//! Checks every kernel table against the scalar one, and the scalar one against f64 arithmetic on the dequantised
//! bytes.
use std::fmt::Display;

use gguf::BlockFormat;

use super::*;

/// A full panel of every table, and a part of another one.
const ROWS: usize = 19;

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    pub(super) fn value(&mut self) -> f32 {
        (self.next() as f32 / (1_u64 << 30) as f32 - 1.0) * 3.0
    }

    pub(super) fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.value()).collect()
    }

    /// Blocks of random bytes, but with finite scales: halves in them are below 2.
    fn row(&mut self, format: BlockFormat, blocks: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..blocks * format.block_bytes()).map(|_| self.next() as u8).collect();
        for block in bytes.chunks_exact_mut(format.block_bytes()) {
            scales_of(format).iter().for_each(|at| block[*at + 1] &= 0xbf);
            if format == BlockFormat::Mxfp4 {
                block[0] = 120 + block[0] % 8;
            }
        }
        bytes
    }

    fn rows(&mut self, format: BlockFormat, blocks: usize, count: usize) -> Vec<Vec<u8>> {
        (0..count).map(|_| self.row(format, blocks)).collect()
    }
}

/// Offsets of the halves (or floats) in a block.
fn scales_of(format: BlockFormat) -> &'static [usize] {
    match format {
        BlockFormat::Q8_0 | BlockFormat::Q4_0 | BlockFormat::Q5_0 | BlockFormat::Iq4Nl | BlockFormat::Iq4Xs => &[0],
        BlockFormat::Iq3Xxs | BlockFormat::Iq3S => &[0],
        BlockFormat::Iq2Xxs | BlockFormat::Iq2Xs | BlockFormat::Iq2S => &[0],
        BlockFormat::Q4_1 | BlockFormat::Q5_1 | BlockFormat::Q4K | BlockFormat::Q5K => &[0, 2],
        BlockFormat::Q2K => &[80, 82],
        BlockFormat::Q3K => &[108],
        BlockFormat::Q6K => &[208],
        BlockFormat::F32 => &[2],
        BlockFormat::F16 | BlockFormat::BF16 => &[0],
        BlockFormat::Mxfp4 => &[],
    }
}

fn compute(kernels: &'static Kernels, threads: usize) -> Compute {
    let pool = Pool::new(PoolOptions { threads, cores: Vec::new(), spin: false });
    Compute::new(kernels, pool.expect("threads can be started"))
}

/// Products `[token, row]` of rows, starting at their block `begin`.
fn product(
    compute: &Compute,
    format: BlockFormat,
    rows: &[Vec<u8>],
    skip: usize,
    columns: usize,
    x: &[f32],
) -> Vec<f32> {
    let height = compute.kernels.panel_rows;
    let row_bytes = rows[0].len();
    let mut bytes = vec![0; packed_bytes(rows.len(), row_bytes, height)];
    for (panel, out) in bytes.chunks_exact_mut(row_bytes * height).enumerate() {
        pack_panel(
            format,
            height,
            0..row_bytes / format.block_bytes(),
            |lane| rows.get(panel * height + lane).map(Vec::as_slice),
            out,
        );
    }
    let padded = row_bytes / format.block_bytes() * format.block_length();
    let matrix = MatrixPanels { format, bytes: &bytes, rows: rows.len(), columns: padded };
    let mut activations = Activations::default();
    let wanted = Wanted { skip, quantised: format.is_quantised(), floats: !format.is_quantised() };
    activations.load(compute, x, columns, wanted);
    let mut out = vec![f32::NAN; x.len() / columns * rows.len()];
    matmul(compute, matrix, &activations, &mut out);
    out
}

const TOLERANCE: f64 = 2e-5;

#[track_caller]
pub(super) fn assert_near(found: f64, exact: f64, scale: f64, what: impl Display) {
    let error = (found - exact).abs() / scale.max(1e-30);
    assert!(error <= TOLERANCE, "{what}: {found} instead of {exact}, {error} of {scale}");
}

/// The values that the kernels of a format multiply with.
fn as_multiplied(format: BlockFormat, x: &[f32]) -> Vec<f64> {
    if !format.is_quantised() {
        return x.iter().map(|value| f64::from(*value)).collect();
    }
    x.chunks(BLOCK)
        .flat_map(|values| {
            let mut block = Block::default();
            (Kernels::SCALAR.quantise)(values, &mut block);
            block.quants[..values.len()]
                .iter()
                .map(|quant| f64::from(block.scale) * f64::from(*quant))
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Compares the products of each table, of all rows with all tokens, with f64 on dequantised weights and activations;
/// `x` `[token, columns]` has the columns from block `skip` on.
#[track_caller]
fn check(format: BlockFormat, rows: &[Vec<u8>], skip: usize, columns: usize, x: &[f32]) {
    let tokens: Vec<Vec<f64>> = x.chunks(columns).map(|x| as_multiplied(format, x)).collect();
    // `[row, token]`: a product, and the magnitude to which its error is relative: formats with minimums subtract two
    // large sums.
    let mut exact = Vec::new();
    for row in rows {
        let mut weights = vec![0.0; row.len() / format.block_bytes() * format.block_length()];
        Kernels::SCALAR.dequantise_row(format, row, &mut weights);
        let weights = &weights[skip * 32..][..columns];
        let largest = weights.iter().fold(0.0_f64, |most, weight| most.max(f64::from(weight.abs())));
        exact.extend(tokens.iter().map(|x| {
            let products = weights.iter().zip(x).map(|(weight, x)| f64::from(*weight) * x);
            products.fold((0.0, largest), |sums: (f64, f64), product| (sums.0 + product, sums.1 + product.abs()))
        }));
    }
    for table in Kernels::available() {
        let products = product(&compute(table, 1), format, rows, skip, columns, x);
        let what = format!("{} {} {} rows, columns {columns} skip {skip}", table.name, format.name(), rows.len());
        for (index, (exact, scale)) in exact.iter().enumerate() {
            let (row, token) = (index / tokens.len(), index % tokens.len());
            let found = f64::from(products[token * rows.len() + row]);
            assert_near(found, *exact, *scale, format_args!("{what} row {row} token {token}"));
        }
    }
}

#[test]
fn every_table_multiplies_every_format_correctly() {
    let mut random = Random(1);
    for format in BlockFormat::ALL {
        for columns in [32_usize, 64, 96, 256, 512, 768] {
            let blocks = columns.div_ceil(format.block_length());
            for (tokens, missing) in [(1, 0), (3, 5)] {
                // A block of quantised activations may be shorter; floats have all columns of the matrix.
                let missing = if format.is_quantised() { missing } else { 0 };
                let columns = blocks * format.block_length() - missing;
                check(format, &random.rows(format, blocks, ROWS), 0, columns, &random.values(tokens * columns));
            }
        }
        let (zeros, columns) = (vec![0; 8 * format.block_bytes()], 8 * format.block_length());
        check(format, &vec![zeros; ROWS], 0, columns, &vec![1.0; columns]);
        check(format, &random.rows(format, 8, ROWS), 0, columns, &vec![0.0; columns]);
    }
}

#[test]
fn only_columns_between_super_block_cuts_are_multiplied() {
    let mut random = Random(2);
    for format in BlockFormat::ALL.into_iter().filter(|format| format.block_length() == 256) {
        for skip in 0..8_usize {
            for length in 1..=20_usize {
                let (count, tokens) = (1 + (5 * skip + length) % 11, 1 + length % 2);
                let rows = random.rows(format, (skip + length).div_ceil(8), count);
                check(format, &rows, skip, length * 32, &random.values(tokens * length * 32));
            }
        }
    }
}

#[test]
fn unquantised_rows_of_any_length_are_fully_multiplied() {
    let mut random = Random(3);
    for format in [BlockFormat::F32, BlockFormat::F16, BlockFormat::BF16] {
        for columns in [1, 7, 8, 9, 31, 33, 100] {
            check(format, &random.rows(format, columns, ROWS), 0, columns, &random.values(3 * columns));
        }
    }
}

#[test]
fn products_of_floats_have_the_same_bits_in_every_table() {
    let mut random = Random(12);
    for format in [BlockFormat::F32, BlockFormat::F16, BlockFormat::BF16] {
        for columns in [1, 3, 4, 7, 64, 2047] {
            let rows = random.rows(format, columns, ROWS);
            let x = random.values(5 * columns);
            let bits = |table| {
                let out = product(&compute(table, 2), format, &rows, 0, columns, &x);
                out.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
            };
            for table in Kernels::available() {
                assert_eq!(bits(table), bits(&Kernels::SCALAR), "{} {} {columns}", table.name, format.name());
            }
        }
    }
}

#[test]
fn extreme_levels_do_not_saturate() {
    for format in BlockFormat::ALL.into_iter().filter(|format| format.is_quantised()) {
        let mut rows = Vec::new();
        for byte in [0x80, 0x7f, 0xff, 0x00, 0x88].into_iter().cycle().take(ROWS) {
            let mut row = vec![byte; 2 * format.block_bytes()];
            // Scales of 1.0 if the format has them.
            for block in row.chunks_exact_mut(format.block_bytes()) {
                scales_of(format).iter().for_each(|at| block[*at..at + 2].copy_from_slice(&[0x00, 0x3c]));
                if format == BlockFormat::Mxfp4 {
                    block[0] = 127;
                }
            }
            rows.push(row);
        }
        let columns = 2 * format.block_length();
        let tokens = [1.0_f32, -1.0, 1e20, 1e-30].map(|value| vec![value; columns]);
        check(format, &rows, 0, columns, &tokens.concat());
        tokens.iter().for_each(|x| check(format, &rows, 0, columns, x));
    }
}

#[test]
fn every_exponent_of_mxfp4_is_exact_in_every_table() {
    let format = BlockFormat::Mxfp4;
    for kernels in Kernels::available() {
        let compute = compute(kernels, 1);
        for exponent in 0..=255_u8 {
            // The first column of each row is 1, times two to the power of the exponent minus 127.
            let mut row = [0; 17];
            (row[0], row[1]) = (exponent, 2);
            let mut bytes = vec![0; kernels.panel_rows * row.len()];
            pack_panel(format, kernels.panel_rows, 0..1, |_| Some(&row), &mut bytes);
            let mut x = [0.0; 32];
            x[0] = 127.0;
            let mut activations = Activations::default();
            activations.load(&compute, &x, 32, Wanted { skip: 0, quantised: true, floats: false });
            let mut out = vec![0.0; kernels.panel_rows];
            let matrix = MatrixPanels { format, bytes: &bytes, rows: kernels.panel_rows, columns: 32 };
            matmul(&compute, matrix, &activations, &mut out);
            let expected = 254.0 * (f64::from(exponent) - 128.0).exp2() as f32;
            assert_eq!(out, vec![expected; kernels.panel_rows], "{} {exponent}", kernels.name);
        }
    }
}

#[test]
fn quantised_activations_are_the_same_bytes_in_every_table() {
    let mut random = Random(4);
    for columns in [1, 16, 31, 32] {
        let mut values = random.values(columns);
        for special in [0.0, -0.0, 1e-42, 1e-30, 1e-9, f32::MAX, f32::INFINITY, f32::NAN] {
            values[columns / 2] = special;
            let quantised = |table: &Kernels| {
                let mut block = Block { quants: [1; BLOCK], ..Block::default() };
                (table.quantise)(&values, &mut block);
                (block.quants, block.scale.to_bits(), block.minus_8_sums, block.minus_8_first)
            };
            for table in Kernels::available() {
                assert_eq!(quantised(table), quantised(&Kernels::SCALAR), "{} {special}", table.name);
            }
        }
    }
}

#[test]
fn non_finite_activations_make_non_finite_products() {
    let ones = [[0, 0x3c].as_slice(), &[1; 32]].concat().repeat(2);
    let rows = vec![ones; ROWS];
    for kernels in Kernels::available() {
        for special in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; 64];
            x[40] = special;
            let found = product(&compute(kernels, 1), BlockFormat::Q8_0, &rows, 0, 64, &x);
            assert!(found.iter().all(|product| !product.is_finite()), "{} {special}: {found:?}", kernels.name);
        }
    }
}

#[test]
fn quants_round_to_nearest_even_and_scale_is_a_half() {
    let mut random = Random(7);
    let mut values: Vec<f32> = vec![0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, -126.5, 0.499_999_97, 1.0, -127.0, 63.5];
    values.resize(BLOCK, 3.5);
    for round in 0..2_000 {
        let mut block = Block::default();
        (Kernels::SCALAR.quantise)(&values, &mut block);
        let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        let expected: Vec<i8> =
            values.iter().map(|value| (value * (LEVELS / largest)).round_ties_even() as i8).collect();
        assert_eq!(block.quants.to_vec(), expected, "round {round}: {values:?}");
        assert_eq!(block.scale, half::f16::from_f32(largest / LEVELS).to_f32());
        let sum = |quants: &[i8]| quants.iter().map(|quant| i32::from(*quant)).sum::<i32>();
        assert_eq!((block.minus_8_sums, block.minus_8_first), (-8 * sum(&block.quants), -8 * sum(&block.quants[..16])));
        assert_eq!(block.minus_sums, -block.scale * sum(&block.quants) as f32);
        for table in Kernels::available() {
            for length in [BLOCK, 1 + round % BLOCK] {
                let (mut found, mut wanted) = (block, Block::default());
                (table.quantise)(&values[..length], &mut found);
                (Kernels::SCALAR.quantise)(&values[..length], &mut wanted);
                assert_eq!(found, wanted, "{} round {round}, {length} values", table.name);
            }
        }
        values = random.values(BLOCK);
    }
}

#[test]
#[should_panic(expected = "the activations were quantised")]
fn quantised_format_refuses_f32_only_activations() {
    let compute = compute(Kernels::choose(Some("scalar")).expect("it is everywhere"), 1);
    let mut activations = Activations::default();
    let wanted = Wanted { skip: 0, quantised: true, floats: true };
    activations.load(&compute, &[1.0; 32], 32, wanted);
    activations.load(&compute, &[5.0; 32], 32, Wanted { quantised: false, ..wanted });
    let matrix = MatrixPanels { format: BlockFormat::Q8_0, bytes: &[0; 34], rows: 1, columns: 32 };
    matmul(&compute, matrix, &activations, &mut [0.0]);
}

#[test]
fn dense_kernels_agree_with_the_scalar_ones() {
    let mut random = Random(5);
    for length in [1, 7, 8, 9, 31, 47, 64, 129] {
        let (a, b) = (random.values(length), random.values(length));
        let run = |table: &Kernels| {
            let mut out = vec![vec![0.5; length]; 3];
            (table.rms_norm)(&a, &b, 1e-5, &mut out[0]);
            (table.add)(&mut out[1], &b);
            (table.layer_norm)(&a, &b, 1e-5, &mut out[2]);
            out.concat()
        };
        let gated = |table: &Kernels| {
            let gates = a.iter().map(|value| value * 40.0).collect::<Vec<f32>>();
            let all = [
                table.silu_multiply,
                table.gelu_multiply,
                table.clamped_swiglu,
                table.squared_relu,
                table.sigmoid_multiply,
            ];
            all.map(|combine| {
                let mut gate = gates.clone();
                combine(&mut gate, &b);
                gate
            })
        };
        for table in Kernels::available() {
            for (found, exact) in run(table).into_iter().zip(run(&Kernels::SCALAR)) {
                assert_near(f64::from(found), f64::from(exact), length as f64 * 9.0, table.name);
            }
            for (found, exact) in gated(table).into_iter().zip(gated(&Kernels::SCALAR)) {
                for ((found, exact), gate) in found.into_iter().zip(exact).zip(&a) {
                    let near = f64::from(exact.abs()) + 1e-30;
                    let what = format_args!("{} {gate}", table.name);
                    assert_near(f64::from(found), f64::from(exact), near.max(1e-20), what);
                }
            }
        }
    }
}

#[test]
fn nan_gate_stays_nan() {
    for table in Kernels::available() {
        let mut gate = [f32::NAN, 1e30, -1e30, f32::INFINITY];
        let mut squares = [1.0; 4];
        (table.squared_relu)(&mut squares, &[f32::NAN, 3.0, -2.0, f32::INFINITY]);
        assert!(squares[0].is_nan() && squares[1..] == [9.0, 0.0, f32::INFINITY], "{}", table.name);
        (table.silu_multiply)(&mut gate, &[1.0; 4]);
        assert!(gate[0].is_nan() && gate[1] == 1e30 && gate[2].abs() < 1e-3 && !gate[3].is_nan(), "{}", table.name);
        for combine in [table.gelu_multiply, table.clamped_swiglu, table.sigmoid_multiply] {
            let (mut gate, mut other) = ([f32::NAN, 1e15, -1e15, 2.0], [1.0; 4]);
            combine(&mut gate, &[1.0; 4]);
            combine(&mut other, &[f32::NAN; 4]);
            let is_finite = gate[1..].iter().all(|value| value.is_finite());
            assert!(gate[0].is_nan() && is_finite && other.iter().all(|value| value.is_nan()), "{}", table.name);
        }
    }
}

#[test]
fn batch_matches_single_tokens_bit_for_bit() {
    let mut random = Random(6);
    let (count, columns, tokens) = (37, 512, 64);
    for format in BlockFormat::ALL {
        let rows = random.rows(format, columns / format.block_length(), count);
        let x = random.values(tokens * columns);
        for kernels in Kernels::available() {
            let bits = |x: &[f32], threads: usize| {
                let out = product(&compute(kernels, threads), format, &rows, 0, columns, x);
                out.iter().map(|value| value.to_bits()).collect::<Vec<u32>>()
            };
            let alone: Vec<u32> = x.chunks(columns).flat_map(|token| bits(token, 1)).collect();
            for tokens in (1..=17).chain([27, 31, 64]) {
                let what = format!("{} {} {tokens} tokens", kernels.name, format.name());
                assert_eq!(bits(&x[..tokens * columns], 1 + tokens % 4), alone[..tokens * count], "{what}");
            }
        }
    }
}

#[test]
fn unknown_table_is_refused_with_available_names() {
    let error = Kernels::choose(Some("avx9000")).expect_err("there is no such table").to_string();
    assert!(error.contains("avx9000") && error.contains("scalar"), "{error}");
    assert_eq!(Kernels::choose(Some("scalar")).map(|table| table.name), Ok("scalar"));
}
