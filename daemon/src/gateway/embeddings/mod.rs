//! Embeddings of texts: POST /v1/embeddings of OpenAI, POST /api/embed and the older /api/embeddings of Ollama. Each
//! text is a request to a head, as a completion is.
pub(super) mod body;
mod cut;

use std::{sync::Arc, time::Instant};

use axum::{
    Json,
    extract::{Request, State},
};
use protocol::message::{Generate, Prompt};
use serde_json::{Value, json};
use tokio::{sync::Semaphore, task::JoinSet, time::timeout_at};

use self::body::{EmbeddingForm, EmbeddingsAsked};
use super::{
    Gateway,
    answer::{Answer, Ended, Said},
    error::ApiError,
    intake::{Intake, receive},
    pinned::Pinned,
    request::{RUNNING_MAX, Wish},
};

/// Most times that a text is cut again because its tokens were too many.
const CUTS_MAX: usize = 8;

/// The embeddings of a request.
struct Embedded {
    model: String,
    vectors: Vec<Vec<f32>>,
    prompt_tokens: usize,
}

/// POST /v1/embeddings.
pub(super) async fn openai(State(gateway): State<Arc<Gateway>>, request: Request) -> Result<Json<Value>, ApiError> {
    let intake = receive(&gateway, request, true, |bytes, _, bounds| body::read(bytes, bounds)).await?;
    let form = intake.parsed.form;
    let Embedded { model, vectors, prompt_tokens } = embed(gateway, intake).await?;
    let data = vectors.iter().enumerate().map(|(index, vector)| {
        let embedding = match form {
            EmbeddingForm::Floats => json!(vector),
            EmbeddingForm::Base64 => body::base64(vector).into(),
        };
        json!({"object": "embedding", "index": index, "embedding": embedding})
    });
    Ok(Json(json!({
        "object": "list",
        "data": data.collect::<Vec<_>>(),
        "model": model,
        "usage": {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens},
    })))
}

/// POST /api/embed.
pub(super) async fn ollama(State(gateway): State<Arc<Gateway>>, request: Request) -> Result<Json<Value>, ApiError> {
    let mut intake = receive(&gateway, request, true, |bytes, _, bounds| body::read(bytes, bounds)).await?;
    let begun = intake.arrival.at;
    let name = intake.parsed.model.clone().filter(|name| !name.is_empty());
    intake.parsed.truncates.get_or_insert(true);
    let Embedded { model, vectors, prompt_tokens } = embed(gateway, intake).await?;
    let nanoseconds = begun.elapsed().as_nanos() as u64;
    Ok(Json(json!({
        "model": name.unwrap_or(model), "embeddings": vectors, "total_duration": nanoseconds, "load_duration": 0,
        "prompt_eval_count": prompt_tokens,
    })))
}

/// POST /api/embeddings.
pub(super) async fn ollama_one(State(gateway): State<Arc<Gateway>>, request: Request) -> Result<Json<Value>, ApiError> {
    let mut intake = receive(&gateway, request, true, |bytes, _, bounds| body::read_one(bytes, bounds)).await?;
    intake.parsed.truncates.get_or_insert(true);
    let vectors = embed(gateway, intake).await?.vectors;
    Ok(Json(json!({"embedding": vectors.first()})))
}

/// Computes the embeddings of all texts.
async fn embed(gateway: Arc<Gateway>, intake: Intake<EmbeddingsAsked>) -> Result<Embedded, ApiError> {
    let Intake { parsed: asked, held: _held, working: _working, arrival, .. } = intake;
    let served = gateway.served_for(asked.model.as_deref(), arrival.permission).await?;
    let model = Arc::new(Pinned::new(asked.model, served.topology));
    let turns = Arc::new(Semaphore::new(RUNNING_MAX));
    let (count, truncates) = (asked.wishes.len(), asked.truncates.unwrap_or(false));
    let mut running = JoinSet::new();
    for (index, wish) in asked.wishes.into_iter().enumerate() {
        let (gateway, model, turns) = (Arc::clone(&gateway), Arc::clone(&model), Arc::clone(&turns));
        running.spawn(async move {
            // Never closed.
            let _turn = turns.acquire_owned().await;
            (index, vector_of(&gateway, wish, &model, arrival.at, truncates).await)
        });
    }
    let deadline = arrival.at + gateway.settings.request_max;
    let overdue = ApiError::overdue(gateway.settings.request_max.as_secs());
    let mut found: Vec<Vec<f32>> = vec![Vec::new(); count];
    let mut prompt_tokens = 0;
    loop {
        let next = tokio::select! {
            next = timeout_at(deadline.into(), running.join_next()) => next.map_err(|_| overdue.clone())?,
            () = gateway.cut.cancelled() => return Err(ApiError::shutting_down()),
        };
        let Some(next) = next else { break };
        let (index, computed) = next.map_err(|_| gateway.not_serving(None))?;
        let (mut vector, ended) = computed.map_err(|error| error.about("input"))?;
        gateway.metrics.ended(&ended);
        prompt_tokens += ended.prompt_tokens;
        body::shorten(&mut vector, asked.dimensions)?;
        found[index] = vector;
    }
    Ok(Embedded { model: model.names().0, vectors: found, prompt_tokens })
}

/// The embedding of a text; if it has too many tokens and is to be cut, that of its beginning.
async fn vector_of(
    gateway: &Arc<Gateway>,
    asked: Wish,
    model: &Arc<Pinned>,
    accepted: Instant,
    truncates: bool,
) -> Result<(Vec<f32>, Box<Ended>), ApiError> {
    let whole = Arc::clone(&asked.generate);
    let (mut next, mut most, mut cuts) = (asked, usize::MAX, 0);
    loop {
        let found = vector(Answer::new(Arc::clone(gateway), next, Arc::clone(model), accepted)).await;
        let excess = found.as_ref().err().filter(|_| truncates && cuts < CUTS_MAX).and_then(ApiError::excess);
        let (Some(excess), Prompt::Text(text)) = (excess, &whole.prompt) else { return found };
        (most, cuts) = (cut::next_most(most, excess), cuts + 1);
        let text = cut::cut(gateway, &model.roots(), text, most).await?;
        next = wish(Generate::new(text, whole.max_tokens, whole.sampling.clone(), Vec::new()));
    }
}

/// The embedding of one text.
async fn vector(mut answer: Answer) -> Result<(Vec<f32>, Box<Ended>), ApiError> {
    answer.take_turn(Instant::now());
    let mut vector = Vec::new();
    loop {
        match answer.next().await? {
            Said::Embedded(values) => vector = values,
            Said::Finished(ended) => return Ok((vector, ended)),
            Said::Started { .. } | Said::Scored(_) | Said::Token(_) => {}
        }
    }
}

/// A request for the embedding of a prompt.
fn wish(generate: Generate) -> Wish {
    Wish { generate: Arc::new(generate), seed: 0, prefix: 0, thought_tokens_max: None }
}
