//! The model of `console up`: the running one, the operator's choice, or a recommendation; and its file on the nodes.
use common::units::Bytes;
use telemetry::NodeReport;

use super::{Up, log::SetupLog};
use crate::{
    catalogue::{self, CatalogueEntry, Resolved},
    cli::{
        Failure,
        model::{choice::ModelFiles, provide::Supply},
        shared::{choose::choose as choose_row, output},
        topology::ensure::Reached,
    },
    suggest::did_you_mean,
};

/// Recommended models, the largest first.
const RECOMMENDED: [&str; 5] = ["qwen3.5-9b", "qwen3.5-4b", "llama-3.2-3b", "llama-3.2-1b", "qwen3.5-0.8b"];
/// Bytes of a file that a node reads fast enough for a fluent answer, as the planner predicts for a Pi 5.
const FLUENT_BYTES: u64 = 1_500_000_000;
/// Bytes that a fluent answer allows on top of those of the nodes.
const FLUENT_BASE_BYTES: u64 = 700_000_000;
/// Memory of a node besides its share of the file: KV cache, buffers and the system's reserve.
const RESERVE_BYTES: u64 = 900 << 20;
/// The demo model of the package, which is not recommended if there is another one.
const DEMO: &str = "bard-";

/// A model to choose.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Offer {
    /// As it would be typed.
    name: String,
    /// Where it is.
    note: String,
}

/// The model, and how the nodes that lack it get its file.
///
/// # Errors
/// The model is unknown, none fits, or none was chosen and there is no terminal to ask on.
pub(super) async fn choose(options: &Up, nodes: &[String], log: &mut SetupLog) -> Result<Supply, Failure> {
    let (what, command) = ("choose a model", "console model list");
    let reached = Reached::dial(nodes).await?;
    let files = reached.files(nodes.len()).await?;
    let running = reached.cluster.topology().filter(|_| reached.cluster.serves());
    let running = running.map(|(topology, _)| topology.model.as_str());
    if let Some(typed) = &options.model {
        let supply = Supply::of(typed, running, &files)?;
        let is_unknown = supply.is_settled() && !files.models().contains(&supply.model.as_str());
        if is_unknown && running != Some(supply.model.as_str()) {
            return Err(unknown(typed, &files));
        }
        log.skip(what, command, &format!("--model {typed}: {}", supply.model));
        return Ok(supply);
    }
    if let Some(running) = running {
        log.skip(what, command, &format!("{running} is running"));
        return Supply::of(running, Some(running), &files);
    }
    let reports: Vec<&NodeReport> = reached.cluster.nodes.iter().filter_map(|node| node.report()).collect();
    let memory = reports.iter().filter_map(|report| report.health.memory.as_ref()).map(|memory| memory.available.0);
    let least = memory.min().unwrap_or(0);
    let offers = offers(&files.models(), recommended(nodes.len(), least));
    log.begin(what, command);
    let Some(first) = offers.first() else {
        return Err(Failure::State {
            message: format!(
                "the nodes have no model, and no recommended model fits into {} of memory per node",
                Bytes(least)
            ),
            next: "name a smaller one with --model, or add nodes; console model search lists the catalogue",
        });
    };
    let chosen = if options.consent.yes || log.is_rehearsal() {
        first
    } else {
        let rows: Vec<String> = offers.iter().map(|offer| format!("{}  ({})", offer.name, offer.note)).collect();
        let place = choose_row("models:", &rows, Some(0)).await?;
        place.and_then(|place| offers.get(place)).ok_or_else(|| Failure::Usage {
            message: "no model was chosen, and there is no terminal to ask on".into(),
            next: "pass --model NAME, or --yes for the recommended one",
        })?
    };
    let supply = Supply::of(&chosen.name, None, &files)?;
    log.done(&format!("{} ({})", chosen.name, chosen.note));
    Ok(supply)
}

/// The choices, the default first: the nodes' own files, then the recommendation; the demo model comes last.
fn offers(held: &[&str], recommended: Option<&CatalogueEntry>) -> Vec<Offer> {
    let on_nodes = |name: &&str| Offer { name: (*name).to_owned(), note: "on the nodes".into() };
    let (demo, own): (Vec<&str>, Vec<&str>) = held.iter().partition(|name| name.starts_with(DEMO));
    let new = recommended.filter(|entry| !held.contains(&entry.usual().file_name()));
    let catalogue = new.map(|entry| Offer {
        name: entry.name.into(),
        note: format!("{}, {}, to download", entry.usual().size(), entry.licence),
    });
    own.iter().map(on_nodes).chain(catalogue).chain(demo.iter().map(on_nodes)).collect()
}

/// The largest recommended model that these nodes can hold and run fluently. `least` is the free memory of the smallest
/// node in bytes.
fn recommended(nodes: usize, least: u64) -> Option<&'static CatalogueEntry> {
    let nodes = nodes.max(1) as u64;
    let mut entries = RECOMMENDED.iter().filter_map(|name| match catalogue::resolve(name) {
        Resolved::One(entry, _) => Some(entry),
        _ => None,
    });
    let fluent = FLUENT_BASE_BYTES + FLUENT_BYTES.saturating_mul(nodes);
    entries.find(|entry| {
        let bytes = entry.usual().bytes;
        bytes <= fluent && bytes / nodes + RESERVE_BYTES <= least
    })
}

fn unknown(typed: &str, files: &ModelFiles) -> Failure {
    let catalogue = catalogue::ENTRIES.iter().map(|entry| entry.name);
    let meant = did_you_mean(typed, files.models().into_iter().chain(catalogue));
    let meant = meant.map_or_else(String::new, |text| format!("; {text}"));
    Failure::Usage {
        message: format!("no model is named {}{meant}", output::clean(typed)),
        next: "console model search lists the catalogue, console model list the files of the nodes",
    }
}

/// Gets the model's file to the nodes that lack it.
///
/// # Errors
/// A node or the server fails; the next run continues the transfer.
pub(super) async fn bring(supply: &Supply, log: &mut SetupLog) -> Result<(), Failure> {
    let (what, command) = ("get its file", supply.command());
    if supply.is_settled() {
        log.skip(what, &command, "all nodes have the file");
        return Ok(());
    }
    if log.is_rehearsal() {
        log.plan(what, &command);
        return Ok(());
    }
    log.begin(what, &command);
    let stored = supply.bring().await?;
    let names: Vec<&str> = stored.iter().map(|(name, _)| name.as_str()).collect();
    log.done(&format!("{} is on {}", supply.model, names.join(", ")));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn name(nodes: usize, least: u64) -> Option<&'static str> {
        recommended(nodes, least).map(|entry| entry.name)
    }

    #[test]
    fn recommendation_grows_with_nodes_and_fits_the_smallest() {
        assert_eq!(name(1, 7 * GIB), Some("llama-3.2-3b"), "one node reads no more in time");
        assert_eq!(name(2, 3 * GIB), Some("qwen3.5-4b"));
        assert_eq!(name(4, 3 * GIB), Some("qwen3.5-9b"));
        assert_eq!(name(1, 2 * GIB), Some("llama-3.2-1b"));
        assert_eq!(name(1, GIB), None);
        assert_eq!(name(0, 0), None);
    }

    #[test]
    fn demo_model_is_offered_last_and_files_are_offered_once() {
        let entry = recommended(2, 3 * GIB).expect("it fits");
        let file = entry.usual().file_name();
        let names =
            |held: &[&str]| -> Vec<String> { offers(held, Some(entry)).into_iter().map(|offer| offer.name).collect() };
        assert_eq!(names(&["bard-q8_0.gguf"]), [entry.name, "bard-q8_0.gguf"]);
        assert_eq!(names(&["bard-q8_0.gguf", "tall.gguf"]), ["tall.gguf", entry.name, "bard-q8_0.gguf"]);
        assert_eq!(names(&[file]), [file], "it is there already");
    }
}
