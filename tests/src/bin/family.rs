//! Small models of every family beside llama.cpp: writes them, and compares logits and greedy ids on many layouts
//! (`tests/models/compare.py` runs both programs).
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, bail, ensure};
use clap::{Parser, Subcommand};
use gguf::{BlockFormat, GgufFile};
use harness::{
    families::shapes,
    family_model::FamilyModel,
    oracle::Oracle,
    random::Random,
    ranks::{Run, max_error, rms_error, run},
};
use models::ModelSpec;

/// Tokens of the prompt: longer than every window, and than a KV block.
const PROMPT: usize = 40;
/// Tokens that follow it, each the most probable.
const GREEDY: usize = 12;
/// Positions whose logits are committed: the last ones.
const KEPT: usize = 6;
/// Of so many mutants that load, one is run.
const RUN_EVERY: usize = 50;
/// Unquantised files: largest error relative to the largest logit.
const MAX_ERROR: f64 = 1e-3;
/// Quantised files: rms error as a multiple of llama.cpp's error on the same file.
const RMS_RATIO: f64 = 1.25;
/// The same with experts: rounding changes the choice between two that are nearly as good, in llama.cpp, too.
const RMS_RATIO_EXPERTS: f64 = 1.5;
/// Quantised files: how far the id of llama.cpp may be from the largest logit, as a multiple of the rms error of its
/// logits.
const SLACK: f32 = 3.0;
/// Stages and ranks of the layouts that are compared.
const LAYOUTS: [(usize, usize); 6] = [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2)];

/// Small models of every family beside llama.cpp.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write every model in every format, and the tokens of the prompt, into a folder
    Make {
        /// The folder
        folder: PathBuf,
        /// Only models whose names begin with this
        #[arg(long, default_value = "", value_name = "TEXT")]
        only: String,
    },
    /// Compare with the logits and ids of llama.cpp in the folder (NAME.logits.f32, NAME.ids.u32)
    Compare {
        /// The folder
        folder: PathBuf,
        /// Write the last logits of the unquantised files here
        #[arg(long, value_name = "FOLDER")]
        keep: Option<PathBuf>,
        /// Only models whose names begin with this
        #[arg(long, default_value = "", value_name = "TEXT")]
        only: String,
    },
    /// Change random bytes of every model's keys and table of tensors: each mutant loads or is refused
    Mutants {
        /// Number of mutants, of all models together
        #[arg(default_value_t = 100_000)]
        count: usize,
    },
    /// Compare with the logits that were written by `compare --keep`, without llama.cpp
    Check {
        /// The folder
        folder: PathBuf,
    },
}

/// A model in one format.
struct Case {
    name: String,
    model: FamilyModel,
}

/// The models whose names begin with `only`.
fn cases(only: &str) -> Vec<Case> {
    let formats = [
        ("f32", BlockFormat::F32, None),
        ("q8_0", BlockFormat::Q8_0, None),
        ("q4_k_m", BlockFormat::Q4K, Some(BlockFormat::Q6K)),
        ("mxfp4", BlockFormat::Mxfp4, None),
    ];
    // The formats with grids, of one shape: the others differ from it in nothing that concerns weights.
    let of_one_shape = [
        ("iq3_xxs", BlockFormat::Iq3Xxs, None),
        ("iq3_s", BlockFormat::Iq3S, None),
        ("iq2_xxs", BlockFormat::Iq2Xxs, None),
        ("iq2_xs", BlockFormat::Iq2Xs, None),
        ("iq2_s", BlockFormat::Iq2S, None),
    ];
    let wanted = shapes().into_iter().filter(|(name, _)| name.starts_with(only));
    let all = wanted.flat_map(|(name, model)| {
        let more = of_one_shape.iter().filter(|_| name == "llama-ordinary");
        let cases = formats.iter().chain(more).map(|(format_name, format, finer_format)| Case {
            name: format!("{name}-{format_name}"),
            model: FamilyModel { format: *format, finer_format: *finer_format, ..model.clone() },
        });
        cases.collect::<Vec<_>>()
    });
    all.collect()
}

fn tokens() -> Vec<u32> {
    let mut random = Random::new(19);
    (0..PROMPT).map(|_| 3 + random.below(290) as u32).collect()
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Make { folder, only } => make(&folder, &only),
        Command::Compare { folder, keep, only } => compare(&folder, keep.as_deref(), &only),
        Command::Check { folder } => check(&folder),
        Command::Mutants { count } => mutants(count),
    }
}

fn make(folder: &Path, only: &str) -> anyhow::Result<()> {
    fs::create_dir_all(folder)?;
    let text = tokens().iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    fs::write(folder.join("tokens.txt"), format!("{text}\n{GREEDY}\n"))?;
    for Case { name, model } in cases(only) {
        fs::write(folder.join(format!("{name}.gguf")), model.bytes())?;
    }
    Ok(())
}

/// Reads rows of logits.
fn rows(path: &Path, length: usize) -> anyhow::Result<Vec<Vec<f32>>> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let values: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    ensure!(values.len().is_multiple_of(length), "{}: {} logits", path.display(), values.len());
    Ok(values.chunks(length).map(<[f32]>::to_vec).collect())
}

/// Writes the last rows of logits.
fn write_last(rows: &[Vec<f32>], path: &Path) -> anyhow::Result<()> {
    let bytes: Vec<u8> = rows[PROMPT - KEPT..].concat().iter().flat_map(|logit| logit.to_le_bytes()).collect();
    Ok(fs::write(path, bytes)?)
}

/// Root mean square of all logits.
fn spread(rows: &[Vec<f32>]) -> f64 {
    let squares = rows.iter().flatten().map(|logit| f64::from(*logit) * f64::from(*logit));
    let count = rows.iter().map(Vec::len).sum::<usize>();
    (squares.sum::<f64>() / count as f64).sqrt()
}

fn largest(logits: &[f32]) -> f32 {
    logits.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

fn compare(folder: &Path, keep: Option<&Path>, only: &str) -> anyhow::Result<()> {
    let mut failures = 0;
    for Case { name, model } in cases(only) {
        let file = Arc::new(GgufFile::from_bytes(vec![model.bytes()])?);
        let spec = models::read(&file)?;
        let has_experts = spec.kinds.iter().any(|kind| kind.feed_forward.experts().is_some());
        let ratio = if has_experts { RMS_RATIO_EXPERTS } else { RMS_RATIO };
        failures += embeddings(folder, &name, &file, is_exact(&model))?;
        if let Some(keep) = keep.filter(|_| is_exact(&model) && spec.pooling.is_some()) {
            let embedding = format!("{name}.embedding.f32");
            fs::copy(folder.join(&embedding), keep.join(&embedding))?;
        }
        if !spec.generates() {
            continue;
        }
        let theirs = rows(&folder.join(format!("{name}.logits.f32")), spec.vocabulary_length)?;
        let ids = fs::read(folder.join(format!("{name}.ids.u32")))?;
        let ids: Vec<u32> = ids.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        ensure!(theirs.len() == PROMPT && ids.len() == GREEDY, "{name}: logits or ids are missing");
        let sequence: Vec<u32> = tokens().into_iter().chain(ids.iter().copied()).collect();
        let exact = Oracle::new(&file).logits(&sequence);
        let their_error = rms_error(&theirs, &exact[..PROMPT]);
        let is_float = is_exact(&model);
        let mut line = format!("{name}: llama.cpp {their_error:.1e}");
        for (stages, world) in LAYOUTS {
            let found = run(&file, &sequence, &Run { stages, ..Run::exact(world) }).logits;
            let (most, rms) = (max_error(&found[..PROMPT], &theirs), rms_error(&found[..PROMPT], &exact[..PROMPT]));
            // Where two tokens are as close as llama.cpp's own error, either of them is right.
            let slack = if is_float { 1e-3 } else { SLACK * (their_error * spread(&exact)) as f32 };
            let ahead = ids.iter().zip(&found[PROMPT - 1..]).map(|(id, logits)| largest(logits) - logits[*id as usize]);
            let wrong = ahead.filter(|ahead| *ahead > slack).count();
            let holds = if is_float { most < MAX_ERROR } else { rms <= ratio * their_error.max(1e-3) };
            if !holds || wrong > 0 {
                failures += 1;
                line += &format!("; pp{stages}-tp{world} FAILS: max {most:.1e}, rms {rms:.1e}, {wrong} ids differ");
            } else if (stages, world) == (1, 1) {
                line += &format!("; max {most:.1e}, rms {rms:.1e}, {GREEDY} ids");
            }
        }
        println!("{line}");
        failures += if is_float { predictions(folder, &name, &file, &spec)? } else { 0 };
        if let Some(keep) = keep.filter(|_| is_float) {
            write_last(&theirs, &keep.join(format!("{name}.logits.f32")))?;
            if models::read_predictor(&file, &spec).is_ok() {
                let predicted = format!("{name}.predicted.f32");
                write_last(&rows(&folder.join(&predicted), spec.vocabulary_length)?, &keep.join(&predicted))?;
            }
        }
    }
    if failures > 0 { bail!("{failures} comparisons are out of bounds") } else { Ok(()) }
}

/// Compares the logits of the file's predictor with those of llama.cpp in a folder (NAME.predicted.f32), if it has one.
/// Returns the number of layouts out of bounds.
fn predictions(folder: &Path, name: &str, file: &Arc<GgufFile>, spec: &ModelSpec) -> anyhow::Result<usize> {
    if models::read_predictor(file, spec).is_err() {
        return Ok(0);
    }
    let theirs = rows(&folder.join(format!("{name}.predicted.f32")), spec.vocabulary_length)?;
    let (mut failures, mut worst) = (0, 0.0_f64);
    for world in 1..=4 {
        // In steps as a daemon takes them, and at once.
        for chunks in [vec![7, 1, 3, 1], vec![PROMPT]] {
            let found = run(file, &tokens(), &Run { predicts: true, chunks, ..Run::exact(world) }).logits;
            let error = max_error(&found[PROMPT - theirs.len()..], &theirs);
            // NaN is no result either.
            let holds = error < MAX_ERROR;
            failures += usize::from(!holds);
            worst = worst.max(error);
        }
    }
    println!("{name}: predictor max {worst:.1e}{}", if failures == 0 { "" } else { " FAILS" });
    Ok(failures)
}

fn is_exact(model: &FamilyModel) -> bool {
    model.format == BlockFormat::F32
}

/// Compares the embedding of the prompt on every layout with that of llama.cpp (NAME.embedding.f32), if the model is
/// made for embeddings; returns the number of layouts out of bounds.
fn embeddings(folder: &Path, name: &str, file: &Arc<GgufFile>, is_float: bool) -> anyhow::Result<usize> {
    let Some(exact) = Oracle::new(file).embedding(&tokens()) else { return Ok(0) };
    let theirs = rows(&folder.join(format!("{name}.embedding.f32")), exact.len())?;
    let exact = [exact];
    let their_error = rms_error(&theirs, &exact);
    let (mut failures, mut worst) = (0, [0.0_f64; 2]);
    for (stages, world) in LAYOUTS {
        for found in run(file, &tokens(), &Run { stages, ..Run::exact(world) }).embeddings {
            let found = [found];
            let (most, rms) = (max_error(&found, &theirs), rms_error(&found, &exact));
            worst = [worst[0].max(most), worst[1].max(rms)];
            let holds = if is_float { most < MAX_ERROR } else { rms <= RMS_RATIO * their_error.max(1e-3) };
            failures += usize::from(!holds);
        }
    }
    println!("{name}: embedding max {:.1e}, rms {:.1e}, llama.cpp {their_error:.1e}", worst[0], worst[1]);
    Ok(failures)
}

fn check(folder: &Path) -> anyhow::Result<()> {
    let mut failures = 0;
    for Case { name, model } in cases("").into_iter().filter(|case| case.model.format == BlockFormat::F32) {
        let file = Arc::new(GgufFile::from_bytes(vec![model.bytes()])?);
        let spec = models::read(&file)?;
        failures += embeddings(folder, &name, &file, true)?;
        if !spec.generates() {
            continue;
        }
        let theirs = rows(&folder.join(format!("{name}.logits.f32")), spec.vocabulary_length)?;
        for (stages, world) in [(1, 1), (1, 2), (2, 1)] {
            let found = run(&file, &tokens(), &Run { stages, ..Run::exact(world) }).logits;
            let error = max_error(&found[PROMPT - theirs.len()..], &theirs);
            let holds = error < MAX_ERROR;
            failures += usize::from(!holds);
            println!("{name} pp{stages}-tp{world}: {error:.1e}{}", if holds { "" } else { " FAILS" });
        }
        failures += predictions(folder, &name, &file, &spec)?;
    }
    if failures > 0 { bail!("{failures} comparisons are out of bounds") } else { Ok(()) }
}

fn mutants(count: usize) -> anyhow::Result<()> {
    let shapes = shapes();
    let folder = tempfile::tempdir()?;
    let (mut loaded, mut refused) = (0, 0);
    for (name, model) in &shapes {
        let path = folder.path().join("mutant.gguf");
        fs::write(&path, model.bytes())?;
        let file = File::options().read(true).write(true).open(&path)?;
        // Everything but the weights: keys, tokens and the table of tensors.
        let header = GgufFile::open(&path)?.tensors().map(|tensor| tensor.offset).min().unwrap_or(0);
        let mut whole = vec![0; header];
        file.read_exact_at(&mut whole, 0)?;
        let mut random = Random::named(7, name);
        for _ in 0..count.div_ceil(shapes.len()) {
            let places: Vec<usize> = (0..1 + random.below(3)).map(|_| random.below(header)).collect();
            for at in &places {
                let byte = match random.below(3) {
                    0 => random.next_u64() as u8,
                    1 => whole[*at] ^ (1 << random.below(8)),
                    _ => [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
                };
                file.write_all_at(&[byte], *at as u64)?;
            }
            match GgufFile::open(&path).and_then(|file| Ok((models::read(&file)?, file))) {
                Ok((spec, file)) => {
                    ensure!(spec.is_sound(), "{name}: a mutant was accepted that is not sound");
                    if loaded % RUN_EVERY == 0 {
                        run(&Arc::new(file), &[3, 4, 5], &Run::exact(1));
                    }
                    loaded += 1;
                }
                Err(_) => refused += 1,
            }
            for at in places {
                file.write_all_at(&whole[at..=at], at as u64)?;
            }
        }
    }
    println!("{loaded} mutants loaded, {refused} were refused");
    ensure!(loaded > count / 100 && refused > count / 100, "nearly all mutants had the same fate");
    Ok(())
}
