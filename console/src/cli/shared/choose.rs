//! A numbered list on a terminal, of which the operator chooses one row.
use crate::cli::{
    Failure,
    shared::{
        confirm::{ask_line, has_person},
        output,
    },
};

/// The index of the chosen row, `default` for an empty answer; `None` without a terminal to ask on.
///
/// # Errors
/// The answer is empty and there is no default, or the input has ended or cannot be read.
pub(crate) async fn choose(question: &str, rows: &[String], default: Option<usize>) -> Result<Option<usize>, Failure> {
    if !has_person() {
        return Ok(None);
    }
    output::note(&output::clean(question));
    for (place, row) in rows.iter().enumerate() {
        output::note(&output::clean(&format!("{:>4}  {row}", place + 1)));
    }
    let usual = default.map_or_else(String::new, |place| format!(" [{}]", place + 1));
    loop {
        let answer = ask_line(&format!("Number (1 to {}){usual}: ", rows.len())).await?;
        if answer.is_empty() {
            return default.map(Some).ok_or(Failure::Declined);
        }
        match number(&answer, rows.len()) {
            Some(place) => return Ok(Some(place)),
            None => output::note(&format!("type a number from 1 to {}", rows.len())),
        }
    }
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
