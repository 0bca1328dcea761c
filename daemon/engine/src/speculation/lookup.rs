//! Prompt lookup: if the latest tokens occurred before, the tokens that followed them there may follow again.

/// Longest match that is distinguished.
pub(super) const MATCH_MAX: usize = 3;

/// An earlier occurrence of the latest tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Match {
    /// Index of the token that followed it.
    pub(super) next: usize,
    /// Number of equal tokens, at most [`MATCH_MAX`].
    pub(super) length: usize,
}

/// Finds the longest match of the end of `tokens` with an earlier part of them; among equally long ones the latest.
pub(super) fn find(tokens: &[u32]) -> Option<Match> {
    let (last, before) = tokens.split_last()?;
    let mut best: Option<Match> = None;
    for (index, _) in before.iter().enumerate().rev().filter(|(_, token)| *token == last) {
        let pairs = before[..index].iter().rev().zip(before.iter().rev());
        let length = 1 + pairs.take(MATCH_MAX - 1).take_while(|(a, b)| a == b).count();
        if best.is_none_or(|best| length > best.length) {
            best = Some(Match { next: index + 1, length });
        }
        if length == MATCH_MAX {
            break;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_of_the_longest_matches_is_found() {
        assert_eq!(find(&[]), None);
        assert_eq!(find(&[1, 2, 3]), None);
        assert_eq!(find(&[7, 7]), Some(Match { next: 1, length: 1 }));
        assert_eq!(find(&[1, 2, 9, 2, 1, 2]), Some(Match { next: 2, length: 2 }));
        assert_eq!(find(&[4, 1, 2, 5, 1, 2, 3, 4, 1, 2]), Some(Match { next: 3, length: 3 }));
        assert_eq!(find(&[5; 40]), Some(Match { next: 39, length: 3 }));
    }
}
