//! The options of `console run`.
use clap::{Arg, ArgAction, Args, FromArgMatches};

use crate::cli::{
    Failure,
    shared::{
        confirm::Consent,
        endpoint::Endpoint,
        options::{LayoutChoice, Nodes},
        sampling::Sampling,
    },
};

/// Options of `console run`.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("max_tokens", |argument| argument.default_value("512")))]
#[command(mut_args(|argument| match argument.get_id().as_str() {
    "topology" | "goal" | "context" => argument.conflicts_with("url"),
    _ => argument,
}))]
pub(crate) struct RunOptions {
    /// Model file on the nodes, or a part of its name: bard matches bard-q8_0.gguf; else a name of the catalogue
    /// (console model search) or hf:OWNER/REPO:FILE, which is downloaded [default: the running model, or the only one
    /// that the nodes have]. With --url: the model's name [default: the served model]
    #[arg(value_name = "MODEL")]
    pub(super) model: Option<String>,
    /// Answer this prompt and exit [default: chat, one prompt per line of standard input]
    #[arg(value_name = "PROMPT")]
    pub(super) text: Option<String>,
    /// The same as PROMPT, for use without MODEL
    #[arg(long, value_name = "TEXT", conflicts_with = "text")]
    pub(super) prompt: Option<String>,
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    pub(super) system: Option<String>,
    #[arg(from_global)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) nodes: Nodes,
    #[command(flatten)]
    pub(crate) endpoint: Endpoint,
    #[command(flatten)]
    pub(crate) layout: LayoutChoice,
    #[command(flatten)]
    pub(super) sampling: Sampling,
    #[command(flatten)]
    pub(crate) consent: Consent,
}

impl RunOptions {
    /// The options of `console run MODEL [PROMPT]` on these nodes.
    ///
    /// # Errors
    /// An environment variable of the command has an invalid value.
    pub(crate) fn of(model: &str, prompt: Option<&str>, nodes: &[String]) -> Result<Self, Failure> {
        let json = Arg::new("json").long("json").action(ArgAction::SetTrue);
        let command = Self::augment_args(clap::Command::new("run").arg(json));
        let line = ["run", "--", model].into_iter().chain(prompt);
        let matches = command.try_get_matches_from(line);
        let options = matches.and_then(|matches| Self::from_arg_matches(&matches)).map_err(anyhow::Error::from)?;
        Ok(Self { nodes: Nodes { nodes: nodes.to_vec() }, ..options })
    }

    /// What the command does with the model.
    pub(super) fn purpose(&self) -> &'static str {
        if self.text.is_some() || self.prompt.is_some() { "answer the prompt" } else { "chat" }
    }
}
