//! Where this machine's brambled is.
use std::path::PathBuf;

use anyhow::{Context, anyhow};

/// brambled beside this program, else on PATH.
///
/// # Errors
/// There is none.
pub(super) fn path() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program's own path")?;
    let beside = own.with_file_name("brambled");
    if beside.is_file() {
        return Ok(beside);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("brambled")).find(|path| path.is_file());
    found.ok_or_else(|| anyhow!("brambled is neither beside {} nor on PATH; build or install it", own.display()))
}
