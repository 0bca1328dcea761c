//! The model files of a node: what is there, and what a console or another node may have done with them.
use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    ids::{ContentRoot, ModelIdentity},
    units::Bytes,
};

/// Most bytes of a piece of a file.
pub const PIECE_BYTES_MAX: usize = 1 << 20;
/// Longest address of a download in bytes.
pub const URL_BYTES_MAX: usize = 4096;
/// Longest name of a model file in bytes; its unfinished copy has a longer one, and 255 is what file systems take.
pub const NAME_BYTES_MAX: usize = 200;
/// Most files that a node lists.
pub const FILES_MAX: usize = 1024;
/// What the name of a file that is not yet whole ends with.
pub const PART: &str = ".part";

/// SHA-256 of a whole file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Sha256(pub [u8; 32]);

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Sha256 {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || "64 hexadecimal digits, as sha256sum prints them".to_owned();
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(refused());
        }
        let mut bytes = [0; 32];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| refused())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| refused())?;
        }
        Ok(Self(bytes))
    }
}

/// Whether a file may have this name in a model folder: one plain name that ends with `.gguf`.
///
/// # Errors
/// What is wrong with it.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_plain = name.chars().all(|c| !c.is_control() && c != '/' && c != '\\') && !name.starts_with('.');
    if is_plain && name.ends_with(".gguf") && name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    Err(format!("{name:?} is no name of a model: NAME.gguf of at most {NAME_BYTES_MAX} bytes, without folders"))
}

/// The name without what tells the files of one model apart (`NAME-00002-of-00003.gguf`).
pub fn family(name: &str) -> &str {
    let stem = name.strip_suffix(".gguf").unwrap_or(name);
    let mut words = stem.rsplitn(4, '-');
    let (count, of, number, rest) = (words.next(), words.next(), words.next(), words.next());
    let is_number =
        |word: Option<&str>| word.is_some_and(|word| word.len() == 5 && word.bytes().all(|b| b.is_ascii_digit()));
    rest.filter(|_| of == Some("of") && is_number(count) && is_number(number)).unwrap_or(stem)
}

/// The names of all files of the model that a file of several belongs to; one name of a model in one file.
pub fn files_of(name: &str) -> Vec<String> {
    let family = family(name);
    let count = name.strip_suffix(".gguf").and_then(|stem| stem.strip_prefix(family)?.rsplit('-').next()?.parse().ok());
    let count: usize = count.unwrap_or(0);
    if count == 0 || count > FILES_MAX {
        return vec![name.into()];
    }
    (1..=count).map(|number| format!("{family}-{number:05}-of-{count:05}.gguf")).collect()
}

/// What is asked of a node's model files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ModelsRequest {
    /// All files. Answered by `Listed`.
    List,
    /// Read a file and compute its SHA-256. Answered by `Working` now and then, `Stored` at the end.
    Verify {
        /// Its name.
        model: String,
        /// What a caller is content with: a hash that was computed when the file was as it is now.
        is_known_enough: bool,
    },
    /// Delete a file, or what there is of an unfinished one. Answered by `Removed`.
    Remove {
        /// Its name.
        model: String,
    },
    /// Download a file. Answered by `Working` now and then, `Stored` at the end.
    Pull {
        /// `http://` or `https://`.
        url: String,
        /// Its name here.
        model: String,
        /// What it must be; else what the server says, if it says something.
        sha256: Option<Sha256>,
    },
    /// Copy a file from another node. Answered by `Working` now and then, `Stored` at the end.
    Fetch {
        /// Its name here and there.
        model: String,
        /// `ADDRESS:PORT` of the other node.
        from: String,
    },
    /// A piece of a whole file. Answered by `Piece`.
    Read {
        /// Its name.
        model: String,
        /// Where the piece begins.
        offset: u64,
    },
    /// A piece for an unfinished file. Answered by `Written`; with the last one by `Working` now and then and `Stored`.
    Write(Piece),
    /// What the tensors of a model hold; hashes them if that is not known yet. Answered by `Working` now and then, `Content` at the end.
    /// Wire version 5.
    Content {
        /// Its name.
        model: String,
    },
}

impl ModelsRequest {
    /// Whether it changes nothing.
    pub fn is_reading(&self) -> bool {
        matches!(self, Self::List | Self::Verify { .. } | Self::Read { .. } | Self::Content { .. })
    }

    /// Whether it goes on with what an earlier request began: one of many pieces.
    pub fn goes_on(&self) -> bool {
        matches!(self, Self::Write(piece) if piece.offset > 0)
    }

    /// What it is called in logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::List => "model-list",
            Self::Verify { .. } => "model-verify",
            Self::Remove { .. } => "model-remove",
            Self::Pull { .. } => "model-pull",
            Self::Fetch { .. } => "model-fetch",
            Self::Read { .. } => "model-read",
            Self::Write(_) => "model-add",
            Self::Content { .. } => "model-content",
        }
    }
}

/// A piece of a file that is put on a node.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    /// The file's name.
    pub model: String,
    /// Of the whole file.
    pub size: Bytes,
    /// Of the whole file.
    pub sha256: Sha256,
    /// Where the piece begins.
    pub offset: u64,
    /// At most [`PIECE_BYTES_MAX`]; none to ask how much is there.
    pub bytes: Vec<u8>,
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piece({} at {}, {} bytes of {})", self.model, self.offset, self.bytes.len(), self.size)
    }
}

/// What a file in a model folder is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileState {
    /// A model that can be used.
    Complete,
    /// A copy or download that is not done; it is used for nothing but going on.
    Partial,
    /// No model that can be used: why.
    Broken(String),
}

/// A file in a model folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFile {
    /// Its name; of an unfinished one what it will be called.
    pub model: String,
    /// The folder.
    pub folder: String,
    /// Bytes that are there.
    pub size: Bytes,
    /// What it is.
    pub state: FileState,
    /// Identity of a complete model; of a model in several files it is with the first.
    pub identity: Option<ModelIdentity>,
    /// SHA-256, if it was computed since the file was last changed.
    pub sha256: Option<Sha256>,
    /// What its tensors hold, if that was computed since the file was last changed.
    #[serde(default, with = "crate::protocol::version::since_5")]
    pub content: Option<ContentRoot>,
}

/// What takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// Bytes come from a server.
    Downloading,
    /// Bytes come from another node.
    Copying,
    /// The other node reads its file.
    Waiting,
    /// The file is read for its SHA-256.
    Hashing,
}

/// What a node answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ModelsResponse {
    /// The files, by name.
    Listed(Vec<ModelFile>),
    /// Progress.
    Working {
        /// What it does.
        step: Step,
        /// Bytes done.
        done: Bytes,
        /// Bytes in all, where that is known.
        total: Option<Bytes>,
    },
    /// The file is whole, and is what it should be.
    Stored(ModelFile),
    /// It is gone.
    Removed,
    /// A piece; none behind the file's end.
    Piece {
        /// Size of the whole file.
        size: Bytes,
        /// At most [`PIECE_BYTES_MAX`].
        bytes: Vec<u8>,
    },
    /// How much of the unfinished file is there.
    Written {
        /// Bytes.
        length: Bytes,
    },
    /// What the tensors of the model hold. Wire version 5.
    Content(ContentRoot),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_survives_its_text_and_odd_texts_are_refused() {
        let hash = Sha256(std::array::from_fn(|index| 8 * index as u8));
        assert_eq!(hash.to_string().parse(), Ok(hash));
        assert_eq!(hash.to_string().to_uppercase().parse(), Ok(hash));
        let text = hash.to_string();
        for odd in ["", &text[1..], &format!("{text}0"), &text.replace('0', "g"), &"é".repeat(32)] {
            assert!(odd.parse::<Sha256>().is_err(), "{odd}");
        }
    }

    #[test]
    fn every_question_and_answer_survives_the_wire_and_no_truncation_is_one() {
        use crate::protocol::message::{decode, encode};
        #[track_caller]
        fn check<T: Serialize + serde::de::DeserializeOwned + PartialEq + fmt::Debug>(message: &T) {
            let bytes = encode(message);
            assert_eq!(decode::<T>(&bytes).as_ref(), Ok(message));
            for end in 0..bytes.len() {
                assert!(decode::<T>(&bytes[..end]).is_err(), "cut at {end}: {message:?}");
            }
        }
        let (model, sha256) = ("m.gguf".to_owned(), Sha256([7; 32]));
        let piece = Piece { model: model.clone(), size: Bytes(9), sha256, offset: 4, bytes: vec![1, 2, 3] };
        for request in [
            ModelsRequest::List,
            ModelsRequest::Verify { model: model.clone(), is_known_enough: true },
            ModelsRequest::Remove { model: model.clone() },
            ModelsRequest::Pull { url: "https://a/m.gguf".into(), model: model.clone(), sha256: Some(sha256) },
            ModelsRequest::Fetch { model: model.clone(), from: "pi1:9999".into() },
            ModelsRequest::Read { model: model.clone(), offset: u64::MAX },
            ModelsRequest::Write(piece),
            ModelsRequest::Content { model: model.clone() },
        ] {
            check(&request);
        }
        let (folder, identity) = ("/models".to_owned(), Some(ModelIdentity([1; 32])));
        let state = FileState::Broken("cut".into());
        let file = ModelFile {
            model,
            folder,
            size: Bytes(9),
            state,
            identity,
            sha256: Some(sha256),
            content: Some(ContentRoot([2; 32])),
        };
        for response in [
            ModelsResponse::Listed(vec![file.clone()]),
            ModelsResponse::Working { step: Step::Hashing, done: Bytes(1), total: Some(Bytes(9)) },
            ModelsResponse::Stored(file),
            ModelsResponse::Removed,
            ModelsResponse::Piece { size: Bytes(9), bytes: vec![1, 2, 3] },
            ModelsResponse::Written { length: Bytes(4) },
            ModelsResponse::Content(ContentRoot([3; 32])),
        ] {
            check(&response);
        }
    }

    #[test]
    fn the_files_of_one_model_know_each_other() {
        assert_eq!(family("big-00002-of-00003.gguf"), "big");
        assert_eq!(family("a-b-00001-of-00002.gguf"), "a-b");
        for alone in ["big.gguf", "best-of-breed.gguf", "big-2-of-3.gguf", "00001-of-00003.gguf"] {
            assert_eq!((family(alone), files_of(alone)), (&alone[..alone.len() - 5], vec![alone.to_owned()]));
        }
        let files = ["big-00001-of-00002.gguf", "big-00002-of-00002.gguf"];
        assert_eq!(files_of(files[1]), files);
        assert_eq!(files_of("big-00001-of-00000.gguf").len(), 1);
    }

    #[test]
    fn only_plain_names_of_models_are_names() {
        assert_eq!(check_name("llama-3.2-1b-q4_k_m.gguf"), Ok(()));
        let long = format!("{}.gguf", "x".repeat(NAME_BYTES_MAX));
        for odd in ["", "a", ".gguf", "../a.gguf", "a/b.gguf", "/a.gguf", "a.gguf.part", "a\n.gguf", ".a.gguf", &long] {
            assert!(check_name(odd).is_err(), "{odd}");
        }
    }
}
