//! Which nodes a command speaks to: those that are typed, those of a kept cluster, those of BRAMBLE_NODES, else those that announce
//! themselves. Options of the whole program count before and after the command; an option of one command before another is refused.
use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{ArgMatches, CommandFactory, FromArgMatches, error::ErrorKind, parser::ValueSource};

use super::{Arguments, Command, Failure, clusters, dashboard::has_terminal, discover, options, output};
use crate::clusters::{Clusters, Kept, default_path};

/// How long nodes are listened for where nothing else names any.
const LISTEN: Duration = Duration::from_millis(1500);
/// Names nodes where the command line does not.
const VARIABLE: &str = "BRAMBLE_NODES";
/// What to do where there is no node.
const NEXT: &str = "console clusters add NAME NODE.. keeps them; or --nodes A,B,.., or BRAMBLE_NODES; console discover looks for them, \
                    console demo needs none";

/// The nodes that a command is about.
#[derive(Debug)]
pub(super) enum Reach<'a> {
    /// It speaks to these, once they are filled in.
    Nodes(&'a mut Vec<String>, Need),
    /// It needs no nodes but may keep to a cluster.
    Cluster,
    /// `--nodes` is a number there.
    Counts,
    /// It speaks to no nodes, or names them otherwise: how, after "it".
    Otherwise(&'static str),
}

/// How a command comes by its nodes where none is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// It only looks: it may ask whatever announces itself.
    Looks,
    /// It acts: it has to be told on which nodes.
    Acts,
    /// Without any it does something else; the environment may name them.
    May,
    /// Without any that are typed it does something else.
    Typed,
}

/// Nodes, and the kept cluster that they are of.
#[derive(Debug, Default, PartialEq)]
struct Chosen {
    nodes: Vec<String>,
    cluster: Option<String>,
    key: Option<PathBuf>,
}

/// Reads a command line.
///
/// # Errors
/// It cannot be read, or has an option in front of a command that is not an option of the whole program.
pub(super) fn parse(line: impl IntoIterator<Item = OsString>) -> Result<Arguments, clap::Error> {
    let line: Vec<OsString> = line.into_iter().collect();
    // An option that went to another command may be missed by the one that was meant: that is said first.
    if let Ok(matches) = Arguments::command().ignore_errors(true).try_get_matches_from(&line) {
        misplaced(&matches)?;
    }
    Arguments::from_arg_matches(&Arguments::command().try_get_matches_from(line)?)
}

/// Finds an option that stands in front of a command which would not see it.
fn misplaced(matches: &ArgMatches) -> Result<(), clap::Error> {
    let (mut at, mut command, mut path) = (matches, Arguments::command(), vec!["console".to_owned()]);
    let mut found: Option<(String, String)> = None;
    while let Some((name, below)) = at.subcommand() {
        let typed =
            |argument: &&clap::Arg| at.value_source(argument.get_id().as_str()) == Some(ValueSource::CommandLine);
        let own = command.get_arguments().filter(|argument| !argument.is_global_set()).find(typed);
        if let Some(option) = own.and_then(|argument| argument.get_long()) {
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
        format!("--{option} stands before the command and would be an option of {of}; write: {path} --{option} ..")
    } else {
        format!("--{option} is an option of {of}; {path} has no such option: leave it out")
    };
    Err(Arguments::command().error(ErrorKind::ArgumentConflict, text))
}

/// Fills in the nodes of a command, its cluster and the cluster's key.
///
/// # Errors
/// There are none, the cluster is unknown, its file is refused, or the command speaks to no node although some are named.
pub(super) fn resolve(arguments: &mut Arguments) -> Result<(), Failure> {
    let (typed, cluster) = (std::mem::take(&mut arguments.nodes), arguments.cluster.take());
    let asks = arguments.command.is_none() && has_terminal();
    let chosen = match reach(arguments) {
        Reach::Counts if cluster.is_none() => return Ok(()),
        Reach::Otherwise(_) if cluster.is_none() && typed.is_empty() => return Ok(()),
        Reach::Counts => return Err(needless("--cluster", "starts or imagines its own nodes")),
        Reach::Otherwise(how) => {
            return Err(needless(if typed.is_empty() { "--cluster" } else { "--nodes" }, how));
        }
        Reach::Cluster if !typed.is_empty() => return Err(needless("--nodes", "names its nodes behind the command")),
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

fn needless(option: &str, how: &str) -> Failure {
    let message = format!("{option} is of no use to this command: it {how}");
    Failure::Usage { message, next: "leave it out" }
}

fn choose(typed: Vec<String>, cluster: Option<String>, need: Need, asks: bool) -> Result<Chosen, Failure> {
    let of = |nodes| Chosen { nodes, ..Chosen::default() };
    match (cluster, typed.is_empty()) {
        (Some(_), false) => {
            let message = "--cluster and --nodes both say which nodes".into();
            return Err(Failure::Usage { message, next: "leave out one of them" });
        }
        (Some(name), true) => return named(&name),
        (None, false) => return Ok(of(typed)),
        (None, true) => {}
    }
    let variable = std::env::var(VARIABLE).ok().filter(|nodes| !nodes.is_empty() && need != Need::Typed);
    if let Some(nodes) = variable {
        let nodes: Result<Vec<String>, String> = nodes.split(',').map(options::node).collect();
        let refused = |reason: String| Failure::Usage {
            message: format!("{VARIABLE}={nodes}: {reason}", nodes = std::env::var(VARIABLE).unwrap_or_default()),
            next: "correct the variable, or name the nodes with --nodes",
        };
        return nodes.map(of).map_err(refused);
    }
    if matches!(need, Need::May | Need::Typed) {
        return Ok(Chosen::default());
    }
    let known = default_path().map_or_else(|| Ok(Clusters::default()), |path| Clusters::read(&path))?;
    if let Some((name, kept)) = known.default_cluster() {
        if need == Need::Acts {
            output::note(&format!("cluster {name}: {}", output::clean(&kept.nodes.join(","))));
        }
        return Ok(chosen(name, kept));
    }
    if !known.all.is_empty() {
        let names: Vec<&str> = known.all.keys().map(String::as_str).collect();
        let message = format!("no nodes named, and of the clusters {} none is the default", names.join(", "));
        return Err(Failure::Usage { message, next: "--cluster NAME, or console clusters use NAME once" });
    }
    let found = if need == Need::Looks { listen() } else { Vec::new() };
    if found.is_empty() && !asks {
        let message = if need == Need::Looks { "no nodes named, and none announces itself" } else { "no nodes named" };
        return Err(Failure::Usage { message: message.into(), next: NEXT });
    }
    if !found.is_empty() {
        output::note(&format!("nodes that announce themselves: {}", found.join(", ")));
    }
    Ok(of(found))
}

fn named(name: &str) -> Result<Chosen, Failure> {
    Ok(chosen(name, Clusters::read(&clusters::path()?)?.named(name)?))
}

fn chosen(name: &str, kept: &Kept) -> Chosen {
    Chosen { nodes: kept.nodes.clone(), cluster: Some(name.into()), key: kept.key.clone() }
}

/// Nodes that announce themselves; none where that cannot be heard.
fn listen() -> Vec<String> {
    let found = discover::listen(LISTEN, usize::MAX).unwrap_or_default();
    found.keys().map(ToString::to_string).collect()
}

/// Which nodes a command is about. A new command has to say so here.
fn reach(arguments: &mut Arguments) -> Reach<'_> {
    let Some(command) = &mut arguments.command else {
        return Reach::Nodes(&mut arguments.dashboard.nodes, Need::Looks);
    };
    match command {
        Command::Adopt(_) => Reach::Cluster,
        Command::Bench(bench) => bench.reach(),
        Command::Chat(_) => Reach::Otherwise("speaks to the HTTP API that --url names"),
        Command::Clusters(_) => Reach::Otherwise("names its cluster behind the command"),
        Command::Demo(_) | Command::Simulate(_) => Reach::Counts,
        Command::Discover(_) => Reach::Otherwise("listens to all nodes of the network"),
        Command::Doctor(doctor) => Reach::Nodes(&mut doctor.nodes.nodes, Need::Looks),
        Command::Events(events) => Reach::Nodes(&mut events.nodes.nodes, Need::Looks),
        Command::Exclude(exclude) => Reach::Nodes(&mut exclude.change.nodes.nodes, Need::Acts),
        Command::Generate(generate) if generate.endpoint.url.is_empty() => {
            Reach::Nodes(&mut generate.nodes, Need::Acts)
        }
        Command::Generate(_) => Reach::Otherwise("speaks to the HTTP API that --url names"),
        Command::Include(include) => Reach::Nodes(&mut include.change.nodes.nodes, Need::Acts),
        Command::Logs(logs) => Reach::Nodes(&mut logs.nodes.nodes, Need::Looks),
        Command::Node(node) => node.reach(),
        Command::OkToStop(options) => Reach::Nodes(&mut options.nodes.nodes, Need::Looks),
        Command::Model(model) => model.reach(),
        Command::Key(key) => key.reach(),
        Command::Keys(_) => Reach::Otherwise("shows keys of the keyboard"),
        Command::Plan(plan) => Reach::Nodes(&mut plan.typed, Need::Typed),
        Command::Profile(profile) => Reach::Nodes(&mut profile.nodes.nodes, Need::Acts),
        Command::Proxy(_) => Reach::Otherwise("relays to the HTTP API that --to names"),
        Command::Replay(_) => Reach::Otherwise("reads a recording"),
        Command::Requests(requests) => requests.reach(),
        Command::Restart(restart) => Reach::Nodes(&mut restart.nodes.nodes, Need::Acts),
        Command::Screen(screen) => screen.reach(),
        Command::Status(status) => Reach::Nodes(&mut status.nodes.nodes, Need::Looks),
        Command::SupportBundle(support) => Reach::Nodes(&mut support.nodes.nodes, Need::Looks),
        Command::Sync(sync) => Reach::Nodes(&mut sync.nodes.nodes, Need::Looks),
        Command::Tokenize(_) => Reach::Otherwise("reads a file of this machine"),
        Command::Topology(topology) => topology.reach(),
    }
}

#[cfg(test)]
#[path = "reach_tests.rs"]
mod tests;
