//! `console topology take-over`: the reachable members continue without the lost ones.
use serde_json::json;

use crate::{
    cli::{
        Failure,
        node::dial,
        shared::{confirm::Consent, options::Nodes, output},
    },
    client::recovery::take_over,
};

/// Options of `console topology take-over`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TakeOver {
    #[command(flatten)]
    pub(super) nodes: Nodes,
    #[command(flatten)]
    consent: Consent,
    #[arg(from_global)]
    pub(super) json: bool,
}

/// Runs `console topology take-over`.
pub(super) async fn run(options: &TakeOver) -> Result<u8, Failure> {
    options.consent.check()?;
    let cluster = dial(&options.nodes, None).await;
    let question =
        "Do the unreachable members serve no clients any more? If so, the remaining members continue without them.";
    if !options.consent.obtain(question, &serde_json::Value::Null, options.json).await? {
        return Ok(0);
    }
    let names = take_over(&cluster).await?;
    if options.json {
        output::line(&json!({"told": names}).to_string());
    } else {
        let names: Vec<String> = names.iter().map(|name| output::clean(name)).collect();
        output::line(&format!(
            "{} may continue without the others; run console status to see when the cluster serves",
            names.join(", ")
        ));
    }
    Ok(0)
}
