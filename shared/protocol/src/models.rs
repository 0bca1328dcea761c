//! The model files of a node, and requests to read or change them.
use std::fmt;

use common::{
    digest::Sha256,
    ids::{ContentRoot, ModelIdentity},
    units::Bytes,
};
use serde::{Deserialize, Serialize};

/// Most bytes of a piece of a file.
pub const PIECE_BYTES_MAX: usize = 1 << 20;
/// Longest address of a download in bytes.
pub const URL_BYTES_MAX: usize = 4096;
/// Longest name of a model file in bytes: the name of its partial copy is longer, and file systems allow 255.
pub const NAME_BYTES_MAX: usize = 200;
/// Most files that a node lists.
pub const FILES_MAX: usize = 1024;
/// Suffix of a file that is incomplete.
pub const PART: &str = ".part";

/// Checks that a file may have this name in a model folder: a plain name that ends with `.gguf`.
///
/// # Errors
/// The reason why it is not allowed.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_plain = name.chars().all(|c| !c.is_control() && c != '/' && c != '\\') && !name.starts_with('.');
    if is_plain && name.ends_with(".gguf") && name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    Err(format!("{name:?} is not a model name; give NAME.gguf of at most {NAME_BYTES_MAX} bytes, without folders"))
}

/// Whether a name that a person or client gives means a file: the file's name with or without the extension, also with
/// the tag `:latest` of Ollama's lists.
pub fn is_named(asked: &str, file: &str) -> bool {
    let stem = file.strip_suffix(".gguf");
    [asked, plain_name(asked)].into_iter().any(|name| name == file || stem == Some(name))
}

/// A client's name for a model without the tag that Ollama adds by default.
pub fn plain_name(asked: &str) -> &str {
    asked.strip_suffix(":latest").unwrap_or(asked)
}

/// The name without the part number of a split model (`NAME-00002-of-00003.gguf`).
pub fn family(name: &str) -> &str {
    let stem = name.strip_suffix(".gguf").unwrap_or(name);
    let mut words = stem.rsplitn(4, '-');
    let (count, of, number, rest) = (words.next(), words.next(), words.next(), words.next());
    let is_number =
        |word: Option<&str>| word.is_some_and(|word| word.len() == 5 && word.bytes().all(|b| b.is_ascii_digit()));
    rest.filter(|_| of == Some("of") && is_number(count) && is_number(number)).unwrap_or(stem)
}

/// The names of all files of the split model that a file belongs to; a single name for a model in one file.
pub fn files_of(name: &str) -> Vec<String> {
    let family = family(name);
    let count = name.strip_suffix(".gguf").and_then(|stem| stem.strip_prefix(family)?.rsplit('-').next()?.parse().ok());
    let count: usize = count.unwrap_or(0);
    if count == 0 || count > FILES_MAX {
        return vec![name.into()];
    }
    let names: Vec<String> = (1..=count).map(|number| format!("{family}-{number:05}-of-{count:05}.gguf")).collect();
    // A file whose number exceeds the count is no part of a model: a request about it must not concern others.
    if names.iter().any(|other| other == name) { names } else { vec![name.into()] }
}

/// A request about a node's model files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ModelsRequest {
    /// List all files. Answered by `Listed`.
    List,
    /// Read a file and compute its SHA-256. Answered by `Working` repeatedly and `Stored` at the end.
    Verify {
        /// Its name.
        model: String,
        /// Whether a stored hash is sufficient if the file has not changed since it was computed.
        is_known_enough: bool,
    },
    /// Delete a file or a partial file. Answered by `Removed`.
    Remove {
        /// Its name.
        model: String,
    },
    /// Download a file. Answered by `Working` repeatedly and `Stored` at the end.
    Pull {
        /// `http://` or `https://`.
        url: String,
        /// Its name on this node.
        model: String,
        /// Expected hash; if `None`, the hash reported by the server, if any.
        sha256: Option<Sha256>,
    },
    /// Copy a file from another node. Answered by `Working` repeatedly and `Stored` at the end.
    Fetch {
        /// Its name on both nodes.
        model: String,
        /// `ADDRESS:PORT` of the source node.
        from: String,
    },
    /// Read a piece of a complete file. Answered by `Piece`.
    Read {
        /// Its name.
        model: String,
        /// Offset of the piece.
        offset: u64,
    },
    /// Write a piece of a partial file. Answered by `Written`; after the last piece by `Working` repeatedly and
    /// `Stored`.
    Write(Piece),
    /// Return the content root of a model; hashes its tensors if necessary. Answered by `Working` repeatedly and
    /// `Content` at the end. Since wire version 5.
    Content {
        /// Its name.
        model: String,
    },
}

impl ModelsRequest {
    /// Whether the request changes nothing.
    pub fn is_reading(&self) -> bool {
        matches!(self, Self::List | Self::Verify { .. } | Self::Read { .. } | Self::Content { .. })
    }

    /// Whether it continues an earlier request, as one of many pieces.
    pub fn goes_on(&self) -> bool {
        matches!(self, Self::Write(piece) if piece.offset > 0)
    }

    /// Its name in logs.
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

/// A piece of a file that is uploaded to a node.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    /// The file's name.
    pub model: String,
    /// Size of the whole file.
    pub size: Bytes,
    /// SHA-256 of the whole file.
    pub sha256: Sha256,
    /// Offset of the piece.
    pub offset: u64,
    /// At most [`PIECE_BYTES_MAX`]; empty to query how much is stored.
    pub bytes: Vec<u8>,
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piece({} at {}, {} bytes of {})", self.model, self.offset, self.bytes.len(), self.size)
    }
}

/// State of a file in a model folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileState {
    /// A usable model.
    Complete,
    /// An incomplete copy or download; usable only for resuming it.
    Partial,
    /// Not a usable model, for this reason.
    Broken(String),
}

/// A file in a model folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFile {
    /// Its name; for a partial file its final name.
    pub model: String,
    /// The folder.
    pub folder: String,
    /// Size on disk.
    pub size: Bytes,
    /// Its state.
    pub state: FileState,
    /// Identity of a complete model; for a split model it is reported with the first file.
    pub identity: Option<ModelIdentity>,
    /// SHA-256, if it was computed since the file last changed.
    pub sha256: Option<Sha256>,
    /// Content root, if it was computed since the file last changed.
    #[serde(default, with = "common::version::since_5")]
    pub content: Option<ContentRoot>,
}

/// A step of a long operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// Receiving bytes from a server.
    Downloading,
    /// Receiving bytes from another node.
    Copying,
    /// Waiting while the other node reads its file.
    Waiting,
    /// Reading the file to compute its SHA-256.
    Hashing,
}

/// The responses of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ModelsResponse {
    /// All files, sorted by name.
    Listed(Vec<ModelFile>),
    /// Progress.
    Working {
        /// The current step.
        step: Step,
        /// Bytes done.
        done: Bytes,
        /// Bytes in total, if known.
        total: Option<Bytes>,
    },
    /// The file is complete and verified.
    Stored(ModelFile),
    /// The file was deleted.
    Removed,
    /// A piece; empty beyond the end of the file.
    Piece {
        /// Size of the whole file.
        size: Bytes,
        /// At most [`PIECE_BYTES_MAX`].
        bytes: Vec<u8>,
    },
    /// Size of the partial file so far.
    Written {
        /// Bytes.
        length: Bytes,
    },
    /// The content root of the model. Since wire version 5.
    Content(ContentRoot),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_survives_its_text_and_invalid_texts_are_rejected() {
        let hash = Sha256(std::array::from_fn(|index| 8 * index as u8));
        assert_eq!(hash.to_string().parse(), Ok(hash));
        assert_eq!(hash.to_string().to_uppercase().parse(), Ok(hash));
        let text = hash.to_string();
        for odd in ["", &text[1..], &format!("{text}0"), &text.replace('0', "g"), &"é".repeat(32)] {
            assert!(odd.parse::<Sha256>().is_err(), "{odd}");
        }
    }

    #[test]
    fn messages_survive_the_wire_and_truncations_are_rejected() {
        use crate::message::{decode, encode};
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
        for odd in ["big-00001-of-00000.gguf", "big-00003-of-00002.gguf", "big-00000-of-00002.gguf"] {
            assert_eq!(files_of(odd), [odd]);
        }
    }

    #[test]
    fn a_name_may_lack_the_extension_and_have_the_tag_of_ollama() {
        for asked in ["m-q8_0.gguf", "m-q8_0", "m-q8_0:latest", "m-q8_0.gguf:latest"] {
            assert!(is_named(asked, "m-q8_0.gguf"), "{asked}");
        }
        for other in ["", "m", ":latest", "m-q8_0:q8_0", "m-q8_0:latest:latest"] {
            assert!(!is_named(other, "m-q8_0.gguf"), "{other}");
        }
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
