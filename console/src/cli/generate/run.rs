//! `console run`: answers a prompt with a model, or chats with it: on the nodes of the cluster, or with `--url` over the
//! HTTP API. On the nodes, the model may be named by a part of its file name; if it does not run yet, the planner
//! chooses a layout and the topology is assigned.
use serde_json::Value;

use super::{
    chat::{Conversation, chat},
    cluster_chat::ClusterChat,
    http_chat::HttpChat,
    run_options::RunOptions,
};
use crate::cli::{Failure, shared::interrupts::Interrupts, topology::ensure::obtain};

/// Runs the command.
pub(crate) async fn run(options: RunOptions) -> Result<u8, Failure> {
    let mut interrupts = Interrupts::listen()?;
    let prompt = options.text.as_ref().or(options.prompt.as_ref());
    let purpose = if prompt.is_some() { "answer the prompt" } else { "chat" };
    if !options.endpoint.url.is_empty() {
        if options.consent.dry_run {
            let what = format!("{purpose} over the HTTP API given by --url");
            options.consent.obtain(&what, &Value::Null, options.json).await?;
            return Ok(0);
        }
        let conversation = interrupts.end(HttpChat::start(&options)).await?;
        return converse(conversation, prompt, &mut interrupts).await;
    }
    let asked = options.layout.asked(options.model.as_deref().unwrap_or_default());
    let obtained = obtain(&options.nodes.nodes, &asked, purpose, options.consent, options.json);
    let Some(obtained) = interrupts.end(obtained).await? else { return Ok(0) };
    converse(ClusterChat::start(&options, obtained), prompt, &mut interrupts).await
}

/// Answers one prompt, or those of standard input.
async fn converse(
    mut conversation: impl Conversation,
    prompt: Option<&String>,
    interrupts: &mut Interrupts,
) -> Result<u8, Failure> {
    match prompt {
        Some(prompt) => Ok(conversation.turn(prompt, interrupts).await?.unwrap_or(0)),
        None => chat(conversation, interrupts).await,
    }
}
