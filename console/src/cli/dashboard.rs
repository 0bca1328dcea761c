//! The dashboard from the command line.
use std::io::IsTerminal;

use tokio::sync::mpsc::channel;

use super::{Failure, options};
use crate::{
    client::{Client, assign::Wanted},
    run::{Cluster, DashboardOptions, dashboard},
};

/// Events that may wait for the screen.
const EVENTS_MAX: usize = 4096;
/// Between two reports of a node.
const WATCH_MS: u32 = 250;

impl Cluster for Client {
    fn assign(&self) {
        Client::assign(self);
    }

    fn generate(&self, request: shared::protocol::message::Generate) {
        Client::generate(self, request);
    }

    fn cancel(&self) {
        Client::cancel(self);
    }
}

/// Opens the dashboard on the nodes that were named.
pub(super) async fn run(options: options::Dashboard) -> Result<u8, Failure> {
    if options.nodes.is_empty() {
        let message = "no nodes named".into();
        let next = "console --nodes A,B,..; or console demo to try it on this machine; or console --help";
        return Err(Failure::Usage { message, next });
    }
    if !has_terminal() {
        let message = "the dashboard needs a terminal".into();
        return Err(Failure::Usage { message, next: "use console status or console generate in scripts" });
    }
    let wanted = options.model.as_deref().map(|model| options.assignment.wanted(options.nodes.len(), model));
    let request = options.sampling.request(String::new(), 0);
    show(options.nodes, wanted, String::new(), request).await
}

/// Whether a screen can be drawn and keys be read.
pub(super) fn has_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

/// Runs the dashboard to its end.
pub(super) async fn show(
    nodes: Vec<String>,
    wanted: Option<Wanted>,
    prompt: String,
    defaults: shared::protocol::message::Generate,
) -> Result<u8, Failure> {
    let (events, received) = channel(EVENTS_MAX);
    let assign = wanted.is_some();
    let client = Client::start(&nodes, wanted, WATCH_MS, events);
    let result = dashboard(DashboardOptions { nodes, assign, prompt, defaults }, &client, received).await;
    client.stop().await;
    Ok(u8::try_from(result?).unwrap_or(1))
}
