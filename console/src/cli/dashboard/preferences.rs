//! Preferences of the dashboard: from options, the environment, and the operator's files `keys.toml` and
//! `dashboard.toml`.
use std::{
    env,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use clap::Args;
use serde::Deserialize;

use crate::cli::Failure;
use crate::{
    client::clusters::config_folder,
    http::Url,
    keymap::Keymap,
    run::TourStage,
    state::alerts::AlertPreferences,
    state::preferences::{Preferences, ThemeName},
};

/// Maximum size of a key bindings file and of a preferences file in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

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
    pub(crate) tour: Option<TourStage>,
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
            alerts: alerts()?,
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
    match read_bounded(&path) {
        Ok(text) => Keymap::read(&text).map_err(|error| usage(error.to_string())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Keymap::default()),
        Err(error) => Err(usage(error.to_string())),
    }
}

/// The operator's preferences file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct PreferencesFile {
    /// How the terminal alerts: `bell`, `desktop`.
    #[serde(default)]
    alerts: Vec<AlertName>,
    alert_command: Option<String>,
    alert_url: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum AlertName {
    Bell,
    Desktop,
}

/// The alerts that `dashboard.toml` in the configuration folder asks for.
fn alerts() -> Result<AlertPreferences, Failure> {
    let Some(path) = config_folder().map(|folder| folder.join("dashboard.toml")) else {
        return Ok(AlertPreferences::default());
    };
    let usage = |reason: String| Failure::Usage {
        message: format!("{}: {reason}", path.display()),
        next: "correct the file, or move it away; docs/operate.md, Alerts, describes it",
    };
    match read_bounded(&path) {
        Ok(text) => parse_alerts(&text).map_err(usage),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(AlertPreferences::default()),
        Err(error) => Err(usage(error.to_string())),
    }
}

fn parse_alerts(text: &str) -> Result<AlertPreferences, String> {
    let file: PreferencesFile = toml::from_str(text).map_err(|error| error.message().to_owned())?;
    if let Some(url) = &file.alert_url {
        url.parse::<Url>().map_err(|error| format!("alert_url: {error}"))?;
    }
    let has = |name| file.alerts.contains(&name);
    let (bell, desktop) = (has(AlertName::Bell), has(AlertName::Desktop));
    Ok(AlertPreferences { bell, desktop, command: file.alert_command, url: file.alert_url })
}

/// Reads a small file.
fn read_bounded(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("longer than {FILE_BYTES_MAX} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_are_off_unless_the_file_names_them() {
        assert_eq!(parse_alerts(""), Ok(AlertPreferences::default()));
        let all = parse_alerts("alerts = [\"bell\", \"desktop\"]\nalert_command = \"x\"\nalert_url = \"http://a:1/b\"");
        let all = all.expect("the file is valid");
        assert!(all.bell && all.desktop && all.command.as_deref() == Some("x") && all.url.is_some());
        for (text, part) in [
            ("alerts = [\"horn\"]", "horn"),
            ("alert_url = \"https://a\"", "https is not supported"),
            ("alarm = 1", "alarm"),
        ] {
            assert!(parse_alerts(text).is_err_and(|error| error.contains(part)), "{text}");
        }
    }

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
