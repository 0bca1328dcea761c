//! Output of read-only commands: once, or repeatedly with `--watch`, updated in place on a terminal; with `--json` one
//! object per line.
use std::{io::IsTerminal, time::Duration};

use clap::Args;
use serde_json::Value;

use crate::cli::{
    Failure,
    shared::{interrupts::Interrupts, output, table::terminal_size},
};
use crate::client::{cluster::Cluster, with_port};

/// Bounds of the interval in seconds.
const SECONDS: std::ops::RangeInclusive<f64> = 0.1..=3600.0;
/// Number of lines to assume if the terminal does not report its size.
const LINES: usize = 24;

/// Options of a read-only command.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Look {
    /// Repeat every SECONDS until Ctrl-C [default value: 2]; on a terminal in place, with --json one object per line
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = seconds)]
    watch: Option<f64>,
    #[arg(from_global)]
    pub(crate) json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "expected a number of seconds".to_owned())?;
    if SECONDS.contains(&value) { Ok(value) } else { Err(format!("expected {} to {}", SECONDS.start(), SECONDS.end())) }
}

/// The output of one update.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Text without control characters.
    pub(crate) lines: Vec<String>,
    /// The JSON object.
    pub(crate) object: Value,
    /// The exit code of the command.
    pub(crate) code: u8,
}

/// Prints the output once, or repeatedly until a signal. When repeating, a failure is printed and the next update is
/// tried.
///
/// # Errors
/// The only update failed, or a signal arrived.
pub(crate) async fn look(options: &Look, mut see: impl AsyncFnMut() -> Result<Seen, Failure>) -> Result<u8, Failure> {
    let mut interrupts = Interrupts::listen()?;
    let Some(seconds) = options.watch else {
        let seen = interrupts.end(see()).await?;
        show(&seen, options.json, false);
        return Ok(seen.code);
    };
    let in_place = !options.json && std::io::stdout().is_terminal();
    if in_place {
        output::text("\x1b[2J");
    }
    while !output::is_closed() {
        let seen = match interrupts.end(see()).await {
            Err(interrupted @ Failure::Interrupted { .. }) => return Err(interrupted),
            Err(failure) => failed(&failure),
            Ok(seen) => seen,
        };
        show(&seen, options.json, in_place);
        let pause = async {
            tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
            Ok::<_, Failure>(())
        };
        interrupts.end(pause).await?;
    }
    Ok(0)
}

/// As [`look`], for the given nodes. Their sessions stay open between updates.
///
/// # Errors
/// As [`look`].
pub(crate) async fn look_at(
    nodes: &[String],
    options: &Look,
    mut see: impl AsyncFnMut(&Cluster) -> Result<Seen, Failure>,
) -> Result<u8, Failure> {
    let addresses: Vec<String> = nodes.iter().map(|node| with_port(node)).collect();
    let mut cluster: Option<Cluster> = None;
    look(options, async || {
        let asked = match &cluster {
            Some(cluster) => cluster.again().await,
            None => Cluster::dial(&addresses).await,
        };
        see(cluster.insert(asked)).await
    })
    .await
}

fn failed(failure: &Failure) -> Seen {
    let object = failure.json();
    let mut lines = vec![output::clean(&failure.to_string())];
    lines.extend(object["error"]["next"].as_str().map(|next| format!("next: {next}")));
    Seen { lines, object, code: failure.code() }
}

fn show(seen: &Seen, json: bool, in_place: bool) {
    if json {
        return output::line(&seen.object.to_string());
    }
    if in_place {
        let (columns, rows) = terminal_size().unwrap_or((usize::MAX, LINES));
        return output::text(&picture(&seen.lines, columns, rows));
    }
    seen.lines.iter().for_each(|line| output::line(line));
}

/// Lines that overwrite the previous output, cut to the size of the terminal so that it does not scroll. The last line
/// states how many others there is no room for.
fn picture(lines: &[String], columns: usize, rows: usize) -> String {
    let room = rows.saturating_sub(1).max(1);
    let shown = if lines.len() > room { room - 1 } else { lines.len() };
    let hidden = lines.len() - shown;
    let rest = format!("… {hidden} more lines: enlarge the terminal, or run the command without --watch");
    let mut text = String::from("\x1b[H");
    for line in lines.iter().take(shown).chain((hidden > 0).then_some(&rest)) {
        text.push_str(&cut(line, columns));
        text.push_str("\x1b[K\n");
    }
    text.push_str("\x1b[J");
    text
}

/// The line in at most `columns` cells. A coloured line already fits: its colours do not count.
fn cut(line: &str, columns: usize) -> String {
    if line.contains('\x1b') { line.to_owned() } else { crate::view::format::shorten(line, columns) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Arguments, Command};

    #[test]
    fn watch_defaults_to_two_seconds() {
        let parse = |options: &str| {
            let line = format!("console status{options}");
            match Arguments::try_parse_from(line.split(' ')).map(|arguments| arguments.command) {
                Ok(Some(Command::Status(status))) => Ok((status.look.watch, status.look.json)),
                _ => Err(()),
            }
        };
        assert_eq!(parse(" --json"), Ok((None, true)));
        assert_eq!(parse(" --watch"), Ok((Some(2.0), false)));
        assert_eq!(parse(" --watch --json"), Ok((Some(2.0), true)));
        assert_eq!(parse(" --watch 0.5"), Ok((Some(0.5), false)));
        for line in [" --watch 0", " --watch nan", " --watch soon"] {
            assert_eq!(parse(line), Err(()), "{line}");
        }
    }

    #[test]
    fn output_overwrites_previous_and_fits_the_terminal() {
        let lines = ["abcdef".to_owned(), "gh".to_owned(), "ij".to_owned()];
        assert_eq!(picture(&lines, 80, 24), "\x1b[Habcdef\x1b[K\ngh\x1b[K\nij\x1b[K\n\x1b[J");
        let narrow = picture(&lines, 4, 24);
        assert!(!narrow.contains("abcdef") && narrow.contains("gh") && narrow.contains("ij"), "{narrow:?}");
    }

    #[test]
    fn last_line_counts_those_that_do_not_fit() {
        let lines: Vec<String> = (0..30).map(|number| format!("line {number}")).collect();
        let rows = |rows: usize| -> Vec<String> {
            picture(&lines, 100, rows).lines().map(|line| line.replace("\x1b[K", "")).collect()
        };
        let small = rows(24);
        // The cursor needs the last row.
        assert_eq!((small.len(), small[21].as_str()), (24, "line 21"), "{small:?}");
        assert!(small[22].starts_with("… 8 more lines: ") && small[22].contains("--watch"), "{small:?}");
        let large = rows(31);
        assert!(large[29] == "line 29" && !large.concat().contains("more lines"), "{large:?}");
        assert!(rows(2)[0].contains("… 30 more lines: "));
        assert!(rows(0)[0].contains("… 30 more lines: "));
    }

    #[tokio::test]
    async fn look_returns_exit_code_or_failure() {
        let once = Look { json: true, ..Look::default() };
        assert_eq!(look(&once, async || Ok(Seen { code: 6, ..Seen::default() })).await.ok(), Some(6));
        let failing = look(&once, async || Err(Failure::Declined)).await;
        assert_eq!(failing.map_err(|failure| failure.code()), Err(1));
    }
}
