//! Endpoints about the texts of the served model: tokens, templates, properties, in the forms of llama-server, vLLM and
//! Anthropic. A head answers them; they take no slot.
pub(super) mod bodies;

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Query, Request, State},
    response::{IntoResponse, Response},
};
use common::{
    fault::{Fault, FaultClass, FaultKind},
    ids::ModelRoots,
    sampling::SamplingParameters,
};
use protocol::{
    BUILD,
    message::{RequestBody, ResponseBody},
    texts::{ModelTexts, TextRequest, TextResponse},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{sync::Semaphore, time::timeout};

use self::bodies::{Tokenize, TokenizeForm};
use super::{
    Gateway, anthropic,
    cluster::ServedModel,
    complete::name_changes,
    error::ApiError,
    intake::{Intake, receive},
    outline::{Bounds, Outline},
    typed_json::Fields,
};

/// Most questions to heads at a time.
const QUESTIONS_MAX: usize = 8;
/// Longest wait for a turn, and for the answer of a head.
const TURN: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(60);
/// Most heads that are asked before an error is returned.
const HEADS_MAX: usize = 3;

/// Turns of questions to heads.
#[derive(Debug)]
pub(super) struct TextTurns(Semaphore);

impl Default for TextTurns {
    fn default() -> Self {
        Self(Semaphore::new(QUESTIONS_MAX))
    }
}

impl Gateway {
    /// Asks a head that serves this model; another one if that is lost or too old.
    ///
    /// # Errors
    /// No head serves it, the heads are too old, or the question is refused.
    pub(super) async fn ask_head(&self, model: &ModelRoots, request: TextRequest) -> Result<TextResponse, ApiError> {
        let Ok(Ok(_turn)) = timeout(TURN, self.texts.0.acquire()).await else {
            return Err(ApiError::queue_full(QUESTIONS_MAX, 1));
        };
        let replicas = self.cluster.model_of(model).map_or_else(Vec::new, |served| served.replicas);
        let heads = replicas.iter().filter(|replica| replica.is_serving).take(HEADS_MAX);
        let mut refused = None;
        for replica in heads {
            match self.ask_this_head(&replica.head, request.clone()).await {
                Ok(response) => return Ok(response),
                Err(fault) => {
                    let is_of_head = matches!(fault.kind, FaultKind::PeerOlder { .. })
                        || matches!(fault.kind.class(), FaultClass::Lost | FaultClass::Unreachable);
                    let error = ApiError::from(&fault);
                    if !is_of_head {
                        return Err(error);
                    }
                    refused = Some(error);
                }
            }
        }
        Err(refused.unwrap_or_else(|| self.not_serving(Some(model))))
    }

    async fn ask_this_head(&self, head: &str, request: TextRequest) -> Result<TextResponse, Fault> {
        let session = self.sessions.open(head, &self.identity).await?;
        let mut reply = session.ask(RequestBody::Text(Box::new(request))).await?;
        let body = reply.next("an answer about texts", ANSWER).await?;
        drop(reply);
        let ResponseBody::Text(response) = body else {
            let kind = FaultKind::Malformed { reason: "unexpected response".into() };
            return Err(Fault::new(&session.identity.name, kind));
        };
        self.sessions.keep(head, session);
        Ok(*response)
    }

    /// The tokens that a question gives, with their bytes if it asks for them.
    pub(super) async fn tokens(
        &self,
        model: &ModelRoots,
        request: TextRequest,
    ) -> Result<(Vec<u32>, Vec<Vec<u8>>), ApiError> {
        match self.ask_head(model, request).await? {
            TextResponse::Tokens { ids, pieces } => Ok((ids, pieces)),
            TextResponse::Text { .. } | TextResponse::Described(_) => Err(unexpected()),
        }
    }

    /// The text of tokens.
    pub(super) async fn text_of(&self, model: &ModelRoots, ids: Vec<u32>) -> Result<String, ApiError> {
        self.text(model, TextRequest::Detokenize(ids)).await
    }

    async fn text(&self, model: &ModelRoots, request: TextRequest) -> Result<String, ApiError> {
        match self.ask_head(model, request).await? {
            TextResponse::Text { text, .. } => Ok(text),
            TextResponse::Tokens { .. } | TextResponse::Described(_) => Err(unexpected()),
        }
    }
}

fn unexpected() -> ApiError {
    ApiError::from(&Fault::new("the head", FaultKind::Malformed { reason: "unexpected response".into() }))
}

/// Takes a question, and the model that it names. The rest of the intake must be kept until the answer.
async fn question<T: Send + 'static>(
    gateway: &Gateway,
    request: Request,
    parse: fn(&[u8], Bounds) -> Result<T, ApiError>,
) -> Result<(ServedModel, T, Intake<()>), ApiError> {
    let intake = receive(gateway, request, false, move |bytes, _, bounds| {
        let named = Outline::read(bytes)?.values(&["model"])?;
        Ok((Fields(&named).text("model")?.map(str::to_owned), parse(bytes, bounds)?))
    });
    let Intake { parsed: (named, parsed), held, is_long, arrival, working } = intake.await?;
    let model = gateway.served(named.as_deref()).await?;
    Ok((model, parsed, Intake { parsed: (), held, is_long, arrival, working }))
}

/// POST /tokenize.
pub(super) async fn tokenize(State(gateway): State<Arc<Gateway>>, request: Request) -> Result<Json<Value>, ApiError> {
    let (model, Tokenize { request, form }, _intake) = question(&gateway, request, bodies::tokenize).await?;
    let (ids, pieces) = gateway.tokens(&model.topology.roots(), request).await?;
    let context = model.topology.context_length;
    Ok(Json(match form {
        TokenizeForm::Plain => json!({"tokens": ids}),
        TokenizeForm::Pieces => {
            let entries = ids.iter().zip(&pieces).map(|(id, bytes)| match std::str::from_utf8(bytes) {
                Ok(text) => json!({"id": id, "piece": text}),
                Err(_) => json!({"id": id, "piece": bytes}),
            });
            json!({"tokens": entries.collect::<Vec<_>>()})
        }
        TokenizeForm::Counted { with_texts } => {
            let texts = pieces.iter().map(|bytes| String::from_utf8_lossy(bytes)).collect::<Vec<_>>();
            let texts = with_texts.then_some(texts);
            json!({"count": ids.len(), "max_model_len": context, "tokens": ids, "token_strs": texts})
        }
    }))
}

/// POST /detokenize. llama-server calls the text `content`, vLLM `prompt`.
pub(super) async fn detokenize(State(gateway): State<Arc<Gateway>>, request: Request) -> Result<Json<Value>, ApiError> {
    let (model, request, _intake) = question(&gateway, request, bodies::detokenize).await?;
    let text = gateway.text(&model.topology.roots(), request).await?;
    Ok(Json(json!({"content": text, "prompt": text})))
}

/// POST /apply-template.
pub(super) async fn apply_template(
    State(gateway): State<Arc<Gateway>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (model, request, _intake) = question(&gateway, request, bodies::render).await?;
    let rendered = gateway.ask_head(&model.topology.roots(), request).await?;
    let TextResponse::Text { text, changes } = rendered else {
        return Err(unexpected());
    };
    let mut response = Json(json!({"prompt": text})).into_response();
    name_changes(changes, &mut response);
    Ok(response)
}

/// POST /v1/messages/count_tokens.
pub(super) async fn count_tokens(
    State(gateway): State<Arc<Gateway>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (model, request, _intake) = question(&gateway, request, anthropic::count).await?;
    let (ids, _) = gateway.tokens(&model.topology.roots(), request).await?;
    Ok(Json(json!({"input_tokens": ids.len()})))
}

/// Names the model that a question without a body means.
#[derive(Debug, Deserialize)]
pub(super) struct NamedModel {
    model: Option<String>,
}

/// GET /props.
pub(super) async fn props(
    State(gateway): State<Arc<Gateway>>,
    Query(named): Query<NamedModel>,
) -> Result<Json<Value>, ApiError> {
    let model = gateway.served(named.model.as_deref()).await?;
    let topology = &model.topology;
    // An older head does not report its template; this node has everything else.
    let texts = match gateway.ask_head(&topology.roots(), TextRequest::Describe).await {
        Ok(TextResponse::Described(texts)) => texts,
        Ok(_) | Err(_) => ModelTexts::default(),
    };
    let default = SamplingParameters::default();
    let mut object = json!({
        "default_generation_settings": {
            "n_ctx": topology.context_length,
            "params": {
                "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0,
                "repeat_penalty": 1.0, "repeat_last_n": default.penalty_last_n,
                "presence_penalty": 0.0, "frequency_penalty": 0.0,
                "n_predict": -1, "max_tokens": -1, "stop": [], "stream": false,
            },
        },
        "total_slots": model.slots(),
        "model_alias": topology.model,
        "model_path": topology.model,
        "modalities": {"vision": false, "audio": false},
        "chat_template": texts.template.unwrap_or_default(),
        "bos_token": texts.bos,
        "eos_token": texts.eos,
        "build_info": format!("bramble-{BUILD}"),
    });
    if let Some(template) = texts.template_with_tools {
        object["chat_template_tool_use"] = template.into();
    }
    Ok(Json(object))
}

/// GET /tokenizer_info, as in vLLM: lm-evaluation-harness looks for it before it uses /tokenize.
pub(super) async fn tokenizer_info(
    State(gateway): State<Arc<Gateway>>,
    Query(named): Query<NamedModel>,
) -> Result<Json<Value>, ApiError> {
    let model = gateway.served(named.model.as_deref()).await?;
    let described = gateway.ask_head(&model.topology.roots(), TextRequest::Describe).await?;
    let TextResponse::Described(texts) = described else {
        return Err(unexpected());
    };
    let named = |text: String| (!text.is_empty()).then_some(text);
    let context = model.topology.context_length;
    Ok(Json(json!({
        "tokenizer_class": "Bramble",
        "bos_token": named(texts.bos),
        "eos_token": named(texts.eos),
        "chat_template": texts.template,
        "model_max_length": context,
    })))
}
