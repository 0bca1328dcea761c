//! Small models that are slow, because they have many layers.
use gguf::BlockFormat;
use tempfile::TempDir;

use crate::{
    families,
    gguf_writer::Value,
    programs::{DEEP, folder_with},
    tiny_model::{Architecture, TinyModel},
};

/// A folder with a model of many thin layers. The model is small, but each of its tokens takes milliseconds because of
/// its all-reduces, so that a test can act while a request runs.
pub fn deep_models() -> TempDir {
    let mut model = TinyModel::new(Architecture::Llama);
    (model.block_count, model.context_length) = (96, 8192);
    folder_with(&[(DEEP, &model.with_format(BlockFormat::Q8_0).bytes())])
}

/// The same with recurrent layers, whose states follow every token.
///
/// # Panics
/// The families lack Qwen3.5.
pub fn deep_hybrid_models() -> TempDir {
    let shapes = families::shapes();
    let (_, mut model) = shapes.into_iter().find(|(name, _)| name == "qwen35-ordinary").expect("there is such a shape");
    for (key, value) in &mut model.keys {
        match *key {
            "block_count" => *value = Value::U32(48),
            "context_length" => *value = Value::U32(8192),
            _ => {}
        }
    }
    folder_with(&[(DEEP, &model.with_format(BlockFormat::Q8_0).bytes())])
}
