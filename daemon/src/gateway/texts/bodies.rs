//! Bodies of questions about texts, as questions to a head. Pure.
use protocol::{message::Prompt, texts::TextRequest};
use serde_json::{Map, Value};

use crate::gateway::{
    conversation,
    error::ApiError,
    outline::{Bounds, Outline},
    request::FIELDS,
    typed_json::Fields,
};

const TOKENIZE_FIELDS: [&str; 5] =
    ["add_special", "add_special_tokens", "parse_special", "return_token_strs", "with_pieces"];

/// A request for tokens, and the form of its answer.
#[derive(Debug)]
pub(in crate::gateway) struct Tokenize {
    pub(in crate::gateway) request: TextRequest,
    pub(super) form: TokenizeForm,
}

/// The form of tokens in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gateway) enum TokenizeForm {
    /// llama-server: a list of ids.
    Plain,
    /// llama-server: a list of ids with their texts.
    Pieces,
    /// vLLM: ids, their number, and perhaps their texts.
    Counted { with_texts: bool },
}

/// POST /tokenize, with `content` as in llama-server, or with `prompt` or `messages` as in vLLM.
///
/// # Errors
/// The first invalid field.
pub(in crate::gateway) fn tokenize(body: &[u8], bounds: Bounds) -> Result<Tokenize, ApiError> {
    let outline = Outline::read(body)?;
    let object = outline.values(&TOKENIZE_FIELDS)?;
    let fields = Fields(&object);
    let is_set = |name: &str, default: bool| if fields.get(name).is_some() { fields.flag(name) } else { Ok(default) };
    let with_texts = fields.flag("return_token_strs")?;
    let form = TokenizeForm::Counted { with_texts };
    if outline.has("messages") {
        let chat = Box::new(conversation::read(&mut outline.values(&FIELDS)?)?.chat);
        return Ok(Tokenize { request: TextRequest::TokenizeChat { chat, with_pieces: with_texts }, form });
    }
    let special = is_set("parse_special", true)?;
    if outline.has("prompt") {
        let (text, bos) = (text(&outline, "prompt", bounds)?, is_set("add_special_tokens", true)?);
        return Ok(Tokenize { request: TextRequest::Tokenize { text, bos, special, with_pieces: with_texts }, form });
    }
    let with_pieces = fields.flag("with_pieces")?;
    let form = if with_pieces { TokenizeForm::Pieces } else { TokenizeForm::Plain };
    let (text, bos) = (text(&outline, "content", bounds)?, fields.flag("add_special")?);
    Ok(Tokenize { request: TextRequest::Tokenize { text, bos, special, with_pieces }, form })
}

fn text(outline: &Outline<'_>, field: &str, bounds: Bounds) -> Result<String, ApiError> {
    match &mut outline.prompts(field, bounds)?[..] {
        [Prompt::Text(text)] => Ok(std::mem::take(text)),
        _ => Err(ApiError::invalid(field, format!("{field} must be a string; give one text"))),
    }
}

/// POST /detokenize.
///
/// # Errors
/// `tokens` is no list of ids.
pub(in crate::gateway) fn detokenize(body: &[u8], _: Bounds) -> Result<TextRequest, ApiError> {
    let outline = Outline::read(body)?;
    if outline.is_empty_list("tokens") {
        return Ok(TextRequest::Detokenize(Vec::new()));
    }
    match &mut outline.prompts("tokens", Bounds { context: None })?[..] {
        [Prompt::Tokens(tokens)] => Ok(TextRequest::Detokenize(std::mem::take(tokens))),
        _ => Err(ApiError::invalid("tokens", "tokens must be a list of token ids; give one")),
    }
}

/// POST /apply-template.
///
/// # Errors
/// The conversation is invalid.
pub(in crate::gateway) fn render(body: &[u8], _: Bounds) -> Result<TextRequest, ApiError> {
    let mut object: Map<String, Value> = Outline::read(body)?.values(&FIELDS)?;
    Ok(TextRequest::Render(Box::new(conversation::read(&mut object)?.chat)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const BOUNDS: Bounds = Bounds { context: Some(9) };

    fn read(body: &Value) -> Result<Tokenize, ApiError> {
        tokenize(body.to_string().as_bytes(), BOUNDS)
    }

    #[test]
    fn both_forms_of_tokenize_have_their_defaults() {
        let plain = read(&json!({"content": "a"})).expect("it is good");
        let expected = TextRequest::Tokenize { text: "a".into(), bos: false, special: true, with_pieces: false };
        assert_eq!((plain.request, plain.form), (expected, TokenizeForm::Plain));
        let body = json!({"content": "a", "add_special": true, "parse_special": false, "with_pieces": true});
        let pieces = read(&body).expect("it is good");
        let expected = TextRequest::Tokenize { text: "a".into(), bos: true, special: false, with_pieces: true };
        assert_eq!((pieces.request, pieces.form), (expected, TokenizeForm::Pieces));
        let counted = read(&json!({"model": "m", "prompt": "a", "return_token_strs": true})).expect("it is good");
        let expected = TextRequest::Tokenize { text: "a".into(), bos: true, special: true, with_pieces: true };
        assert_eq!((counted.request, counted.form), (expected, TokenizeForm::Counted { with_texts: true }));
        let chat = read(&json!({"messages": [{"role": "user", "content": "a"}]})).expect("it is good");
        assert!(matches!(chat.request, TextRequest::TokenizeChat { with_pieces: false, .. }));
        for wrong in [json!({}), json!({"content": 1}), json!({"content": [1, 2]}), json!({"prompt": ["a", "b"]})] {
            assert!(read(&wrong).is_err_and(|error| error.status.as_u16() == 400), "{wrong}");
        }
    }

    #[test]
    fn detokenize_takes_any_number_of_ids_and_nothing_else() {
        let read = |body: Value| detokenize(body.to_string().as_bytes(), BOUNDS);
        assert_eq!(read(json!({"tokens": []})), Ok(TextRequest::Detokenize(Vec::new())));
        assert_eq!(
            read(json!({"tokens": vec![7; 20]})),
            Ok(TextRequest::Detokenize(vec![7; 20])),
            "beyond the context"
        );
        for wrong in [json!({}), json!({"tokens": "a"}), json!({"tokens": [-1]}), json!({"tokens": [[1], [2]]})] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
