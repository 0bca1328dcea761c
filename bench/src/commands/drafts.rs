//! `bramble-bench drafts`: completes the same prompts alternately with and without speculative decoding on one server.
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use console::{
    cli::toolkit::{Endpoint, Failure, Interrupts, output},
    http::{Api, Ask, HttpProgress, Kind, new_request_id, stream},
};
use serde_json::{Value, json};

use crate::measurement::drafts::{Answered, DraftPrompt, DraftsResult, prompts, table};

/// Options of `bramble-bench drafts`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Drafts {
    /// Name of the model [default: the served model]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Use this prompt instead of the fixed set; repeatable
    #[arg(long, value_name = "TEXT")]
    prompt: Vec<String>,
    /// Output length in tokens
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = clap::value_parser!(u32).range(8..=4096))]
    max_tokens: u32,
    /// Repeats per prompt and mode, of which the median is reported
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=99))]
    repeats: u16,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    endpoint: Endpoint,
}

/// Runs the command. Exit code 1 if speculative decoding slows a prompt down or changes its text.
pub(crate) async fn run(options: Drafts) -> Result<u8, Failure> {
    let apis = options.endpoint.apis();
    if apis.len() != 1 {
        let message = format!("{} URLs given, expected one", apis.len());
        return Err(Failure::Usage { message, next: "pass one: --url http://NODE:9980" });
    }
    let mut interrupts = Interrupts::listen()?;
    let model = interrupts.end(options.endpoint.model(&apis, options.model.as_deref())).await?;
    let server = Server { apis, model, max_tokens: options.max_tokens, patience: options.endpoint.patience() };
    let mut found = Vec::new();
    // Warm up: the server learns the step latencies and reads all pages of the model.
    interrupts.end(server.answer("warm", true)).await?;
    for prompt in options.prompts() {
        found.push(interrupts.end(server.compare(&prompt, options.repeats)).await?);
    }
    if options.json {
        let rows: Vec<Value> = found.iter().map(object).collect();
        output::line(&json!({"model": server.model, "max_tokens": options.max_tokens, "repeats": options.repeats, "prompts": rows}).to_string());
    } else {
        table(&found).iter().for_each(|line| output::line(&output::clean(line)));
    }
    Ok(u8::from(found.iter().any(DraftsResult::is_slower)))
}

fn object(found: &DraftsResult) -> Value {
    let mut object = json!(found);
    object["ratio"] = json!(found.ratio());
    object
}

impl Drafts {
    fn prompts(&self) -> Vec<DraftPrompt> {
        if self.prompt.is_empty() {
            return prompts();
        }
        let numbered = self.prompt.iter().enumerate();
        numbered
            .map(|(index, text)| DraftPrompt {
                name: format!("prompt {}", index + 1),
                text: text.clone(),
                is_repetitive: false,
            })
            .collect()
    }
}

struct Server {
    apis: Vec<Api>,
    model: String,
    max_tokens: u32,
    patience: Duration,
}

impl Server {
    async fn compare(&self, prompt: &DraftPrompt, repeats: u16) -> Result<DraftsResult, Failure> {
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for _ in 0..repeats {
            let (text, answered) = self.answer(&prompt.text, true).await?;
            let (plain, other) = self.answer(&prompt.text, false).await?;
            if text != plain {
                let name = &prompt.name;
                return Err(anyhow!(
                    "speculative decoding changes the answer to {name:?}: {text:?}, without it {plain:?}; \
                     this is a bug, report it with the model's name"
                )
                .into());
            }
            with.push(answered);
            without.push(other);
        }
        Ok(DraftsResult::of(prompt, &with, &without))
    }

    /// The greedy completion of exactly `max_tokens` tokens, and the server's timings.
    async fn answer(&self, prompt: &str, has_drafts: bool) -> Result<(String, Answered), Failure> {
        let mut body = json!({"model": self.model, "prompt": prompt, "max_tokens": self.max_tokens, "temperature": 0, "ignore_eos": true});
        if !has_drafts {
            body["speculative.n_max"] = json!(0);
        }
        let ask = Ask { kind: Kind::Text, body, request_id: new_request_id() };
        let answer = stream(&self.apis, &ask, self.patience, &mut |_: HttpProgress<'_>| {}).await?;
        let whole = |name: &str| answer.timings[name].as_u64().unwrap_or_default();
        let Some(token_ms) = answer.timings["predicted_per_token_ms"].as_f64().filter(|time| *time > 0.0) else {
            let message = "the server reports no timings".to_owned();
            return Err(Failure::State { message, next: "pass the --url of a Bramble node" });
        };
        Ok((answer.text, Answered { token_ms, drafted: whole("draft_n"), accepted: whole("draft_n_accepted") }))
    }
}
