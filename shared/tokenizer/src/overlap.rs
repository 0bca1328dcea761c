//! Finds the beginning of a mark or stop string at the end of a text that is still arriving.

/// Number of bytes at the end of `text` that are a prefix of `mark`, but not all of it. `mark` is not empty.
pub fn overlap(text: &str, mark: &str) -> usize {
    let most = text.len().min(mark.len() - 1);
    (1..=most).rev().find(|count| text.as_bytes().ends_with(&mark.as_bytes()[..*count])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_part_of_the_mark_overlaps() {
        assert_eq!(overlap("abc", "cde"), 1);
        assert_eq!(overlap("abcd", "cde"), 2);
        assert_eq!(overlap("abcde", "cde"), 0);
        assert_eq!(overlap("x", "y"), 0);
        assert_eq!(overlap("aaa", "aab"), 2);
    }
}
