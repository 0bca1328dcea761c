//! Sampling parameters of a generation, and the form in which the operator edits them. Pure.
use protocol::message::{STOP_BYTES_MAX, STOP_STRINGS_MAX};

use crate::state::{GenerateDefaults, editor::Editor};

/// Maximum length of a field's text in bytes.
const FIELD_BYTES_MAX: usize = 400;

/// A field of the form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Maximum number of tokens.
    MaxTokens,
    /// Temperature.
    Temperature,
    /// Top-k.
    TopK,
    /// Top-p.
    TopP,
    /// Seed of the next generation.
    Seed,
    /// Stop strings, separated by bars; `\n` is a new line.
    Stop,
}

impl Field {
    /// All fields in display order.
    pub const ALL: [Self; 6] = [Self::MaxTokens, Self::Temperature, Self::TopK, Self::TopP, Self::Seed, Self::Stop];

    /// The field's label.
    pub fn title(self) -> &'static str {
        match self {
            Self::MaxTokens => "max tokens",
            Self::Temperature => "temperature",
            Self::TopK => "top-k",
            Self::TopP => "top-p",
            Self::Seed => "seed",
            Self::Stop => "stop",
        }
    }

    /// Description of its values.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::MaxTokens => "most tokens of an answer",
            Self::Temperature => "0: always the most probable token",
            Self::TopK => "draw among so many; 0: all",
            Self::TopP => "draw among this share; 1: all",
            Self::Seed => "of the next answer; counts up",
            Self::Stop => "texts that end it, a|b; \\n: new line",
        }
    }
}

/// The form.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingForm {
    /// The text of each of [`Field::ALL`].
    pub fields: Vec<Editor>,
    /// Index of the focused field.
    pub at: usize,
    /// Whether the whole value of that field is selected: the first character typed replaces it.
    pub is_selected: bool,
    /// Why the input was rejected.
    pub error: Option<String>,
}

impl SamplingForm {
    /// A form filled with the parameters of the next generation; `count` generations have been sent.
    pub fn new(defaults: &GenerateDefaults, count: u64) -> Self {
        let sampling = &defaults.sampling;
        let texts = Field::ALL.map(|field| match field {
            Field::MaxTokens => defaults.max_tokens.to_string(),
            Field::Temperature => sampling.temperature.to_string(),
            Field::TopK => sampling.top_k.to_string(),
            Field::TopP => sampling.top_p.to_string(),
            Field::Seed => sampling.seed.wrapping_add(count).to_string(),
            Field::Stop => defaults.stop.iter().map(|stop| stop.replace('\n', "\\n")).collect::<Vec<_>>().join("|"),
        });
        Self { fields: texts.iter().map(|text| Editor::new(text)).collect(), at: 0, is_selected: true, error: None }
    }

    /// The focused field, for editing: its value is no longer selected.
    pub fn field(&mut self) -> Option<&mut Editor> {
        self.error = None;
        self.is_selected = false;
        self.fields.get_mut(self.at)
    }

    /// Inserts text typed or pasted; one line, bounded.
    pub fn insert(&mut self, text: &str) {
        let text = text.replace(['\n', '\r', '\t'], " ");
        let kept = if self.is_selected { 0 } else { self.fields.get(self.at).map_or(0, |field| field.text().len()) };
        let (room, replaces) = (FIELD_BYTES_MAX.saturating_sub(kept), self.is_selected);
        if text.len() > room {
            self.error = Some(format!("at most {FIELD_BYTES_MAX} bytes"));
        } else if let Some(field) = self.field() {
            if replaces {
                field.replace("");
            }
            field.insert(&text);
        }
    }

    /// Erases the value of the focused field if all of it is selected. Returns whether it was.
    pub fn erase_selected(&mut self) -> bool {
        let is_selected = self.is_selected;
        if let Some(field) = self.field().filter(|_| is_selected) {
            field.replace("");
        }
        is_selected
    }

    /// Moves the focus to a field, with its value selected.
    pub fn enter(&mut self, at: usize) {
        (self.at, self.is_selected) = (at, true);
    }

    /// Moves the focus to the next field.
    pub fn next(&mut self) {
        self.enter((self.at + 1) % self.fields.len().max(1));
    }

    /// Moves the focus to the previous field.
    pub fn previous(&mut self) {
        let count = self.fields.len().max(1);
        self.enter((self.at + count - 1) % count);
    }

    /// The parameters for the next generations; `count` generations have been sent.
    ///
    /// # Errors
    /// Index of the first invalid field, and why it is invalid.
    pub fn values(&self, before: &GenerateDefaults, count: u64) -> Result<GenerateDefaults, (usize, String)> {
        let mut terms = before.clone();
        for (place, field) in Field::ALL.into_iter().enumerate() {
            let text = self.fields.get(place).map_or("", Editor::text).trim();
            let whole = || {
                text.parse::<u64>()
                    .map_err(|_| (place, format!("{} is {text:?}: it must be a whole number", field.title())))
            };
            let real = || {
                text.parse::<f32>().map_err(|_| (place, format!("{} is {text:?}: it must be a number", field.title())))
            };
            let small =
                |value: u64| u32::try_from(value).map_err(|_| (place, format!("{} is too large", field.title())));
            let sampling = &mut terms.sampling;
            match field {
                Field::MaxTokens => terms.max_tokens = small(whole()?)?,
                Field::Temperature => sampling.temperature = real()?,
                Field::TopK => sampling.top_k = small(whole()?)?,
                Field::TopP => sampling.top_p = real()?,
                Field::Seed => sampling.seed = whole()?.wrapping_sub(count),
                Field::Stop => terms.stop = stops(text).map_err(|error| (place, error))?,
            }
            if terms.max_tokens == 0 {
                return Err((place, "max tokens is 0: ask for at least one".to_owned()));
            }
            terms.sampling.check().map_err(|error| (place, error.to_string()))?;
        }
        Ok(terms)
    }
}

fn stops(text: &str) -> Result<Vec<String>, String> {
    let stops: Vec<String> =
        text.split('|').filter(|stop| !stop.is_empty()).map(|stop| stop.replace("\\n", "\n")).collect();
    let is_good = stops.len() <= STOP_STRINGS_MAX && stops.iter().all(|stop| stop.len() <= STOP_BYTES_MAX);
    if is_good { Ok(stops) } else { Err(format!("at most {STOP_STRINGS_MAX} stop texts of {STOP_BYTES_MAX} bytes")) }
}

/// The sampling parameters in one line.
pub fn summary(terms: &GenerateDefaults, seed: u64) -> String {
    let sampling = &terms.sampling;
    let mut text = format!("{} tokens, T {}", terms.max_tokens, sampling.temperature);
    if sampling.top_k > 0 {
        text += &format!(", top-k {}", sampling.top_k);
    }
    if sampling.top_p < 1.0 {
        text += &format!(", top-p {}", sampling.top_p);
    }
    if sampling.temperature > 0.0 {
        text += &format!(", seed {seed}");
    }
    match terms.stop.len() {
        0 => text,
        1 => text + ", 1 stop",
        more => text + &format!(", {more} stops"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::defaults;

    fn with(texts: [&str; 6]) -> Result<GenerateDefaults, (usize, String)> {
        let mut form = SamplingForm::new(&defaults(), 0);
        form.fields = texts.iter().map(|text| Editor::new(text)).collect();
        form.values(&defaults(), 3)
    }

    #[test]
    fn unchanged_fields_stay_and_typed_values_apply() {
        let form = SamplingForm::new(&defaults(), 5);
        assert_eq!(form.values(&defaults(), 5), Ok(defaults()));
        let terms = with(["10", "0.5", "40", "0.9", "100", "END|\\n\\n"]).expect("all fields are valid");
        let sampling = &terms.sampling;
        assert_eq!((terms.max_tokens, sampling.temperature, sampling.top_k, sampling.top_p), (10, 0.5, 40, 0.9));
        assert_eq!(sampling.seed.wrapping_add(3), 100, "the next generation has this seed");
        assert_eq!(terms.stop, ["END", "\n\n"]);
        assert_eq!(SamplingForm::new(&terms, 3).fields[5].text(), "END|\\n\\n");
        assert_eq!(summary(&terms, 100), "10 tokens, T 0.5, top-k 40, top-p 0.9, seed 100, 2 stops");
    }

    #[test]
    fn first_invalid_field_is_named() {
        let bad = |place: usize, text: &str| {
            let mut texts = ["10", "0.5", "40", "0.9", "100", ""];
            texts[place] = text;
            with(texts).expect_err("invalid field")
        };
        assert_eq!(bad(0, "0").0, 0);
        assert_eq!(bad(0, "99999999999").0, 0);
        for (place, text) in [(1, "hot"), (1, "NaN"), (1, "101"), (2, "-1"), (2, "2000"), (3, "1.5"), (4, "x")] {
            let (at, error) = bad(place, text);
            assert!(at == place && !error.is_empty(), "{place} {text}: {at} {error}");
        }
        assert_eq!(bad(5, &"x".repeat(STOP_BYTES_MAX + 1)).0, 5);
        assert_eq!(bad(5, &"x|".repeat(STOP_STRINGS_MAX + 1)).0, 5);
        let mut form = SamplingForm::new(&defaults(), 0);
        form.insert(&"9".repeat(FIELD_BYTES_MAX + 1));
        assert!(form.error.is_some() && form.fields[0].text() == "64");
    }

    #[test]
    fn typing_in_a_field_that_was_just_entered_replaces_its_value() {
        let mut form = SamplingForm::new(&defaults(), 0);
        "400".chars().for_each(|letter| form.insert(&letter.to_string()));
        assert_eq!(form.fields[0].text(), "400");
        form.next();
        form.field().expect("a field has the focus").line_end();
        form.insert("5");
        assert_eq!(form.fields[1].text(), format!("{}5", defaults().sampling.temperature), "a cursor key keeps it");
        form.next();
        assert!(form.erase_selected() && form.fields[2].text().is_empty());
        form.previous();
        form.insert("1");
        assert_eq!(form.fields[1].text(), "1", "entered again, it is selected again");
    }
}
