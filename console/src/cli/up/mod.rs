//! `console up`: from new nodes to the first answer. Each step is displayed as the command that does the same, and is
//! skipped if it was done before, so that an interrupted run continues where it ended.
mod log;
mod model;
mod nodes;

use std::path::{Path, PathBuf};

use clap::Args;
use protocol::noise::pake::Code;

use self::log::SetupLog;
use super::{
    Failure, cluster, doctor,
    generate::{run as chat, run_options::RunOptions},
    key,
    shared::{
        confirm::{Consent, ask_line, has_person},
        interrupts::Interrupts,
        options::{LayoutChoice, node},
        output,
    },
    topology::ensure::{Reached, obtain},
};
use crate::client::{
    clusters::{Clusters, check_name, default_path},
    with_port,
};
use telemetry::finding::Severity;

/// Name of the cluster, unless the operator chooses another one.
const HOME: &str = "home";

/// Options of `console up`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Examples:\n  console up\n  console up 192.168.1.11 192.168.1.12 --ssh --model llama-3.2-1b\n  \
    console up 192.168.1.11 192.168.1.12 --code CODE,CODE --yes --model bard --prompt ROMEO:"
)]
pub(crate) struct Up {
    /// The nodes as ADDRESS[:PORT] [default: those of the saved cluster, else those that announce themselves]
    #[arg(id = "found", value_name = "NODE", value_delimiter = ',', value_parser = node)]
    given: Vec<String>,
    /// Pairing codes displayed by `sudo brambled pair`, one per node in the same order [default: asks for each]
    #[arg(long, value_name = "CODE,..", value_delimiter = ',', value_parser = <Code as std::str::FromStr>::from_str)]
    code: Vec<Code>,
    /// Fetch the codes with `ssh NODE sudo brambled pair --json`
    #[arg(long, conflicts_with = "code")]
    ssh: bool,
    /// Name under which the cluster is saved [default: home]
    #[arg(long, value_name = "NAME", value_parser = cluster::cluster_name)]
    name: Option<String>,
    /// Model as for console run: a file on the nodes, a name of the catalogue, or hf:OWNER/REPO:FILE [default: the running
    /// model, else asks]
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// Answer this prompt instead of a chat
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    #[command(flatten)]
    layout: LayoutChoice,
    #[command(flatten)]
    consent: Consent,
    #[arg(from_global)]
    json: bool,
}

/// The files and options of the console that the steps use.
pub(crate) struct Setting {
    /// The key file of `--key`, or of the saved cluster.
    pub(crate) key: Option<PathBuf>,
    /// The saved cluster of `--cluster`.
    pub(crate) cluster: Option<String>,
    /// Whether nodes without a key may be used without one.
    pub(crate) insecure: bool,
}

/// Runs the command.
pub(crate) async fn run(options: Up, setting: Setting) -> Result<u8, Failure> {
    options.consent.check()?;
    let mut interrupts = Interrupts::listen()?;
    let mut log = SetupLog::new(options.json, options.consent.dry_run);
    let prepared = interrupts.end(prepare(&options, setting, &mut log)).await;
    log.print();
    let Some(answer) = prepared? else { return Ok(0) };
    // The chat handles signals itself.
    drop(interrupts);
    chat::run(answer).await
}

/// All steps before the chat, and the options of the chat; `None` after a dry run.
async fn prepare(options: &Up, setting: Setting, log: &mut SetupLog) -> Result<Option<RunOptions>, Failure> {
    // Nodes that are given without a cluster are new ones.
    let is_saved = options.given.is_empty() || setting.cluster.is_some();
    let saved = if is_saved { cluster::saved(setting.cluster.as_deref())? } else { None };
    let nodes = nodes::find(options, saved.as_ref(), log).await?;
    let key = setting.key.or(saved.and_then(|(_, kept)| kept.key)).map_or_else(key::default_path, Ok)?;
    let mut is_reachable = true;
    if setting.insecure {
        log.skip("create the key", "console key new", "not needed with --insecure");
        log.skip("adopt the nodes", "console key adopt", "not needed with --insecure");
    } else {
        make_key(&key, log)?;
        is_reachable = nodes::adopt(options, &nodes, &key, log).await?;
    }
    save(options, setting.cluster, &nodes, &key, log).await?;
    if !is_reachable {
        // A dry run cannot ask nodes that would only be adopted.
        log.plan("look for problems", "console doctor");
        let model = options.model.as_deref().unwrap_or("MODEL");
        log.plan("choose a model", "console model list");
        log.plan("get its file", &format!("console model pull {model}"));
        log.plan("load the model", &format!("console run {model}"));
        return Ok(None);
    }
    check(options, &nodes, log).await?;
    let supply = model::choose(options, &nodes, log).await?;
    model::bring(&supply, log).await?;
    load(options, &nodes, &supply.model, log).await
}

/// Creates the key, unless there is one, and uses it from now on.
fn make_key(path: &Path, log: &mut SetupLog) -> Result<(), Failure> {
    let (what, command) = ("create the key", "console key new");
    let told = output::clean(&path.display().to_string());
    if path.exists() {
        key::load(Some(path), false)?;
        log.skip(what, command, &format!("{told}: key {}", key::fingerprint(path)?));
        return Ok(());
    }
    if log.is_rehearsal() {
        log.plan(what, command);
        return Ok(());
    }
    log.begin(what, command);
    let fingerprint = key::create(path)?;
    key::load(Some(path), false)?;
    log.done(&format!("{told}: key {fingerprint}; keep a copy elsewhere"));
    Ok(())
}

/// Saves the nodes under a name.
async fn save(
    options: &Up,
    cluster: Option<String>,
    nodes: &[String],
    key: &Path,
    log: &mut SetupLog,
) -> Result<(), Failure> {
    let known = default_path().map_or_else(|| Ok(Clusters::default()), |path| Clusters::read(&path))?;
    let what = "save the cluster";
    let saved = known.all.keys().find(|name| has_all(&known, name, nodes)).cloned();
    let name = match options.name.clone().or(cluster).or(saved) {
        Some(name) => name,
        None if has_person() && !options.consent.yes && !log.is_rehearsal() => ask_name().await?,
        None => HOME.to_owned(),
    };
    let command = format!("console cluster add {name} {}", output::clean(&nodes.join(",")));
    if has_all(&known, &name, nodes) {
        log.skip(what, &command, &format!("cluster {name} is saved"));
        return Ok(());
    }
    if is_another(&known, &name, nodes) {
        return Err(Failure::Usage {
            message: format!("cluster {name} is saved with other nodes"),
            next: "choose another name with --name NAME; to extend that cluster: console node add ADDRESS",
        });
    }
    if log.is_rehearsal() {
        log.plan(what, &command);
        return Ok(());
    }
    log.begin(what, &command);
    let is_default = key::default_path().is_ok_and(|default| default == key);
    let file =
        if is_default || !key.exists() { None } else { Some(std::path::absolute(key).map_err(anyhow::Error::from)?) };
    cluster::save(&name, nodes, file)?;
    let other = known.default_cluster().map(|(default, _)| default).filter(|default| *default != name);
    log.done(&match other {
        Some(default) => format!("cluster {name} is saved; {default} stays the default: console cluster use {name}"),
        None => format!("cluster {name} is saved, and every command uses it"),
    });
    Ok(())
}

/// Whether a saved cluster has all of these nodes.
fn has_all(known: &Clusters, name: &str, nodes: &[String]) -> bool {
    let kept = known.all.get(name).map_or(&[][..], |kept| &kept.nodes);
    nodes.iter().all(|node| kept.iter().any(|one| with_port(one) == with_port(node)))
}

/// Whether a cluster is saved that has none of these nodes.
fn is_another(known: &Clusters, name: &str, nodes: &[String]) -> bool {
    let Some(kept) = known.all.get(name) else { return false };
    !nodes.iter().any(|node| kept.nodes.iter().any(|one| with_port(one) == with_port(node)))
}

/// Asks for the name of the cluster until it is valid.
async fn ask_name() -> Result<String, Failure> {
    loop {
        let typed = ask_line(&format!("      Name of the cluster [{HOME}]: ")).await?;
        match typed.as_str() {
            "" => return Ok(HOME.into()),
            name => match check_name(name) {
                Ok(()) => return Ok(typed),
                Err(reason) => output::note(&format!("      {reason}")),
            },
        }
    }
}

/// Shows the problems of the nodes; asks whether to continue despite errors.
async fn check(options: &Up, nodes: &[String], log: &mut SetupLog) -> Result<(), Failure> {
    log.begin("look for problems", "console doctor");
    let addresses: Vec<String> = nodes.iter().map(|node| with_port(node)).collect();
    let examination = doctor::examine(&addresses).await;
    let findings = examination.findings();
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    let unexamined = examination.faults().count();
    if errors + unexamined > 0 {
        examination.lines().iter().for_each(|line| output::note(&format!("      {}", output::clean(line))));
    }
    let examined = match unexamined {
        0 => String::new(),
        1 => "; 1 node is not completely examined".to_owned(),
        count => format!("; {count} nodes are not completely examined"),
    };
    log.done(&format!("{errors} errors, {warnings} warnings{examined}; details: console doctor"));
    if errors + unexamined == 0 || options.consent.yes || log.is_rehearsal() {
        return Ok(());
    }
    let question = "Continue despite these errors?";
    options.consent.obtain_late(question, &serde_json::Value::Null, options.json).await.map(|_| ())
}

/// Loads the model, unless it runs, and returns the options of the chat.
async fn load(options: &Up, nodes: &[String], model: &str, log: &mut SetupLog) -> Result<Option<RunOptions>, Failure> {
    let prompt = options.prompt.as_deref();
    let told = output::clean(model);
    let command = match prompt {
        Some(prompt) => format!("console run {told} {:?}", output::clean(prompt)),
        None => format!("console run {told}"),
    };
    let asked = options.layout.asked(model);
    if log.is_rehearsal() {
        let is_loaded = Reached::dial(nodes).await?.has_serving(&asked);
        log.plan(if is_loaded { "ask the running model" } else { "load the model" }, &command);
        return Ok(None);
    }
    log.begin("load the model", &command);
    let obtained = obtain(nodes, &asked, "chat", options.consent, options.json).await?;
    let Some(obtained) = obtained else { return Ok(None) };
    let (topology, epoch) = (&obtained.assigned.topology, obtained.assigned.epoch.0);
    let how = if obtained.assigned.reused { "already runs" } else { "runs" };
    log.done(&format!("{told} {how} as {}, epoch {epoch}; the dashboard: console", topology.layout));
    let mut answer = RunOptions::of(model, prompt, nodes)?;
    (answer.json, answer.consent, answer.layout) = (options.json, options.consent, options.layout.clone());
    Ok(Some(answer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::clusters::Kept;

    #[test]
    fn saved_cluster_is_extended_only_if_it_has_one_of_the_nodes() {
        let nodes = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let mut known = Clusters::default();
        known.all.insert("home".into(), Kept { nodes: nodes(&["pi1", "pi2:9999"]), key: None });
        assert!(has_all(&known, "home", &nodes(&["pi2", "pi1"])), "the port is the default one");
        assert!(!has_all(&known, "home", &nodes(&["pi1", "pi3"])) && !has_all(&known, "lab", &nodes(&["pi1"])));
        assert!(!is_another(&known, "home", &nodes(&["pi1", "pi3"])), "it is extended");
        assert!(is_another(&known, "home", &nodes(&["pi3"])) && !is_another(&known, "lab", &nodes(&["pi3"])));
    }
}
