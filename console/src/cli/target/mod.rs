//! Resolves the nodes of a command: given on the command line, of a saved cluster, of BRAMBLE_NODES, or found by
//! discovery. Global options work before and after the command; an option of one command in front of another command is
//! refused.
use std::{ffi::OsString, io::IsTerminal as _, path::PathBuf, time::Duration};

use clap::{ArgMatches, CommandFactory, FromArgMatches, error::ErrorKind, parser::ValueSource};

use crate::cli::{
    Arguments, Command, Failure, cluster,
    dashboard::has_terminal,
    node::discover,
    shared::{
        need::{Need, Reach},
        options, output,
    },
};
use crate::client::clusters::{Clusters, Kept, default_path};

/// How long to listen for announcements if no nodes are given.
const LISTEN: Duration = Duration::from_millis(1500);
/// Names the nodes if the command line does not.
const VARIABLE: &str = "BRAMBLE_NODES";
/// The next step if there are no nodes.
const NEXT: &str = "save nodes with console cluster add NAME NODE.., or pass --nodes A,B,.. or BRAMBLE_NODES; \
                    console node discover finds nodes, console demo needs none";

/// Nodes, and the saved cluster that they belong to.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Chosen {
    pub(crate) nodes: Vec<String>,
    cluster: Option<String>,
    pub(crate) key: Option<PathBuf>,
}

/// Parses a command line.
///
/// # Errors
/// It cannot be parsed, or has an option in front of a command that is not a global option.
pub(crate) fn parse(line: impl IntoIterator<Item = OsString>) -> Result<Arguments, clap::Error> {
    let line: Vec<OsString> = line.into_iter().collect();
    // A misplaced option can cause a misleading error about a missing option, so this check comes first.
    if let Ok(matches) = Arguments::command().ignore_errors(true).try_get_matches_from(&line) {
        misplaced(&matches)?;
    }
    Arguments::from_arg_matches(&Arguments::command().try_get_matches_from(line)?)
}

/// Finds an option in front of a command that would not receive it.
fn misplaced(matches: &ArgMatches) -> Result<(), clap::Error> {
    let (mut at, mut command, mut path) = (matches, Arguments::command(), vec!["console".to_owned()]);
    let mut found: Option<(String, String)> = None;
    while let Some((name, below)) = at.subcommand() {
        let typed = command.get_arguments().find(|argument| {
            let source = at.value_source(argument.get_id().as_str());
            !argument.is_global_set() && source == Some(ValueSource::CommandLine)
        });
        if let Some(option) = typed.and_then(clap::Arg::get_long) {
            found.get_or_insert((option.to_owned(), path.join(" ")));
        }
        let Some(next) = command.find_subcommand(name).cloned() else { break };
        (at, command) = (below, next);
        path.push(name.to_owned());
    }
    let Some((option, owner)) = found else { return Ok(()) };
    let path = path.join(" ");
    let has_it = command.get_arguments().any(|argument| argument.get_long() == Some(&option));
    let of = if owner == "console" { "the dashboard (console without a command)".to_owned() } else { owner };
    let text = if has_it {
        format!("--{option} before the command is an option of {of}; write: {path} --{option} ..")
    } else {
        format!("--{option} is an option of {of}; {path} has no such option: remove it")
    };
    Err(Arguments::command().error(ErrorKind::ArgumentConflict, text))
}

/// Fills in the nodes of a command, its cluster and the cluster's key.
///
/// # Errors
/// There are no nodes, the cluster is unknown, its file is refused, or nodes are given to a command that contacts none.
pub(crate) fn resolve(arguments: &mut Arguments) -> Result<(), Failure> {
    let (typed, cluster) = (std::mem::take(&mut arguments.nodes), arguments.cluster.take());
    let asks = arguments.command.is_none() && has_terminal();
    let chosen = match reach(arguments) {
        Reach::Counts if cluster.is_none() => return Ok(()),
        Reach::Otherwise(_) if cluster.is_none() && typed.is_empty() => return Ok(()),
        Reach::Counts => return Err(needless("--cluster", "starts or simulates its own nodes")),
        Reach::Otherwise(how) => {
            return Err(needless(if typed.is_empty() { "--cluster" } else { "--nodes" }, how));
        }
        Reach::Cluster if !typed.is_empty() => return Err(needless("--nodes", "takes its nodes as arguments")),
        Reach::Cluster => match cluster {
            Some(name) => Chosen { nodes: Vec::new(), ..named(&name)? },
            None => Chosen::default(),
        },
        Reach::Nodes(nodes, need) => {
            let mut chosen = choose(typed, cluster, need, asks)?;
            *nodes = std::mem::take(&mut chosen.nodes);
            chosen
        }
    };
    arguments.cluster = chosen.cluster;
    arguments.key = arguments.key.take().or(chosen.key);
    Ok(())
}

pub(crate) fn needless(option: &str, how: &str) -> Failure {
    let message = format!("{option} does not apply to this command: it {how}");
    Failure::Usage { message, next: "remove it" }
}

/// The nodes of a command that are given, saved, or in the environment; see [`Need`].
///
/// # Errors
/// As [`resolve`].
pub(crate) fn choose(typed: Vec<String>, cluster: Option<String>, need: Need, asks: bool) -> Result<Chosen, Failure> {
    let of = |nodes| Chosen { nodes, ..Chosen::default() };
    match (cluster, typed.is_empty()) {
        (Some(_), false) => {
            let message = "--cluster and --nodes cannot be combined".into();
            return Err(Failure::Usage { message, next: "remove one of them" });
        }
        (Some(name), true) => return named(&name),
        (None, false) => return Ok(of(typed)),
        (None, true) => {}
    }
    let variable = std::env::var(VARIABLE).ok().filter(|nodes| !nodes.is_empty() && need != Need::Typed);
    if let Some(variable) = variable {
        let nodes: Result<Vec<String>, String> = variable.split(',').map(options::node).collect();
        return nodes.map(of).map_err(|reason| Failure::Usage {
            message: format!("{VARIABLE}={variable}: {reason}"),
            next: "correct the variable, or name the nodes with --nodes",
        });
    }
    if matches!(need, Need::May | Need::Typed) {
        return Ok(Chosen::default());
    }
    let known = default_path().map_or_else(|| Ok(Clusters::default()), |path| Clusters::read(&path))?;
    if let Some((name, kept)) = known.default_cluster() {
        if need == Need::Acts && std::io::stderr().is_terminal() {
            output::note(&format!("cluster {name}: {}", output::clean(&kept.nodes.join(","))));
        }
        return Ok(chosen(name, kept));
    }
    if need == Need::Tries {
        return Ok(Chosen::default());
    }
    if !known.all.is_empty() {
        let names: Vec<&str> = known.all.keys().map(String::as_str).collect();
        let message = format!("no nodes given, and none of the clusters {} is the default", names.join(", "));
        return Err(Failure::Usage {
            message,
            next: "pass --cluster NAME, or choose a default with console cluster use NAME",
        });
    }
    let found = if need == Need::Looks { listen() } else { Vec::new() };
    if found.is_empty() && !asks {
        let message =
            if need == Need::Looks { "no nodes given, and no node announces itself" } else { "no nodes given" };
        return Err(Failure::Usage { message: message.into(), next: NEXT });
    }
    if !found.is_empty() {
        output::note(&format!("discovered nodes: {}", found.join(", ")));
    }
    Ok(of(found))
}

fn named(name: &str) -> Result<Chosen, Failure> {
    Ok(chosen(name, Clusters::read(&cluster::path()?)?.named(name)?))
}

fn chosen(name: &str, kept: &Kept) -> Chosen {
    Chosen { nodes: kept.nodes.clone(), cluster: Some(name.into()), key: kept.key.clone() }
}

/// Nodes that announce themselves; none if the network cannot be listened to.
fn listen() -> Vec<String> {
    let found = discover::listen(LISTEN, usize::MAX).unwrap_or_default();
    found.keys().map(ToString::to_string).collect()
}

/// How a command gets its nodes. Every new command must be added here.
fn reach(arguments: &mut Arguments) -> Reach<'_> {
    let Some(command) = &mut arguments.command else {
        return Reach::Nodes(&mut arguments.dashboard.nodes, Need::Looks);
    };
    match command {
        Command::Acceptance(options) => options.reach(),
        Command::Bench(bench) => bench.reach(),
        Command::Cluster(_) => Reach::Otherwise("takes the cluster as an argument"),
        Command::Completions(_) => Reach::Otherwise("prints a completion script"),
        Command::Demo(_) => Reach::Counts,
        Command::Doctor(doctor) => Reach::Nodes(&mut doctor.nodes.nodes, Need::Looks),
        Command::Events(events) => Reach::Nodes(&mut events.nodes.nodes, Need::Looks),
        Command::Generate(generate) if generate.endpoint.url.is_empty() => {
            Reach::Nodes(&mut generate.nodes, Need::Acts)
        }
        Command::Generate(_) => Reach::Otherwise("uses the HTTP API given by --url"),
        Command::Key(key) => key.reach(),
        Command::Logs(logs) => Reach::Nodes(&mut logs.nodes.nodes, Need::Looks),
        Command::Kv(kv) => kv.reach(),
        Command::Model(model) => model.reach(),
        Command::Node(node) => node.reach(),
        Command::Proxy(_) => Reach::Otherwise("relays to the HTTP API given by --to"),
        Command::Replay(_) => Reach::Otherwise("reads a recording"),
        Command::Requests(requests) => requests.reach(),
        Command::Restart(restart) => Reach::Nodes(&mut restart.nodes.nodes, Need::Acts),
        Command::Run(run) if run.endpoint.url.is_empty() => Reach::Nodes(&mut run.nodes.nodes, Need::Acts),
        Command::Run(_) => Reach::Otherwise("uses the HTTP API given by --url"),
        Command::Screen(screen) => screen.reach(),
        Command::Status(status) => Reach::Nodes(&mut status.nodes.nodes, Need::Looks),
        Command::Sync(sync) => Reach::Nodes(&mut sync.nodes.nodes, Need::Looks),
        Command::Tokenize(_) => Reach::Otherwise("reads a local file"),
        Command::Topology(topology) => topology.reach(),
        Command::Up(_) => Reach::Cluster,
    }
}

#[cfg(test)]
mod tests;
