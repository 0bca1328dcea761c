//! "Did you mean": the known names that are closest to a mistyped one.

/// Names shown at most.
const SHOWN_MAX: usize = 3;

/// The letters and digits of a name in lower case: `Llama-3.2_1b` and `llama3.21b` are alike.
pub(crate) fn folded(name: &str) -> String {
    name.chars().filter(|letter| letter.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// The names closest to `typed`, the best first; empty if none resembles it.
pub(crate) fn closest<'a>(typed: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let typed = folded(typed);
    if typed.is_empty() {
        return Vec::new();
    }
    let mut found: Vec<(usize, &str)> = names
        .into_iter()
        .filter_map(|name| {
            let folded = folded(name);
            let away = if folded.contains(&typed) { 0 } else { distance(&typed, &folded) };
            (away <= typed.chars().count() / 3).then_some((away, name))
        })
        .collect();
    found.sort();
    found.dedup();
    found.into_iter().take(SHOWN_MAX).map(|(_, name)| name).collect()
}

/// `did you mean a, b?`, or `None` if no name resembles `typed`.
pub(crate) fn did_you_mean<'a>(typed: &str, names: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let names = closest(typed, names);
    (!names.is_empty()).then(|| format!("did you mean {}?", names.join(", ")))
}

/// The number of letters to insert, delete or replace in `typed` to obtain a prefix of `name`, or all of `name` if it
/// is shorter: names of models are typed without their long ends.
fn distance(typed: &str, name: &str) -> usize {
    let name: Vec<char> = name.chars().collect();
    let mut row: Vec<usize> = (0..=name.len()).collect();
    for (index, letter) in typed.chars().enumerate() {
        let mut before = row[0];
        row[0] = index + 1;
        for column in 1..=name.len() {
            let replaced = before + usize::from(name[column - 1] != letter);
            before = row[column];
            row[column] = replaced.min(row[column] + 1).min(row[column - 1] + 1);
        }
    }
    row.into_iter().min().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 4] =
        ["bard-q8_0.gguf", "llama-3.2-1b-q4_k_m.gguf", "llama-3.2-3b-q4_k_m.gguf", "qwen3-0.6b-q8_0.gguf"];

    #[test]
    fn typing_errors_and_parts_find_their_names() {
        assert_eq!(closest("brad", NAMES), [] as [&str; 0], "two of four letters differ");
        assert_eq!(closest("bart", NAMES), ["bard-q8_0.gguf"]);
        assert_eq!(closest("llama3.2", NAMES), [NAMES[1], NAMES[2]]);
        assert_eq!(closest("lama-3.2-1b", NAMES)[0], NAMES[1]);
        assert_eq!(closest("qwen3 0.6", NAMES), [NAMES[3]]);
        assert_eq!(closest("mistral", NAMES), [] as [&str; 0]);
        assert_eq!(closest("..", NAMES), [] as [&str; 0]);
    }

    #[test]
    fn question_lists_names_or_is_absent() {
        assert_eq!(did_you_mean("bart", NAMES).as_deref(), Some("did you mean bard-q8_0.gguf?"));
        assert_eq!(did_you_mean("mistral", NAMES), None);
    }
}
