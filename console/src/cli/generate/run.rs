//! `console run`: answers a prompt with a model, or chats with it: on the nodes of the cluster, or with `--url` over the
//! HTTP API. On the nodes, the model may be named by a part of its file name, or by its name in the catalogue; if the
//! nodes lack its file, it is downloaded, and if it does not run yet, the planner chooses a layout and the topology is
//! assigned.
use serde_json::Value;

use super::{
    chat::{ChatLoop, Responder},
    cluster_chat::ClusterChat,
    http_chat::HttpChat,
    run_options::RunOptions,
};
use crate::{
    cli::{
        Failure,
        model::{
            choice::ModelFiles,
            provide::{Origin, Supply},
        },
        shared::{interrupts::Interrupts, output},
        topology::ensure::{Obtained, Reached, obtain_from},
    },
    suggest::did_you_mean,
};

/// Runs the command.
pub(crate) async fn run(mut options: RunOptions) -> Result<u8, Failure> {
    let mut interrupts = Interrupts::listen()?;
    if !options.endpoint.url.is_empty() {
        let prompt = options.text.as_ref().or(options.prompt.as_ref());
        if options.consent.dry_run {
            let what = format!("{} over the HTTP API given by --url", options.purpose());
            options.consent.obtain(&what, &Value::Null, options.json).await?;
            return Ok(0);
        }
        let conversation = interrupts.end(HttpChat::start(&options)).await?;
        return converse(conversation, &options, prompt, &mut interrupts).await;
    }
    let Some(obtained) = interrupts.end(obtained(&mut options)).await? else { return Ok(0) };
    let prompt = options.text.as_ref().or(options.prompt.as_ref());
    converse(ClusterChat::start(&options, obtained), &options, prompt, &mut interrupts).await
}

/// The topology of the model, after its file was brought to the nodes that lack it. `None` after a dry run.
async fn obtained(options: &mut RunOptions) -> Result<Option<Obtained>, Failure> {
    let nodes = options.nodes.nodes.clone();
    let mut reached = Reached::dial(&nodes).await?;
    let running = reached.cluster.topology().map(|(topology, _)| topology.model.clone());
    let files = reached.files(nodes.len()).await?;
    let supply = name_model(options, running.as_deref(), &files)?;
    let asked = options.layout.asked(&supply.model);
    if !supply.is_settled() && !reached.has_serving(&asked) {
        let has_brought = supply.bring_asked(options.consent, options.json).await?;
        if options.consent.dry_run {
            return Ok(None);
        }
        if has_brought {
            reached = Reached::dial(&nodes).await?;
        }
    }
    obtain_from(&reached, nodes.len(), &asked, options.purpose(), options.consent, options.json).await
}

/// The model of the command. A single argument of several words that names no model is the prompt for the model that
/// would be used without a name.
fn name_model(options: &mut RunOptions, running: Option<&str>, files: &ModelFiles) -> Result<Supply, Failure> {
    let typed = options.model.clone().unwrap_or_default();
    let supply = Supply::of(&typed, running, files)?;
    let models = files.models();
    let is_known = supply.origin != Origin::Unknown || models.contains(&supply.model.as_str());
    let is_prompt = typed.trim().contains(char::is_whitespace)
        && options.text.is_none()
        && options.prompt.is_none()
        && !is_known
        && running != Some(&supply.model)
        && did_you_mean(&typed, models).is_none();
    if !is_prompt {
        return Ok(supply);
    }
    let supply = Supply::of("", running, files)?;
    output::note(&output::clean(&format!("no model has this name, so it is the prompt for {}", supply.model)));
    options.text = options.model.replace(supply.model.clone());
    Ok(supply)
}

/// Answers one prompt, or those of standard input.
async fn converse(
    responder: impl Responder,
    options: &RunOptions,
    prompt: Option<&String>,
    interrupts: &mut Interrupts,
) -> Result<u8, Failure> {
    let chat = ChatLoop::new(responder, options.system.as_deref());
    match prompt {
        Some(prompt) => chat.once(prompt, interrupts).await,
        None => chat.run(interrupts).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BARD: &str = "bard-q8_0.gguf";

    fn named(model: &str, text: Option<&str>, running: Option<&str>) -> (String, Option<String>) {
        let mut options = RunOptions::of(model, text, &[]).expect("the environment is valid");
        let files = ModelFiles::of(&[("pi1", &[BARD, "tall-q8_0.gguf"])]);
        let supply = name_model(&mut options, running, &files);
        let model = supply.map_or_else(|failure| failure.to_string(), |supply| supply.model);
        (model, options.text)
    }

    #[test]
    fn single_argument_of_several_words_is_a_prompt_unless_it_resembles_a_model() {
        assert_eq!(named("hello there", None, Some(BARD)), (BARD.into(), Some("hello there".into())));
        assert_eq!(named("bard q8", None, None), (BARD.into(), None), "spaces do not matter in names");
        assert_eq!(named("bart q8", None, None), ("bart q8".into(), None), "a typing error stays a name");
        assert_eq!(named("hello", None, Some(BARD)).1, None, "one word is a name");
        let (message, text) = named("hello there", None, None);
        assert!(message.contains("several") && text.is_none(), "two models, and none runs: {message}");
        assert_eq!(named("hello there", Some("x"), Some(BARD)).1.as_deref(), Some("x"));
    }
}
