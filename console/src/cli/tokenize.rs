//! `console tokenize`: the tokens of a text, by the vocabulary of a GGUF file on this machine.
use anyhow::Context;
use serde_json::json;
use shared::{gguf::GgufFile, tokenizer::Tokenizer};

use super::{Failure, options, output};

/// Prints ids, and each with its text where nobody asked for JSON.
pub(super) fn run(options: &options::Tokenize) -> Result<u8, Failure> {
    let file = GgufFile::open(&options.model).map_err(anyhow::Error::from)?;
    let tokenizer = Tokenizer::from_metadata(file.metadata())
        .with_context(|| format!("no tokenizer in {}", options.model.display()))?;
    let ids = tokenizer.encode(&options.text, !options.no_bos, options.special);
    if options.json {
        output::line(&json!({"token_ids": ids}).to_string());
    } else {
        for id in ids {
            let piece = tokenizer.piece(id, true);
            output::line(&format!("{id:>7}  {:?}", String::from_utf8_lossy(&piece)));
        }
    }
    Ok(0)
}
