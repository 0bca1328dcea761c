//! The dashboard from the command line.
use std::io::IsTerminal;

use shared::protocol::message::Generate;

use super::{Failure, arrange::Session, first, options};
use crate::{
    client::{Client, with_port},
    run::{DashboardOptions, dashboard},
    state::GenerateDefaults,
    wanted::Asked,
};

/// Between two reports of a node.
const WATCH_MS: u32 = 250;

/// Opens the dashboard on the nodes that were named.
pub(super) async fn run(mut options: options::Dashboard, readonly: bool) -> Result<u8, Failure> {
    if options.nodes.is_empty() && has_terminal() {
        options.nodes = first::ask().await?;
    }
    if options.nodes.is_empty() {
        let message = "no nodes named".into();
        let next = "console --nodes A,B,..; or console demo to try it on this machine; or console --help";
        return Err(Failure::Usage { message, next });
    }
    if !has_terminal() {
        let message = "the dashboard needs a terminal".into();
        return Err(Failure::Usage { message, next: "use console status or console generate in scripts" });
    }
    let asked = options.model.as_deref().map(|model| options.assignment.asked(model));
    let request = options.sampling.request(String::new(), 0);
    show(options.nodes, asked, String::new(), request, readonly, options.session).await
}

/// Whether a screen can be drawn and keys be read.
pub(super) fn has_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

/// Runs the dashboard to its end. `request` is what each prompt is sent with; a `readonly` one only looks.
pub(super) async fn show(
    nodes: Vec<String>,
    asked: Option<Asked>,
    prompt: String,
    request: Generate,
    readonly: bool,
    session: Session,
) -> Result<u8, Failure> {
    let defaults = GenerateDefaults { max_tokens: request.max_tokens, sampling: request.sampling, stop: request.stop };
    let nodes: Vec<String> = nodes.iter().map(|node| with_port(node)).collect();
    let (desk, record) = (session.arrange.desk()?, session.record);
    let options = DashboardOptions { nodes, asked, prompt, defaults, desk, record, readonly };
    let code = dashboard(options, |nodes, events| Client::start(&nodes, WATCH_MS, events)).await;
    let code = code.map_err(anyhow::Error::from)?;
    Ok(u8::try_from(code).unwrap_or(1))
}
