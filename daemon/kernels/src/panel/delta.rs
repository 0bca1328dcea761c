//! A gated delta net, written once for all instruction sets: the columns of a state do not depend on each other, so that
//! a few of them pass through all tokens while they are in the nearest cache.
use super::Lanes;
use crate::DeltaRun;

/// Columns that are processed together.
const TILE: usize = 32;
/// Registers of these with the shortest lanes.
const REGISTERS_MAX: usize = 8;

/// For each token: `S *= decay; S += key (value - key S) rate; out = query S`, where `state` is `S` `[key, value]` and
/// `out` is `[token, value]`.
#[inline(always)]
pub(crate) fn delta<L: Lanes>(lanes: L, state: &mut [f32], run: DeltaRun<'_>, out: &mut [f32]) {
    let length = run.length;
    assert!(state.len() == length * length && length.is_multiple_of(TILE), "the state is square");
    for tile in (0..length).step_by(TILE) {
        for (token, out) in out.chunks_exact_mut(length).enumerate() {
            step(lanes, state, run, token, tile, &mut out[tile..tile + TILE]);
        }
    }
}

/// One token, for the columns from `tile` on.
#[inline(always)]
fn step<L: Lanes>(lanes: L, state: &mut [f32], run: DeltaRun<'_>, token: usize, tile: usize, out: &mut [f32]) {
    let registers = TILE / L::ROWS;
    let x = run.token(token);
    let mut sums = [lanes.splat(0.0); REGISTERS_MAX];
    for (row, key) in state.chunks_exact(run.length).zip(x.key) {
        let (row, key) = (&row[tile..tile + TILE], lanes.splat(*key));
        for register in 0..registers {
            sums[register] = lanes.multiply_add(key, lanes.load(&row[register * L::ROWS..]), sums[register]);
        }
    }
    let (decay, rate) = (lanes.splat(x.decay), lanes.splat(x.rate));
    let (minus, mut changes) = (lanes.splat(-x.decay), sums);
    for register in 0..registers {
        let value = lanes.load(&x.value[tile + register * L::ROWS..]);
        changes[register] = lanes.multiply(lanes.multiply_add(minus, sums[register], value), rate);
        sums[register] = lanes.splat(0.0);
    }
    for ((row, key), query) in state.chunks_exact_mut(run.length).zip(x.key).zip(x.query) {
        let (row, key, query) = (&mut row[tile..tile + TILE], lanes.splat(*key), lanes.splat(*query));
        for register in 0..registers {
            let place = &mut row[register * L::ROWS..];
            let held = lanes.multiply_add(key, changes[register], lanes.multiply(lanes.load(place), decay));
            lanes.store(held, place);
            sums[register] = lanes.multiply_add(query, held, sums[register]);
        }
    }
    for register in 0..registers {
        lanes.store(sums[register], &mut out[register * L::ROWS..]);
    }
}
