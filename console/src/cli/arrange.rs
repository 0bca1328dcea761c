//! How the dashboard's screen is arranged from outside: options, environment, the operator's key file.
use std::{env, fs, io, path::PathBuf};

use clap::Args;

use super::Failure;
use crate::{
    clusters::config_folder,
    keymap::Keymap,
    state::desk::{Desk, ThemeName},
};

/// Most bytes of a key file.
const KEY_FILE_BYTES_MAX: u64 = 64 << 10;

/// Options of everything that draws a screen.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct Arrange {
    /// Colours: sixteen, dark, light, high-contrast or mono [default: sixteen; mono where NO_COLOR is set]
    #[arg(long, env = "BRAMBLE_THEME", value_name = "NAME", value_parser = <ThemeName as std::str::FromStr>::from_str)]
    theme: Option<ThemeName>,
    /// Draw with ASCII alone [default: where the locale is not UTF-8]
    #[arg(long)]
    ascii: bool,
    /// Leave the mouse to the terminal, for selecting text
    #[arg(long)]
    no_mouse: bool,
}

/// The same for a dashboard.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct Session {
    /// Write the session to a new file, which console replay plays
    #[arg(long, value_name = "FILE")]
    pub(super) record: Option<PathBuf>,
    #[command(flatten)]
    pub(super) arrange: Arrange,
}

impl Arrange {
    /// The arrangement, with the keys of `keys.toml` in the configuration folder.
    pub(super) fn desk(&self) -> Result<Desk, Failure> {
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let without_colour = variable("NO_COLOR").map(|_| ThemeName::Mono);
        Ok(Desk {
            theme: self.theme.or(without_colour).unwrap_or_default(),
            is_ascii: self.ascii || !is_utf8(&variable),
            takes_mouse: !self.no_mouse,
            keys: keys()?,
            ..Desk::default()
        })
    }
}

/// Whether the locale's characters are UTF-8; so they are where no locale is set.
fn is_utf8(variable: &dyn Fn(&str) -> Option<String>) -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(variable);
    locale.is_none_or(|locale| {
        let locale = locale.to_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

/// The operator's key file.
pub(super) fn key_file() -> Option<PathBuf> {
    Some(config_folder()?.join("keys.toml"))
}

/// The keys in force.
pub(super) fn keys() -> Result<Keymap, Failure> {
    let Some(path) = key_file() else { return Ok(Keymap::default()) };
    let usage = |reason: String| Failure::Usage {
        message: format!("{}: {reason}", path.display()),
        next: "correct that line, or move the file away; console keys shows the keys in force",
    };
    let read = || -> io::Result<String> {
        if fs::metadata(&path)?.len() > KEY_FILE_BYTES_MAX {
            return Err(io::Error::other(format!("longer than {KEY_FILE_BYTES_MAX} bytes")));
        }
        fs::read_to_string(&path)
    };
    match read() {
        Ok(text) => Keymap::read(&text).map_err(|error| usage(error.to_string())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Keymap::default()),
        Err(error) => Err(usage(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locale_decides_by_its_first_variable_that_is_set() {
        let check = |set: &[(&str, &str)]| {
            let set: Vec<(String, String)> =
                set.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            is_utf8(&move |name| set.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone()))
        };
        assert!(check(&[]) && check(&[("LANG", "en_GB.UTF-8")]) && check(&[("LC_ALL", "C.utf8"), ("LANG", "C")]));
        assert!(!check(&[("LANG", "C")]) && !check(&[("LC_ALL", "POSIX"), ("LANG", "en_GB.UTF-8")]));
    }
}
