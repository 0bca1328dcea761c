//! Compares speculative decoding on and off: a fixed set of prompts, and the evaluation of their answers. Pure.
use serde::Serialize;

use super::stats::median;

/// A prompt of the set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftPrompt {
    /// Its name in the table.
    pub name: String,
    /// The text to complete.
    pub text: String,
    /// Whether the continuation is likely to repeat the prompt, so that speculative decoding should help.
    pub is_repetitive: bool,
}

/// Smallest acceptable ratio of speeds: a slowdown below it is beyond the noise of a median.
pub const WORST: f64 = 0.95;
/// Expected ratio of speeds for a repetitive text.
pub const REPETITIVE: f64 = 1.9;

/// The fixed set: a repetitive text, and others of several kinds.
pub fn prompts() -> Vec<DraftPrompt> {
    let prompt = |name: &str, text: String, is_repetitive| DraftPrompt { name: name.into(), text, is_repetitive };
    let verse = "ROMEO:\nTo be, or not to be.\n".repeat(8) + "ROMEO:\nTo be, or";
    let plain = [
        ("play", "JULIET:\nO gentle night, what news from"),
        ("name", "ROMEO:"),
        ("question", "Why does a switch with eight ports need a table of addresses? Because"),
        ("code", "fn sum(values: &[f32]) -> f32 {\n    let mut total"),
        ("list", "Things to bring: a lamp, a rope, bread,"),
        ("prose", "The harbour was quiet that morning, and the boats"),
        ("order", "FIRST CITIZEN:\nWe are"),
    ];
    let mut all = vec![prompt("repetitive", verse, true)];
    all.extend(plain.map(|(name, text)| prompt(name, text.into(), false)));
    all
}

/// The result of a prompt.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DraftsResult {
    /// The prompt's name.
    pub name: String,
    /// Whether speculative decoding should help.
    pub is_repetitive: bool,
    /// Median time per token with speculative decoding, in milliseconds.
    pub with_ms: f64,
    /// Median time per token without speculative decoding, in milliseconds.
    pub without_ms: f64,
    /// Number of speculative tokens, over all repeats.
    pub drafted: u64,
    /// Number of accepted speculative tokens, over all repeats.
    pub accepted: u64,
}

/// The timings of one answer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Answered {
    /// Milliseconds per token.
    pub token_ms: f64,
    /// Number of speculative tokens.
    pub drafted: u64,
    /// Number of accepted speculative tokens.
    pub accepted: u64,
}

impl DraftsResult {
    /// The result of a prompt from the timings of its answers.
    pub fn of(prompt: &DraftPrompt, with: &[Answered], without: &[Answered]) -> Self {
        let middle = |answers: &[Answered]| {
            let times: Vec<f64> = answers.iter().map(|answer| answer.token_ms).collect();
            median(&times).unwrap_or_default()
        };
        Self {
            name: prompt.name.clone(),
            is_repetitive: prompt.is_repetitive,
            with_ms: middle(with),
            without_ms: middle(without),
            drafted: with.iter().map(|answer| answer.drafted).sum(),
            accepted: with.iter().map(|answer| answer.accepted).sum(),
        }
    }

    /// Tokens per second with speculative decoding, relative to those without.
    pub fn ratio(&self) -> f64 {
        if self.with_ms > 0.0 { self.without_ms / self.with_ms } else { 0.0 }
    }

    /// Whether speculative decoding slows the prompt down.
    pub fn is_slower(&self) -> bool {
        self.ratio() < WORST
    }
}

/// The table, and the summary below it.
pub fn table(found: &[DraftsResult]) -> Vec<String> {
    let mut lines = vec![format!(
        "{:12} {:>9} {:>9} {:>7} {:>8} {:>9}",
        "prompt", "with", "without", "ratio", "drafted", "accepted"
    )];
    lines.extend(found.iter().map(|it| {
        let note = if it.is_slower() { "  slower" } else { "" };
        format!(
            "{:12} {:>6.2} ms {:>6.2} ms {:>7.2} {:>8} {:>9}{note}",
            it.name,
            it.with_ms,
            it.without_ms,
            it.ratio(),
            it.drafted,
            it.accepted
        )
    }));
    let least = |is_repetitive: bool| {
        let ratios = found.iter().filter(|it| it.is_repetitive == is_repetitive).map(DraftsResult::ratio);
        ratios.min_by(f64::total_cmp)
    };
    let mut said = Vec::new();
    said.extend(least(true).map(|ratio| format!("a repetitive text is {ratio:.2} times as fast (goal {REPETITIVE})")));
    said.extend(least(false).map(|ratio| format!("the worst of the others {ratio:.2} (goal {WORST})")));
    lines.push(said.join(", "));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_compared_and_a_slower_prompt_is_named() {
        let prompts = prompts();
        let answers = |times: [f64; 3]| times.map(|token_ms| Answered { token_ms, drafted: 4, accepted: 3 });
        let fast = DraftsResult::of(&prompts[0], &answers([5.0, 50.0, 4.0]), &answers([10.0, 11.0, 1.0]));
        assert_eq!((fast.ratio(), fast.drafted, fast.accepted, fast.is_slower()), (2.0, 12, 9, false));
        let slow = DraftsResult::of(&prompts[1], &answers([11.0; 3]), &answers([10.0; 3]));
        assert!(slow.is_slower());
        let lines = table(&[fast, slow]);
        assert!(lines[1].ends_with('9') && lines[2].ends_with("slower"), "{lines:?}");
        assert_eq!(
            lines[3],
            "a repetitive text is 2.00 times as fast (goal 1.9), the worst of the others 0.91 (goal 0.95)"
        );
    }
}
