//! Sends a model of this machine to a node: its file, or all files of a split model.
use std::path::{Path, PathBuf};

use anyhow::Context;
use common::{digest::Sha256, fault::Fault, units::Bytes};
use protocol::models::ModelFile;

use crate::cli::{Failure, shared::output};
use crate::client::{
    models,
    pull::{PullProgress, held},
    session::Session,
};
use crate::operator::transfer::TransferReport;

/// A file of the model.
struct LocalFile {
    path: PathBuf,
    /// Its name on the node.
    model: String,
    sha256: Sha256,
    size: u64,
}

/// A model of this machine.
pub(super) struct LocalModel(Vec<LocalFile>);

impl LocalModel {
    /// Reads the files that become `names` on the node: the one at `path`, or all files of its model, which lie in the
    /// same folder. `hashes`: the expected ones, or none.
    ///
    /// # Errors
    /// A file is missing, cannot be read, or has another hash.
    pub(super) async fn read(path: &Path, names: &[String], hashes: &[Sha256]) -> Result<Self, Failure> {
        let paths: Vec<PathBuf> = match names {
            [_] => vec![path.to_owned()],
            _ => names.iter().map(|name| path.with_file_name(name)).collect(),
        };
        // Before any of them is read, which takes long.
        if let Some(missing) = paths.iter().find(|path| !path.is_file()) {
            return Err(Failure::Usage {
                message: format!("the model has {} files, but {} is missing", paths.len(), missing.display()),
                next: "put all files of the model into one folder; --name NAME.gguf sends a single file",
            });
        }
        let mut files = Vec::with_capacity(paths.len());
        for (place, (path, name)) in paths.into_iter().zip(names).enumerate() {
            files.push(LocalFile::read(path, name, hashes.get(place)).await?);
        }
        Ok(Self(files))
    }

    /// The names of the files on the node.
    fn names(&self) -> Vec<String> {
        self.0.iter().map(|file| file.model.clone()).collect()
    }

    /// Sends the files to a node, with progress as that of the node with index 0, except those of a split model that an
    /// earlier attempt has sent.
    ///
    /// # Errors
    /// The node refuses or fails, has the model or other files of these names, or a file cannot be read.
    pub(super) async fn send(&self, session: &Session, tell: &PullProgress) -> Result<Vec<ModelFile>, Fault> {
        let there = held(session, &self.names()).await?;
        let is_continued = there.iter().any(Option::is_none);
        let all: u64 = self.0.iter().map(|file| file.size).sum();
        let (mut before, mut stored) = (0, Vec::new());
        for (file, there) in self.0.iter().zip(&there) {
            let is_sent = there.as_ref().is_some_and(|there| there.sha256 == Some(file.sha256));
            // The node refuses a file of a name that it has.
            if !is_sent || !is_continued {
                stored.push(file.send(session, before, all, tell).await?);
            }
            before += file.size;
        }
        Ok(stored)
    }
}

impl LocalFile {
    /// Hashes a file.
    async fn read(path: PathBuf, name: &str, expected: Option<&Sha256>) -> Result<Self, Failure> {
        output::note(&format!("reading {}", path.display()));
        let file = path.clone();
        let digest = tokio::task::spawn_blocking(move || models::digest(&file)).await;
        let digest = digest.context("the task that hashes the file failed")?;
        let (sha256, size) = digest.with_context(|| format!("cannot read {}", path.display()))?;
        if let Some(expected) = expected.filter(|expected| **expected != sha256) {
            let path = path.display();
            return Err(anyhow::anyhow!("checksum mismatch for {path}: expected {expected}, got {sha256}").into());
        }
        Ok(Self { path, model: name.to_owned(), sha256, size })
    }

    /// Sends the file after `before` of `all` bytes of its model.
    async fn send(&self, session: &Session, before: u64, all: u64, tell: &PullProgress) -> Result<ModelFile, Fault> {
        let Self { path, model, sha256, size } = self;
        let upload = models::Upload { path, model, sha256: *sha256, size: *size };
        models::send(session, upload, &|step, done, _| {
            let done = Bytes(done.0.saturating_add(before));
            tell(0, TransferReport::exact(step, done, Some(Bytes(all))));
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_files_of_a_split_model_must_be_in_the_folder() {
        let folder = tempfile::tempdir().expect("create a temporary folder");
        let names = ["big-00001-of-00002.gguf", "big-00002-of-00002.gguf"].map(str::to_owned);
        let [first, second] = names.each_ref().map(|name| folder.path().join(name));
        std::fs::write(&first, "one").expect("the folder can be written");
        let missing = LocalModel::read(&first, &names, &[]).await.map(|model| model.names());
        let failure = missing.expect_err("the second file is missing");
        assert!(failure.code() == 2 && failure.to_string().contains("big-00002-of-00002.gguf is missing"), "{failure}");
        std::fs::write(&second, "three").expect("the folder can be written");
        let model = LocalModel::read(&second, &names, &[]).await.expect("both are there");
        assert_eq!(model.0.iter().map(|file| file.size).collect::<Vec<_>>(), [3, 5]);
        let hashes = [model.0[0].sha256, model.0[0].sha256];
        let wrong = LocalModel::read(&first, &names, &hashes).await.map(|model| model.names());
        let failure = wrong.expect_err("the second file has another hash");
        assert!(failure.to_string().contains("checksum mismatch for ") && failure.code() == 1, "{failure}");
        assert!(failure.to_string().contains("big-00002-of-00002.gguf"), "{failure}");
    }
}
