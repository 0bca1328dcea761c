//! `console topology assign`: assigns a topology file, or shows with `--dry-run` what that would load on each node.
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::{choose_layout::warn_past_knee, ensure::Reached, file::read, preview::Preview};
use crate::cli::{
    Failure,
    model::choice::advised,
    shared::{
        confirm::{Consent, dry_run_object},
        output,
        sessions::assign_and_tell,
    },
};

/// Options of `console topology assign`.
#[derive(Clone, Debug, Args)]
pub(crate) struct AssignFile {
    /// Topology file (TOML): the model, and for each stage a [[stage]] with nodes, weights and layers
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[arg(from_global)]
    json: bool,
    #[command(flatten)]
    consent: Consent,
}

/// Runs `console topology assign`.
pub(super) async fn run(options: &AssignFile) -> Result<u8, Failure> {
    options.consent.check()?;
    let consent = options.consent;
    let (nodes, wanted) = read(&options.file)?;
    let reached = Reached::dial(&nodes).await?;
    let sessions = reached.usable(nodes.len())?;
    let names: Vec<String> = sessions.iter().map(|session| output::clean(&session.identity.name)).collect();
    let what = format!("{} with {}", wanted.layout, output::clean(&wanted.model));
    let count = if names.len() == 1 { "1 node".to_owned() } else { format!("{} nodes", names.len()) };
    // The warning must precede the confirmation.
    let forecast = warn_past_knee(sessions, &wanted).await;
    let losses = reached.losses(None);
    let question = match &losses {
        Some((lost, _)) => format!("Replace {lost} by {what} on {count}?"),
        None => format!("Assign {what} to {count}?"),
    };
    let replaces = losses.map(|(_, object)| object);
    let mut plan =
        json!({"topology": wanted.layout.to_string(), "model": wanted.model, "nodes": names, "replaces": replaces});
    if consent.dry_run {
        let preview = match Preview::of(sessions, &wanted).await {
            Ok(preview) => preview,
            Err(failure) => return Err(advised(failure, sessions).await),
        };
        plan["members"] = preview.members();
        plan["warning"] = json!(forecast.as_ref().and_then(|forecast| forecast.warning.as_ref()));
        plan["links"] = json!(forecast.as_ref().map(|forecast| &forecast.links));
        return show(&question, &plan, &preview, options).await;
    }
    consent.obtain(&question, &plan, options.json).await?;
    reached.spread().await;
    let assigned = match assign_and_tell(sessions, &wanted).await {
        Ok(assigned) => assigned,
        Err(failure) => return Err(advised(failure, sessions).await),
    };
    reached.introduce().await;
    let (layout, epoch) = (assigned.topology.layout.to_string(), assigned.epoch.0);
    if options.json {
        output::line(&json!({"topology": layout, "epoch": epoch, "reused": assigned.reused}).to_string());
    } else {
        let how = if assigned.reused { "is already running" } else { "is running" };
        output::line(&format!("{layout} {how}, epoch {epoch}"));
    }
    Ok(0)
}

/// Shows what the assignment would load.
///
/// # Errors
/// A node has too little memory. With `--json`, the object contains this error, and the exit code is returned.
async fn show(question: &str, plan: &Value, preview: &Preview, options: &AssignFile) -> Result<u8, Failure> {
    let short = preview.check_memory();
    if let (true, Err(fault)) = (options.json, &short) {
        return Ok(Failure::from(fault.clone()).report_in(dry_run_object(question, plan)));
    }
    options.consent.obtain(question, plan, options.json).await?;
    if !options.json {
        preview.print();
    }
    short?;
    Ok(0)
}
