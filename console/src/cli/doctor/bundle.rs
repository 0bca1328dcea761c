//! `console doctor --bundle`: collects status, reports, findings, events, logs, redacted settings, versions and
//! model lists in one archive. It lists its contents and omissions; an unreachable node is listed as missing, not
//! an error.
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use common::{fault::Fault, units::Bytes};
use protocol::{BUILD, inspect::LogLevel};
use serde_json::{Value, json};
use telemetry::doctor::{Examined, compare};
use tokio::{task::JoinSet, time::timeout};

use crate::cli::{
    Failure,
    doctor::{archive::Archive, visit},
    logs::{self, moment, time},
    shared::{interrupts::Interrupts, output},
};
use crate::{
    client::{
        assign::records,
        cluster::{Cluster, ClusterNode},
        inspect, models,
        session::Session,
        with_port,
    },
    operator::topology_file::TopologyFile,
};

/// Time limit for the data of one node.
const NODE: Duration = Duration::from_secs(30);

/// What no bundle contains.
const LEFT_OUT: &[&str] = &[
    "keys: the cluster key and the API keys",
    "prompts and answers: nodes do not store them",
    "weights: models are listed by file, size and hash",
    "environment and files of this machine",
];

/// The data of a node by file name, and the data that is missing, with the reason.
#[derive(Debug, Default)]
struct Diagnostics {
    files: Vec<(String, String)>,
    missing: Vec<(String, String)>,
}

impl Diagnostics {
    fn put(&mut self, name: &str, content: Result<String, Fault>) {
        match content {
            Ok(text) => self.files.push((name.into(), text)),
            Err(fault) => self.missing.push((name.into(), logs::away(&fault))),
        }
    }
}

/// Writes the archive to a file, without one to bramble-support-DATE.tar.gz in the current folder. Unreachable nodes do
/// not change the exit code 0: they are a reason to ask for help.
pub(crate) async fn run(file: Option<PathBuf>, nodes: &[String], json: bool) -> Result<u8, Failure> {
    let now = time(moment(Some(Duration::ZERO)));
    let stamp: String = now.chars().take(16).filter(char::is_ascii_digit).collect();
    let root = format!("bramble-support-{stamp}");
    let path = file.unwrap_or_else(|| format!("{root}.tar.gz").into());
    let addresses: Vec<String> = nodes.iter().map(|node| with_port(node)).collect();
    let mut interrupts = Interrupts::listen()?;
    let gathering = async { Ok::<_, Failure>(gather(&addresses, json).await) };
    let mut all = interrupts.end(gathering).await?;
    let contents = contents(&now, &addresses, &all);
    all.files.push(("CONTENTS.txt".into(), contents));
    all.files.sort();
    let size = write(&path, &root, &all.files)?;
    tell(json, &path, size, &all);
    Ok(0)
}

fn tell(json: bool, path: &Path, size: Bytes, all: &Diagnostics) {
    if json {
        let files: Vec<&str> = all.files.iter().map(|(name, _)| name.as_str()).collect();
        let missing: Value = all.missing.iter().map(|(what, why)| json!({"what": what, "why": why})).collect();
        let object = json!({"file": path, "size": size.0, "contains": files, "missing": missing, "left_out": LEFT_OUT});
        return output::line(&object.to_string());
    }
    output::line(&format!("{}: {size}, {} files", path.display(), all.files.len()));
    all.files.iter().for_each(|(name, _)| output::line(&format!("  {}", output::clean(name))));
    all.missing.iter().for_each(|(what, why)| output::line(&format!("  missing: {}: {why}", output::clean(what))));
    LEFT_OUT.iter().for_each(|what| output::line(&format!("  left out: {what}")));
}

async fn gather(addresses: &[String], quiet: bool) -> Diagnostics {
    let cluster = Arc::new(Cluster::dial(addresses).await);
    let mut all = Diagnostics::default();
    let seen = crate::cli::status::see(&cluster, crate::cli::status::Paper::PLAIN);
    all.files.push(("status.txt".into(), seen.lines.join("\n") + "\n"));
    all.files.push(("status.json".into(), pretty(&seen.object)));
    if let Some((topology, _)) = cluster.topology() {
        all.files.push(("topology.toml".into(), TopologyFile::of(topology).text()));
    }
    let mut asked = JoinSet::new();
    let folders = unique_folders(cluster.nodes.iter().map(|node| cluster.name(node)));
    for (index, folder) in folders.into_iter().enumerate() {
        let cluster = Arc::clone(&cluster);
        asked.spawn(async move { of_node(&folder, &cluster.nodes[index]).await });
    }
    let (mut examined, mut events) = (Vec::new(), Vec::new());
    let mut done = 0;
    while let Some(node) = asked.join_next().await {
        done += 1;
        crate::cli::shared::progress::tell("collecting", done, addresses.len() as u64, quiet);
        let Ok((gathered, of_node, lines)) = node else { continue };
        all.files.extend(gathered.files);
        all.missing.extend(gathered.missing);
        examined.extend(of_node);
        events.extend(lines);
    }
    all.files.push(("findings-between-nodes.json".into(), pretty(&json!(compare(&examined)))));
    events.sort();
    let events: String = events.into_iter().map(|(_, line)| line + "\n").collect();
    all.files.push(("events.txt".into(), events));
    all.missing.sort();
    all
}

/// Lines of a node's log with their times in milliseconds since 1970.
type Timed = Vec<(u64, String)>;

/// The data of a node, with paths in its folder `name`.
async fn of_node(name: &str, node: &ClusterNode) -> (Diagnostics, Option<Examined>, Timed) {
    let mut gathered = Diagnostics::default();
    match node.session() {
        Err(fault) => {
            gathered.missing.push((format!("all of {name}"), logs::away(&fault)));
            (gathered, None, Vec::new())
        }
        Ok(session) => match timeout(NODE, ask(name, node, &session, &mut gathered)).await {
            Ok((examined, lines)) => (gathered, examined, lines),
            Err(_) => {
                let why = format!("no answer within {} s", NODE.as_secs());
                gathered.missing.push((format!("the rest of {name}"), why));
                (gathered, None, Vec::new())
            }
        },
    }
}

async fn ask(
    name: &str,
    node: &ClusterNode,
    session: &Arc<Session>,
    gathered: &mut Diagnostics,
) -> (Option<Examined>, Timed) {
    let answer = node.answer.as_ref().map(|(_, report)| report.clone()).map_err(Clone::clone);
    let report = pretty(&crate::cli::status::object(&node.address, &answer));
    gathered.put(&format!("{name}/report.json"), Ok(report));
    gathered.put(&format!("{name}/settings.toml"), inspect::settings(session).await);
    let requests = node.answer.as_ref().map_err(Clone::clone);
    let requests = requests.map(|(_, report)| pretty(&crate::cli::requests::object(name, &report.traces)));
    gathered.put(&format!("{name}/requests.json"), requests);
    let records = records(session).await;
    gathered.put(&format!("{name}/all-reduces.json"), records.map(|list| json!(list).to_string()));
    let files = models::list(session).await;
    let files = files.map(|files| pretty(&files.iter().map(crate::cli::model::object).collect()));
    gathered.put(&format!("{name}/models.json"), files);
    let log = inspect::whole_log(session, 0, LogLevel::Trace).await;
    let mut timed = Timed::new();
    if let Ok(lines) = &log {
        if lines.missed > 0 {
            let why = format!("{} earlier lines are no longer in memory; see the journal of the node", lines.missed);
            gathered.missing.push((format!("the beginning of {name}/log.txt"), why));
        }
        timed.extend(
            lines
                .lines
                .iter()
                .filter(|line| line.level >= LogLevel::Info)
                .map(|line| (line.unix_ms, format!("{} {name:<10} {}", time(line.unix_ms), output::clean(&line.text)))),
        );
    }
    let text = log.map(|log| log.lines.iter().map(|line| logs::text(line) + "\n").collect());
    gathered.put(&format!("{name}/log.txt"), text);
    let visit = visit(&node.address).await;
    let examined = visit.as_ref().ok().map(|visit| visit.examined.clone());
    let findings = visit.map(|visit| {
        pretty(&json!({"findings": visit.report.health.findings(), "unread": visit.report.health.unread(),
            "skew_ms": visit.examined.skew_ms, "build": visit.examined.build, "numeric_version": visit.examined.numeric}))
    });
    gathered.put(&format!("{name}/doctor.json"), findings);
    (examined, timed)
}

/// A safe folder name for a node, because nodes choose their names.
fn folder(name: &str) -> String {
    let letters = name.chars().take(64);
    let name: String = letters
        .map(|letter| if letter.is_ascii_alphanumeric() || "-_.".contains(letter) { letter } else { '_' })
        .collect();
    let name = name.trim_matches('.');
    format!("node-{}", if name.is_empty() { "unnamed" } else { name })
}

/// A folder for each node, in order. Where a folder occurs again, a number is appended, also if the folders differ only
/// in case: some file systems on which the archive is unpacked ignore case.
fn unique_folders<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let wanted: Vec<String> = names.map(folder).collect();
    let mut folders: Vec<String> = Vec::with_capacity(wanted.len());
    for base in &wanted {
        let (mut free, mut number) = (base.clone(), 1);
        // A number must not give the folder of a later node either.
        while has(&folders, &free) || (number > 1 && has(&wanted, &free)) {
            number += 1;
            free = format!("{base}-{number}");
        }
        folders.push(free);
    }
    folders
}

/// Whether a folder is in the list, in upper or lower case.
fn has(folders: &[String], name: &str) -> bool {
    folders.iter().any(|folder| folder.eq_ignore_ascii_case(name))
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

fn contents(now: &str, addresses: &[String], all: &Diagnostics) -> String {
    let mut text =
        format!("Bramble support bundle of {now} UTC, console {BUILD}\nnodes: {}\n\ncontains\n", addresses.join(", "));
    let mut names: Vec<&str> = all.files.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    names.iter().for_each(|name| text.push_str(&format!("  {name}\n")));
    text.push_str("\nleft out\n");
    LEFT_OUT.iter().for_each(|what| text.push_str(&format!("  {what}\n")));
    text.push_str("\nmissing\n");
    all.missing.iter().for_each(|(what, why)| text.push_str(&format!("  {what}: {why}\n")));
    if all.missing.is_empty() {
        text.push_str("  nothing\n");
    }
    text
}

/// Writes the archive to a temporary file in the target folder and renames it when it is complete. Returns its
/// size.
fn write(path: &Path, root: &str, files: &[(String, String)]) -> Result<Bytes, Failure> {
    let mut archive = Archive::begin(path)?;
    for (name, text) in files {
        archive.add(&format!("{root}/{name}"), text.as_bytes())?;
    }
    archive.finish()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::client::fake_node::{FakeNode, Script};

    #[test]
    fn node_cannot_choose_the_path_of_its_files() {
        assert_eq!(folder("pi1"), "node-pi1");
        assert_eq!(folder("../../etc/passwd"), "node-_.._etc_passwd");
        assert_eq!((folder(".."), folder("[::1]:9999")), ("node-unnamed".into(), "node-___1__9999".into()));
    }

    #[test]
    fn each_node_has_a_folder_of_its_own() {
        let names = ["pi1", "pi1", "pi/1", "pi_1", "pi1-2", "PI1", "..", "."];
        let folders = unique_folders(names.into_iter());
        let expected = ["pi1", "pi1-3", "pi_1", "pi_1-2", "pi1-2", "PI1-4", "unnamed", "unnamed-2"];
        assert_eq!(folders, expected.map(|name| format!("node-{name}")));
    }

    #[tokio::test]
    async fn nodes_of_the_same_name_lose_no_data() {
        let nodes = [FakeNode::start("pi1", Script::default()).await, FakeNode::start("pi1", Script::default()).await];
        let all = gather(&nodes.each_ref().map(|node| node.address.clone()), true).await;
        for (folder, node) in ["node-pi1", "node-pi1-2"].into_iter().zip(&nodes) {
            let path = format!("{folder}/report.json");
            let reports: Vec<&(String, String)> = all.files.iter().filter(|file| file.0 == path).collect();
            assert!(matches!(&reports[..], [one] if one.1.contains(&node.address)), "{path}: {reports:?}");
        }
    }

    #[tokio::test]
    async fn bundle_has_all_data_and_lists_unreachable_nodes() {
        let node = FakeNode::start("pi1", Script::default()).await;
        let all = gather(&[node.address.clone(), "127.0.0.1:1".into()], true).await;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("b.tar.gz");
        write(&path, "bundle", &all.files).expect("it can be written");
        let file = std::fs::File::open(&path).expect("it is there");
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
        let mut found = std::collections::BTreeMap::new();
        for entry in archive.entries().expect("an archive") {
            let mut entry = entry.expect("an entry");
            let name = entry.path().expect("a name").display().to_string();
            let mut text = String::new();
            entry.read_to_string(&mut text).expect("text");
            found.insert(name, text);
        }
        for name in [
            "report.json",
            "settings.toml",
            "requests.json",
            "all-reduces.json",
            "models.json",
            "log.txt",
            "doctor.json",
        ] {
            assert!(found.contains_key(&format!("bundle/node-pi1/{name}")), "{name}: {:?}", found.keys());
        }
        assert!(found["bundle/events.txt"].contains("84.0 C"), "{}", found["bundle/events.txt"]);
        assert!(matches!(&all.missing[..], [(what, _)] if what.contains("127.0.0.1")), "{:?}", all.missing);
        let left = std::fs::read_dir(folder.path()).expect("it can be read").count();
        assert_eq!(left, 1, "no temporary file is left");
    }
}
