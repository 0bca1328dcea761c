//! Dates and times of day from seconds since 1970, in UTC. Pure: the caller supplies the time.

/// Seconds in a day.
pub const DAY_SECONDS: u64 = 24 * 60 * 60;

/// Year, month (from 1) and day (from 1) of a day counted from 1970-01-01 (Hinnant, "chrono-compatible low-level date
/// algorithms").
pub fn civil(day: u64) -> (u64, u64, u64) {
    let day = day + 719_468;
    let (era, day_of_era) = (day / 146_097, day % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

/// `08:43:00`.
pub fn time_of_day(seconds: u64) -> String {
    format!("{:02}:{:02}:{:02}", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60)
}

/// `20261122T084300Z`: sorts by time and is valid in file names on every system.
pub fn compact(seconds: u64) -> String {
    let (year, month, day) = civil(seconds / DAY_SECONDS);
    format!("{year}{month:02}{day:02}T{}Z", time_of_day(seconds).replace(':', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(compact(1_792_658_580), "20261022T084300Z");
        assert_eq!(time_of_day(DAY_SECONDS + 59), "00:00:59");
    }
}
