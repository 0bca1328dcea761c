//! Standard output of the commands that run instead of serving.

/// Prints a line. A closed pipe is not an error.
///
/// # Errors
/// Standard output cannot be written for another reason.
pub(crate) fn line_out(line: &str) -> anyhow::Result<()> {
    use std::io::{ErrorKind, Write};
    match writeln!(std::io::stdout(), "{line}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
