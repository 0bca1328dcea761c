//! Opens the dashboard from the command line.
mod first_run;
mod keys;
pub(crate) mod preferences;
pub(crate) mod replay;
pub(crate) mod screen;

use std::io::IsTerminal;

use clap::Args;
use protocol::message::Generate;

use self::preferences::Session;
use crate::cli::{
    Failure,
    shared::{options::Assignment, sampling::Sampling},
};
use crate::{
    client::{Client, with_port},
    operator::desired::TopologyRequest,
    run::{DashboardOptions, dashboard},
    state::GenerateDefaults,
};

/// Options of the dashboard.
#[derive(Clone, Debug, Args)]
pub(crate) struct Dashboard {
    #[arg(skip)]
    pub(crate) nodes: Vec<String>,
    /// Model file name. Unless the model is already served, it is assigned when the dashboard opens. Replacing a
    /// running topology requires a confirmation
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    #[command(flatten)]
    pub(crate) assignment: Assignment,
    #[command(flatten)]
    pub(crate) sampling: Sampling,
    #[command(flatten)]
    pub(crate) session: Session,
}

/// Interval of the reports of a node, in milliseconds.
const WATCH_MS: u32 = 250;

/// Opens the dashboard on the given nodes.
pub(crate) async fn run(mut options: Dashboard, readonly: bool) -> Result<u8, Failure> {
    if options.nodes.is_empty() && has_terminal() {
        options.nodes = first_run::ask().await?;
    }
    if options.nodes.is_empty() {
        let message = "no nodes given".into();
        let next = "run console --nodes A,B,.., or try console demo on this machine, or see console --help";
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

/// Whether this process can render a screen and read keys.
pub(crate) fn has_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

/// Runs the dashboard until it is closed. Each prompt is sent with the parameters of `request`. `readonly`: the
/// dashboard changes nothing.
pub(crate) async fn show(
    nodes: Vec<String>,
    asked: Option<TopologyRequest>,
    prompt: String,
    request: Generate,
    readonly: bool,
    session: Session,
) -> Result<u8, Failure> {
    let defaults = GenerateDefaults { max_tokens: request.max_tokens, sampling: request.sampling, stop: request.stop };
    let nodes: Vec<String> = nodes.iter().map(|node| with_port(node)).collect();
    let (desk, record, tour) = (session.arrange.desk()?, session.record, session.tour);
    let options = DashboardOptions { nodes, asked, prompt, defaults, desk, record, readonly, tour };
    // On the heap: the state of the dashboard is large.
    let code = Box::pin(dashboard(options, |nodes, events| Client::start(&nodes, WATCH_MS, events))).await;
    let code = code.map_err(anyhow::Error::from)?;
    Ok(u8::try_from(code).unwrap_or(1))
}
