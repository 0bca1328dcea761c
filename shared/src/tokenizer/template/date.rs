//! Days and times for templates: `strftime` of Python for UTC, without names of zones and without locales.
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
const DAY_SECONDS: u64 = 24 * 60 * 60;

/// Year, month from 1, day from 1 of a day counted from 1970-01-01 (Hinnant, "chrono-compatible low-level date algorithms").
fn civil(day: u64) -> (u64, u64, u64) {
    let day = day + 719_468;
    let (era, day_of_era) = (day / 146_097, day % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

/// The time `now`, in seconds since 1970 (UTC).
///
/// # Errors
/// A directive that is not known.
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
                let reason = format!("strftime_now does not know {format:?}");
                return Err(Error::new(ErrorKind::InvalidOperation, reason));
            }
        };
    }
    Ok(out)
}
