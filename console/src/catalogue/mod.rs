//! Well-known models that Bramble runs: their short names, files and figures; search by words, and the choice of one
//! file by a short name. Pure: makes no network requests.
mod entries;
#[cfg(test)]
mod tests;

pub use entries::ENTRIES;

use crate::suggest::{closest, folded};

/// The quantisation that a short name without one means, where the model has such a file.
const USUAL: &str = "Q4_K_M";

/// A model of the catalogue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CatalogueEntry {
    /// Its short name, in lower case, for example `qwen3.5-4b`.
    pub name: &'static str,
    /// The family that runs it, as in `general.architecture` of its files.
    pub family: &'static str,
    /// Parameters, in billions.
    pub parameters: f32,
    /// Parameters that a token uses, in billions, if it is a mixture of experts.
    pub active: Option<f32>,
    /// Its licence, short.
    pub licence: &'static str,
    /// Positions for which it was trained.
    pub context: u32,
    /// The planner's built-in model with the same dimensions.
    pub shape: Option<&'static str>,
    /// Its files, the usual one first.
    pub files: &'static [CatalogueFile],
}

/// A file of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatalogueFile {
    /// Its quantisation, as in file names, for example `Q4_K_M`.
    pub quantisation: &'static str,
    /// `hf:OWNER/REPO:FILE`.
    pub source: &'static str,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether the size is rounded.
    pub is_about: bool,
}

/// A size of a file in the units of Hugging Face: `808 MB`, `2.7 GB`.
pub fn decimal(bytes: u64) -> String {
    match bytes {
        bytes if bytes < 1_000_000_000 => format!("{} MB", bytes.div_ceil(1_000_000)),
        bytes => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

impl CatalogueFile {
    /// The name of the file, which it also has on nodes.
    pub fn file_name(&self) -> &'static str {
        self.source.rsplit([':', '/']).next().unwrap_or(self.source)
    }

    /// Its size for display, in decimal units as on Hugging Face: `2.7 GB`, or `about 17 GB`.
    pub fn size(&self) -> String {
        if self.is_about { format!("about {:.0} GB", self.bytes as f64 / 1e9) } else { decimal(self.bytes) }
    }

    /// The planner's mix that is closest to this file: `f16`, `q8_0`, `q4_0` or `q4_k_m`. MXFP4 and the mixes that end in
    /// `Q4_K_M` have about the bits of the latter.
    pub fn mix(&self) -> &'static str {
        match self.quantisation {
            "Q8_0" => "q8_0",
            "Q4_0" => "q4_0",
            "F16" | "BF16" => "f16",
            _ => "q4_k_m",
        }
    }
}

impl CatalogueEntry {
    /// The file that the short name alone means.
    pub fn usual(&self) -> &CatalogueFile {
        self.file(USUAL).unwrap_or(&self.files[0])
    }

    /// The file of this quantisation, in upper or lower case.
    pub fn file(&self, quantisation: &str) -> Option<&CatalogueFile> {
        self.files.iter().find(|file| file.quantisation.eq_ignore_ascii_case(quantisation))
    }

    /// The file with this file name.
    pub fn file_named(&self, file_name: &str) -> Option<&CatalogueFile> {
        self.files.iter().find(|file| file.file_name() == file_name)
    }

    /// Its parameters for display: `4.2B`, or `35B, 3B active`.
    pub fn size_text(&self) -> String {
        match self.active {
            Some(active) => format!("{}, {} active", billions(self.parameters), billions(active)),
            None => billions(self.parameters),
        }
    }
}

fn billions(count: f32) -> String {
    if count < 10.0 && count.fract() > 0.01 { format!("{count:.1}B") } else { format!("{count:.0}B") }
}

/// The model that has a file with this file name, and that file.
pub fn of_file(file_name: &str) -> Option<(&'static CatalogueEntry, &'static CatalogueFile)> {
    ENTRIES.iter().find_map(|entry| entry.file_named(file_name).map(|file| (entry, file)))
}

/// What a short name means.
#[derive(Clone, Debug, PartialEq)]
pub enum Resolved {
    /// This file of this model.
    One(&'static CatalogueEntry, &'static CatalogueFile),
    /// Any of these models, by rank.
    Several(Vec<&'static CatalogueEntry>),
    /// A model that has no file of the typed quantisation.
    NoSuchFile(&'static CatalogueEntry),
    /// No model; names that are spelt alike.
    Unknown(Vec<&'static str>),
}

/// The model of this name; upper and lower case, and `-`, `.`, `_` and spaces, do not matter. `NAME:QUANTISATION` chooses
/// a quantisation. A part of a name is enough if it names a single model and does not end within a word or number.
pub fn resolve(typed: &str) -> Resolved {
    let (name, _) = split(typed.trim());
    let part = folded(name);
    if part.is_empty() {
        return Resolved::Unknown(Vec::new());
    }
    if let Some(entry) = ENTRIES.iter().find(|entry| folded(entry.name) == part) {
        return chosen(entry, typed);
    }
    let found: Vec<&CatalogueEntry> = ENTRIES.iter().filter(|entry| folded(entry.name).contains(&part)).collect();
    match found.as_slice() {
        [] => Resolved::Unknown(closest(name, ENTRIES.iter().map(|entry| entry.name))),
        [only] if ends_at_a_word(only.name, name) => chosen(only, typed),
        _ => Resolved::Several(found),
    }
}

fn chosen(entry: &'static CatalogueEntry, typed: &str) -> Resolved {
    file_of(entry, typed).map_or(Resolved::NoSuchFile(entry), |file| Resolved::One(entry, file))
}

/// The file of a model that `NAME:QUANTISATION` or `NAME` means; `None` if it has no file of that quantisation.
pub fn file_of(entry: &'static CatalogueEntry, typed: &str) -> Option<&'static CatalogueFile> {
    let (_, quantisation) = split(typed.trim());
    quantisation.map_or(Some(entry.usual()), |quantisation| entry.file(quantisation))
}

/// Name and quantisation. Text after a colon that is no quantisation belongs to the name, as in `qwen3.5:4b`.
fn split(typed: &str) -> (&str, Option<&str>) {
    match typed.rsplit_once(':') {
        Some((name, rest)) if is_quantisation(rest) => (name, Some(rest)),
        _ => (typed, None),
    }
}

/// Whether a text looks like `Q8_0`, `IQ4_XS`, `UD-Q4_K_M`, `MXFP4`, `F16` or `BF16`.
pub fn is_quantisation(text: &str) -> bool {
    let text = text.to_ascii_uppercase();
    let text = text.strip_prefix("UD-").unwrap_or(&text);
    ["Q", "IQ", "MXFP", "F", "BF"].iter().any(|start| {
        text.strip_prefix(start).is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    })
}

/// Whether the last match of `part` in `name` ends where a word or number of the name ends.
fn ends_at_a_word(name: &str, part: &str) -> bool {
    let words = |text: &str| -> Vec<String> {
        let words = text.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty());
        words.map(str::to_lowercase).collect()
    };
    let (of_name, of_part) = (words(name), words(part));
    of_name.windows(of_part.len().max(1)).any(|window| window == of_part.as_slice())
}

/// The models that match all words of `query`, the best first: names that begin with it, then names that contain it, then
/// families and licences. Without words, all models in the order of the table.
pub fn search(query: &str) -> Vec<&'static CatalogueEntry> {
    let words: Vec<String> = query.split_whitespace().map(folded).filter(|word| !word.is_empty()).collect();
    let mut found: Vec<(usize, &CatalogueEntry)> = ENTRIES
        .iter()
        .filter_map(|entry| words.iter().map(|word| rank(entry, word)).sum::<Option<usize>>().map(|rank| (rank, entry)))
        .collect();
    found.sort_by_key(|(rank, _)| *rank);
    found.into_iter().map(|(_, entry)| entry).collect()
}

/// How well a word describes a model: 0 is best, `None` not at all.
fn rank(entry: &CatalogueEntry, word: &str) -> Option<usize> {
    let name = folded(entry.name);
    let has_file = entry.files.iter().any(|file| folded(file.quantisation) == word);
    if name.starts_with(word) {
        Some(0)
    } else if name.contains(word) {
        Some(1)
    } else if has_file {
        Some(2)
    } else if folded(entry.family).contains(word) || folded(entry.licence).contains(word) {
        Some(3)
    } else {
        None
    }
}
