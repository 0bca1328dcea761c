//! Products of groups against those of single tokens.
use super::*;
use crate::{Activations, Kernels, Pool, PoolOptions, matmul, pack_panel};

const COUNT: usize = 5;
const ROWS: usize = 37;
const COLUMNS: usize = 512;

/// Bytes below 0x40: scales and floats are small numbers in every format.
fn noise(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (((at + 1) * (seed + 3) * 2_654_435) >> 9) as u8 & 0x3f).collect()
}

fn packed(format: BlockFormat, height: usize, seed: usize, columns: usize) -> Vec<u8> {
    let row_bytes = format.row_bytes(columns).expect("whole blocks");
    (0..COUNT)
        .flat_map(|matrix| {
            let rows: Vec<Vec<u8>> = (0..ROWS).map(|row| noise(row_bytes, seed + row + 100 * matrix)).collect();
            let mut bytes = vec![0; ROWS.next_multiple_of(height) * row_bytes];
            for (panel, out) in bytes.chunks_exact_mut(height * row_bytes).enumerate() {
                pack_panel(
                    format,
                    height,
                    0..columns / format.block_length(),
                    |lane| rows.get(panel * height + lane).map(Vec::as_slice),
                    out,
                );
            }
            bytes
        })
        .collect()
}

/// Choices where the first matrix is chosen by all tokens and the last by none.
fn choices(tokens: usize) -> Vec<Choice> {
    (0..2 * tokens)
        .map(|index| Choice { matrix: [0, 1 + index / 2 % (COUNT - 2)][index % 2], weight: 0.25 + index as f32 / 64.0 })
        .collect()
}

/// Computes each token alone, with one matrix after another in index order.
fn one_by_one(compute: &Compute, stacks: [MatrixStack<'_>; 3], x: &[f32], wanted: Wanted) -> Vec<f32> {
    let product = |stack: MatrixStack<'_>, matrix, x: &[f32], skip| {
        let (mut activations, mut out) = (Activations::default(), vec![0.0; ROWS]);
        activations.load(compute, x, x.len(), Wanted { skip, ..wanted });
        matmul(compute, stack.get(matrix, compute.kernels.panel_rows), &activations, &mut out);
        out
    };
    x.chunks(COLUMNS)
        .enumerate()
        .flat_map(|(token, x)| {
            let mut sums = vec![0.0; ROWS];
            let choices = choices(token + 1).split_off(2 * token);
            for Choice { matrix, weight } in choices {
                let mut gates = product(stacks[0], matrix, x, 0);
                (compute.kernels.silu_multiply)(&mut gates, &product(stacks[1], matrix, x, 0));
                let out = product(stacks[2], matrix, &gates[..32], wanted.skip);
                sums.iter_mut().zip(out).for_each(|(sum, out)| *sum += weight * out);
            }
            sums
        })
        .collect()
}

#[test]
fn groups_match_single_tokens_bit_for_bit() {
    for format in [BlockFormat::Q4K, BlockFormat::Q8_0, BlockFormat::F16] {
        for kernels in Kernels::available() {
            let columns = [COLUMNS, COLUMNS, if format.is_quantised() { 256 } else { 32 }];
            let bytes = [0, 1, 2].map(|index| packed(format, kernels.panel_rows, index, columns[index]));
            let stacks = [0, 1, 2].map(|index| MatrixStack {
                format,
                bytes: &bytes[index],
                rows: ROWS,
                columns: columns[index],
                count: COUNT,
                places: None,
            });
            // The last product begins in the middle of a super-block.
            let skip = if format.is_quantised() { 3 } else { 0 };
            let wanted = Wanted { skip, quantised: format.is_quantised(), floats: !format.is_quantised() };
            for (tokens, threads) in [(1, 1), (1, 3), (2, 2), (7, 1), (23, 2), (70, 4)] {
                let pool = Pool::new(PoolOptions { threads, cores: Vec::new(), spin: false });
                let compute = Compute::new(kernels, pool.expect("threads can be started"));
                let x: Vec<f32> = (0..tokens * COLUMNS).map(|at| (at * 37 % 101) as f32 / 300.0 - 0.1).collect();
                let (mut groups, mut activations) = (Groups::default(), GroupedActivations::default());
                groups.load(&choices(tokens), 2, 0..COUNT);
                activations.load(&compute, &groups, &x, COLUMNS, RowsOf::Tokens, Wanted { skip: 0, ..wanted });
                let mut inner = vec![f32::NAN; groups.rows() * ROWS];
                let gating = Gating { combine: kernels.silu_multiply, scales: [&[]; 2], biases: [&[]; 2] };
                gated(&compute, [stacks[0], stacks[1]], gating, &groups, &activations, &mut inner);
                let first: Vec<f32> = inner.chunks(ROWS).flat_map(|row| row[..32].to_vec()).collect();
                activations.load(&compute, &groups, &first, 32, RowsOf::Groups, wanted);
                let mut out = vec![0.0; tokens * ROWS];
                weighted_sums(&compute, stacks[2], &groups, &activations, &mut out);
                let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
                let expected = one_by_one(&compute, stacks, &x, wanted);
                assert!(expected.iter().all(|value| value.is_finite() && *value != 0.0));
                let what = format!("{} {} {tokens} tokens {threads} threads", kernels.name, format.name());
                assert_eq!(bits(out), bits(expected), "{what}");
            }
        }
    }
}

#[test]
fn products_with_every_matrix_match_single_tokens_bit_for_bit() {
    for format in [BlockFormat::Q4K, BlockFormat::Q8_0, BlockFormat::F16] {
        for kernels in Kernels::available() {
            let bytes = packed(format, kernels.panel_rows, 0, COLUMNS);
            let stack = MatrixStack { format, bytes: &bytes, rows: ROWS, columns: COLUMNS, count: COUNT, places: None };
            let wanted = Wanted { skip: 0, quantised: format.is_quantised(), floats: !format.is_quantised() };
            for (tokens, threads) in [(1, 1), (1, 3), (2, 2), (23, 2)] {
                let pool = Pool::new(PoolOptions { threads, cores: Vec::new(), spin: false });
                let compute = Compute::new(kernels, pool.expect("threads can be started"));
                let rows = COUNT * tokens;
                let x: Vec<f32> = (0..rows * COLUMNS).map(|at| (at * 37 % 101) as f32 / 300.0 - 0.1).collect();
                let (mut groups, mut activations) = (Groups::default(), GroupedActivations::default());
                groups.load_all(tokens, COUNT);
                activations.load(&compute, &groups, &x, COLUMNS, RowsOf::Groups, wanted);
                let mut out = vec![f32::NAN; rows * ROWS];
                separate_products(&compute, stack, &groups, &activations, &mut out);
                for (row, (x, found)) in x.chunks(COLUMNS).zip(out.chunks(ROWS)).enumerate() {
                    let (mut alone, mut exact) = (Activations::default(), vec![0.0; ROWS]);
                    alone.load(&compute, x, COLUMNS, wanted);
                    matmul(&compute, stack.get(row / tokens, compute.kernels.panel_rows), &alone, &mut exact);
                    let what = format!("{} {} {tokens} tokens {threads} threads", kernels.name, format.name());
                    assert_eq!(found, exact, "{what}");
                }
            }
        }
    }
}
