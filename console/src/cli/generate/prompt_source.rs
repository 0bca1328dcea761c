//! Reads prompts from files and from standard input, with a bound. The length is checked before the bytes are decoded:
//! a text that is cut at the bound may end within a character.
use std::io::{self, BufRead, Read, stdin};

use anyhow::{Context, anyhow};
use common::chat::PROMPT_BYTES_MAX;

use crate::cli::{Failure, shared::options::Completing};

/// Bytes to read: one more than a prompt may have.
const READ_BYTES_MAX: u64 = PROMPT_BYTES_MAX as u64 + 1;

/// The prompt of the command line, or of the file that it names.
///
/// # Errors
/// The file cannot be read, is no text, or is too long.
pub(crate) fn prompt(options: &Completing) -> Result<String, Failure> {
    let Some(path) = &options.prompt_file else { return Ok(options.prompt.clone().unwrap_or_default()) };
    let read =
        if path.as_os_str() == "-" { bounded(stdin().lock()) } else { std::fs::File::open(path).and_then(bounded) };
    let bytes = read.with_context(|| format!("cannot read the prompt from {}", path.display()))?;
    decoded(bytes, &format!("the prompt in {}", path.display()))
}

fn bounded(source: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(READ_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The next line, with its end; `None` after the last one.
///
/// # Errors
/// The line cannot be read, is no text, or is too long.
pub(super) fn line(source: impl BufRead) -> Result<Option<String>, Failure> {
    let mut bytes = Vec::new();
    let read = source.take(READ_BYTES_MAX).read_until(b'\n', &mut bytes);
    match read.context("cannot read standard input")? {
        0 => Ok(None),
        _ => decoded(bytes, "an input line").map(Some),
    }
}

/// The text of a prompt. `what`: the prompt in the message of a failure.
///
/// # Errors
/// It is too long, or not UTF-8.
fn decoded(bytes: Vec<u8>, what: &str) -> Result<String, Failure> {
    if bytes.len() > PROMPT_BYTES_MAX {
        return Err(too_long(what));
    }
    let text = String::from_utf8(bytes);
    text.map_err(|error| anyhow!("{what} is not UTF-8 text: {}", error.utf8_error()).into())
}

/// The failure of a prompt with more than [`PROMPT_BYTES_MAX`] bytes.
pub(super) fn too_long(what: &str) -> Failure {
    Failure::Usage { message: format!("{what} is longer than {PROMPT_BYTES_MAX} bytes"), next: "shorten it" }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts of two-byte characters that are longer than a prompt may be. The bound is within a character of the first,
    /// and between two characters of the second.
    fn long() -> [String; 2] {
        let wide = "é".repeat(PROMPT_BYTES_MAX / 2 + 1);
        [wide.clone(), format!("x{wide}")]
    }

    /// The exit code and the message of a failure.
    fn refused<T: std::fmt::Debug>(result: Result<T, Failure>) -> (u8, String) {
        let failure = result.expect_err("it is refused");
        (failure.code(), failure.to_string())
    }

    #[test]
    fn length_of_a_file_is_checked_before_its_encoding() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("prompt.txt");
        for text in long() {
            std::fs::write(&path, text).expect("the folder is writable");
            let bytes = std::fs::File::open(&path).and_then(bounded).expect("it can be read");
            let message = format!("the prompt is longer than {PROMPT_BYTES_MAX} bytes");
            assert_eq!(refused(decoded(bytes, "the prompt")), (2, message));
        }
        let (code, message) = refused(decoded(vec![b'a', 0xff], "the prompt"));
        assert!(code == 1 && message.starts_with("the prompt is not UTF-8 text"), "{message}");
        let most = "é".repeat(PROMPT_BYTES_MAX / 2);
        assert_eq!(decoded(most.clone().into_bytes(), "the prompt").ok(), Some(most));
    }

    #[test]
    fn length_of_a_line_is_checked_before_its_encoding() {
        for text in long() {
            let message = format!("an input line is longer than {PROMPT_BYTES_MAX} bytes");
            assert_eq!(refused(line(text.as_bytes())), (2, message));
        }
        let mut source = "é\nx".as_bytes();
        let lines = [(); 3].map(|()| line(&mut source).expect("it is short"));
        assert_eq!(lines, [Some("é\n".to_owned()), Some("x".to_owned()), None]);
        assert_eq!(refused(line(&[0xff, b'\n'][..])).0, 1);
    }
}
