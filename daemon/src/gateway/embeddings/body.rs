//! Bodies of requests for embeddings, and vectors in the forms that clients ask for. Pure.
use base64::{Engine, engine::general_purpose::STANDARD};
use common::sampling::SamplingParameters;
use protocol::message::Generate;
use serde_json::Value;

use super::wish;
use crate::gateway::{
    error::ApiError,
    outline::{Bounds, Outline},
    request::Wish,
    typed_json::{Fields, brief},
};

/// Most texts of a request, of which some run at a time; clients send batches of 1000.
const TEXTS_MAX: usize = 1024;
/// Longest vector that a client may ask for.
const DIMENSIONS_MAX: u64 = 1 << 16;

/// A valid request.
#[derive(Clone, Debug)]
pub(in crate::gateway) struct EmbeddingsAsked {
    /// The client's name for the model.
    pub(super) model: Option<String>,
    /// One for each text.
    pub(in crate::gateway) wishes: Vec<Wish>,
    pub(super) form: EmbeddingForm,
    /// Length of the vectors, if shorter than the model's.
    pub(super) dimensions: Option<usize>,
    /// Whether texts with too many tokens are cut; `None`: the default of the API.
    pub(super) truncates: Option<bool>,
}

/// How vectors are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gateway) enum EmbeddingForm {
    Floats,
    /// Little-endian 32-bit floats in base64.
    Base64,
}

/// Reads a body.
///
/// # Errors
/// The first invalid field.
pub(in crate::gateway) fn read(body: &[u8], bounds: Bounds) -> Result<EmbeddingsAsked, ApiError> {
    read_field("input", TEXTS_MAX, body, bounds)
}

/// Reads the body of Ollama's older path, which takes one text.
///
/// # Errors
/// The first invalid field.
pub(super) fn read_one(body: &[u8], bounds: Bounds) -> Result<EmbeddingsAsked, ApiError> {
    read_field("prompt", 1, body, bounds)
}

/// Reads a body with at most `most` texts in a field.
fn read_field(field: &str, most: usize, body: &[u8], bounds: Bounds) -> Result<EmbeddingsAsked, ApiError> {
    let outline = Outline::read(body)?;
    let object = outline.values(&["dimensions", "encoding_format", "model", "truncate"])?;
    let fields = Fields(&object);
    let prompts = outline.prompts_up_to(field, most, bounds)?;
    let form = match fields.text("encoding_format")? {
        None | Some("float") => EmbeddingForm::Floats,
        Some("base64") => EmbeddingForm::Base64,
        Some(other) => {
            let message = format!("encoding_format is {}; use float or base64", brief(&Value::from(other)));
            return Err(ApiError::invalid("encoding_format", message));
        }
    };
    let sampling = SamplingParameters { temperature: 0.0, embeds: true, ..SamplingParameters::default() };
    Ok(EmbeddingsAsked {
        model: fields.text("model")?.map(Into::into),
        wishes: prompts
            .into_iter()
            .map(|prompt| wish(Generate::new(prompt, 1, sampling.clone(), Vec::new())))
            .collect(),
        form,
        dimensions: fields.whole("dimensions", 1, DIMENSIONS_MAX)?.map(|length| length as usize),
        truncates: fields.get("truncate").map(|_| fields.flag("truncate")).transpose()?,
    })
}

/// Keeps the first values of a vector and gives it the Euclidean length 1 again, for models that are trained for that.
///
/// # Errors
/// The vector is shorter.
pub(super) fn shorten(vector: &mut Vec<f32>, dimensions: Option<usize>) -> Result<(), ApiError> {
    let Some(length) = dimensions.filter(|length| *length != vector.len()) else { return Ok(()) };
    if length > vector.len() {
        let message = format!("dimensions is {length}, but the model's vectors have {}; ask for less", vector.len());
        return Err(ApiError::invalid("dimensions", message));
    }
    vector.truncate(length);
    let squares: f64 = vector.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
    if squares > 0.0 {
        let scale = (1.0 / squares.sqrt()) as f32;
        vector.iter_mut().for_each(|value| *value *= scale);
    }
    Ok(())
}

/// A vector's little-endian bytes in base64.
pub(super) fn base64(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
    STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asked(body: Value) -> Result<EmbeddingsAsked, ApiError> {
        read(body.to_string().as_bytes(), Bounds { context: None })
    }

    #[test]
    fn input_may_be_texts_or_ids_and_wrong_fields_are_named() {
        let one = asked(json!({"input": "a", "model": "m"})).expect("it is good");
        assert!(one.wishes.len() == 1 && one.wishes[0].generate.sampling.embeds && one.form == EmbeddingForm::Floats);
        let many = json!({"input": ["a", [1, 2]], "encoding_format": "base64", "dimensions": 64});
        let many = asked(many).expect("it is good");
        assert_eq!((many.wishes.len(), many.form, many.dimensions), (2, EmbeddingForm::Base64, Some(64)));
        let cut = asked(json!({"input": "a", "truncate": false})).expect("it is good");
        assert_eq!((one.truncates, cut.truncates), (None, Some(false)));
        let read_one = |body: Value| read_one(body.to_string().as_bytes(), Bounds { context: None });
        assert_eq!(read_one(json!({"prompt": "a"})).map(|asked| asked.wishes.len()).ok(), Some(1));
        assert!(read_one(json!({"prompt": ["a", "b"]})).is_err() && read_one(json!({"input": "a"})).is_err());
        for wrong in [
            json!({}),
            json!({"input": 1}),
            json!({"input": "a", "encoding_format": "int8"}),
            json!({"input": "a", "dimensions": 0}),
            json!({"input": "a", "truncate": "no"}),
            json!({"input": vec!["a"; TEXTS_MAX + 1]}),
        ] {
            assert!(asked(wrong.clone()).is_err_and(|error| error.status.as_u16() == 400), "{wrong}");
        }
    }

    #[test]
    fn shortened_vectors_have_length_1_and_base64_is_that_of_rfc_4648() {
        let mut vector = vec![0.6, 0.0, 0.8];
        shorten(&mut vector, Some(1)).expect("it is shorter");
        assert_eq!(vector, [1.0]);
        assert!(shorten(&mut vector, Some(2)).is_err());
        assert_eq!(base64(&[1.0]), "AACAPw==");
        assert_eq!(base64(&[1.0, -2.0]), "AACAPwAAAMA=");
        assert_eq!(base64(&[]), "");
    }
}
