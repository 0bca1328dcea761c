//! `console tokenize`: the tokens of a text, by the vocabulary of a local GGUF file.
use anyhow::Context;
use gguf::GgufFile;
use serde_json::json;
use tokenizer::Tokenizer;

use crate::cli::{
    Failure,
    shared::{options, output},
};

/// Prints the token ids; without `--json`, each with its text.
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
