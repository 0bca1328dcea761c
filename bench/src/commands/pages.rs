//! `bramble-bench report` and `bramble-bench compare`: evaluate the files of matrices.
use std::{
    io::{Read, Write},
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::Args;
use console::cli::toolkit::{Failure, output};
use serde_json::{Value, json};

use crate::measurement::{
    compare::{Change, Comparison, compare as compare_runs},
    report::{bottleneck, charts, html, markdown},
    run::{FILE_BYTES_MAX, Run},
    svg::number,
};

/// Options of `bramble-bench report`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Report {
    /// Result file of bramble-bench matrix (JSON)
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// Report to write: FILE.html, or FILE.md with its graphs in separate files
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// Options of `bramble-bench compare`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Compare {
    /// Matrix before the change (JSON)
    #[arg(value_name = "A")]
    before: PathBuf,
    /// Matrix after the change (JSON)
    #[arg(value_name = "B")]
    after: PathBuf,
    /// Smallest noise to assume, in percent
    #[arg(long, default_value_t = 5, value_name = "PERCENT", value_parser = clap::value_parser!(u16).range(0..=1000))]
    floor: u16,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reads a file of at most `most` bytes.
pub(super) fn read(path: &Path, most: u64) -> Result<String, Failure> {
    let mut text = String::new();
    let file = std::fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    file.take(most + 1).read_to_string(&mut text).with_context(|| format!("cannot read {}", path.display()))?;
    if text.len() as u64 > most {
        let message = format!("{} is longer than {most} bytes", path.display());
        return Err(Failure::Usage { message, next: "use a smaller file" });
    }
    Ok(text)
}

/// Replaces a file atomically.
pub(super) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(replace(path, folder, text).with_context(|| format!("cannot write {}", path.display()))?)
}

fn replace(path: &Path, folder: &Path, text: &str) -> std::io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    // Temporary files are private to their owner; a result is not.
    file.as_file().set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Reads a matrix.
pub(super) fn matrix(path: &Path) -> Result<Run, Failure> {
    Run::parse(&read(path, FILE_BYTES_MAX)?).map_err(|error| Failure::Usage {
        message: format!("{}: {error}", path.display()),
        next: "pass a file written by bramble-bench matrix --out FILE",
    })
}

/// Runs `bramble-bench report`.
pub(crate) fn report(options: &Report) -> Result<u8, Failure> {
    let run = matrix(&options.input)?;
    match options.out.extension().and_then(|kind| kind.to_str()) {
        Some("html") => write(&options.out, &html(&run))?,
        Some("md") => {
            let stem = options.out.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            for (name, chart) in charts(&run) {
                write(&options.out.with_file_name(format!("{stem}-{name}.svg")), &chart.svg())?;
            }
            write(&options.out, &markdown(&run, &stem))?;
        }
        _ => {
            let message = format!("{} is neither .html nor .md", options.out.display());
            return Err(Failure::Usage { message, next: "use for example --out report.html" });
        }
    }
    output::line(&output::clean(&bottleneck(&run)));
    Ok(0)
}

/// Runs `bramble-bench compare`. Exit code 1 if something is worse.
pub(crate) fn compare(options: &Compare) -> Result<u8, Failure> {
    let (before, after) = (matrix(&options.before)?, matrix(&options.after)?);
    let found = compare_runs(&before, &after, f64::from(options.floor) / 100.0);
    if found.changes.is_empty() && found.lost.is_empty() {
        let message = "the two matrices have no cell in common".into();
        return Err(Failure::State { message, next: "compare matrices with the same cells" });
    }
    if options.json {
        output::line(&object(&found).to_string());
    } else {
        told(&found).iter().for_each(|line| output::line(&output::clean(line)));
    }
    Ok(u8::from(found.is_regression()))
}

fn object(found: &Comparison) -> Value {
    let changes = found.changes.iter().map(|change| {
        json!({"cell": change.cell, "metric": change.metric.name(), "before": change.before, "after": change.after,
            "worse_by": change.worse_by, "noise": change.noise, "regression": change.is_regression(),
            "improvement": change.is_improvement()})
    });
    json!({"regression": found.is_regression(), "changes": changes.collect::<Vec<_>>(), "lost": found.lost})
}

/// Lines for the changes, worst first, then the lost cells and a summary.
fn told(found: &Comparison) -> Vec<String> {
    let mut changes: Vec<&Change> =
        found.changes.iter().filter(|it| it.is_regression() || it.is_improvement()).collect();
    changes.sort_by(|one, other| other.worse_by.total_cmp(&one.worse_by));
    let mut lines: Vec<String> = changes.into_iter().map(told_change).collect();
    lines.extend(found.lost.iter().map(|cell| format!("LOST    {cell}: missing, or its requests fail now")));
    let worse = found.changes.iter().filter(|change| change.is_regression()).count();
    let figures = found.changes.len();
    lines.push(match (worse, found.lost.len()) {
        (0, 0) => format!("{figures} figures compared: none is worse by more than its noise"),
        (worse, lost) => {
            format!("{figures} figures compared: {worse} worse by more than their noise, {lost} cells lost")
        }
    });
    lines
}

/// A change as a line of text.
pub(super) fn told_change(change: &Change) -> String {
    let word = if change.is_regression() { "WORSE " } else { "better" };
    let what = change.cell.as_ref().map_or("mean of all cells".into(), ToString::to_string);
    let (share, noise) = (100.0 * change.worse_by.abs(), 100.0 * change.noise);
    let (before, after) = (number(change.before), number(change.after));
    format!("{word}  {what}: {} {before} -> {after}, {share:.1} % (noise {noise:.1} %)", change.metric.name())
}
