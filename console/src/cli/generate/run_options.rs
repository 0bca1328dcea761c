//! The options of `console run`.
use clap::Args;

use crate::cli::shared::{
    confirm::Consent,
    endpoint::Endpoint,
    options::{LayoutChoice, Nodes},
    sampling::Sampling,
};

/// Options of `console run`.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("max_tokens", |argument| argument.default_value("512")))]
#[command(mut_args(|argument| match argument.get_id().as_str() {
    "topology" | "goal" | "context" => argument.conflicts_with("url"),
    _ => argument,
}))]
pub(crate) struct RunOptions {
    /// Model file on the nodes, or a part of its name: bard matches bard-q8_0.gguf [default: the running model, or the
    /// only one that the nodes have]. With --url: the model's name [default: the served model]
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
    pub(super) json: bool,
    #[command(flatten)]
    pub(crate) nodes: Nodes,
    #[command(flatten)]
    pub(crate) endpoint: Endpoint,
    #[command(flatten)]
    pub(super) layout: LayoutChoice,
    #[command(flatten)]
    pub(super) sampling: Sampling,
    #[command(flatten)]
    pub(super) consent: Consent,
}
