//! Checks the state space of every kernel table against its formula in f64.
use super::{
    Kernels, ScanRun,
    check::{Random, assert_near},
};

#[test]
fn state_space_of_every_table_matches_the_formula() {
    let mut random = Random(13);
    for (length, key_length, tokens) in [(32, 16, 1), (64, 128, 5), (80, 24, 3), (7, 5, 4)] {
        let (heads, head, skip) = (3, 1, 0.7);
        let (value_width, key_width) = (3 * length, 2 * key_length + 3);
        let values = random.values(tokens * value_width);
        let keys: Vec<f32> = random.values(tokens * key_width);
        let gates: Vec<f32> = random.values(tokens * heads * 2).iter().map(|value| value.abs() / 3.0).collect();
        let before = random.values(key_length * length);
        let run = ScanRun {
            values: &values,
            value_place: [value_width, length],
            length,
            keys: &keys,
            key_place: [key_width, 1, key_length + 2],
            key_length,
            gates: &gates,
            heads,
            head,
            skip,
        };
        let scanned = |table: &Kernels| {
            let (mut state, mut out) = (before.clone(), vec![f32::NAN; tokens * length]);
            (table.scan)(&mut state, run, &mut out);
            [out, state].concat()
        };
        let mut state: Vec<f64> = before.iter().map(|value| f64::from(*value)).collect();
        let mut exact = Vec::new();
        for token in 0..tokens {
            let [decay, rate] = [0, 1].map(|gate| f64::from(gates[2 * (token * heads + head) + gate]));
            for column in 0..length {
                let value = f64::from(values[token * value_width + length + column]);
                let mut sum = f64::from(skip) * value;
                for row in 0..key_length {
                    let held = &mut state[row * length + column];
                    *held = *held * decay + f64::from(keys[token * key_width + 1 + row]) * value * rate;
                    sum += f64::from(keys[token * key_width + key_length + 2 + row]) * *held;
                }
                exact.push(sum);
            }
        }
        exact.extend(state);
        let reference = scanned(&Kernels::SCALAR);
        for table in Kernels::available() {
            let found = scanned(table);
            assert_eq!(found, reference, "{}: the same bits in every table", table.name);
            for (found, exact) in found.into_iter().zip(&exact) {
                let what = format!("{} length {length}, {key_length} keys, {tokens} tokens", table.name);
                assert_near(f64::from(found), *exact, 30.0, &what);
            }
        }
    }
}
