//! The reference outputs hold on 1, 2, 3, 4, 5 and 8 ranks, with every kernel table.
use harness::{
    programs::{demo_models, root},
    reference::{check, models},
};

const WORLDS: [usize; 6] = [1, 2, 3, 4, 5, 8];

#[track_caller]
fn assert_holds(kernels: Option<&'static str>, worlds: &[usize]) {
    let folder = root().join("tests/fixtures/reference");
    let mut all = models(&folder);
    assert_eq!(all.len(), 5);
    all.push(("bard-q8_0".into(), demo_models().join("bard-q8_0.gguf"), folder.join("bard-q8_0.json")));
    for (name, model, json) in all {
        for finding in check(&model, &json, worlds, kernels) {
            assert!(finding.holds, "{name}: {finding:?}");
        }
    }
}

#[test]
fn every_file_and_prompt_is_within_its_bound_on_any_ranks() {
    assert_holds(None, &WORLDS);
}

#[test]
fn the_scalar_table_is_within_the_bounds_too() {
    assert_holds(Some("scalar"), &[1, 3]);
}
