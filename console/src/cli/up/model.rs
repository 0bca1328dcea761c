//! The model of `console up`: the running one, the operator's choice, or a recommendation; and its file on the nodes.
use common::units::Bytes;
use planner::search::Goal;

use super::{Up, log::SetupLog};
use crate::{
    catalogue::{self, CatalogueEntry, Resolved},
    cli::{
        Failure,
        model::{choice::ModelFiles, provide::Supply},
        shared::{choose::choose as choose_row, output},
        topology::ensure::Reached,
    },
    operator::{
        fit::{Fit, fit},
        planner_query::PlannerNode,
    },
    suggest::did_you_mean,
};

/// Recommended models, the largest first.
const RECOMMENDED: [&str; 5] = ["qwen3.5-9b", "qwen3.5-4b", "llama-3.2-3b", "llama-3.2-1b", "qwen3.5-0.8b"];
/// Tokens per second from which an answer reads fluently: about the speed of a person who reads.
const FLUENT: f64 = 5.0;
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
        return Ok(supply.unless_served(&reached.cluster));
    }
    if let Some(running) = running {
        log.skip(what, command, &format!("{running} is running"));
        return Ok(Supply::of(running, Some(running), &files)?.unless_served(&reached.cluster));
    }
    let planned = reached.cluster.planner_nodes();
    let least = planned.iter().map(|node| node.memory).min().unwrap_or(0);
    // Planning takes a while with many nodes.
    let recommendation =
        tokio::task::spawn_blocking(move || recommended(&planned)).await.map_err(anyhow::Error::from)?;
    let offers = offers(&files.models(), recommendation);
    log.begin(what, command);
    let Some(first) = offers.first() else {
        return Err(Failure::State {
            message: format!(
                "the nodes have no model, and no recommended model fits (least free memory of a node: {})",
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

/// A recommended model, and how the planner would run it.
type Recommendation = (&'static CatalogueEntry, Fit);

/// The choices, the default first: the nodes' own files, then the recommendation; the demo model comes last.
fn offers(held: &[&str], recommended: Option<Recommendation>) -> Vec<Offer> {
    let on_nodes = |name: &&str| Offer { name: (*name).to_owned(), note: "on the nodes".into() };
    let (demo, own): (Vec<&str>, Vec<&str>) = held.iter().partition(|name| name.starts_with(DEMO));
    let new = recommended.filter(|(entry, _)| !held.contains(&entry.usual().file_name()));
    let catalogue = new.map(|(entry, fit)| Offer {
        name: entry.name.into(),
        note: format!("{} to download, {}; fits: {}", entry.usual().size(), entry.licence, fit.text()),
    });
    own.iter().map(on_nodes).chain(catalogue).chain(demo.iter().map(on_nodes)).collect()
}

/// The largest recommended model that the planner expects to run fluently on these nodes; if there is none, the smallest
/// that fits. Nodes that share a machine count once, because the planner cannot predict how they slow each other down.
fn recommended(nodes: &[PlannerNode]) -> Option<Recommendation> {
    let mut apart: Vec<PlannerNode> = Vec::new();
    for node in nodes {
        if apart.iter().all(|other| other.machine != node.machine) {
            apart.push(PlannerNode { place: apart.len(), ..node.clone() });
        }
    }
    let mut smallest = None;
    for name in RECOMMENDED {
        let Resolved::One(entry, _) = catalogue::resolve(name) else { continue };
        let fit = fit(entry, entry.usual(), &apart, Goal::Balanced);
        let Fit::As { tokens_per_second, .. } = fit else { continue };
        if tokens_per_second.is_some_and(|rate| rate >= FLUENT) {
            return Some((entry, fit));
        }
        smallest = Some((entry, fit));
    }
    smallest
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
        log.skip(what, &command, "the nodes that need the file have it");
        return Ok(());
    }
    if log.is_rehearsal() {
        log.plan(what, &command);
        return Ok(());
    }
    log.begin(what, &command);
    let stored = supply.bring().await?;
    let mut names: Vec<&str> = stored.iter().map(|(name, _)| name.as_str()).collect();
    // A node is named for each file that it got, in the order of the nodes.
    names.dedup();
    log.done(&format!("{} is on {}", supply.model, names.join(", ")));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::fit::hypothetical;

    fn name(nodes: usize, gib: u64) -> Option<&'static str> {
        recommended(&hypothetical(nodes, gib << 30)).map(|(entry, _)| entry.name)
    }

    #[test]
    fn recommendation_is_the_largest_model_that_runs_fluently() {
        assert_eq!(name(1, 7), Some("llama-3.2-3b"), "larger ones fit, but are slow on one node");
        assert_eq!(name(2, 3), Some("qwen3.5-4b"));
        assert_eq!(name(4, 3), Some("qwen3.5-9b"));
        assert_eq!(name(1, 2), Some("llama-3.2-1b"));
        assert_eq!(name(1, 0), None);
        assert_eq!(name(0, 7), None);
    }

    #[test]
    fn nodes_on_one_machine_count_once() {
        let mut nodes = hypothetical(4, 7 << 30);
        let machine = nodes[0].machine.clone();
        nodes.iter_mut().for_each(|node| node.machine.clone_from(&machine));
        assert_eq!(recommended(&nodes).map(|(entry, _)| entry.name), name(1, 7));
    }

    #[test]
    fn demo_model_is_offered_last_and_files_are_offered_once() {
        let best = recommended(&hypothetical(2, 3 << 30)).expect("it fits");
        let file = best.0.usual().file_name();
        let names = |held: &[&str]| -> Vec<String> {
            offers(held, Some(best.clone())).into_iter().map(|offer| offer.name).collect()
        };
        let name = best.0.name;
        assert_eq!(names(&["bard-q8_0.gguf"]), [name, "bard-q8_0.gguf"]);
        assert_eq!(names(&["bard-q8_0.gguf", "tall.gguf"]), ["tall.gguf", name, "bard-q8_0.gguf"]);
        assert_eq!(names(&[file]), [file], "it is there already");
        let note = &offers(&[], Some(best)).remove(0).note;
        assert!(note.contains("fits: tp2, about "), "{note}");
    }
}
