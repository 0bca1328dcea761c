//! The files of a report: JSON, which is also the record of an interrupted test, and Markdown.
use std::{
    fs,
    io::{ErrorKind, Read},
    path::{Path, PathBuf},
};

use anyhow::Context;

use crate::{
    cli::{Failure, shared::output},
    client::clusters::write_atomically,
    operator::acceptance::{AcceptanceReport, markdown::markdown, report::REPORT_BYTES_MAX, written::object},
};

/// Where a report is written.
#[derive(Clone, Debug)]
pub(super) struct ReportFiles {
    path: PathBuf,
}

impl ReportFiles {
    /// The files `PATH.json` and `PATH.md`.
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.into() }
    }

    fn with(&self, extension: &str) -> PathBuf {
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(extension);
        self.path.with_file_name(name)
    }

    /// The file for programs.
    pub(super) fn json(&self) -> PathBuf {
        self.with(".json")
    }

    /// The file for people.
    pub(super) fn markdown(&self) -> PathBuf {
        self.with(".md")
    }

    /// The report of an earlier run, if there is one.
    ///
    /// # Errors
    /// The file cannot be read or is no report.
    pub(super) fn earlier(&self) -> Result<Option<AcceptanceReport>, Failure> {
        let path = self.json();
        if path.exists() { read(&path).map(Some) } else { Ok(None) }
    }

    /// Writes both files. A crash leaves the earlier files.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(super) fn write(&self, report: &AcceptanceReport) -> Result<(), Failure> {
        let text = format!("{:#}\n", object(report));
        replace(&self.json(), &text)?;
        replace(&self.markdown(), &markdown(report))
    }
}

fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    Ok(write_atomically(path, text).with_context(|| format!("cannot write {}", path.display()))?)
}

/// Reads a report.
///
/// # Errors
/// The file cannot be read or is no report.
pub(super) fn read(path: &Path) -> Result<AcceptanceReport, Failure> {
    let mut text = String::new();
    let opened = fs::File::open(path).and_then(|file| file.take(REPORT_BYTES_MAX + 1).read_to_string(&mut text));
    match opened {
        Ok(bytes) if bytes as u64 > REPORT_BYTES_MAX => {
            return Err(damaged(path, &format!("it is larger than {} MiB", REPORT_BYTES_MAX >> 20)));
        }
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::InvalidData => return Err(damaged(path, "it is not text")),
        Err(error) => return Err(anyhow::Error::from(error).context(format!("cannot read {}", path.display())).into()),
    }
    AcceptanceReport::read(&text).map_err(|reason| damaged(path, &reason))
}

fn damaged(path: &Path, reason: &str) -> Failure {
    let message = output::clean(&format!("cannot read {}: {reason}", path.display()));
    Failure::State { message, next: "name another report, or move this file away" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_is_written_to_two_files_and_continued() {
        let folder = tempfile::tempdir().expect("create a temporary folder");
        let files = ReportFiles::new(&folder.path().join("pi.cluster"));
        assert!(files.earlier().expect("nothing was written").is_none());
        let report = AcceptanceReport::new("m.gguf", vec!["pi1".into()], 7);
        files.write(&report).expect("the folder is writable");
        files.write(&report).expect("a file is replaced");
        let mut names: Vec<String> = fs::read_dir(folder.path())
            .expect("the folder can be read")
            .map(|entry| entry.expect("the folder can be read").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        assert_eq!(names, ["pi.cluster.json", "pi.cluster.md"]);
        assert_eq!(files.earlier().expect("it is a report"), Some(report));
        fs::write(files.json(), [0xff, 0xfe]).expect("the folder is writable");
        assert_eq!(files.earlier().map_err(|failure| failure.code()), Err(8));
        let nowhere = ReportFiles::new(&files.json().join("report"));
        let report = AcceptanceReport::new("m.gguf", vec!["pi1".into()], 7);
        assert!(nowhere.write(&report).is_err_and(|failure| failure.to_string().contains("report.json")));
    }
}
