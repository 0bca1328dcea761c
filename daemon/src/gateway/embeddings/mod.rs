//! Embeddings of texts: POST /v1/embeddings of OpenAI and POST /api/embed of Ollama. Each text is a request to a head,
//! as a completion is.
pub(super) mod body;

use std::{sync::Arc, time::Instant};

use axum::{
    Json,
    extract::{Request, State},
};
use serde_json::{Value, json};
use tokio::{sync::Semaphore, task::JoinSet, time::timeout_at};

use self::body::{EmbeddingForm, EmbeddingsAsked};
use super::{
    Gateway,
    answer::{Answer, Ended, Said},
    error::ApiError,
    intake::{Intake, receive},
    ollama::plain_name,
    pinned::Pinned,
    request::{RUNNING_MAX, Wish},
};

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
    let name = intake.parsed.model.take().filter(|name| !name.is_empty());
    intake.parsed.model = name.as_deref().map(|name| plain_name(name).to_owned());
    let Embedded { model, vectors, prompt_tokens } = embed(gateway, intake).await?;
    let nanoseconds = begun.elapsed().as_nanos() as u64;
    Ok(Json(json!({
        "model": name.unwrap_or(model), "embeddings": vectors, "total_duration": nanoseconds, "load_duration": 0,
        "prompt_eval_count": prompt_tokens,
    })))
}

/// Computes the embeddings of all texts.
async fn embed(gateway: Arc<Gateway>, intake: Intake<EmbeddingsAsked>) -> Result<Embedded, ApiError> {
    let Intake { parsed: asked, held: _held, working: _working, arrival, .. } = intake;
    let served = gateway.served_for(asked.model.as_deref(), arrival.permission).await?;
    let model = Arc::new(Pinned::new(asked.model, served.topology));
    let turns = Arc::new(Semaphore::new(RUNNING_MAX));
    let count = asked.wishes.len();
    let mut running = JoinSet::new();
    for (index, wish) in asked.wishes.into_iter().enumerate() {
        let answer = Answer::new(Arc::clone(&gateway), wish, Arc::clone(&model), arrival.at);
        let turns = Arc::clone(&turns);
        running.spawn(async move {
            // Never closed.
            let _turn = turns.acquire_owned().await;
            (index, vector(answer).await)
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
fn wish(generate: protocol::message::Generate) -> Wish {
    Wish { generate: Arc::new(generate), seed: 0, prefix: 0, thought_tokens_max: None }
}
