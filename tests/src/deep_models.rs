//! Small models that are slow, because they have many layers. Their answers are varied and depend on the whole context,
//! so that a wrong key, value or state changes them.
use std::{collections::BTreeSet, fmt::Debug};

use gguf::BlockFormat;
use tempfile::TempDir;

use crate::{
    families,
    gguf_writer::{GgufWriter, Value},
    programs::{DEEP, folder_with},
    quantise::quantise,
    random::Random,
    tiny_model::{Architecture, TinyModel},
};

const EMBEDDING: &str = "token_embd.weight";
const OUTPUT: &str = "output.weight";
/// Tokens of the vocabulary.
const VOCABULARY_LENGTH: usize = 600;
/// Tokens without text, which come first: special ones and bytes.
const TEXTLESS: usize = 3 + 256;
/// Special tokens. An answer never has one, so that it is as long as its request.
const SPECIAL: [i32; 3] = [0, 1, 2];
/// Length of the hidden states of the model with recurrent layers.
const HYBRID_LENGTH: usize = 256;
/// Standard deviation of the logits.
const LOGIT_SPREAD: f32 = 3.0;
/// Fewest different tokens of an answer whose comparison shows wrong keys and values. A model that repeats a token or
/// two has fewer.
const DISTINCT_MIN: usize = 8;

/// A folder with a model of many thin layers. The model is small, but each of its tokens takes milliseconds because of
/// its all-reduces, so that a test can act while a request runs.
pub fn deep_models() -> TempDir {
    folder_with(&[(DEEP, &attention())])
}

/// The same with recurrent layers, whose states follow every token.
///
/// # Panics
/// The families lack Qwen3.5.
pub fn deep_hybrid_models() -> TempDir {
    folder_with(&[(DEEP, &hybrid())])
}

/// Asserts that an answer is varied enough for a comparison with it to show wrong keys and values.
///
/// # Panics
/// If it has too few different tokens.
#[track_caller]
pub fn assert_varied<T: Ord + Debug>(ids: &[T]) {
    let distinct = ids.iter().collect::<BTreeSet<_>>().len();
    assert!(distinct >= DISTINCT_MIN, "only {distinct} different tokens hide wrong keys and values: {ids:?}");
}

/// 96 layers of attention. The format needs no int8 activations: another number of ranks may change their rounding, and
/// near ties of random weights would then change the text of a model whose text is varied.
fn attention() -> Vec<u8> {
    let (mut model, format) = (TinyModel::new(Architecture::Llama), BlockFormat::F16);
    (model.block_count, model.context_length, model.vocabulary_length) = (96, 8192, VOCABULARY_LENGTH);
    model.feed_forward_length = 128;
    let embedding = model.embedding_length;
    sensitive(model.with_format(format).writer(), format, embedding, 6.0)
}

/// 48 layers, most of them recurrent.
fn hybrid() -> Vec<u8> {
    let (shapes, format) = (families::shapes(), BlockFormat::Q8_0);
    let (_, mut model) = shapes.into_iter().find(|(name, _)| name == "qwen35-ordinary").expect("there is such a shape");
    for (key, value) in &mut model.keys {
        match *key {
            "block_count" => *value = Value::U32(48),
            "context_length" => *value = Value::U32(8192),
            "embedding_length" => *value = Value::U32(HYBRID_LENGTH as u32),
            _ => {}
        }
    }
    model.vocabulary_length = VOCABULARY_LENGTH;
    sensitive(model.with_format(format).writer(), format, HYBRID_LENGTH, 3.0)
}

/// Replaces embedding and output matrix of a model, so that its most probable tokens follow from the whole context:
/// - The output matrix is not the embedding, which would repeat the last token.
/// - The embedding, whose weights have the standard deviation `spread`, is about as large as the sum of all layers. A
///   narrow one vanishes among so many layers: all positions then have nearly the same hidden state, and the answer
///   repeats a token or two. A wide one hides the layers, and with them keys, values and states.
/// - Only tokens with text are probable, so that a text shows its tokens.
fn sensitive(writer: GgufWriter, format: BlockFormat, columns: usize, spread: f32) -> Vec<u8> {
    let mut writer = writer.without_tensor(EMBEDDING).without_tensor(OUTPUT);
    writer = writer.integers("tokenizer.ggml.suppress_tokens", &SPECIAL);
    let logits = LOGIT_SPREAD / (columns as f32).sqrt();
    for (name, spread, first) in [(EMBEDDING, spread, 0), (OUTPUT, logits, TEXTLESS)] {
        let dimensions = [columns as u64, VOCABULARY_LENGTH as u64];
        writer = writer.made_tensor(name, &dimensions, format, move |out| {
            let mut random = Random::named(1, name);
            (0..VOCABULARY_LENGTH).try_for_each(|token| {
                let spread = if token < first { 0.0 } else { spread };
                out.write_all(&quantise(format, &random.normals(columns, spread)))
            })
        });
    }
    writer.finish()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gguf::GgufFile;

    use super::*;
    use crate::{
        engines::Replica,
        greedy::{fresh, ids, request},
    };

    #[test]
    fn answers_are_varied_and_depend_on_the_whole_context() {
        // A block of keys and values far from the answer; of the recurrent layers, most of the prompt.
        for (bytes, others) in [(attention(), 64_usize..96), (hybrid(), 0..96)] {
            let file = Arc::new(GgufFile::from_bytes(vec![bytes]).expect("the model is valid"));
            let answer = Replica::of(1).each_alone(&file, &[request(ids(1, 160), 60)]).remove(0);
            assert_varied(&answer.ids);
            let mut tokens = [&answer.prompt[..], &answer.ids].concat();
            tokens.pop();
            let first = answer.prompt.len() - 1;
            assert_eq!(fresh(&file, &tokens, first), answer.ids);
            tokens[others.clone()].copy_from_slice(&ids(9, others.len()));
            assert_ne!(fresh(&file, &tokens, first), answer.ids, "other tokens in {others:?} change nothing");
        }
    }
}
