//! The reader returns what the writer wrote: both versions, single files and splits, in memory and on disk.

use std::path::PathBuf;

use gguf::{BlockFormat, GgufError, GgufFile};
use harness::gguf_writer::{GgufWriter, Value};
use harness::quantise::quantise;
use harness::random::Random;
use harness::tiny_model::Architecture;
use harness::tiny_model::TinyModel;
use models::{
    Activation, AttentionSpec, DenseSpec, ExpertsSpec, FeedForward, HeadNorms, LayerSpec, ModelSpec, NormKind,
    RopeSpec, Rotation, RouterSpec, Scaling, Scores,
};

fn every_value(version: u32) -> GgufWriter {
    let nested = Value::Array(9, vec![Value::Array(5, vec![Value::I32(-7), Value::I32(8)]), Value::Array(8, vec![])]);
    GgufWriter::new(version)
        .value("u8", Value::U8(200))
        .value("i8", Value::I8(-100))
        .value("u16", Value::U16(60_000))
        .value("i16", Value::I16(30_000))
        .u32("u32", 4_000_000_000)
        .value("i32", Value::I32(2_000_000_000))
        .f32("f32", 0.1)
        .flag("yes", true)
        .flag("no", false)
        .text("text", "grüße\n")
        .text("empty", "")
        .value("u64", Value::U64(u64::MAX))
        .value("i64", Value::I64(i64::MAX))
        .value("f64", Value::F64(-1e300))
        .texts("texts", &[&b"a"[..], b"", b"\xff\xfe", b"\xe2\x96\x81b"])
        .floats("floats", &[1.5, -2.25, f32::INFINITY])
        .integers("integers", &[i32::MIN, 0, i32::MAX])
        .value("u32s", Value::Array(4, vec![Value::U32(u32::MAX)]))
        .value("u64s", Value::Array(10, vec![Value::U64(5)]))
        .value("bytes", Value::Array(0, vec![Value::U8(5)]))
        .value("nothing", Value::Array(4, vec![]))
        .value("nested", nested)
}

#[test]
fn every_metadata_type_comes_back_in_both_versions() -> Result<(), GgufError> {
    for version in [2, 3] {
        let file = GgufFile::from_bytes(vec![every_value(version).finish()])?;
        let metadata = file.metadata();
        for (key, value) in [
            ("u8", 200),
            ("u16", 60_000),
            ("i16", 30_000),
            ("u32", 4_000_000_000),
            ("i32", 2_000_000_000),
            ("u64", u64::MAX),
            ("i64", i64::MAX as u64),
        ] {
            assert_eq!(metadata.unsigned(key)?, Some(value), "{key}");
        }
        assert_eq!(metadata.float("f32")?, Some(f64::from(0.1f32)));
        assert_eq!(metadata.float("f64")?, Some(-1e300));
        assert_eq!(metadata.flag("yes")?, Some(true));
        assert_eq!(metadata.flag("no")?, Some(false));
        assert_eq!(metadata.text("text")?, Some("grüße\n"));
        assert_eq!(metadata.text("empty")?, Some(""));
        let texts = metadata.texts("texts")?.expect("it was written");
        assert_eq!(texts.len(), 4);
        assert_eq!(texts.collect::<Vec<_>>(), [&b"a"[..], b"", b"\xff\xfe", b"\xe2\x96\x81b"]);
        assert_eq!(metadata.floats("floats")?, Some(vec![1.5, -2.25, f32::INFINITY]));
        assert_eq!(metadata.integers("integers")?, Some(vec![i32::MIN.into(), 0, i32::MAX.into()]));
        assert_eq!(metadata.integers("u32s")?, Some(vec![u32::MAX.into()]));
        assert_eq!(metadata.integers("u64s")?, Some(vec![5]));
        assert_eq!(metadata.integers("nothing")?, Some(vec![]));
        assert_eq!(metadata.texts("nothing")?.map(|texts| texts.len()), Some(0));
        assert_eq!(metadata.keys().count(), 22);
        assert!(metadata.keys().is_sorted());
    }
    Ok(())
}

#[test]
fn key_of_another_type_is_an_error_and_a_missing_one_is_none() -> Result<(), GgufError> {
    let file = GgufFile::from_bytes(vec![every_value(3).finish()])?;
    let metadata = file.metadata();
    let wrong = |result: Result<(), GgufError>, name: &str| match result {
        Err(GgufError::WrongType { key, .. }) => assert_eq!(key, name),
        other => panic!("{name}: {other:?}"),
    };
    wrong(metadata.text("u8").map(drop), "u8");
    wrong(metadata.unsigned("text").map(drop), "text");
    wrong(metadata.unsigned("f32").map(drop), "f32");
    wrong(metadata.float("u32").map(drop), "u32");
    wrong(metadata.flag("u8").map(drop), "u8");
    wrong(metadata.texts("floats").map(drop), "floats");
    wrong(metadata.texts("text").map(drop), "text");
    wrong(metadata.floats("integers").map(drop), "integers");
    wrong(metadata.integers("nested").map(drop), "nested");
    wrong(metadata.integers("bytes").map(drop), "bytes");
    assert!(matches!(metadata.unsigned("i8"), Err(GgufError::Parameter { key, .. }) if key == "i8"));
    assert_eq!(metadata.text("absent")?, None);
    assert_eq!(metadata.unsigned("")?, None);
    assert_eq!(metadata.float("u")?, None);
    assert_eq!(metadata.flag("yes ")?, None);
    assert!(metadata.texts("absent")?.is_none());
    assert_eq!(metadata.floats("absent")?, None);
    assert_eq!(metadata.integers("absent")?, None);
    Ok(())
}

/// A tensor in each format, with the bytes that were written.
fn every_format(alignment: usize) -> (GgufWriter, Vec<(String, BlockFormat, Vec<u8>)>) {
    let mut writer = GgufWriter::new(3).text("general.name", "formats").alignment(alignment);
    let mut wanted = Vec::new();
    for format in BlockFormat::ALL {
        let name = format!("tensor in {}", format.name());
        let bytes = quantise(format, &Random::named(3, &name).normals(256 * 3 * 2, 1.0));
        writer = writer.tensor(&name, &[256, 3, 2], format, bytes.clone());
        wanted.push((name, format, bytes));
    }
    (writer, wanted)
}

#[track_caller]
fn check_formats(file: &GgufFile, wanted: &[(String, BlockFormat, Vec<u8>)], alignment: usize) {
    assert_eq!(file.tensors().count(), wanted.len());
    assert!(file.tensors().map(|t| t.name).eq(wanted.iter().map(|(name, ..)| name.as_str())));
    for (name, format, bytes) in wanted {
        let tensor = file.tensor(name).expect("it was written");
        assert_eq!(tensor.name, name);
        assert_eq!(tensor.format, *format);
        assert_eq!(tensor.dimensions, [256, 3, 2, 1]);
        assert_eq!((tensor.columns(), tensor.rows()), (256, 6));
        assert_eq!(tensor.row_bytes() * 6, tensor.byte_length);
        assert!(tensor.offset.is_multiple_of(alignment));
        assert_eq!(file.tensor_bytes(&tensor).expect("it can be read"), *bytes);
    }
    assert!(file.tensor("tensor in F3").is_none());
    assert!(file.tensor("").is_none());
}

#[test]
fn every_format_comes_back_from_one_file_and_from_splits() -> Result<(), GgufError> {
    for alignment in [8, 32, 4096] {
        let (writer, wanted) = every_format(alignment);
        let single = GgufFile::from_bytes(vec![writer.finish()])?;
        check_formats(&single, &wanted, alignment);
        for count in [1, 2, 3, 10] {
            let splits = writer.finish_splits(count);
            let bytes: usize = splits.iter().map(Vec::len).sum();
            let file = GgufFile::from_bytes(splits)?;
            check_formats(&file, &wanted, alignment);
            assert_eq!(file.file_bytes(), bytes as u64);
            assert_eq!(file.metadata().text("general.name")?, Some("formats"));
            assert_ne!(file.identity(), single.identity());
        }
    }
    Ok(())
}

#[test]
fn splits_are_opened_by_the_name_of_the_first() -> anyhow::Result<()> {
    let (writer, wanted) = every_format(32);
    let folder = tempfile::tempdir()?;
    let name = |part: usize| folder.path().join(format!("a-b-0000{part}-of-00003.gguf"));
    for (part, bytes) in writer.finish_splits(3).iter().enumerate() {
        std::fs::write(name(part + 1), bytes)?;
    }
    let file = GgufFile::open(&name(1))?;
    check_formats(&file, &wanted, 32);
    assert_eq!(file.identity(), GgufFile::from_bytes(writer.finish_splits(3))?.identity());
    let single: PathBuf = folder.path().join("single.gguf");
    std::fs::write(&single, writer.finish())?;
    check_formats(&GgufFile::open(&single)?, &wanted, 32);
    Ok(())
}

#[test]
fn identity_covers_metadata_table_and_sizes_but_not_weights() -> Result<(), GgufError> {
    let identity = |bytes: Vec<u8>| GgufFile::from_bytes(vec![bytes]).map(|file| file.identity());
    let model = TinyModel::new(Architecture::Llama);
    let plain = identity(model.bytes())?;
    assert_eq!(plain, identity(model.bytes())?);
    assert_eq!(plain, identity(TinyModel { seed: 2, ..model.clone() }.bytes())?);
    let mut longer = model.bytes();
    longer.push(0);
    assert_ne!(plain, identity(longer)?);
    assert_ne!(plain, identity(TinyModel { version: 2, ..model.clone() }.bytes())?);
    assert_ne!(plain, identity(model.with_format(BlockFormat::F16).bytes())?);
    Ok(())
}

/// The attention of the tiny model below.
fn wanted_attention(architecture: Architecture) -> AttentionSpec {
    AttentionSpec {
        scale: 1.0 / 48_f32.sqrt(),
        head_norms: match architecture {
            Architecture::Llama | Architecture::Qwen2 => HeadNorms::None,
            Architecture::Qwen3 | Architecture::Qwen3Moe => HeadNorms::BeforeRotation,
        },
        needs_biases: architecture == Architecture::Qwen2,
        ..AttentionSpec::new(4, 2, 48)
    }
}

/// The spec of the tiny model below.
fn wanted(architecture: Architecture, format: BlockFormat) -> ModelSpec {
    let (columns, activation) = (256, Activation::Silu);
    let feed_forward = match architecture.has_experts() {
        true => {
            let scores = Scores::Softmax;
            let router =
                RouterSpec { scores, has_selection_bias: false, is_normalised: true, scale: 1.0, groups: None };
            let (has_biases, shared) = (false, None);
            FeedForward::Experts(ExpertsSpec {
                count: 8,
                used_count: 3,
                columns,
                activation,
                router,
                has_biases,
                is_fused: false,
                shared,
                block: format.block_length(),
            })
        }
        false => FeedForward::Dense(DenseSpec { columns, activation, is_fused: false }),
    };
    let layer = LayerSpec::attending(wanted_attention(architecture), feed_forward);
    let rope = RopeSpec {
        rotation: match architecture {
            Architecture::Llama => Rotation::Neighbours,
            _ => Rotation::Halves,
        },
        dimension_count: 24,
        freq_base: 10_000.0,
        scaling: Scaling::Linear(2.0),
        has_factors: architecture == Architecture::Llama,
        sections: None,
    };
    ModelSpec {
        architecture: architecture.name().into(),
        name: format!("tiny {}", architecture.name()),
        context_length: 256,
        embedding_length: 256,
        vocabulary_length: 300,
        norm: NormKind::Rms,
        norm_epsilon: 1e-5,
        embedding_scale: 1.0,
        tied_output: format == BlockFormat::Q8_0,
        logit_scale: 1.0,
        logit_cap: None,
        pooling: None,
        pooled_columns: 0,
        output_norm: models::OutputNorm::Output,
        ropes: vec![rope],
        kinds: vec![layer],
        layers: vec![0; 2],
        predictor: None,
    }
}

#[test]
fn tiny_models_of_every_architecture_and_format_keep_shape() -> Result<(), GgufError> {
    for architecture in Architecture::ALL {
        for format in BlockFormat::ALL {
            let model = TinyModel {
                version: 2 + u32::from(architecture == Architecture::Qwen2),
                tied: format == BlockFormat::Q8_0,
                rope_factors: architecture == Architecture::Llama,
                rope_scale_linear: 2.0,
                head_length: 48,
                rope_dimension_count: 24,
                embedding_length: 256,
                ..TinyModel::new(architecture).with_format(format)
            };
            let file = GgufFile::from_bytes(model.splits(2))?;
            let spec = models::read(&file)?;
            assert_eq!(spec, wanted(architecture, format));
            let used = |name: &str| file.tensor(name).map(|tensor| tensor.format);
            let up = if architecture.has_experts() { "blk.1.ffn_up_exps.weight" } else { "blk.1.ffn_up.weight" };
            assert_eq!(used(up), Some(format));
            // 4 heads of 48 do not fill a super-block.
            let fallback = match format {
                BlockFormat::Q2K | BlockFormat::Q3K | BlockFormat::Iq4Xs => BlockFormat::Iq4Nl,
                BlockFormat::Iq3Xxs | BlockFormat::Iq3S => BlockFormat::Iq4Nl,
                BlockFormat::Iq2Xxs | BlockFormat::Iq2Xs | BlockFormat::Iq2S => BlockFormat::Iq4Nl,
                BlockFormat::Q4K => BlockFormat::Q5_0,
                BlockFormat::Q5K => BlockFormat::Q5_1,
                BlockFormat::Q6K => BlockFormat::Q8_0,
                other => other,
            };
            assert_eq!(used("blk.1.attn_output.weight"), Some(fallback));
        }
    }
    Ok(())
}

#[test]
fn omitted_keys_have_their_defaults() -> Result<(), GgufError> {
    let writer = TinyModel { head_count_kv: 4, ..TinyModel::new(Architecture::Llama) }.writer();
    let writer = writer
        .without("general.type")
        .without("general.name")
        .without("llama.attention.head_count_kv")
        .without("llama.attention.key_length")
        .without("llama.attention.value_length")
        .without("llama.rope.dimension_count")
        .without("llama.rope.freq_base");
    let spec = models::read(&GgufFile::from_bytes(vec![writer.finish()])?)?;
    assert_eq!(spec.name, "");
    let attention = spec.layer(0).attention().expect("every layer attends");
    assert_eq!((attention.head_count_kv, attention.head_length), (4, 32));
    let RopeSpec { dimension_count, freq_base, scaling, .. } = &spec.ropes[0];
    assert_eq!((*dimension_count, *freq_base, scaling), (32, 10_000.0, &Scaling::None));
    Ok(())
}

#[test]
fn files_of_every_family_may_have_biases() -> Result<(), GgufError> {
    for architecture in Architecture::ALL {
        let model = TinyModel { attention_biases: true, ..TinyModel::new(architecture) };
        let file = GgufFile::from_bytes(vec![model.bytes()])?;
        models::read(&file)?;
        assert!(file.tensor("blk.1.attn_k.bias").is_some());
    }
    Ok(())
}

#[test]
fn scaling_factor_without_type_is_linear_and_type_none_is_none() -> Result<(), GgufError> {
    let scale = |writer: GgufWriter| -> Result<f32, GgufError> {
        let file = GgufFile::from_bytes(vec![writer.finish()])?;
        match models::read(&file)?.ropes[0].scaling {
            Scaling::None => Ok(1.0),
            Scaling::Linear(factor) => Ok(factor),
            Scaling::Yarn(_) | Scaling::Long(_) => panic!("no file has it"),
        }
    };
    let plain = || TinyModel::new(Architecture::Llama).writer();
    let factor = || plain().f32("llama.rope.scaling.factor", 4.0);
    assert_eq!(scale(plain())?, 1.0);
    assert_eq!(scale(factor())?, 4.0);
    assert_eq!(scale(factor().text("llama.rope.scaling.type", "linear"))?, 4.0);
    assert_eq!(scale(factor().text("llama.rope.scaling.type", "none"))?, 1.0);
    assert_eq!(scale(plain().f32("llama.rope.scale_linear", 2.0))?, 2.0);
    Ok(())
}
