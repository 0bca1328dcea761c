//! Dates and times for templates: Python's `strftime` in UTC, without time zone names and locales.
use common::calendar::{DAY_SECONDS, civil};
use minijinja::{Error, ErrorKind};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Formats the time `now`, in seconds since 1970 (UTC).
///
/// # Errors
/// An unsupported directive.
pub(super) fn strftime(format: &str, now: u64) -> Result<String, Error> {
    let (days, seconds) = (now / DAY_SECONDS, now % DAY_SECONDS);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let month_name = MONTHS[month as usize - 1];
    let day_name = DAYS[((days + 4) % 7) as usize];
    let twelve = (hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        let mut directive = letters.next();
        let is_short = directive == Some('-');
        if is_short {
            directive = letters.next();
        }
        let number = |value: u64| if is_short { value.to_string() } else { format!("{value:02}") };
        out += &match directive {
            Some('Y') => year.to_string(),
            Some('y') => number(year % 100),
            Some('m') => number(month),
            Some('d') => number(day),
            Some('H') => number(hour),
            Some('I') => number(twelve),
            Some('M') => number(minute),
            Some('S') => number(second),
            Some('B') => month_name.to_owned(),
            Some('b') => month_name[..3].to_owned(),
            Some('A') => day_name.to_owned(),
            Some('a') => day_name[..3].to_owned(),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('%') => "%".to_owned(),
            _ => {
                let reason = format!("strftime_now does not support {format:?}");
                return Err(Error::new(ErrorKind::InvalidOperation, reason));
            }
        };
    }
    Ok(out)
}
