//! `console topology take-over`: the reachable members continue without the lost ones.
use serde_json::{Value, json};

use crate::{
    cli::{
        Failure,
        node::dial,
        shared::{confirm::Consent, options::Nodes, output, silent::SilentNodes},
    },
    client::recovery::{TakenOver, take_over},
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
    if !options.consent.obtain(question, &Value::Null, options.json).await? {
        return Ok(0);
    }
    let TakenOver { told, refused } = take_over(&cluster).await?;
    let silent = SilentNodes::of(&cluster);
    if options.json {
        let refused: Value = refused.iter().map(Failure::error_object).collect();
        output::line(&json!({"told": told, "refused": refused, "away": silent.objects()}).to_string());
    } else {
        let names: Vec<String> = told.iter().map(|name| output::clean(name)).collect();
        refused.iter().for_each(|fault| output::note(&output::clean(&format!("{fault}; {}", fault.next()))));
        silent.lines().iter().for_each(|line| output::note(line));
        output::line(&format!(
            "{} may continue without the others; run console status to see when the cluster serves",
            names.join(", ")
        ));
    }
    Ok(0)
}
