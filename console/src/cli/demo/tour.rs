//! `console demo --tour` without a terminal: runs the steps of the tour with real processes and prints them. Each step
//! succeeds only if its effect was observed.
use std::{collections::BTreeMap, fs, path::Path, sync::Arc, time::Duration};

use anyhow::{Context, anyhow};
use serde_json::{Value, json};
use telemetry::NodeState;
use tokio::time::{Instant, sleep};

use crate::cli::{
    Failure,
    demo::{
        Daemons,
        disturb::{Load, Slowed},
        machine::Machine,
        options,
    },
    generate::{complete, first, head},
    shared::{
        interrupts::Interrupts,
        output,
        sessions::{assign_and_tell, open},
    },
    sync,
};
use crate::{
    client::{cluster::Cluster, session::Session},
    operator::desired::DesiredTopology,
    state::tour::STEPS,
    view::format::wrap_words,
};

/// Time limit to observe the effect of a step.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval of observations.
const LOOK: Duration = Duration::from_millis(200);
/// Number of nodes of a tour.
pub(super) const NODES: usize = 4;
/// Index of the node that is throttled and slowed.
pub(super) const SLOW: usize = 1;
/// Index of the node that is killed.
pub(super) const KILLED: usize = 3;
/// Width of the printed texts, in cells.
const CELLS: usize = 100;

/// A running tour. `text`: the token ids of the first completion.
struct PrintedTour<'a> {
    daemons: &'a mut Daemons,
    machine: Machine,
    options: &'a options::Demo,
    wanted: DesiredTopology,
    text: Option<Vec<u32>>,
}

/// Creates a simulated machine for each daemon below a folder.
pub(super) fn machines(folder: &Path) -> anyhow::Result<Vec<Machine>> {
    let mut machines = Vec::with_capacity(NODES);
    for index in 0..NODES {
        let folder = folder.join(format!("machine{}", index + 1));
        let made = fs::create_dir_all(&folder).and_then(|()| Machine::make(&folder));
        machines.push(made.context("cannot create the files of a simulated machine")?);
    }
    Ok(machines)
}

/// Runs all steps. Exit code 1 if the effect of a step was not observed.
pub(super) async fn run(
    options: &options::Demo,
    model: &Path,
    daemons: &mut Daemons,
    machines: &[Machine],
    interrupts: &mut Interrupts,
) -> Result<u8, Failure> {
    let wanted = options.assignment.wanted(NODES, &model.to_string_lossy());
    let mut tour = PrintedTour { daemons, machine: machines[SLOW].clone(), options, wanted, text: None };
    let mut told: Vec<Value> = Vec::new();
    // The last one is about the keys of the dashboard.
    let steps = &STEPS[..STEPS.len() - 1];
    for (index, step) in steps.iter().enumerate() {
        let look = [step.text.to_owned(), format!("To see it: {}", step.command)];
        if !options.json {
            output::line(&format!("{} of {}  {}", index + 1, steps.len(), step.title));
            look.iter().for_each(|text| print(8, text));
        }
        let seen = match interrupts.end(tour.step(index)).await {
            Err(interrupted @ Failure::Interrupted { .. }) => return Err(interrupted),
            other => other.map_err(|failure| failure.to_string()),
        };
        let (is_seen, text) = (seen.is_ok(), seen.unwrap_or_else(|error| error));
        told.push(json!({"step": index + 1, "title": step.title, "look": look, "is_seen": is_seen, "seen": output::clean(&text)}));
        if !options.json {
            let result = if is_seen { "seen" } else { "NOT SEEN" };
            print(2, &format!("{result}: {}", output::clean(&text)));
        }
        if !is_seen {
            break;
        }
    }
    let is_whole = told.len() == steps.len() && told.iter().all(|step| step["is_seen"] == true);
    if options.json {
        output::line(&json!({"steps": told, "ok": is_whole}).to_string());
    }
    Ok(u8::from(!is_whole))
}

/// Prints a text, wrapped at words and indented.
fn print(indent: usize, text: &str) {
    for range in wrap_words(text, CELLS - indent) {
        output::line(&format!("{}{}", " ".repeat(indent), text[range].trim_end()));
    }
}

impl PrintedTour<'_> {
    /// Runs a step. Returns a description of the observed effect.
    async fn step(&mut self, index: usize) -> Result<String, Failure> {
        match index {
            0 => self.answers().await,
            1 => self.assign().await,
            2 => self.generate().await,
            3 => self.throttle().await,
            4 => self.slow_down().await,
            5 => self.lose().await,
            _ => self.recover().await,
        }
    }

    /// Polls the cluster until `look` returns a description, at most [`PATIENCE`].
    async fn until(&self, what: &str, mut look: impl FnMut(&Cluster) -> Option<String>) -> Result<String, Failure> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let cluster = Cluster::dial(self.daemons.addresses()).await;
            if let Some(seen) = look(&cluster) {
                return Ok(seen);
            }
            if Instant::now() > deadline {
                return Err(anyhow!("not observed within {} s: {what}", PATIENCE.as_secs()).into());
            }
            sleep(LOOK).await;
        }
    }

    async fn answers(&self) -> Result<String, Failure> {
        self.until("four nodes with a temperature", |cluster| {
            let warm = cluster.nodes.iter().filter_map(|node| node.report()?.health.temperature);
            let all: Vec<String> = warm.map(|celsius| celsius.to_string()).collect();
            (all.len() == NODES).then(|| format!("{NODES} nodes answer: {}", all.join(", ")))
        })
        .await
    }

    async fn sessions(&self) -> Result<Vec<Arc<Session>>, Failure> {
        open(self.daemons.addresses()).await
    }

    async fn assign(&self) -> Result<String, Failure> {
        let assigned = assign_and_tell(&self.sessions().await?, &self.wanted).await?;
        self.until("a serving topology", |cluster| {
            cluster.is_serving().then(|| format!("{} serves with epoch {}", assigned.topology.layout, assigned.epoch))
        })
        .await
    }

    /// Generates a completion on the running topology: its token ids, and a description.
    async fn ids(&self) -> Result<(Vec<u32>, String), Failure> {
        let sessions = self.sessions().await?;
        let cluster = Cluster::dial(self.daemons.addresses()).await;
        let topology =
            cluster.topology().map(|(topology, _)| topology.clone()).ok_or_else(|| anyhow!("no topology"))?;
        let head = head(&sessions, &topology).await?;
        let request = protocol::message::Generate {
            sampling: common::sampling::SamplingParameters { temperature: 0.0, ..Default::default() },
            model: Some(topology.roots().into()),
            ..self.options.sampling.request(self.options.prompt.clone(), 0)
        };
        // `run` handles the signals.
        let mut none = Interrupts::deaf();
        let done = complete(&first(&sessions, &topology, head), request, false, &mut none).await?;
        let times = &done.finished.times;
        let (ttft, rate) = (times.ttft_ms(), times.decode_tokens_per_second());
        let count = done.token_ids.len();
        Ok((done.token_ids, format!("{count} tokens, TTFT {ttft:.1} ms, {rate:.0} tokens/s")))
    }

    async fn generate(&mut self) -> Result<String, Failure> {
        let (ids, seen) = self.ids().await?;
        self.text = Some(ids);
        Ok(seen)
    }

    async fn throttle(&self) -> Result<String, Failure> {
        self.machine.play(true).context("cannot change the files of a simulated machine")?;
        self.until("pi2 reports that it is throttled", |cluster| {
            let report = cluster.nodes[SLOW].report()?;
            let words: Vec<String> = report.health.warnings().iter().map(|warning| warning.short()).collect();
            words.iter().any(|word| word == "THROTTLED").then(|| format!("{}: {}", report.name, words.join(", ")))
        })
        .await
    }

    async fn slow_down(&self) -> Result<String, Failure> {
        let pid = self.daemons.pid(SLOW).ok_or_else(|| anyhow!("pi2 is not running"))?;
        let sessions = self.sessions().await?;
        let request = self.options.sampling.request(self.options.prompt.clone(), 0);
        let request = protocol::message::Generate { max_tokens: 300, ignores_end: true, ..request };
        let _load = Load::begin(Arc::clone(&sessions[0]), request);
        let _slowed = Slowed::begin(pid);
        let deadline = Instant::now() + PATIENCE;
        let mut steps = BTreeMap::new();
        loop {
            let cluster = Cluster::dial(self.daemons.addresses()).await;
            match sync::straggler(&cluster, &mut steps).await? {
                Some((name, sentence)) if name == "pi2" => return Ok(sentence),
                _ if Instant::now() > deadline => {
                    return Err(anyhow!("not observed within {} s: pi2 is the straggler", PATIENCE.as_secs()).into());
                }
                _ => sleep(LOOK).await,
            }
        }
    }

    async fn lose(&mut self) -> Result<String, Failure> {
        self.machine.play(false).context("cannot change the files of a simulated machine")?;
        self.daemons.kill(KILLED)?;
        self.until("pi4 is lost and the others report it", |cluster| {
            let away = cluster.nodes[KILLED].answer.as_ref().err()?;
            let broken = cluster.nodes.iter().filter_map(|node| node.report());
            let fault =
                broken.filter(|report| report.state == NodeState::Faulted).find_map(|report| report.fault.clone())?;
            (fault.node == "pi4").then(|| format!("{fault}; {}", away.kind))
        })
        .await
    }

    async fn recover(&mut self) -> Result<String, Failure> {
        self.daemons.start_again(KILLED)?;
        let back = self.until("the topology serves again", |cluster| {
            let epoch = cluster.topology().and_then(|(_, reports)| Some(reports.first()?.epoch));
            cluster.is_serving().then(|| format!("all nodes serve again, epoch {}", epoch.unwrap_or_default()))
        });
        let back = back.await?;
        let (ids, _) = self.ids().await?;
        if Some(&ids) != self.text.as_ref() {
            return Err(anyhow!("{back}, but the text differs").into());
        }
        Ok(format!("{back}, and the text is the same"))
    }
}
