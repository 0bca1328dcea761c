//! A numbered list on a terminal, of which the operator chooses one row.
use crate::cli::{
    Failure,
    shared::{
        confirm::{ask_line, has_person},
        output,
    },
};

/// The index of the chosen row; `None` without a terminal to ask on.
///
/// # Errors
/// The answer is no number of the list, or standard input cannot be read.
pub(crate) async fn choose(question: &str, rows: &[String]) -> Result<Option<usize>, Failure> {
    if !has_person() {
        return Ok(None);
    }
    output::note(&output::clean(question));
    for (place, row) in rows.iter().enumerate() {
        output::note(&output::clean(&format!("{:>4}  {row}", place + 1)));
    }
    let answer = ask_line(&format!("Number (1 to {}): ", rows.len())).await?;
    number(&answer, rows.len()).map(Some).ok_or(Failure::Declined)
}

/// The index that an answer means.
fn number(answer: &str, rows: usize) -> Option<usize> {
    answer.trim().parse().ok().filter(|number| (1..=rows).contains(number)).map(|number: usize| number - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_of_the_list_choose() {
        assert_eq!([number("1\n", 2), number(" 2 ", 2)], [Some(0), Some(1)]);
        for odd in ["", "0", "3", "y", "-1", "1.5"] {
            assert_eq!(number(odd, 2), None, "{odd}");
        }
    }
}
