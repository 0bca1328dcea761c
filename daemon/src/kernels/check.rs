//! Every table against the scalar one, and the scalar one against f64 on what the bytes stand for.
use shared::gguf::BlockFormat;

use super::*;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn value(&mut self) -> f32 {
        (self.next() as f32 / (1_u64 << 30) as f32 - 1.0) * 3.0
    }

    /// Blocks of any bytes, but with finite scales: halves in them are below 2.
    fn row(&mut self, format: BlockFormat, blocks: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..blocks * format.block_bytes()).map(|_| self.next() as u8).collect();
        for block in bytes.chunks_exact_mut(format.block_bytes()) {
            let scales: &[usize] = match format {
                BlockFormat::Q8_0 | BlockFormat::Q4_0 | BlockFormat::Q5_0 => &[1],
                BlockFormat::Q5_1 | BlockFormat::Q4K | BlockFormat::Q5K => &[1, 3],
                BlockFormat::Q6K => &[209],
                BlockFormat::F32 => &[3],
                BlockFormat::F16 | BlockFormat::BF16 => &[1],
            };
            scales.iter().for_each(|at| block[*at] &= 0xbf);
        }
        bytes
    }
}

const TOLERANCE: f64 = 2e-5;

#[track_caller]
fn assert_near(found: f64, exact: f64, scale: f64, what: &str) {
    let error = (found - exact).abs() / scale.max(1e-30);
    assert!(error <= TOLERANCE, "{what}: {found} instead of {exact}, {error} of {scale}");
}

/// The dot of each table against f64 on dequantised weights and activations; `x` has the columns from `skip` on.
#[track_caller]
fn check(format: BlockFormat, row: &[u8], skip: usize, x: &[f32]) {
    let mut weights = vec![0.0; row.len() / format.block_bytes() * format.block_length()];
    Kernels::SCALAR.dequantise_row(format, row, &mut weights);
    let weights = &weights[skip * 32..][..x.len()];
    for table in Kernels::available() {
        let mut activations = Activations::default();
        activations.load(table, x, x.len(), true);
        let token = activations.row(0);
        let value = |index: usize| {
            let quantised = f64::from(token.scales[index / GROUP]) * f64::from(token.quants[index]);
            if format.is_quantised() { quantised } else { f64::from(token.values[index]) }
        };
        let products: Vec<f64> = weights.iter().enumerate().map(|(i, weight)| f64::from(*weight) * value(i)).collect();
        // Formats with minimums subtract two large sums: errors are relative to what was added up.
        let scale: f64 = products.iter().map(|product| product.abs()).sum::<f64>()
            + weights.iter().fold(0.0_f64, |most, weight| most.max(f64::from(weight.abs())));
        let found = table.dot(format, row, skip, token);
        let what = format!("{} {} columns {} skip {skip}", table.name, format.name(), x.len());
        assert_near(f64::from(found), products.iter().sum(), scale, &what);
    }
}

#[test]
fn every_table_multiplies_every_format_as_its_bytes_say() {
    let mut random = Random(1);
    for format in BlockFormat::ALL {
        for columns in [32_usize, 64, 96, 256, 512, 768] {
            let blocks = columns.div_ceil(format.block_length());
            for _ in 0..20 {
                let row = random.row(format, blocks);
                let x: Vec<f32> = (0..columns).map(|_| random.value()).collect();
                check(format, &row, 0, &x);
            }
        }
        let zeros = vec![0; 8 * format.block_bytes()];
        check(format, &zeros, 0, &vec![1.0; 8 * format.block_length()]);
        check(format, &random.row(format, 8), 0, &vec![0.0; 8 * format.block_length()]);
    }
}

#[test]
fn only_the_columns_between_two_cuts_of_a_super_block_are_multiplied() {
    let mut random = Random(2);
    for format in [BlockFormat::Q4K, BlockFormat::Q5K, BlockFormat::Q6K] {
        for skip in 0..8_usize {
            for length in 1..=20_usize {
                let blocks = (skip + length).div_ceil(8);
                let row = random.row(format, blocks);
                let x: Vec<f32> = (0..length * 32).map(|_| random.value()).collect();
                check(format, &row, skip, &x);
            }
        }
    }
}

#[test]
fn unquantised_rows_of_any_length_are_multiplied_to_their_end() {
    let mut random = Random(3);
    for format in [BlockFormat::F32, BlockFormat::F16, BlockFormat::BF16] {
        for columns in [1, 7, 8, 9, 31, 33, 100] {
            let row = random.row(format, columns);
            let x: Vec<f32> = (0..columns).map(|_| random.value()).collect();
            check(format, &row, 0, &x);
        }
    }
}

#[test]
fn extreme_levels_do_not_saturate() {
    for format in BlockFormat::ALL.into_iter().filter(|format| format.is_quantised()) {
        for byte in [0x80, 0x7f, 0xff, 0x00] {
            let mut row = vec![byte; 2 * format.block_bytes()];
            // Scales of 1.0 where the format has them.
            for block in row.chunks_exact_mut(format.block_bytes()) {
                let at: &[usize] = match format {
                    BlockFormat::Q5_1 | BlockFormat::Q4K | BlockFormat::Q5K => &[0, 2],
                    BlockFormat::Q6K => &[208],
                    _ => &[0],
                };
                at.iter().for_each(|at| block[*at..at + 2].copy_from_slice(&[0x00, 0x3c]));
            }
            for value in [1.0, -1.0, 1e20, 1e-30] {
                check(format, &row, 0, &vec![value; 2 * format.block_length()]);
            }
        }
    }
}

#[test]
fn quantised_activations_are_the_same_bytes_in_every_table() {
    let mut random = Random(4);
    for columns in [1, 16, 31, 32, 33, 256] {
        let mut values: Vec<f32> = (0..columns).map(|_| random.value()).collect();
        for special in [0.0, -0.0, 1e-42, f32::MAX, f32::INFINITY, f32::NAN] {
            values[columns / 2] = special;
            let quantised = |table: &Kernels| {
                let (padded, mut scales) = (columns.next_multiple_of(32), vec![0.0; columns.next_multiple_of(32) / 16]);
                let (mut quants, mut sums) = (vec![1; padded], vec![1; padded / 16]);
                (table.quantize)(&values, &mut quants, &mut scales, &mut sums);
                let scales: Vec<u32> = scales.iter().map(|scale| scale.to_bits()).collect();
                (quants, scales, sums)
            };
            for table in Kernels::available() {
                assert_eq!(quantised(table), quantised(&Kernels::SCALAR), "{}", table.name);
            }
        }
    }
}

#[test]
fn activations_that_are_not_finite_make_products_that_are_not_either() {
    for kernels in Kernels::available() {
        for special in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; 64];
            x[40] = special;
            let mut activations = Activations::default();
            activations.load(kernels, &x, 64, true);
            let row = [[0, 0x3c].as_slice(), &[1; 32]].concat().repeat(2);
            let product = kernels.dot(BlockFormat::Q8_0, &row, 0, activations.row(0));
            assert!(!product.is_finite(), "{} {special}: {product}", kernels.name);
        }
    }
}

#[test]
fn quants_are_the_nearest_integers_ties_to_even() {
    let mut random = Random(7);
    let mut values =
        [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 125.5, -125.5, 0.499_999_97, 1.0, -126.0, 63.5, 0.0, 3.5, 4.5, LEVELS];
    for round in 0..2_000 {
        let (mut quants, mut scales, mut sums) = ([0; GROUP], [0.0], [0]);
        (Kernels::SCALAR.quantize)(&values, &mut quants, &mut scales, &mut sums);
        let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        let expected = values.map(|value| (value * (LEVELS / largest)).round_ties_even() as i8);
        assert_eq!((quants, scales), (expected, [largest / LEVELS]), "round {round}: {values:?}");
        assert_eq!(i32::from(sums[0]), quants.iter().map(|quant| i32::from(*quant)).sum::<i32>());
        values = std::array::from_fn(|_| random.value());
    }
}

#[test]
#[should_panic(expected = "the activations were quantised")]
fn a_quantised_format_refuses_activations_that_were_loaded_as_f32_only() {
    let mut activations = Activations::default();
    activations.load(&Kernels::SCALAR, &[1.0; 32], 32, true);
    activations.load(&Kernels::SCALAR, &[5.0; 32], 32, false);
    Kernels::SCALAR.dot(BlockFormat::Q8_0, &[0; 34], 0, activations.row(0));
}

#[test]
fn dense_kernels_agree_with_the_scalar_ones() {
    let mut random = Random(5);
    for length in [1, 7, 8, 9, 31, 47, 64, 129] {
        let a: Vec<f32> = (0..length).map(|_| random.value()).collect();
        let b: Vec<f32> = (0..length).map(|_| random.value()).collect();
        let mut halves = vec![0; length];
        (Kernels::SCALAR.to_f16)(&b, &mut halves);
        let run = |table: &Kernels| {
            let mut converted = vec![0; length];
            (table.to_f16)(&b, &mut converted);
            assert_eq!(converted, halves);
            let mut out = vec![vec![0.5; length]; 5];
            (table.accumulate_f32)(&mut out[0], 0.7, &a);
            (table.accumulate_f16)(&mut out[1], 0.7, &halves);
            (table.rms_norm)(&a, &b, 1e-5, &mut out[2]);
            out[3].copy_from_slice(&a);
            (table.silu_multiply)(&mut out[3], &b);
            (table.add)(&mut out[4], &b);
            out.push(vec![(table.dot_f32)(&a, &b), (table.dot_f16)(&a, &halves)]);
            out.concat()
        };
        let exact = run(&Kernels::SCALAR);
        for table in Kernels::available() {
            for (found, exact) in run(table).into_iter().zip(&exact) {
                assert_near(f64::from(found), f64::from(*exact), length as f64 * 9.0, table.name);
            }
        }
    }
}

#[test]
fn a_batch_gives_the_bits_of_single_tokens_on_any_number_of_threads() {
    let mut random = Random(6);
    let (rows, columns, tokens) = (37, 512, 5);
    for format in BlockFormat::ALL {
        let bytes: Vec<u8> = (0..rows).flat_map(|_| random.row(format, columns / format.block_length())).collect();
        let x: Vec<f32> = (0..tokens * columns).map(|_| random.value()).collect();
        let row_bytes = bytes.len() / rows;
        let matrix = MatrixRows { format, bytes: &bytes, row_stride: row_bytes, row_bytes, skip: 0, rows, columns };
        for kernels in Kernels::available() {
            let product = |x: &[f32], threads: usize| {
                let pool = Pool::new(PoolOptions { threads, cores: Vec::new(), spin: false });
                let mut activations = Activations::default();
                activations.load(kernels, x, columns, true);
                let mut out = vec![0.0; x.len() / columns * rows];
                matmul(&Compute { kernels, pool }, matrix, &activations, &mut out);
                out.iter().map(|value| value.to_bits()).collect::<Vec<u32>>()
            };
            let alone: Vec<u32> = x.chunks(columns).flat_map(|token| product(token, 1)).collect();
            (1..=4).for_each(|threads| assert_eq!(product(&x, threads), alone, "{threads} threads"));
        }
    }
}

#[test]
fn a_table_that_is_not_there_is_refused_with_those_that_are() {
    let error = Kernels::choose(Some("avx9000")).expect_err("there is no such table").to_string();
    assert!(error.contains("avx9000") && error.contains("scalar"), "{error}");
    assert_eq!(Kernels::choose(Some("scalar")).map(|table| table.name), Ok("scalar"));
}

#[test]
fn a_product_is_the_same_bit_for_bit_in_every_shape_of_tile() {
    let mut random = Random(5);
    for table in Kernels::available().into_iter().filter(|table| table.has_tiles()) {
        for format in BlockFormat::ALL {
            for columns in [32_usize, 96, 256, 768].into_iter().filter(|columns| columns % format.block_length() == 0) {
                let Some(tile) = table.tile(format, 0, columns) else { continue };
                let rows: Vec<Vec<u8>> =
                    (0..TILE_ROWS).map(|_| random.row(format, columns / format.block_length())).collect();
                let values: Vec<f32> = (0..columns * TILE_TOKENS).map(|_| random.value()).collect();
                let mut x = Activations::default();
                x.load(table, &values, columns, true);
                for (count, tokens) in
                    (1..=TILE_ROWS).flat_map(|rows| (1..=TILE_TOKENS).map(move |tokens| (rows, tokens)))
                {
                    let weights: Vec<&[u8]> = rows[..count].iter().map(Vec::as_slice).collect();
                    let batch: Vec<ActivationRow<'_>> = (0..tokens).map(|token| x.row(token)).collect();
                    let mut out = vec![f32::NAN; count * tokens];
                    tile(&weights, &batch, &mut out);
                    for (index, found) in out.iter().enumerate() {
                        let single = table.dot(format, weights[index / tokens], 0, batch[index % tokens]);
                        let what = format!("{} {} {count}x{tokens} {columns}", table.name, format.name());
                        assert_eq!(found.to_bits(), single.to_bits(), "{what}");
                    }
                }
            }
        }
    }
}
