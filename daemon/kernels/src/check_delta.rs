//! Checks the gated delta net of every kernel table against the scalar one.
use super::{
    DeltaRun, Kernels,
    check::{Random, assert_near},
};

#[test]
fn delta_net_of_every_table_matches_the_formula() {
    let mut random = Random(12);
    for (length, tokens) in [(32, 1), (64, 5), (128, 3)] {
        let (heads, head, width) = (3, 2, 3 * length + 7);
        let rows: Vec<f32> = random.values(tokens * width).iter().map(|value| value / (length as f32).sqrt()).collect();
        let gates: Vec<f32> = random.values(tokens * heads * 2).iter().map(|value| value.abs() / 3.0).collect();
        let before = random.values(length * length);
        let run = |table: &Kernels| {
            let (mut state, mut out) = (before.clone(), vec![f32::NAN; tokens * length]);
            let run = DeltaRun {
                rows: &rows,
                width,
                length,
                places: [0, length, 2 * length + 7],
                gates: &gates,
                heads,
                head,
            };
            (table.delta)(&mut state, run, &mut out);
            [out, state].concat()
        };
        for table in Kernels::available() {
            for (found, exact) in run(table).into_iter().zip(run(&Kernels::SCALAR)) {
                let what = format!("{} length {length}, {tokens} tokens", table.name);
                assert_near(f64::from(found), f64::from(exact), 30.0, &what);
            }
        }
    }
}
