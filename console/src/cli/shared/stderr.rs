//! Standard error of another program.

/// The last line that is not blank: programs print the reason of a failure last.
pub(crate) fn last_line(printed: &str) -> &str {
    printed.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no error was printed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_is_the_last_line_that_is_not_blank() {
        assert_eq!(last_line("banner\r\n sudo: a password is required \r\n\n \n"), "sudo: a password is required");
        assert_eq!(last_line(" \n"), "no error was printed");
    }
}
