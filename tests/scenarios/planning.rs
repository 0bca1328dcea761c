//! The planner's memory estimate against the daemon's preflight: bytes of every rank's shard, without loading any.
use engine::model::needs::shard_bytes;
use gguf::{BlockFormat, GgufFile};
use harness::{
    families::shapes,
    tiny_model::{Architecture, TinyModel},
};
use kernels::Kernels;
use models::ModelSpec;
use planner::holding::Holding;
use topology::{cut_stages, sizes::ModelSizes};

#[track_caller]
fn check(name: &str, bytes: Vec<u8>, stages: &[(std::ops::Range<usize>, Vec<u32>)]) {
    let file = GgufFile::from_bytes(vec![bytes]).expect("the model is valid");
    let spec = models::read(&file).expect("the model is valid");
    check_cut(name, &file, &spec, stages);
    if let Ok(predictor) = models::read_predictor(&file, &spec) {
        check_cut(name, &file, &predictor, &[(0..1, vec![2, 1])]);
    }
}

#[track_caller]
fn check_cut(name: &str, file: &GgufFile, spec: &ModelSpec, stages: &[(std::ops::Range<usize>, Vec<u32>)]) {
    let sizes = ModelSizes::of_file(file, spec);
    let plans = cut_stages(spec, stages).expect("it can be cut");
    for kernels in [&Kernels::SCALAR, Kernels::choose(None).expect("this machine has kernels")] {
        for (rank, plan) in plans.iter().enumerate() {
            let asked = shard_bytes(file, spec, plan, kernels).expect("every tensor is there");
            let planned = Holding { sizes: &sizes, plan }.shard_bytes(kernels.panel_rows);
            assert_eq!(planned, asked, "rank {rank} of {stages:?}, {name}");
        }
    }
}

#[test]
fn planner_expects_the_bytes_of_the_preflight() {
    for architecture in Architecture::ALL {
        for format in [BlockFormat::F16, BlockFormat::Q8_0, BlockFormat::Q4K] {
            let model =
                TinyModel { finer_format: Some(BlockFormat::Q6K), ..TinyModel::new(architecture).with_format(format) };
            let name = architecture.name();
            check(name, model.bytes(), &[(0..2, vec![1])]);
            check(name, model.bytes(), &[(0..2, vec![3, 2, 1])]);
            check(name, model.bytes(), &[(0..1, vec![1, 1]), (1..2, vec![2, 1])]);
        }
    }
    let model = TinyModel { rope_factors: true, tied: false, ..TinyModel::new(Architecture::Llama) };
    check("llama", model.bytes(), &[(0..2, vec![1, 1])]);
    for (name, model) in shapes() {
        let predictors = usize::from(name.contains("+predictor"));
        let (count, model) = (model.block_count() - predictors, model.with_format(BlockFormat::Q4K));
        check(&name, model.bytes(), &[(0..1, vec![1, 1]), (1..count, vec![2, 1])]);
    }
}
