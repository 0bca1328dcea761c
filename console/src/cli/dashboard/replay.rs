//! `console replay`: plays a recorded session on the screen, or prints its events as lines.
use std::{path::PathBuf, time::Duration};

use clap::Args;

use crate::cli::{
    Failure,
    dashboard::{has_terminal, preferences::Arrange},
    shared::output,
};
use crate::{
    keymap::{Keymap, Place},
    recording::{Header, RecordingError, player::Player, reader::Reader},
    run::replay::{Start, replay},
};

/// Options of `console replay`.
#[derive(Clone, Debug, Args)]
#[command(after_help = keys())]
pub(crate) struct Replay {
    /// Recording to play
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Start at this time: seconds from the start, or a time of day in UTC, for example 12:30 or 12:30:05
    #[arg(long, value_name = "TIME", value_parser = at)]
    at: Option<At>,
    /// Playback speed, in seconds of the session per second
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = speed)]
    speed: f64,
    #[arg(from_global)]
    pub(crate) json: bool,
    #[command(flatten)]
    arrange: Arrange,
}

/// The keys of a replay, for the help text.
fn keys() -> String {
    let keymap = Keymap::default();
    let keys = keymap.all().filter(|binding| binding.place == Place::Replay);
    let lines = keys.map(|binding| format!("  {:<10} {}\n", binding.keys_text(), binding.what));
    let other = format!("  {:<10} list all keys", "?");
    format!("Keys while it plays:\n{}{other}", lines.collect::<String>())
}

/// A time of a recording.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum At {
    /// Relative to the first event.
    FromStart(Duration),
    /// Seconds since midnight, UTC.
    OfDay(u64),
}

impl At {
    /// The time since the dashboard of the recording started; its first event was at `first`.
    pub(crate) fn time(self, header: &Header, first: Duration) -> Duration {
        match self {
            Self::FromStart(time) => first.saturating_add(time),
            Self::OfDay(second) => {
                let start = header.started_unix_ms / 1000 % common::calendar::DAY_SECONDS;
                let distance = second + common::calendar::DAY_SECONDS - start;
                Duration::from_secs(distance % common::calendar::DAY_SECONDS)
            }
        }
    }
}

/// Parses a time of a recording.
pub(crate) fn at(text: &str) -> Result<At, String> {
    let wrong = || "expected seconds from the start or a time of day: 12:30 or 12:30:05".to_owned();
    if !text.contains(':') {
        let seconds: f64 = text.parse().map_err(|_| wrong())?;
        return Duration::try_from_secs_f64(seconds).map(At::FromStart).map_err(|_| wrong());
    }
    let parts: Vec<u64> = text.split(':').map(str::parse).collect::<Result<_, _>>().map_err(|_| wrong())?;
    match parts[..] {
        [hour @ 0..24, minute @ 0..60] => Ok(At::OfDay(hour * 3600 + minute * 60)),
        [hour @ 0..24, minute @ 0..60, second @ 0..60] => Ok(At::OfDay(hour * 3600 + minute * 60 + second)),
        _ => Err(wrong()),
    }
}

fn speed(text: &str) -> Result<f64, String> {
    let speed: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    if (0.1..=100.0).contains(&speed) { Ok(speed) } else { Err("expected 0.1 to 100".to_owned()) }
}

/// A recording that cannot be played is a usage error: the remedy is another file.
pub(crate) fn failure(error: RecordingError) -> Failure {
    Failure::Usage { message: error.to_string(), next: "pass a file written by console --record or :record" }
}

/// Plays a recording, or prints its events.
pub(crate) async fn run(options: Replay) -> Result<u8, Failure> {
    if options.json {
        let (mut reader, _) = Reader::open(&options.file).map_err(failure)?;
        while let Some(moment) = reader.read().map_err(failure)? {
            if output::is_closed() {
                break;
            }
            output::line(&serde_json::to_string(&moment).map_err(anyhow::Error::from)?);
        }
        return Ok(0);
    }
    if !has_terminal() {
        let message = "replay needs a terminal".into();
        return Err(Failure::Usage {
            message,
            next: "run console replay FILE --json, or console screen PAGE --recording FILE",
        });
    }
    let player = Player::open(&options.file).map_err(failure)?;
    let at = options.at.map(|at| at.time(player.header(), player.span().0));
    let start = Start { desk: options.arrange.desk()?, at, speed: options.speed };
    // The state of the dashboard is large.
    let code = Box::pin(replay(player, start)).await.map_err(anyhow::Error::from)?;
    Ok(u8::try_from(code).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_or_times_of_day() {
        assert_eq!(at("90"), Ok(At::FromStart(Duration::from_secs(90))));
        assert_eq!(at("12:30"), Ok(At::OfDay(45_000)));
        assert_eq!(at("00:00:05"), Ok(At::OfDay(5)));
        for wrong in ["", "-1", "24:00", "1:2:3:4", "nan", "12:", "1e400"] {
            assert!(at(wrong).is_err(), "{wrong}");
        }
    }
}
