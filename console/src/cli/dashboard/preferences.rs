//! Screen preferences of the dashboard: from options, the environment and the operator's key bindings file.
use std::{env, fs, io, path::PathBuf};

use clap::Args;

use crate::cli::Failure;
use crate::{
    client::clusters::config_folder,
    keymap::Keymap,
    run::Stage,
    state::preferences::{Preferences, ThemeName},
};

/// Maximum size of a key bindings file in bytes.
const KEY_FILE_BYTES_MAX: u64 = 64 << 10;

/// Options of all commands that render a screen.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Arrange {
    /// Colour theme: sixteen, dark, light, high-contrast or mono [default: sixteen; mono if NO_COLOR is set]
    #[arg(long, env = "BRAMBLE_THEME", value_name = "NAME", value_parser = <ThemeName as std::str::FromStr>::from_str)]
    theme: Option<ThemeName>,
    /// Use only ASCII characters [default: if the locale is not UTF-8]
    #[arg(long)]
    ascii: bool,
    /// Do not capture the mouse (lets the terminal select text)
    #[arg(long)]
    no_mouse: bool,
}

/// Screen options of a dashboard, which can also record its session.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Session {
    /// Record the session to a new file (play it with console replay)
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// The stage of the guided tour, if the dashboard shows one.
    #[arg(skip)]
    pub(crate) tour: Option<Stage>,
    #[command(flatten)]
    pub(crate) arrange: Arrange,
}

impl Arrange {
    /// The preferences, with the key bindings of `keys.toml` in the configuration folder.
    pub(crate) fn desk(&self) -> Result<Preferences, Failure> {
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let without_colour = variable("NO_COLOR").map(|_| ThemeName::Mono);
        Ok(Preferences {
            theme: self.theme.or(without_colour).unwrap_or_default(),
            is_ascii: self.ascii || !is_utf8(&variable),
            takes_mouse: !self.no_mouse,
            keys: keys()?,
            ..Preferences::default()
        })
    }
}

/// Whether the locale uses UTF-8. It does if no locale is set.
fn is_utf8(variable: &dyn Fn(&str) -> Option<String>) -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(variable);
    locale.is_none_or(|locale| {
        let locale = locale.to_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

/// The operator's key bindings file.
pub(crate) fn key_file() -> Option<PathBuf> {
    Some(config_folder()?.join("keys.toml"))
}

/// The active key bindings.
pub(crate) fn keys() -> Result<Keymap, Failure> {
    let Some(path) = key_file() else { return Ok(Keymap::default()) };
    let usage = |reason: String| Failure::Usage {
        message: format!("{}: {reason}", path.display()),
        next: "correct the line, or move the file away; console screen keys prints the active key bindings",
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
    fn first_locale_variable_that_is_set_decides() {
        let check = |set: &[(&str, &str)]| {
            let set: Vec<(String, String)> =
                set.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            is_utf8(&move |name| set.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone()))
        };
        assert!(check(&[]) && check(&[("LANG", "en_GB.UTF-8")]) && check(&[("LC_ALL", "C.utf8"), ("LANG", "C")]));
        assert!(!check(&[("LANG", "C")]) && !check(&[("LC_ALL", "POSIX"), ("LANG", "en_GB.UTF-8")]));
    }
}
