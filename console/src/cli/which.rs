//! Which nodes a command speaks to where the command line names none: those of a cluster that is kept, else those that announce themselves.
//! Works on the command line itself, so that every command that takes `--nodes` is served alike.
use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{ArgMatches, parser::ValueSource};

use super::{Failure, clusters, command, dashboard::has_terminal, discover, output};
use crate::clusters::{Clusters, Kept, default_path};

/// How long nodes are listened for where nothing else names any.
const LISTEN: Duration = Duration::from_millis(1500);

/// What to do where there is no node.
const NEXT: &str = "console clusters add NAME NODE.. keeps them; or --nodes A,B,.., or BRAMBLE_NODES; console discover looks for them, \
                    console demo needs none";

/// Commands that only look may ask whoever announces itself; those that act want to be told whom.
const LOOKING: &[&[&str]] = &[
    &[],
    &["status"],
    &["sync"],
    &["requests"],
    &["events"],
    &["logs"],
    &["doctor"],
    &["support-bundle"],
    &["node", "show"],
    &["topology", "show"],
    &["model", "list"],
    &["ok-to-stop"],
];

/// What a command line says of nodes.
#[derive(Debug, PartialEq)]
enum Says {
    /// Nothing is to be added.
    Enough,
    /// A cluster by name, and whether nodes are typed, too.
    Cluster { name: String, typed: bool, positional: bool },
    /// It needs nodes and names none; whether it only looks.
    Nothing { looks: bool },
}

/// A command line with nodes.
#[derive(Debug, PartialEq)]
pub(super) struct Completed {
    /// The command line.
    pub(super) line: Vec<OsString>,
    /// The key of the cluster that was chosen.
    pub(super) key: Option<PathBuf>,
    /// The nodes were found by listening.
    pub(super) found: bool,
}

/// Adds nodes to a command line that needs some and names none.
///
/// # Errors
/// There are none, the cluster is unknown, or its file is refused.
pub(super) fn complete(line: Vec<OsString>) -> Result<Completed, Failure> {
    let as_it_is = |line| Completed { line, key: None, found: false };
    match says(&line) {
        Says::Enough => Ok(as_it_is(line)),
        Says::Cluster { name, typed, positional } => {
            if typed {
                let message = "--cluster and --nodes both say which nodes".into();
                return Err(Failure::Usage { message, next: "leave out one of them" });
            }
            let path = clusters::path()?;
            let mut known = Clusters::read(&path)?;
            let Kept { nodes, key } = known.named(&name)?.clone();
            remember(&mut known, &name, &path);
            Ok(Completed { line: with(line, &nodes, positional), key, found: false })
        }
        Says::Nothing { looks } => {
            // A line that is wrong for another reason is told so at once.
            let tried = with(line.clone(), &["127.0.0.1:1".into()], false);
            if command().try_get_matches_from(tried).is_err() {
                return Ok(as_it_is(with(line, &["127.0.0.1:1".into()], false)));
            }
            let known = default_path().map_or_else(|| Ok(Clusters::default()), |path| Clusters::read(&path))?;
            if let Some((name, kept)) = known.default_cluster() {
                tracing::info!(name, "cluster used");
                return Ok(Completed { line: with(line, &kept.nodes, false), key: kept.key.clone(), found: false });
            }
            let found = if looks { listen() } else { Vec::new() };
            let is_dashboard = command().ignore_errors(true).try_get_matches_from(&line);
            if found.is_empty() && has_terminal() && is_dashboard.is_ok_and(|found| found.subcommand().is_none()) {
                // It asks.
                return Ok(as_it_is(line));
            }
            if found.is_empty() {
                let message = if looks { "no nodes named, and none announces itself" } else { "no nodes named" };
                return Err(Failure::Usage { message: message.into(), next: NEXT });
            }
            output::note(&format!("nodes that announce themselves: {}", found.join(", ")));
            Ok(Completed { line: with(line, &found, false), key: None, found: true })
        }
    }
}

/// Nodes that announce themselves; none where that cannot be heard.
pub(super) fn listen() -> Vec<String> {
    let found = discover::listen(LISTEN, usize::MAX).unwrap_or_default();
    found.keys().map(ToString::to_string).collect()
}

/// The cluster that was named is the one that is used next time; where that cannot be kept, the command works all the same.
fn remember(known: &mut Clusters, name: &str, path: &std::path::Path) {
    if known.default_cluster().is_some_and(|(last, _)| last == name) {
        return;
    }
    known.last = Some(name.to_owned());
    if let Err(error) = known.write(path) {
        output::note(&format!("console: the choice is not remembered: {error}"));
    }
}

fn with(mut line: Vec<OsString>, nodes: &[String], positional: bool) -> Vec<OsString> {
    let nodes = nodes.join(",");
    line.push(if positional { nodes.into() } else { format!("--nodes={nodes}").into() });
    line
}

fn says(line: &[OsString]) -> Says {
    // Required options may be missing here: they are looked for again when the line is complete.
    let Ok(matches) = command().ignore_errors(true).try_get_matches_from(line) else { return Says::Enough };
    let (mut at, mut options, mut path) = (&matches, command(), Vec::new());
    while let Some((name, below)) = at.subcommand() {
        let Some(found) = options.find_subcommand(name).cloned() else { return Says::Enough };
        path.push(name.to_owned());
        (at, options) = (below, found);
    }
    let Some(takes) = options.get_arguments().find(|argument| argument.get_id() == "nodes").cloned() else {
        return Says::Enough;
    };
    let source = at.value_source("nodes");
    let cluster = named_cluster(&matches);
    if let Some(name) = cluster {
        let (typed, positional) = (source == Some(ValueSource::CommandLine), takes.is_positional());
        return Says::Cluster { name, typed, positional };
    }
    let over_http = at.try_contains_id("url").is_ok_and(|there| there) && at.value_source("url").is_some();
    let wants = takes.is_required_set() || path.is_empty() || (path == ["generate"] && !over_http);
    if source.is_some() || !wants {
        return Says::Enough;
    }
    // The dashboard without a terminal has its own answer.
    Says::Nothing { looks: LOOKING.iter().any(|known| path.iter().map(String::as_str).eq(known.iter().copied())) }
}

/// The value of `--cluster`, wherever on the line it stands.
fn named_cluster(matches: &ArgMatches) -> Option<String> {
    let mut at = Some(matches);
    while let Some(here) = at {
        if let Ok(Some(name)) = here.try_get_one::<String>("cluster") {
            return Some(name.clone());
        }
        at = here.subcommand().map(|(_, below)| below);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Says {
        says(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn a_line_says_whether_nodes_are_to_be_added() {
        let cluster = |typed, positional| Says::Cluster { name: "home".into(), typed, positional };
        for (line, expected) in [
            ("console status --cluster home", cluster(false, false)),
            ("console --cluster home status", cluster(false, false)),
            ("console --cluster home", cluster(false, false)),
            ("console status --cluster home --nodes a", cluster(true, false)),
            ("console plan --cluster home", cluster(false, true)),
            ("console status --nodes a", Says::Enough),
            ("console key new", Says::Enough),
            ("console simulate", Says::Enough),
            ("console bench --model m", Says::Enough),
            ("console generate --url http://a --prompt x", Says::Enough),
            ("console status --help", Says::Enough),
        ] {
            assert_eq!(of(line), expected, "{line}");
        }
        // The test runner may have nodes in its environment.
        if std::env::var_os("BRAMBLE_NODES").is_none() {
            assert_eq!(of("console status"), Says::Nothing { looks: true });
            assert_eq!(of("console node show pi1"), Says::Nothing { looks: true });
            assert_eq!(of("console restart --yes"), Says::Nothing { looks: false });
            assert_eq!(of("console generate --model m --prompt x"), Says::Nothing { looks: false });
            assert_eq!(of("console requests cancel pi1/3"), Says::Nothing { looks: false });
        }
    }
}
